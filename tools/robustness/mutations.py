# ruff: noqa: E501
"""Mutation testing: `make mutations` breaks one line at a time, and expects the tests named beside it to fail.

Each mutation is made in a copy of the checkout, so that the tree itself stays as it is. A mutation that no test notices
is printed as a survivor. One that cannot be tried, since modules can no longer be imported or a test takes too long, is
not caught either: no test has judged it. In both cases the exit code is 1. tests/tools/robustness/test_mutations.py keeps the
list up to date.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

import pytest

ROOT = pathlib.Path(__file__).parents[2]
_TIMEOUT = 1200  # seconds: a mutation may make a loop endless
# What a line raises that is no longer Python, or lacks a name: any test that runs it would fail.
_BROKEN = ("ImportError", "ModuleNotFoundError", "NameError", "SyntaxError", "IndentationError")


class Mutation(NamedTuple):
    """A line's part in a file, what it becomes, and the tests that should fail then."""

    path: str
    old: str
    new: str
    tests: str


M = Mutation
_FAST, _REFERENCE, _PARITY = (
    "tests/data_gen/rules tests/data_gen/pipelines/test_fast.py",
    "tests/data_gen/pipelines/test_reference.py tests/data_gen/rules",
    "tests/data_gen/rules/test_masking_parity.py",
)
_OBJECTIVES = "tests/data_gen/rules/test_objectives.py"
_OPTIMIZERS, _TRAINING = (
    "tests/optimization/test_optimizers.py",
    "tests/pretraining/test_exact_numbers.py tests/pretraining/test_losses.py tests/pretraining/test_train_step.py",
)
_FORMATS, _EXACT = "tests/checkpoints/formats", "tests/tokenization/test_exact.py"
_SQUAD, _GRAPH = "tests/tasks/heads/test_candidates.py", "tests/export/test_graph_tokenization.py"
_SERVING, _JSON = "tests/serving/test_application.py", "tests/serving/test_json_requests.py"
_BEAM, _WORKERS = "tests/inference/test_on_beam.py", "tests/optimization/test_distribution.py"

