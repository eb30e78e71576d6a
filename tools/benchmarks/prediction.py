"""Compares the speed of predicting a file of texts with Hugging Face: `python -m tools.benchmarks.prediction`.

All programs have the same (random) weights and texts, and write a line of JSON for each text. Hugging Face's programs
sort the texts by length and pad each batch to its longest text, as their users would. Each program runs in a separate
process, measured from its start to its end. The answers must be equal up to rounding.
"""

import dataclasses
import functools
import itertools
import json
import pathlib
import sys
import tempfile

import numpy as np

from official_bert.inference import exports
from official_bert.utils.flags import option
from tools.benchmarks import measuring, samples

_CLOSE, _INT8_CLOSE = 1e-4, 0.1  # of probabilities, also with 8-bit matrices


@dataclasses.dataclass(frozen=True)
class Options(measuring.Options):
    """The flags of the benchmark."""

    batch_size: int = option(64, "Texts in a batch.")
    rows: int = option(10000, "Number of texts.")


def predict(command: list[str], rows: int) -> measuring.Metrics:
    """Runs a program that predicts `rows` texts, and returns its metrics."""
    usage = measuring.run(command)
    return {"seconds": usage.wall, "texts/s": rows / usage.wall, "texts/CPU-s": rows / usage.cpu}


def read_answers(path: str) -> np.ndarray:
    """Returns the predicted probabilities in a file of answers [texts, classes]."""
    lines = pathlib.Path(path).read_text(encoding="utf-8").splitlines()
    return np.array([json.loads(line)["probabilities"] for line in lines])


def main(options: Options) -> None:
    with tempfile.TemporaryDirectory() as folder:
        sentences, _, vocab_file = samples.write_text(folder)
        trained = samples.write_classifier(options.size, vocab_file, folder)
        exported, theirs = samples.export(trained, folder), samples.convert(trained, "hugging_face", folder)
        texts = itertools.islice(itertools.cycle(sentences), options.rows)
        text_file = pathlib.Path(folder, "texts.jsonl")
        text_file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
        batch = str(options.batch_size)
        peer = [sys.executable, "-m", "tools.benchmarks.prediction_peer", theirs, str(text_file), batch]
        commands = {
            f"predict, {name}": [
                *measuring.COMMAND, "predict", f"--export_dir={export}", f"--input_file={text_file}",
                f"--batch_size={batch}", f"--output_file={folder}/predict, {name}",
            ]
            for name, export in exported.items()
        }  # fmt: skip
        onnx_file = f"{exported['ONNX Runtime']}/1/{exports.ONNX_FILE}"
        for name, more in (("Trainer", []), ("tokenizer, ONNX Runtime", [onnx_file])):
            commands[f"Hugging Face {name}"] = [*peer, f"{folder}/Hugging Face {name}", *more]
        programs = {name: functools.partial(predict, command, options.rows) for name, command in commands.items()}
        title = f"{options.rows:,} texts to BERT-{options.size.capitalize()}, batch {batch}"
        measuring.compare(title, programs, options.rounds, "texts/s")
        first, *rest = commands
        for name in rest:
            close = _INT8_CLOSE if "8 bits" in name else _CLOSE
            np.testing.assert_allclose(read_answers(f"{folder}/{name}"), read_answers(f"{folder}/{first}"), atol=close)


if __name__ == "__main__":
    measuring.run_benchmark(main, Options)
