"""Answers to a file of texts against Hugging Face's Trainer: `python -m benchmarks.prediction`.

Both have the same weights (random ones) and texts, and write a line of JSON for each. Hugging Face's program sorts the
texts by length and pads each batch to its longest, as its users would. Each is a process of its own from its start to
its last line; they take turns, and the medians count. The answers must be equal to rounding.
"""

import dataclasses
import json
import pathlib
import statistics
import sys
import tempfile

from benchmarks import corpus
from benchmarks.serving import CLOSE, NAMES, SIZES, make_models
from benchmarks.startup import Start, timed
from official_bert.errors import UserError
from official_bert.utils.command_line import Command
from official_bert.utils.flags import option

_BATCH = 64


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
        _, exported, theirs = make_models(options.size, pathlib.Path(vocab_file).read_text(encoding="utf-8"), folder)
        texts = [sentences[number % len(sentences)] for number in range(options.rows)]
        asked = pathlib.Path(folder, "texts.jsonl")
        asked.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
        ours, others = f"{folder}/ours.jsonl", f"{folder}/others.jsonl"
        commands = {
            "official-bert predict": (ours, [
                sys.executable, "-m", "official_bert_cli", "predict", f"--export_dir={exported}",
                f"--input_file={asked}", f"--output_file={ours}", f"--batch_size={_BATCH}",
            ]),
            "Hugging Face Trainer": (others, [
                sys.executable, "-m", "benchmarks.prediction_peer", theirs, str(asked), others, str(_BATCH),
            ]),
        }  # fmt: skip
        taken: dict[str, list[Start]] = {name: [] for name in commands}
        for number in range(options.rounds + 1):
            for name, (output, command) in commands.items():
                pathlib.Path(output).unlink(missing_ok=True)  # it would be taken for done
                start = timed(command, pathlib.Path(folder, "log"))
                if number:
                    taken[name].append(start)
        _check_equal(*(pathlib.Path(path).read_text(encoding="utf-8").splitlines() for path in (ours, others)))
    print(f"\n{NAMES[options.size]}, {options.rows:,} texts, medians of {options.rounds} runs\n")
    print("| | seconds | texts/s | texts/CPU-second |\n|---|---|---|---|")
    for name, several in taken.items():
        wall, cpu = (statistics.median(values) for values in zip(*several, strict=True))
        print(f"| {name} | {wall:.1f} | {options.rows / wall:,.0f} | {options.rows / cpu:,.0f} |")


def _check_equal(ours: list[str], theirs: list[str]) -> None:
    for number, (own, other) in enumerate(zip(ours, theirs, strict=True)):
        rows = json.loads(own)["probabilities"], json.loads(other)["probabilities"]
        if max(abs(a - b) for a, b in zip(*rows, strict=True)) > CLOSE:
            raise RuntimeError(f"the answers to text {number} differ: {rows}")


if __name__ == "__main__":
    Command(
        program="python -m benchmarks.prediction",
        summary="Answers to a file of texts against Hugging Face's Trainer",
        main=main,
        options=(Options,),
    ).run()
