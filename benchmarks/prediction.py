"""Answers to a file of texts against Hugging Face's Trainer: `python -m benchmarks.prediction`.

Both have the same weights (random ones) and texts, and write a line of JSON for each. Hugging Face's program sorts the
texts by length and pads each batch to its longest, as its users would. Each is a process of its own from its start to
its last line; they take turns, and the medians count. The answers must be equal to rounding.
"""

import dataclasses
import json
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks import corpus
from benchmarks.serving import CLOSE, NAMES, ROOT, SIZES, make_models
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


def predict(model: str, texts: str, output: str) -> None:
    """Answers as a user of Hugging Face's Trainer does: `python -m benchmarks.prediction [...]`."""
    import numpy as np
    import transformers

    transformers.logging.set_verbosity_error()
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    lines = pathlib.Path(texts).read_text(encoding="utf-8").splitlines()
    encoded = tokenizer([json.loads(line)["text"] for line in lines], truncation=True, max_length=128)["input_ids"]
    order = sorted(range(len(encoded)), key=lambda number: len(encoded[number]))
    arguments = transformers.TrainingArguments(
        output_dir=f"{output}.folder", per_device_eval_batch_size=_BATCH, report_to="none", disable_tqdm=True,
        use_cpu=True, dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = transformers.Trainer(
        model=transformers.AutoModelForSequenceClassification.from_pretrained(model), args=arguments,
        data_collator=transformers.DataCollatorWithPadding(tokenizer),
    )  # fmt: skip
    logits = trainer.predict([{"input_ids": encoded[number]} for number in order]).predictions
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    answers = np.empty_like(logits)
    answers[order] = powers / powers.sum(-1, keepdims=True)
    rows = "".join(json.dumps({"probabilities": row.tolist()}) + "\n" for row in answers)
    pathlib.Path(output).write_text(rows, encoding="utf-8")


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
                sys.executable, "-m", "batch_predict", f"--export_dir={exported}", f"--input_file={asked}",
                f"--output_file={ours}", f"--batch_size={_BATCH}",
            ]),
            "Hugging Face Trainer": (others, [
                sys.executable, "-m", "benchmarks.prediction", json.dumps([theirs, str(asked), others]),
            ]),
        }  # fmt: skip
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for number in range(options.rounds + 1):
            for name, (output, command) in commands.items():
                pathlib.Path(output).unlink(missing_ok=True)  # it would be taken for done
                seconds = _timed(command)
                if number:
                    taken[name].append(seconds)
        _check_equal(*(pathlib.Path(path).read_text(encoding="utf-8").splitlines() for path in (ours, others)))
    print(f"\n{NAMES[options.size]}, {options.rows:,} texts, medians of {options.rounds} runs\n")
    print("| | seconds | texts/s | texts/CPU-second |\n|---|---|---|---|")
    for name, several in taken.items():
        wall, cpu = (statistics.median(values) for values in zip(*several, strict=True))
        print(f"| {name} | {wall:.1f} | {options.rows / wall:,.0f} | {options.rows / cpu:,.0f} |")


def _timed(command: list[str]) -> tuple[float, float]:
    """Returns the seconds by the clock, and of processor time, of a command."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _check_equal(ours: list[str], theirs: list[str]) -> None:
    for number, (own, other) in enumerate(zip(ours, theirs, strict=True)):
        rows = json.loads(own)["probabilities"], json.loads(other)["probabilities"]
        if max(abs(a - b) for a, b in zip(*rows, strict=True)) > CLOSE:
            raise RuntimeError(f"the answers to text {number} differ: {rows}")


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].startswith("["):
        predict(*json.loads(sys.argv[1]))
    else:
        Command(
            script="benchmarks.prediction",
            summary="Answers to a file of texts against Hugging Face's Trainer",
            main=main,
            options=(Options,),
        ).run()
