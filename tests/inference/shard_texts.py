"""Texts in files, and the shards that are made of them."""

import pathlib

import numpy as np

from tests.make import write_rows

TEXTS = ["the cat " * (number * 7 % 11) + f"sat {number}" for number in range(27)]


def write_texts(folder: pathlib.Path, texts: list[str] = TEXTS) -> None:
    """Writes texts as one file, all.jsonl, and as three of unequal sizes, part0.jsonl to part2.jsonl."""
    for name, some in (("all", texts), ("part0", texts[:9]), ("part1", texts[9:11]), ("part2", texts[11:])):
        write_rows(folder / f"{name}.jsonl", ({"text": text} for text in some))


def joined(folder: pathlib.Path, count: int, name: str = "out.jsonl") -> bytes:
    """Returns the contents of all shards of an output file, one after the other."""
    stem, _, ending = name.rpartition(".")
    return b"".join((folder / f"{stem}-{i:05}-of-{count:05}.{ending}").read_bytes() for i in range(count))


def assert_shards_hold(folder: pathlib.Path, name: str, whole: str) -> None:
    """Asserts that both shards of an output file of vectors hold together what one file holds."""
    if name.endswith("npy"):
        shards = [np.load(folder / f"out-0000{number}-of-00002.npy") for number in range(2)]
        np.testing.assert_array_equal(np.concatenate(shards), np.load(folder / whole))
        if (folder / f"{whole}.tokens.jsonl").exists():
            tokens = [(folder / f"out-0000{number}-of-00002.npy.tokens.jsonl").read_bytes() for number in range(2)]
            assert b"".join(tokens) == (folder / f"{whole}.tokens.jsonl").read_bytes()
    else:
        assert joined(folder, 2, name) == (folder / whole).read_bytes()
