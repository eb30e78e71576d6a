"""Makes text, records and models for benchmarks from Python's own documentation and random weights."""

import dataclasses
import json
import pathlib

from data_gen.options import RecordOptions, VocabularyOptions
from data_gen.pipelines import one_machine
from data_gen.text import python_prose
from data_gen.vocabulary import learning
from official_bert.modeling.config import BertConfig
from tools.benchmarks.measuring import COMMAND, config_file, run

LABELS = ("no", "yes")


def write_text(folder: str) -> tuple[list[str], str, str]:
    """Writes Python's documentation and a vocabulary of 8,000 tokens learned from it to a folder.

    Returns:
        The sentences, the path of the text file, and the path of the vocabulary.
    """
    print("gathering text, learning a vocabulary", flush=True)
    documents, _ = python_prose.gather()
    text_file, vocab_file = f"{folder}/text.txt", f"{folder}/vocab.txt"
    pathlib.Path(text_file).write_text("\n\n".join("\n".join(document) for document in documents), encoding="utf-8")
    learned = learning.learn(VocabularyOptions(input_file=[text_file], vocab_file=vocab_file, vocab_size=8000))
    pathlib.Path(vocab_file).write_text("".join(piece + "\n" for piece in learned.pieces), encoding="utf-8")
    return [sentence for document in documents for sentence in document], text_file, vocab_file


def write_records(text_file: str, vocab_file: str, path: str) -> None:
    """Writes records of length 128 with 20 predictions."""
    one_machine.create_pretraining_data(
        RecordOptions(input_file=[text_file], output_file=[path], vocab_file=vocab_file, dupe_factor=2)
    )


def write_classifier(size: str, vocab_file: str, folder: str) -> str:
    """Writes a text classifier with random weights. Returns the path of its folder."""
    import official_bert

    vocab, path = pathlib.Path(vocab_file).read_text(encoding="utf-8"), f"{folder}/trained"
    config = dataclasses.replace(BertConfig.from_json_file(config_file(size)), vocab_size=len(vocab.splitlines()))
    official_bert.TextClassifier(config, vocab, labels=LABELS, max_seq_length=128).save_checkpoint(path)
    return path


def convert(model: str, to_format: str, folder: str) -> str:
    """Converts a model to another checkpoint format. Returns the path of the new folder."""
    path = f"{folder}/{to_format}"
    run([*COMMAND, "convert", f"--from={model}", f"--to={path}", f"--to_format={to_format}"])
    return path


def export(model: str, folder: str) -> dict[str, str]:
    """Exports a classifier as SavedModel and to ONNX, also with 8-bit matrices. Returns the folders by name."""
    examples = pathlib.Path(folder, "examples.jsonl")
    examples.write_text(json.dumps({"text": "a text", "label": LABELS[0]}) + "\n", encoding="utf-8")
    flags = {
        "SavedModel": [],
        "ONNX Runtime": ["--format=onnx"],
        # The score of random weights is of no interest.
        "ONNX Runtime, 8 bits": [
            "--format=onnx", "--quantization=dynamic_int8", f"--eval_file={examples}", "--max_loss=1",
        ],
    }  # fmt: skip
    paths = {name: f"{folder}/export{number}" for number, name in enumerate(flags)}
    for name, path in paths.items():
        run([*COMMAND, "export", f"--model_dir={model}", f"--export_dir={path}", *flags[name]])
    return paths
