"""Text, a vocabulary and records to measure with, from nothing but what Python carries."""

import pathlib

from data_gen.options import RecordOptions, VocabularyOptions
from data_gen.pipelines import one_machine
from data_gen.text import python_prose
from data_gen.vocabulary import learning


def write_text(folder: str) -> tuple[list[str], str, str]:
    """Gathers Python's documentation and learns 8,000 pieces; returns the sentences, the text file, the vocabulary."""
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
