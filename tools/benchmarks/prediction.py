"""Answers to a file of texts against Hugging Face: `python -m tools.benchmarks.prediction`.

All have the same weights (random ones) and texts, and write a line of JSON for each. Hugging Face's program sorts the
texts by length and pads each batch to its longest, as its users would. Each is a process of its own from its start to
its last line; they take turns, and the medians count. The answers must be equal to rounding.
"""

import dataclasses
import json
import pathlib
import statistics
import sys
import tempfile

from official_bert.errors import UserError
from official_bert.export.options import DYNAMIC_INT8, FLOAT32
from official_bert.inference import exports
from official_bert.utils.command_line import Command
from official_bert.utils.flags import option
from tools.benchmarks import corpus
from tools.benchmarks.serving import CLOSE, NAMES, SIZES, export_onnx, make_models
from tools.benchmarks.startup import Start, timed

_BATCH = 64
_EXPORTS = ("predict, a SavedModel", "predict, ONNX Runtime", "predict, ONNX Runtime with 8-bit matrices")
_PEERS = ("Hugging Face Trainer", "Hugging Face's tokenizer and ONNX Runtime")
_INT8_CLOSE = 0.1  # of probabilities, with matrices of 8 bits


@dataclasses.dataclass(frozen=True)
class Options:
    """The flags of the benchmark."""

    size: str = option("tiny", f"The model: {', '.join(NAMES)}.")
    rows: int = option(10000, "How many texts.")
    rounds: int = option(5, "How often each program runs; a first round warms up.")

    def __post_init__(self) -> None:
        if self.size not in SIZES or min(self.rows, self.rounds) < 1:
            raise UserError(
                f"--size={self.size} --rows={self.rows} --rounds={self.rounds}; give {' or '.join(SIZES)}, 1 or more, "
                "and 1 or more"
            )


def main(options: Options) -> None:
    with tempfile.TemporaryDirectory() as folder:
        sentences, _, vocab_file = corpus.write_text(folder)
        vocab = pathlib.Path(vocab_file).read_text(encoding="utf-8")
        trained, exported, theirs = make_models(options.size, vocab, folder)
        texts = [sentences[number % len(sentences)] for number in range(options.rows)]
        asked = pathlib.Path(folder, "texts.jsonl")
        asked.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
        onnx, smaller = (export_onnx(trained, texts[0], quantization) for quantization in (FLOAT32, DYNAMIC_INT8))
        outputs = {name: f"{folder}/{number}.jsonl" for number, name in enumerate((*_EXPORTS, *_PEERS))}

        def ours(name: str, export: str) -> tuple[str, list[str]]:
            return outputs[name], [
                sys.executable, "-m", "official_bert_cli", "predict", f"--export_dir={export}",
                f"--input_file={asked}", f"--output_file={outputs[name]}", f"--batch_size={_BATCH}",
            ]  # fmt: skip

        def others(name: str, *arguments: str) -> tuple[str, list[str]]:
            peer = [
                sys.executable,
                "-m",
                "tools.benchmarks.prediction_peer",
                theirs,
                str(asked),
                outputs[name],
                str(_BATCH),
            ]
            return outputs[name], [*peer, *arguments]

        commands = {name: ours(name, export) for name, export in zip(_EXPORTS, (exported, onnx, smaller), strict=True)}
        onnx_file = f"{onnx}/1/{exports.ONNX_FILE}"
        commands |= {name: others(name, *more) for name, more in zip(_PEERS, ([], [onnx_file]), strict=True)}
        taken: dict[str, list[Start]] = {name: [] for name in commands}
        for number in range(options.rounds + 1):
            for name, (output, command) in commands.items():
                pathlib.Path(output).unlink(missing_ok=True)  # it would be taken for done
                start = timed(command, pathlib.Path(folder, "log"))
                if number:
                    taken[name].append(start)
        answers = [pathlib.Path(path).read_text(encoding="utf-8").splitlines() for path in outputs.values()]
        for others_answers, close in zip(answers[1:], (CLOSE, _INT8_CLOSE, CLOSE, CLOSE), strict=True):
            _check_equal(answers[0], others_answers, close)
    print(f"\n{NAMES[options.size]}, {options.rows:,} texts, medians of {options.rounds} runs\n")
    print("| | seconds | texts/s | texts/CPU-second |\n|---|---|---|---|")
    for name, several in taken.items():
        wall, cpu = (statistics.median(values) for values in zip(*several, strict=True))
        print(f"| {name} | {wall:.1f} | {options.rows / wall:,.0f} | {options.rows / cpu:,.0f} |")


def _check_equal(ours: list[str], theirs: list[str], close: float) -> None:
    for number, (own, other) in enumerate(zip(ours, theirs, strict=True)):
        rows = json.loads(own)["probabilities"], json.loads(other)["probabilities"]
        if max(abs(a - b) for a, b in zip(*rows, strict=True)) > close:
            raise RuntimeError(f"the answers to text {number} differ: {rows}")


if __name__ == "__main__":
    Command(
        program="python -m tools.benchmarks.prediction",
        summary="Answers to a file of texts against Hugging Face's Trainer",
        main=main,
        options=(Options,),
    ).run()
