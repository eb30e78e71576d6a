"""Measures speed, each thing against a peer in turn in one run: `make bench`. Machines differ; the ratios less so.

`python -m benchmarks.bench --text='text/*' --vocab_file=vocab.txt --dupe_factor=10` measures how records are made from
much text of your own, and nothing else.
"""

import dataclasses
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from official_bert import command_line, distribution, files, manifest, records
from data_gen import learn_vocabulary, pipeline, python_docs

# isort: split
import keras
import keras_hub
import tensorflow as tf
import tensorflow_text

from official_bert.command_line import option
from official_bert.config import BertConfig
from official_bert.errors import UserError
from official_bert.fast_tokenization import FastTokenizer
from official_bert.input_pipeline import training_batches
from official_bert.optimization import WarmupPolynomialDecay
from official_bert.pretrainer import Pretrainer
from official_bert.tokenization import FullTokenizer

ROOT = pathlib.Path(__file__).parent.parent
ROUNDS = 5


def in_turn(candidates: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Returns the median seconds of each, measured in turn in several rounds, after one round to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(ROUNDS + 1):
        for name, run in candidates.items():
            start = time.perf_counter()
            run()
            if number:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def table(title: str, unit: str, amount: float, seconds: dict[str, float]) -> None:
    """Prints rates, and ratios to the first row."""
    first = next(iter(seconds.values()))
    print(f"\n{title}\n")
    print(f"| | {unit} | ratio |\n|---|---|---|")
    for name, value in seconds.items():
        print(f"| {name} | {amount / value:,.0f} | {first / value:.2f} |")


# As flags: the reference algorithm holds all instances in memory, so that much text is left to the fast one.
FAST = {"fast, 1 worker": ["--num_workers=1"], "fast, 2 workers": ["--num_workers=2"]}
ALGORITHMS = {"reference": ["--algorithm=reference"], **FAST}


def bench_records(
    inputs: list[str], vocab_file: str, folder: str, dupe_factor: int, variants: dict[str, list[str]]
) -> dict[str, int]:
    """The command, with the flags of each variant; returns how many instances each made.

    Time and memory are those of whole processes and all their children: the imports, two to four seconds, are in them.
    """
    megabytes = sum(map(files.size, inputs)) / 1e6
    print(f"\nRecords from {megabytes:.1f} MB of text, dupe_factor {dupe_factor}, length 128\n")
    print(
        "| | instances/s | instances/CPU-second | ratio | MB of text/s | peak memory, MB |\n|---|---|---|---|---|---|"
    )
    first = None
    made = {}
    for number, (name, flags) in enumerate(variants.items()):
        output = f"{folder}/{number}/out.tfrecord"
        command = [
            sys.executable, "-m", "data_gen.create_pretraining_data", f"--input_file={','.join(inputs)}",
            f"--output_file={output}", f"--vocab_file={vocab_file}", f"--dupe_factor={dupe_factor}", *flags,
        ]  # fmt: skip
        start, before = time.perf_counter(), os.times()
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        peak = peak_memory(process)
        seconds, after = time.perf_counter() - start, os.times()
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} ended with code {process.returncode}")
        cpu = after.children_user + after.children_system - before.children_user - before.children_system
        described = manifest.Manifest.read(manifest.manifest_path(output.removesuffix(".tfrecord")))
        instances = made[name] = described.statistics["instances"]
        first = first or instances / cpu
        print(
            f"| {name} | {instances / seconds:,.0f} | {instances / cpu:,.0f} | {instances / cpu / first:.1f} "
            f"| {megabytes / seconds:.1f} | {peak / 1e6:,.0f} |",
            flush=True,
        )
    return made


def peak_memory(process: subprocess.Popen[bytes]) -> int:
    """Waits for the process; returns the most memory, in bytes, that it and its children took together.

    Pages that several share are counted once (proportional set size, from Linux' /proc).
    """
    peak = 0
    while process.poll() is None:
        total = 0
        for rollup in pathlib.Path("/proc").glob("[0-9]*/smaps_rollup"):
            try:
                parent = re.search(r"^PPid:\s+(\d+)", (rollup.parent / "status").read_text(), re.MULTILINE)
                if str(process.pid) in (rollup.parent.name, parent and parent.group(1)):
                    share = re.search(r"^Pss:\s+(\d+)", rollup.read_text(), re.MULTILINE)
                    total += int(share.group(1)) * 1024 if share else 0
            except OSError:
                continue  # it has ended meanwhile
        peak = max(peak, total)
        time.sleep(0.05)
    return peak


def bench_tokenization(text: list[str], vocab_file: str) -> None:
    """The exact tokenizer against tensorflow-text's two, which differ from it on some characters."""
    exact = FullTokenizer(vocab_file)
    # On every run another tokenizer, so that words are not found in the cache of the run before.
    plain = tensorflow_text.BertTokenizer(vocab_file, lower_case=True)
    pieces = list(exact.vocab)
    fast = tensorflow_text.FastBertTokenizer(pieces, lower_case_nfd_strip_accents=True)
    lines = tf.constant(text)

    def run_exact() -> None:
        tokenizer = FullTokenizer(vocab_file)
        for line in text:
            tokenizer.tokenize(line)

    ours = FastTokenizer(vocab_file)
    seconds = in_turn(
        {
            "tensorflow-text BertTokenizer (other rules)": lambda: plain.tokenize(lines),
            "tensorflow-text FastBertTokenizer (other rules)": lambda: fast.tokenize(lines),
            "official_bert FullTokenizer": run_exact,
            "official_bert FastTokenizer (equal to it)": lambda: ours.encode(text),
        }
    )
    table("Tokenization, English, one process", "kB/s", sum(len(line) for line in text) / 1e3, seconds)


