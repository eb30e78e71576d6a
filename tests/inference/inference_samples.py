"""Texts, a model whose answers identify the batch that a text was in, and the shards of its answers."""

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from official_bert.inference import exports
from tests.make import write_rows, write_text


class Batches(tf.Module):
    """Returns each text, its length and the longest of its batch. It raises an error for one text."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def answer(self, text: Any) -> dict[str, Any]:
        tf.debugging.assert_none_equal(text, "refused")
        lengths = tf.strings.length(text, "UTF8_CHAR")
        longest = tf.fill(tf.shape(text), tf.reduce_max(lengths))
        return {"length": lengths, "longest": longest, "text": text, "is_truncated": lengths > 50}


def export_batches(folder: pathlib.Path) -> str:
    """Exports the model to a folder and returns its path."""
    module = Batches()
    tf.saved_model.save(module, str(folder), signatures=module.answer)
    write_text(folder / exports.METADATA_FILE, '{"inputs": ["text"], "max_seq_length": 50}')
    return str(folder)


TEXTS = ["the cat " * (number * 7 % 11) + f"sat {number}" for number in range(27)]


def write_texts(folder: pathlib.Path, texts: Sequence[str] = TEXTS) -> None:
    """Writes texts to all.jsonl, and to three files of different sizes, part0.jsonl to part2.jsonl."""
    for name, some in (("all", texts), ("part0", texts[:9]), ("part1", texts[9:11]), ("part2", texts[11:])):
        write_rows(folder / f"{name}.jsonl", ({"text": text} for text in some))


def join_shards(folder: pathlib.Path, count: int, name: str = "out.jsonl") -> bytes:
    """Returns the concatenated contents of all shards of an output file. A single shard has the plain name."""
    if count == 1:
        return (folder / name).read_bytes()
    stem, _, ending = name.partition(".")
    return b"".join((folder / f"{stem}-{i:05}-of-{count:05}.{ending}").read_bytes() for i in range(count))


def assert_shards_hold(folder: pathlib.Path, name: str, complete_file: str) -> None:
    """Asserts that two shards of vectors, concatenated, equal the complete file."""
    if not name.endswith("npy"):
        assert join_shards(folder, 2, name) == (folder / complete_file).read_bytes()
        return
    shards = [np.load(folder / name.replace(".", f"-0000{number}-of-00002.")) for number in range(2)]
    np.testing.assert_array_equal(np.concatenate(shards), np.load(folder / complete_file))
    if (folder / f"{complete_file}.tokens.jsonl").exists():
        tokens = (folder / f"{complete_file}.tokens.jsonl").read_bytes()
        assert join_shards(folder, 2, f"{name}.tokens.jsonl") == tokens
