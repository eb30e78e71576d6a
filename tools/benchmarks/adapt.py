"""What adapting is worth: a small model of encyclopedia text learns Python's documentation.

`python -m tools.benchmarks.adapt --general_file='wiki/*' --output_dir=adapt` pre-trains BERT-Tiny's shape on that text,
adapts it to the documentation that every Python installation carries, without and with new words, and trains the same
model from random weights on the same records for many times the steps. Then it fine-tunes each on a task of the domain:
which module a sentence of documentation is from. Given again, it skips what is done. Each command is printed.
"""

import collections
import csv
import dataclasses
import json
import os
import shlex
import statistics
import subprocess
import sys
import time
import zlib
from typing import Any

from adaptation import texts
from adaptation.report import Adaptation
from data_gen.text import python_prose
from official_bert.modeling.config import BertConfig
from official_bert.utils import files
from official_bert.utils.command_line import Command
from official_bert.utils.flags import option
from official_bert.utils.training_log import EVAL, read_log

_CONFIG = "configs/cpu_10_minutes.json"
_PIECES = 4000
_SHORT = ["--max_seq_length=16", "--max_predictions_per_seq=4"]
_LONG = ["--max_seq_length=32", "--max_predictions_per_seq=5"]
_PRETRAINING = [
    "--do_train",
    f"--bert_config_file={_CONFIG}",
    "--vocab_size_from_vocab",
    "--jit_compile",
    "--nowarmup_jump",
    "--train_batch_size=32",
]
_FEWEST, _MOST = 80, 200  # sentences of a module to be a class of the task


@dataclasses.dataclass(frozen=True)
class Options:
    """The flags of the benchmark."""

    general_file: list[str] = option(dataclasses.MISSING, "Encyclopedia text to pre-train on.")
    output_dir: str = option(dataclasses.MISSING, "Folder of all runs.")
    short_steps: int = option(1500, "Steps of pre-training on sequences of 16 tokens.")
    long_steps: int = option(400, "Steps of pre-training on sequences of 32 tokens after that.")
    adapt_steps: int = option(150, "Steps of adapting.")
    random_times: int = option(10, "How many times these steps are taken from random weights.")
    new_words: int = option(300, "Words that are added.")
    random_seeds: list[str] = option(["1", "2", "3"], "A fine-tuning with each.")


def main(options: Options) -> None:
    start = _pretrained(options)
    adapted, with_words, random = (os.path.join(options.output_dir, name) for name in ("adapted", "words", "random"))
    flags = _adaptation_flags(options)
    rate = ["--learning_rate=5e-4"]
    _run(adapted, "adapt", f"--init={start}", *flags, *rate, f"--num_train_steps={options.adapt_steps}")
    _run(with_words, "adapt", f"--init={start}", *flags, *rate, f"--num_train_steps={options.adapt_steps}",
         f"--new_words={options.new_words}")  # fmt: skip
    steps = options.random_times * options.adapt_steps
    _run(random, "adapt", f"--init={_random_weights(options)}", *flags, "--learning_rate=1e-3",
         f"--num_train_steps={steps}", f"--eval_steps={max(1, options.adapt_steps // 2)}")  # fmt: skip
    print(f"\n{_table(adapted, with_words)}\n\n{_steps(adapted, random)}")
    print(f"\n{_task_table(options, {'plain': start, 'adapted': adapted, 'adapted with words': with_words})}")


def _pretrained(options: Options) -> str:
    """Pre-trains on the general text, as the quickstart does: on short sequences first."""

    def path(name: str) -> str:
        return os.path.join(options.output_dir, name)

    text = f"--input_file={','.join(options.general_file)}"
    vocab = f"--vocab_file={path('vocab.txt')}"
    _run(path("vocabulary"), "learn-vocabulary", text, vocab, f"--vocab_size={_PIECES}", output=False)
    _run(path("records16"), "make-records", text, vocab, *_SHORT, "--masked_lm_prob=0.25", "--dupe_factor=1",
         f"--output_file={path('short.tfrecord')}", output=False)  # fmt: skip
    _run(path("records32"), "make-records", text, vocab, *_LONG, "--dupe_factor=1",
         f"--output_file={path('long.tfrecord')}", output=False)  # fmt: skip
    _run(path("start16"), "pretrain", *_PRETRAINING, *_SHORT, vocab, f"--input_file={path('short.tfrecord')}",
         f"--num_train_steps={options.short_steps}", "--learning_rate=6e-4", "--end_learning_rate=6e-4",
         "--num_warmup_steps=300", "--nonext_sentence_prediction")  # fmt: skip
    _run(path("start"), "pretrain", *_PRETRAINING, *_LONG, vocab, f"--input_file={path('long.tfrecord')}",
         f"--init_checkpoint={path('start16')}", f"--num_train_steps={options.long_steps}", "--learning_rate=1e-3",
         "--num_warmup_steps=100")  # fmt: skip
    return path("start")


def _adaptation_flags(options: Options) -> list[str]:
    text, heldout = (os.path.join(options.output_dir, name) for name in ("docs.txt", "more_docs.txt"))
    done = os.path.join(options.output_dir, "docs")
    _run(done, "python-docs", f"--output_file={text}", f"--heldout_file={heldout}", output=False)
    general = options.general_file[0] if len(options.general_file) == 1 else ",".join(options.general_file)
    return [f"--input_file={text},{heldout}", f"--general_file={general}", *_LONG, "--do_whole_word_mask"]