class KerasHubPeer:
    """keras-hub's BERT with its masked-LM head, trained by Keras: no next-sentence prediction, drop-out the same."""

    def __init__(self, config: BertConfig, length: int) -> None:
        backbone = keras_hub.models.BertBackbone(
            vocabulary_size=config.vocab_size,
            num_layers=config.num_hidden_layers,
            num_heads=config.num_attention_heads,
            hidden_dim=config.hidden_size,
            intermediate_dim=config.intermediate_size,
            dropout=config.hidden_dropout_prob,
            max_sequence_length=length,
        )
        self.model = keras_hub.models.BertMaskedLM(backbone)
        self.model.compile(
            optimizer=keras.optimizers.AdamW(1e-4, global_clipnorm=1.0),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )

    def run(self, batches: tf.data.Dataset, steps: int) -> None:
        def rename(batch: dict[str, tf.Tensor]) -> tuple[object, ...]:
            inputs = {
                "token_ids": batch["input_ids"],
                "padding_mask": batch["input_mask"],
                "segment_ids": batch["segment_ids"],
                "mask_positions": batch["masked_lm_positions"],
            }
            return inputs, batch["masked_lm_ids"], batch["masked_lm_weights"]

        self.model.fit(batches.map(rename).take(steps), epochs=1, verbose=0)


def bench_training(paths: list[str], config: BertConfig, name: str, length: int, predictions: int, batch: int) -> None:
    """A pre-training step in each of our ways, against keras-hub's."""
    schema = records.pretraining_schema(length, predictions)
    steps = 10

    def ours(**settings: object) -> Callable[[], object]:
        strategy = distribution.get_strategy("one_device")
        pretrainer = Pretrainer(config, strategy, WarmupPolynomialDecay(1e-4, 1000), 1, **settings)  # type: ignore[arg-type]
        data = training_batches(paths, batch, schema, seed=1)
        batches = iter(strategy.experimental_distribute_dataset(data))
        return lambda: pretrainer.train(batches, steps)

    peer = KerasHubPeer(config, length)
    seconds = in_turn(
        {
            "keras-hub BertMaskedLM, fit (no next-sentence prediction)": lambda: peer.run(
                training_batches(paths, batch, schema, seed=1), steps
            ),
            "run_pretraining": ours(),
            "run_pretraining --jit_compile": ours(jit_compile=True),
            "run_pretraining --dtype=bfloat16": ours(dtype="mixed_bfloat16"),
        }
    )
    table(f"Pre-training, {name}, length {length}, batch {batch}", "examples/s", steps * batch, seconds)


@dataclasses.dataclass(frozen=True)
class Options:
    """What the benchmark is told."""

    text: list[str] = option(
        [], "Text files or glob patterns, to measure how records are made from them, and nothing else."
    )
    vocab_file: str | None = option(None, "The vocabulary, with --text.")
    dupe_factor: int = option(5, "How often the text is used.")

    def __post_init__(self) -> None:
        if bool(self.text) != bool(self.vocab_file):
            raise UserError("--text and --vocab_file go together; give both, or neither to measure everything")


def main(_: list[str]) -> None:
    options = command_line.read(Options)
    with tempfile.TemporaryDirectory() as folder:
        if options.vocab_file:
            inputs = list(map(os.path.abspath, files.expand(options.text, "text")))
            bench_records(inputs, os.path.abspath(options.vocab_file), folder, options.dupe_factor, FAST)
        else:
            bench_everything(folder, options.dupe_factor)


def bench_everything(folder: str, dupe_factor: int) -> None:
    """Gathers text and measures what this file can, with nothing but what Python and this package carry."""
    print("gathering text, learning a vocabulary, writing records", flush=True)
    documents, _ = python_docs.gather()
    text_file, vocab_file, record_file = (f"{folder}/{name}" for name in ("text.txt", "vocab.txt", "records"))
    text = [sentence for document in documents for sentence in document]
    pathlib.Path(text_file).write_text("\n\n".join("\n".join(document) for document in documents))
    learned = learn_vocabulary.learn(
        learn_vocabulary.Options(input_file=[text_file], vocab_file=vocab_file, vocab_size=8000)
    )
    pathlib.Path(vocab_file).write_text("".join(piece + "\n" for piece in learned.pieces))
    inputs = [shutil.copy(text_file, f"{folder}/copy{number}.txt") for number in range(10)]
    bench_records(inputs, vocab_file, folder, dupe_factor, ALGORITHMS)
    pipeline.create_pretraining_data(
        pipeline.Options(input_file=[text_file], output_file=[record_file], vocab_file=vocab_file, dupe_factor=5)
    )
    bench_tokenization(text, vocab_file)
    path = ROOT / "configs" / "models" / "uncased_L-2_H-128_A-2.json"
    config = BertConfig.from_json_file(str(path))
    bench_training([record_file], config, "BERT-Tiny", 128, 20, 32)
    small_vocabulary = dataclasses.replace(config, vocab_size=8000, num_hidden_layers=4, hidden_size=256,
                                           num_attention_heads=4, intermediate_size=1024)  # fmt: skip
    bench_training([record_file], small_vocabulary, "BERT-Mini with 8,000 pieces", 128, 20, 32)


if __name__ == "__main__":
    command_line.define(Options)
    command_line.run(main)
