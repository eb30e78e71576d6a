"""Writes text files and reads the shards of their answers."""

import pathlib
from collections.abc import Sequence

import numpy as np

from tests.make import write_rows

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
    shards = [np.load(folder / f"out-0000{number}-of-00002.npy") for number in range(2)]
    np.testing.assert_array_equal(np.concatenate(shards), np.load(folder / complete_file))
    if (folder / f"{complete_file}.tokens.jsonl").exists():
        tokens = (folder / f"{complete_file}.tokens.jsonl").read_bytes()
        assert join_shards(folder, 2, "out.npy.tokens.jsonl") == tokens