def _random_weights(options: Options) -> str:
    """Writes random weights, as pre-training begins with."""
    from adaptation import weights
    from official_bert.checkpoints.checkpoint import Checkpoint

    folder = os.path.join(options.output_dir, "random_weights")
    if not files.exists(folder):
        vocab = files.read_text(os.path.join(options.output_dir, "vocab.txt"))
        config = dataclasses.replace(BertConfig.from_json_file(_CONFIG), vocab_size=len(vocab.split()))
        weights.write(Checkpoint(config, {}, vocab), 1, folder)
    return folder


def _run(folder: str, command: str, *flags: str, output: bool = True) -> None:
    """Runs a command, unless it was done, and keeps what it took; with `output` the folder is its --output_dir."""
    done = f"{folder}.json"
    if files.exists(done):
        return
    line = ["official-bert", command, *flags, *([f"--output_dir={folder}"] if output else [])]
    print(shlex.join(line), flush=True)
    since, before = time.monotonic(), os.times()
    subprocess.run([sys.executable, "-m", "official_bert_cli", *line[1:]], check=True)
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    files.write_text(done, json.dumps({"seconds": time.monotonic() - since, "processor_seconds": cpu}))


def _table(adapted: str, with_words: str) -> str:
    """The rows plain, adapted, adapted with words; each loss by character is that of the text of one tokenizer."""
    lines = [
        "| | domain loss a character | general loss a character | tokens a word | processor seconds |",
        "|---|---|---|---|---|",
    ]
    for title, folder, when in (
        ("plain", adapted, "before"),
        ("adapted", adapted, "after"),
        ("adapted with words", with_words, "after"),
    ):
        result = Adaptation.read(folder)
        facts = texts.read(os.path.join(folder, "adaptation", "texts"))
        words = files.read_json_object(os.path.join(folder, "adaptation", "words.json"))
        assert result.general is not None
        domain = getattr(result.domain, when) * words[f"heldout_{when}"] / facts.heldout_characters
        general = getattr(result.general, when) * words[f"general_{when}"] / facts.general_heldout_characters
        pieces = getattr(result.tokens_per_word, when)
        seconds = files.read_json_object(f"{folder}.json")["processor_seconds"] if when == "after" else 0.0
        lines.append(f"| {title} | {domain:.4f} | {general:.4f} | {pieces:.3f} | {seconds:.0f} |")
    return "\n".join(lines)


def _steps(adapted: str, random: str) -> str:
    """After how many steps from random weights the loss is the adapted model's."""
    reached = read_log(adapted, EVAL)[-1]
    losses = {line["step"]: line["masked_lm_loss"] for line in read_log(random, EVAL)}
    first = next((step for step, loss in losses.items() if loss <= reached["masked_lm_loss"]), None)
    best = min(losses, key=losses.__getitem__)
    needs = f"at step {first:,}" if first else f"in none of {max(losses):,} steps (best {losses[best]:.4f} at {best:,})"
    return (
        f"adapted: loss {reached['masked_lm_loss']:.4f} after {reached['step']:,} steps; from random weights that is "
        f"reached {needs}"
    )


def _task_table(options: Options, models: dict[str, str]) -> str:
    """Fine-tunes each model to tell which module a sentence of documentation is from."""
    train, dev = _task_files(options)
    lines = ["| | accuracy |", "|---|---|"]
    for title, model in models.items():
        scores = []
        for seed in options.random_seeds:
            folder = os.path.join(options.output_dir, "task", f"{os.path.basename(model)}-{seed}")
            _run(folder, "finetune", "--task=table", f"--train_file={train}", f"--eval_file={dev}", f"--init={model}",
                 "--text_column=text", "--label_column=module", "--do_train", "--do_eval", "--max_seq_length=32",
                 "--learning_rate=5e-4", "--num_train_epochs=3", f"--random_seed={seed}")  # fmt: skip
            scores.append(_accuracy(folder))
        deviation = f" ± {100 * statistics.stdev(scores):.1f}" if len(scores) > 1 else ""
        lines.append(f"| {title} | {100 * statistics.fmean(scores):.1f}{deviation} |")
    return "\n".join(lines)


def _task_files(options: Options) -> tuple[str, str]:
    """Writes sentences of docstrings with their modules: a fifth of each module's to evaluate on."""
    sentences: dict[str, list[str]] = collections.defaultdict(list)
    for name, text in python_prose.docstring_documents():
        module = name.split(os.sep)[0].removesuffix(".py")
        sentences[module] += list(dict.fromkeys(python_prose.sentences(text)))
    rows: dict[str, list[tuple[str, str]]] = {"train": [], "dev": []}
    for module, some in sorted(sentences.items()):
        for sentence in some[:_MOST] if len(some) >= _FEWEST else []:
            rows["dev" if zlib.crc32(sentence.encode()) % 5 == 0 else "train"].append((sentence, module))
    paths = {part: os.path.join(options.output_dir, f"modules_{part}.csv") for part in rows}
    for part, path in paths.items():
        with open(path, "w", encoding="utf-8", newline="") as writer:
            csv.writer(writer).writerows([("text", "module"), *rows[part]])
    return paths["train"], paths["dev"]


def _accuracy(folder: str) -> float:
    results: dict[str, Any] = files.read_json_object(os.path.join(folder, "results.json"))
    return float(results["dev"]["accuracy"])


if __name__ == "__main__":
    summary = "What adapting is worth."
    Command(program="python -m tools.benchmarks.adapt", summary=summary, main=main, options=(Options,)).run()