MUTATIONS = [
    # Masking.
    M("official_bert/data/masking_rates.py", "mask: int = 80", "mask: int = 81", _REFERENCE),
    M("official_bert/data/masking_rates.py", "return self.same / rest if", "return self.random / (rest + 1) if", _REFERENCE),
    M("official_bert/data/masking_rates.py", "(self.mask + self.same) / 100", "(self.mask + self.same + 1) / 100", _PARITY),
    M("data_gen/rules/masking.py", "max(1, round(tokens * masked_lm_prob))", "max(1, int(tokens * masked_lm_prob))", _REFERENCE),
    M("data_gen/rules/masking.py", "if len(chosen) + len(word) > budget:", "if len(chosen) + len(word) > budget + 1:", _REFERENCE),
    M("data_gen/rules/masking.py", "if whole_words and candidates and (token", "if candidates and (token", _REFERENCE),
    M("data_gen/rules/masking.py", "rng.randint(0, len(vocabulary.words) - 1)", "rng.randint(1, len(vocabulary.words) - 1)", _REFERENCE),
    M("data_gen/rules/vectorized_masking.py", "candidate = (position > 0) & ", "candidate = ", _FAST),
    M("data_gen/rules/vectorized_masking.py", "np.rint(length * config.masked_lm_prob)", "np.floor(length * config.masked_lm_prob)", _FAST),
    M("official_bert/data/dynamic_masking.py", "tf.maximum(1, wanted)", "tf.maximum(2, wanted)", "tests/data " + _PARITY),
    M("official_bert/data/dynamic_masking.py", "candidate & (~_is_in(ids, continues) | (number == 1))", "candidate", "tests/data " + _PARITY),
    # Pairs and instances.
    M("data_gen/rules/instances.py", "position -= len(chunk) - cut", "position -= len(chunk) - cut - 1", _REFERENCE),
    M("data_gen/rules/instances.py", "len(chunk) == 1 or rng.random() < 0.5", "len(chunk) == 1 or rng.random() < 0.4", _REFERENCE),
    M("data_gen/rules/instances.py", "for _ in range(10):", "for _ in range(1):", _REFERENCE),
    M("data_gen/rules/instances.py", "rng.randint(2, max_tokens)", "rng.randint(3, max_tokens)", _REFERENCE),
    M("data_gen/rules/vectorized_instances.py", "is_random = end - position == 1 or next(draws) < 0.5", "is_random = next(draws) < 0.5", _FAST),
    M("data_gen/rules/vectorized_instances.py", "others += (others >= owner) & (total > 1)", "others += 0 * owner", _FAST),
    M("data_gen/rules/vectorized_instances.py", "is_swapped = random.uniform(len(starts)) < 0.5", "is_swapped = random.uniform(len(starts)) < 0.4", _OBJECTIVES),
    M("data_gen/rules/vectorized_instances.py", "begins[position] + next(targets)", "begins[position] + next(targets) + 1", _OBJECTIVES),
    M("official_bert/tokenization/pairs.py", "longer = 0 if left_a > left_b else 1", "longer = 0 if left_a >= left_b else 1", "tests/tokenization/test_pairs.py"),
    M("official_bert/tokenization/pairs.py", "(a if len(a) > len(b) else b).pop()", "(a if len(a) >= len(b) else b).pop()", "tests/tokenization/test_pairs.py"),
    M("official_bert/tokenization/pairs.py", "segment_ids += [1] * (len(b) + 1)", "segment_ids += [1] * len(b) + [0]", _REFERENCE),
    # Optimizer and schedule.
    M("official_bert/optimization/optimizers.py", "self._squares[index] + (1.0", "self._means[index] + (1.0", _OPTIMIZERS),
    M("official_bert/optimization/optimizers.py", "(1.0 - self.beta_2) * ops.square(gradient)", "(1.0 - self.beta_1) * ops.square(gradient)", _OPTIMIZERS),
    M("official_bert/optimization/optimizers.py", "beta_2: float = 0.999,\n        epsilon: float = 1e-6,\n        weight_decay_rate: float = 0.01,\n        clip_norm: float | None = 1.0,\n        name: str = \"bert_adam_w\"", "beta_2: float = 0.998,\n        epsilon: float = 1e-6,\n        weight_decay_rate: float = 0.01,\n        clip_norm: float | None = 1.0,\n        name: str = \"bert_adam_w\"", _OPTIMIZERS),
    M("official_bert/optimization/all_reduce_clip.py", "use_norm=norm)", "use_norm=2 * norm)", _OPTIMIZERS),
    M("official_bert/optimization/all_reduce_clip.py", "context.all_reduce(tf.distribute.ReduceOp.SUM, present)", "context.all_reduce(tf.distribute.ReduceOp.SUM, tf.clip_by_global_norm(present, 5.0)[0])", _OPTIMIZERS),
    M("official_bert/optimization/optimizers.py", "decay if factor == 1.0 else decay * factor", "decay", _OPTIMIZERS),
    M("official_bert/optimization/optimizers.py", "rate if factor == 1.0 else rate * factor", "rate", _OPTIMIZERS),
    M("official_bert/optimization/schedules.py", "start = 0 if self.jump else", "start = 1 if self.jump else", "tests/optimization/test_schedules.py"),
    M("official_bert/optimization/schedules.py", "self.peak * step / self.warmup_steps, rate)", "self.peak * (step + 1) / self.warmup_steps, rate)", "tests/optimization/test_schedules.py"),
    M("official_bert/optimization/schedules.py", 'ops.cast(step, "int64") >= first, schedule(step - first)', 'ops.cast(step, "int64") > first, schedule(step - first)', "tests/optimization/test_schedules.py tests/pretraining/test_resuming.py"),
    M("official_bert/optimization/loss_scale.py", "tf.where(finite, self._finite_steps", "tf.where(~finite, self._finite_steps", "tests/optimization/test_loss_scale.py " + _TRAINING),
    # Losses and the training step.
    M("official_bert/pretraining/losses.py", "/ (masked_lm_count + MASKED_LM_EPSILON)", "/ masked_lm_count", _TRAINING),
    M("official_bert/pretraining/losses.py", "MASKED_LM_EPSILON = 1e-5", "MASKED_LM_EPSILON = 1e-4", _TRAINING),
    M("official_bert/pretraining/losses.py", 'ops.sum(weights * masked_lm_loss)', "ops.sum(masked_lm_loss)", _TRAINING),
    M("official_bert/pretraining/losses.py", "ops.sum(real * next_sentence_loss)", "ops.sum(next_sentence_loss)", _TRAINING),
    M("official_bert/pretraining/corpus_initialization.py", "np.roll(line, -offset)", "np.roll(line, offset)", "tests/pretraining/test_corpus_initialization.py"),
    M("official_bert/pretraining/corpus_initialization.py", "constant_values=-1).ravel()", "constant_values=5).ravel()", "tests/pretraining/test_corpus_initialization.py"),
    M("official_bert/pretraining/corpus_initialization.py", "batch[\"masked_lm_weights\"] > 0", "batch[\"masked_lm_weights\"] > 1", "tests/pretraining/test_corpus_initialization.py"),
    M("official_bert/pretraining/corpus_initialization.py", "np.log(shares)", "np.sqrt(shares)", "tests/pretraining/test_corpus_initialization.py"),
    M("official_bert/pretraining/corpus_initialization.py", "frequencies * offset", "frequencies * -offset", "tests/pretraining/test_corpus_initialization.py"),
    M("official_bert/pretraining/corpus_initialization.py", "words[known, first:] = vectors[known]", "words[:, first:] = vectors", "tests/pretraining/test_corpus_initialization.py"),
    M("official_bert/pretraining/train_step.py", 'zlib.crc32(f"dropout/{seed}".encode())', 'zlib.crc32(b"dropout")', _TRAINING),
    M("official_bert/learning/replica_step.py", "only_if=finite if skip", "only_if=finite_loss if skip", "tests/pretraining"),
    M("official_bert/modeling/dropout.py", "of_replica * _REPLICA_FACTOR", "0 * of_replica * _REPLICA_FACTOR", "tests/modeling " + _TRAINING + " tests/finetuning/test_trainer.py"),
    M("official_bert/modeling/dropout.py", "seed & 0x7FFFFFFF", "0 * seed", "tests/modeling " + _TRAINING + " tests/finetuning/test_trainer.py"),
    # The network.
    M("official_bert/modeling/config.py", "LAYER_NORM_EPSILON = 1e-12", "LAYER_NORM_EPSILON = 1e-3", "tests/modeling"),
    M("official_bert/modeling/encoder_block.py", "-10000.0", "-1.0", "tests/modeling"),
    M("official_bert/modeling/compiled_blocks.py", "(block.attention_query, block.attention_key, ", "(block.attention_key, block.attention_query, ", "tests/modeling/test_compiled_blocks.py"),
    M("official_bert/modeling/last_block.py", "random_numbers(shape)[..., :1, :]", "random_numbers(shape)[..., 1:2, :]", "tests/modeling/test_last_block.py"),
    M("official_bert/modeling/last_block.py", "if not training or not dropout.drops", "if not dropout.drops", "tests/modeling/test_last_block.py"),
    M("official_bert/modeling/model_parts.py", "(*values, *predictions), strict", "(*values[:1] * len(values), *predictions), strict", "tests/modeling/test_rematerialization.py"),
    M("official_bert/pretraining/losses.py", "label], axis=1), total)", "label], axis=1), 0 * total)", "tests/modeling/test_compiled_blocks.py " + _TRAINING),
    M("official_bert/modeling/initialization.py", "gelu(x, approximate=True)", "gelu(x, approximate=False)", "tests/modeling"),
    # Packed records.
    M("official_bert/modeling/encoder_block.py", "ops.equal(of_queries, of_keys)", "ops.less_equal(0 * of_queries, of_keys)", "tests/pretraining/test_packed_training.py"),
    M("official_bert/modeling/embeddings.py", "if position_ids is not None:", "if False:", "tests/pretraining/test_packed_training.py"),
    M("official_bert/modeling/heads.py", "if record_starts is not None:", "if False:", "tests/pretraining/test_packed_training.py"),
    M("official_bert/data/packing.py", "fits = tf.reduce_all(free >= needed, axis=2)", "fits = free[:, :, 0] >= needed[:, :, 0]", "tests/data/test_packing.py"),
    M("official_bert/learning/replica_step.py", "lambda number, *_: number < count", "lambda number, *_: number < 1", "tests/pretraining/test_packed_training.py"),
    # Resumption.
    M("official_bert/data/input_pipeline.py", "seed + epoch * 2**32", "seed", "tests/pretraining tests/data"),
    M("official_bert/utils/resuming.py", 'field.metadata.get("free", False)', 'field.metadata.get("choices", False)', "tests/utils tests/pretraining/test_resuming.py"),
    # Names of weights.
    M("official_bert/checkpoints/formats/tf1.py", '"layer_{}_attention_key": "bert/encoder/layer_{}/attention/self/key"', '"layer_{}_attention_key": "bert/encoder/layer_{}/attention/self/value"', _FORMATS + " tests/checkpoints"),
    M("official_bert/checkpoints/formats/tf1.py", '"layer_{}_output_layer_norm": "bert/encoder/layer_{}/output/LayerNorm"', '"layer_{}_output_layer_norm": "bert/encoder/layer_{}/attention/output/LayerNorm"', _FORMATS + " tests/checkpoints"),
    M("official_bert/checkpoints/formats/tf1.py", 'TRANSPOSED = frozenset({"next_sentence/kernel", ', "TRANSPOSED = frozenset({", _FORMATS + " tests/checkpoints"),
    # WordPiece and basic tokenization.
    M("official_bert/tokenization/exact.py", "MAX_CHARACTERS_PER_WORD = 200", "MAX_CHARACTERS_PER_WORD = 100", _EXACT),
    M("official_bert/tokenization/exact.py", 'prefix = CONTINUATION if start else ""', 'prefix = CONTINUATION', _EXACT),
    M("official_bert/tokenization/exact.py", "range(min(len(word), start + self._longest), start, -1)", "range(min(len(word), start + self._longest) - 1, start, -1)", _EXACT),
    M("official_bert/tokenization/exact.py", "return result + sorted(marks, key", "return result + sorted(marks[::-1], key", _EXACT + " tests/tokenization/test_fast.py"),
    # Tokenization in the graph.
    M("official_bert/export/graph_tokenization.py", "ends_word = before & ~after", "ends_word = before", _GRAPH),
    M("official_bert/export/graph_tokenization.py", "begins = (breaks > 0) | (flags & tables.ALONE > 0)", "begins = breaks > 0", _GRAPH),
    M("official_bert/export/graph_tokenization.py", "kept = positions_of(flags & tables.SPACE == 0)", "kept = positions_of(flags >= 0)", _GRAPH),
    M("official_bert/export/graph_inputs.py", "(room + 1) // 2", "room // 2", "tests/export"),
    # Answers.
    M("official_bert/tasks/heads/candidates.py", "(lengths >= 1) & (lengths <= max_answer_length)", "(lengths >= 1) & (lengths < max_answer_length)", _SQUAD),
    M("official_bert/tasks/heads/candidates.py", "allowed = np.flatnonzero(window.has_most_context)", "allowed = np.flatnonzero(window.has_most_context + 1)", _SQUAD),
    M("official_bert/tasks/heads/candidates.py", "_score(nothing) - _score(best))", "_score(best) - _score(nothing))", _SQUAD),
    M("official_bert/tasks/heads/windows.py", "0.01", "0.1", "tests/tasks"),
    M("official_bert/tasks/heads/question_answering.py", "dict.fromkeys(_OUTPUTS, 0.5)", "dict.fromkeys(_OUTPUTS, 1.0)", "tests/tasks"),
    # Fine-tuning.
    M("official_bert/optimization/finetuning_optimizer.py", "decay ** (num_layers - block)", "decay ** (num_layers - 1 - block)", "tests/optimization/test_finetuning_optimizer.py"),
    M("official_bert/learning/batches.py", "np.random.default_rng([seed, epoch])", "np.random.default_rng([seed])", "tests/learning"),
    M("official_bert/optimization/finetuning_optimizer.py", "int(num_steps * warmup_proportion)", "int(num_steps * warmup_proportion) + 1", "tests/finetuning"),
    # Serving.
    M("official_bert/serving/batching.py", "room = self._options.max_queue - count", "room = self._options.max_queue", _SERVING),
    M("official_bert/serving/batching.py", "self._start_batches()  # those that have", "pass  # those that have", "tests/serving/test_batching.py"),
    M("official_bert/serving/batching.py", "if self._running and len(batch) < self._options.max_batch_size and left > 0:", "if len(batch) < self._options.max_batch_size and left > 0:", "tests/serving"),
    M("official_bert/serving/batching.py", "max(length, other) <= max(_SHORT, _ALIKE * min(length, other))", "length >= 0", "tests/serving"),
    M("official_bert/serving/json_requests.py", '("instances" in message) == ("inputs" in message)', '("instances" in message) and ("inputs" in message)', _JSON + " " + _SERVING),
    M("official_bert/serving/json_requests.py", "if count > options.max_instances:", "if count > options.max_instances + 1:", _JSON + " " + _SERVING),
    M("official_bert/serving/request_error.py", "if len(value) > options.max_text_bytes:", "if len(value) >= options.max_text_bytes:", _JSON + " " + _SERVING),
    # Many machines.
    M("official_bert/inference/shards.py", "lambda each: each[0] // rows_at_once)", "lambda each: number)", _BEAM),
    M("official_bert/inference/shards.py", "key=lambda piece: piece[0])", "key=lambda piece: -piece[0])", _BEAM),
    M("official_bert/inference/shards.py", "for number in range(job.num_shards) if number not in finished]", "for number in range(job.num_shards)]", _BEAM),
    M("official_bert/inference/shards.py", "if refused.number < end)", "if refused.number <= end)", _BEAM),
    M("official_bert/inference/on_beam.py", "first + refused.number, refused.reason", "refused.number, refused.reason", _BEAM),
    M("official_bert/inference/on_beam.py", "model, self.options.pooling, first)", "model, self.options.pooling)", _BEAM),
    M("official_bert/optimization/distribution.py", 'if here and hosts[index].rpartition(":")[0] != here:', "if False:", _WORKERS),
    M("official_bert/optimization/distribution.py", "index is None or not 0 <= index < len(hosts)", "index is None or not 0 <= index <= len(hosts)", _WORKERS),
    # What heads, exports and the server tell, and what padding is.
    M("official_bert/learning/loss_share.py", "is_row[:, None] * tf.cast(tf.not_equal", "tf.cast(tf.not_equal", "tests/learning/test_loss_share.py"),
    M("official_bert/learning/loss_share.py", "weights) / self._micro_batches", "weights)", "tests/learning/test_loss_share.py"),
    M("official_bert/learning/loss_share.py", '_MEANS = ("mean", "sum_over_batch_size")', '_MEANS = ("mean", "sum_over_batch_size", "sum")', "tests/learning/test_loss_share.py"),
    M("official_bert/learning/training_step.py", "if self._micro_batches == 1 else tf.Unc", "if self._micro_batches == 0 else tf.Unc", "tests/learning/test_training_step.py"),
    M("official_bert/tasks/heads/texts.py", "is_cut = whole > (room", "is_cut = whole >= (room", "tests/tasks/heads/test_texts.py"),
    M("official_bert/tasks/heads/texts.py", "np.minimum(lengths_a, room // 2)", "np.minimum(lengths_a, room // 3)", "tests/tasks/heads/test_texts.py"),
    M("official_bert/tasks/heads/texts.py", "strides = np.minimum(room, stride)", "strides = np.full_like(room, stride)", "tests/tasks/heads/test_texts.py"),
    M("official_bert/tasks/heads/texts.py", "sums / counts.reshape(-1,", "sums / np.full_like(counts, counts.max()).reshape(-1,", "tests/tasks/heads/test_texts.py"),
    M("official_bert/tasks/heads/tagging.py", "len(tokenizer.exact.tokenize(word)) > room for", "len(tokenizer.exact.tokenize(word)) >= room for", "tests/tasks/heads/test_tagging.py"),
    M("official_bert/tasks/heads/tagging.py", "min([margins[window.sentence], *margins_of_rows(rows)])", "min([math.inf, *margins_of_rows(rows)])", "tests/tasks/heads/test_tagging.py"),
    M("official_bert/tasks/heads/tagging.py", "int(np.searchsorted(starts, starts[first] + stride))", "int(np.searchsorted(starts, starts[first] + stride, side='right'))", "tests/tasks/heads/test_tagging.py"),
    M("official_bert/tasks/heads/classes.py", "float(min(np.maximum(prediction, 1.0 - prediction)))", "float(max(np.maximum(prediction, 1.0 - prediction)))", "tests/tasks/heads/test_texts.py"),
    M("official_bert/tasks/heads/choices.py", "is_cut |= len(a)", "is_cut = len(a)", "tests/tasks/heads/test_choices.py"),
    M("official_bert/tasks/heads/texts.py", "if not abs(value) <= python_data.LARGEST), None)", "if value != value), None)", "tests/tasks/heads/test_texts.py"),
    M("official_bert/export/graph_inputs.py", "    stride = tf.minimum(room, stride)\n", "    stride = stride + 0 * room\n", "tests/export/test_graph_inputs.py"),
    M("official_bert/export/graph_inputs.py", "count - tf.gather(windows.numbers, rows)", "tf.gather(windows.numbers, rows)", "tests/export/test_graph_inputs.py"),
    M("official_bert/export/graph_inputs.py", "[a < b for a, b in pairs]", "[a <= b for a, b in pairs]", "tests/export/test_graph_inputs.py"),
    M("official_bert/export/graph_answers.py", "min(top_k, len(ids))", "top_k", "tests/export/test_graph_answers.py"),
    M("official_bert/export/graph_inputs.py", "(most < count)", "(most <= count)", "tests/export/test_graph_inputs.py"),
    M("official_bert/serving/batching.py", "min(max(seconds, 1), 60)", "max(seconds, 1)", "tests/serving/test_batching.py"),
    M("official_bert/serving/batching.py", "                each.answer.cancel()\n", "                each.answer.done()\n", "tests/serving/test_batching.py"),
    M("official_bert/serving/batching.py", "last, of_late = seconds / _size(batch),", "last, of_late = seconds,", "tests/serving/test_batching.py"),
    M("official_bert/serving/batching.py", "* _size(batch) < _SHORT_SECONDS", "* len(batch) < _SHORT_SECONDS", "tests/serving/test_batching.py"),
    M("official_bert/serving/connections.py", "_let_nobody_connect(listener)\n            with", "with", "tests/serving/test_connections.py"),
    M("official_bert/serving/json_answers.py", 'name.endswith("_bytes"))', "False)", "tests/serving/test_json_answers.py"),
]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="mutate only files whose path has this in it")
    parser.add_argument("--processes", type=int, default=2, help="mutations tried at once")
    arguments = parser.parse_args()
    chosen = [each for each in MUTATIONS if arguments.only in each.path]
    since = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(arguments.processes) as pool:
        copies = [_copy_of_the_tree(pathlib.Path(folder) / str(number)) for number in range(arguments.processes)]
        caught_by = []
        for number, (mutation, verdict) in enumerate(pool.map(lambda each: _try(each, copies), chosen), start=1):
            line = f"{number}/{len(chosen)} {mutation.path}: {mutation.old!r} -> {mutation.new!r}: {verdict.text()}"
            print(line, flush=True)
            caught_by += [verdict.caught_by] if verdict.caught_by else []
        # A test that fails without a mutation as well has noticed nothing.
        broken = list(failures(copies[0], sorted(set(caught_by)))) if caught_by else []
    for test in broken:
        print(f"{test} fails without a mutation, too")
    minutes = (time.monotonic() - since) / 60
    others = len(chosen) - len(caught_by)
    print(f"{len(chosen)} mutations, {len(caught_by)} caught, {others} not, {minutes:.0f} minutes")
    return 1 if others or broken else 0


