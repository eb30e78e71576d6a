"""Texts in files, and the shards that are made of them."""

import json
import pathlib

TEXTS = ["the cat " * (number * 7 % 11) + f"sat {number}" for number in range(27)]


def write_texts(folder: pathlib.Path, texts: list[str] = TEXTS) -> None:
    """Writes texts as one file, all.jsonl, and as three of unequal sizes, part0.jsonl to part2.jsonl."""
    rows = [json.dumps({"text": text}) + "\n" for text in texts]
    (folder / "all.jsonl").write_text("".join(rows))
    for number, (start, end) in enumerate([(0, 9), (9, 11), (11, len(rows))]):
        (folder / f"part{number}.jsonl").write_text("".join(rows[start:end]))


def joined(folder: pathlib.Path, count: int, name: str = "out.jsonl") -> bytes:
    """Returns the contents of all shards of an output file, one after the other."""
    stem, _, ending = name.rpartition(".")
    return b"".join((folder / f"{stem}-{i:05}-of-{count:05}.{ending}").read_bytes() for i in range(count))
