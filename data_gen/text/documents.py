"""Reads text files like the original script: one sentence per line, with empty lines between documents."""

import collections
import itertools
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from official_bert.data.record_reader import track_reading
from official_bert.errors import UserError
from official_bert.utils import files, streams

Sentence = list[int]
Document = list[Sentence]


def read_lines(paths: list[str], drop_invalid_utf8: bool, counts: collections.Counter[str]) -> Iterator[str]:
    """Yields the stripped lines of UTF-8 files.

    Args:
        paths: Files, which are read in this order like a single file. As in the original, the end of a file does not
            end a document.
        drop_invalid_utf8: Whether to drop bytes that are not valid UTF-8, as the original does, instead of raising an
            error.
        counts: See `streams.decode_lines`.

    Raises:
        UserError: If a file is compressed, or a line is not UTF-8.
    """
    progress = track_reading("reading", paths)

    def read_undecoded(path: str) -> Iterator[bytes]:
        with files.explain_read_errors(path), files.open_bytes(path) as reader:
            for number, line in enumerate(reader):
                if number == 0 and streams.is_compressed(line):
                    raise UserError(
                        f"{path} is compressed, which --algorithm=reference does not support; decompress it, or pass "
                        "--algorithm=fast"
                    )
                yield line
                progress(len(line))

    for path in paths:
        # As in the original, a byte order mark is kept.
        lines = streams.decode_lines(path, read_undecoded(path), drop_invalid_utf8, at_start=False, counts=counts)
        yield from map(str.strip, lines)


def group_lines(lines: Iterable[str]) -> Iterator[list[str]]:
    """Groups stripped lines into documents, which are lists of lines. An empty line ends a document."""
    for has_text, group in itertools.groupby(lines, bool):
        if has_text:
            yield list(group)


def read_corpus(
    documents: Iterator[list[str]], encode: Callable[[list[str]], tuple[np.ndarray, np.ndarray]]
) -> list[Document]:
    """Tokenizes documents into lists of sentences, each a list of token ids. Documents without tokens are dropped.

    Args:
        documents: Documents, each a list of sentences.
        encode: The `encode` method of a tokenizer, which returns token ids and row splits.
    """
    tokenized = [[ids for line in each if (ids := encode([line])[0].tolist())] for each in documents]
    return list(filter(None, tokenized))