def _copy_of_the_tree(target: pathlib.Path) -> pathlib.Path:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return target


class Verdict(NamedTuple):
    """The first test that noticed a mutation, or why none could; neither where all tests pass."""

    caught_by: str = ""
    untried: str = ""

    def text(self) -> str:
        if self.caught_by:
            return f"caught by {self.caught_by}"
        return f"NOT TRIED: {self.untried}" if self.untried else "SURVIVES"


class UntriedError(Exception):
    """Tests could not be run."""


def _try(mutation: Mutation, copies: list[pathlib.Path]) -> tuple[Mutation, Verdict]:
    """Runs the tests with a mutation until one fails."""
    tree = copies.pop()
    path = tree / mutation.path
    source = path.read_text(encoding="utf-8")
    try:
        path.write_text(source.replace(mutation.old, mutation.new), encoding="utf-8")
        return mutation, judge(tree, mutation.tests.split())
    finally:
        path.write_text(source, encoding="utf-8")
        copies.append(tree)


def judge(tree: pathlib.Path, tests: list[str]) -> Verdict:
    """Returns what tests say of a tree with a mutation."""
    try:
        failed = failures(tree, ["-x", *tests])
    except UntriedError as error:
        return Verdict(untried=str(error))
    for test, reason in failed.items():
        if reason.startswith(_BROKEN):
            return Verdict(untried=f"{test}: {reason}")
        return Verdict(caught_by=test)
    return Verdict()


def failures(tree: pathlib.Path, arguments: list[str], timeout: float = _TIMEOUT) -> dict[str, str]:
    """Runs pytest in a tree; returns the names of the tests that fail, and the first line of what each says.

    Raises:
        UntriedError: the tests take too long, or modules cannot be imported.
    """
    # A summary's line is cut to the width of the terminal.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "COLUMNS": "500"}
    command = [sys.executable, "-m", "pytest", "-q", *arguments]
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, check=False, timeout=timeout
        )
    except subprocess.TimeoutExpired as error:
        raise UntriedError(f"a test did not end within {timeout:g} seconds") from error
    found = dict(re.findall(r"^(?:FAILED|ERROR) (tests/.+?)(?: - (.*))?$", done.stdout, re.MULTILINE))
    if done.returncode == pytest.ExitCode.INTERRUPTED:
        raise UntriedError("; ".join(f"{name}: {reason or 'cannot be imported'}" for name, reason in found.items()))
    if done.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise RuntimeError(f"pytest ended with {done.returncode} for {arguments}: {done.stdout[-2000:]}")
    return found


if __name__ == "__main__":
    sys.exit(main())
