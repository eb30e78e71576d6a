"""Reading text: files of sentences, a line each, with empty lines between documents."""

import itertools
from collections.abc import Callable, Iterator

import numpy as np

from official_bert.data.record_reader import reading_progress
from official_bert.errors import UserError
from official_bert.utils import files, row_files, streams

Sentence = list[int]
Document = list[Sentence]


def read_lines(paths: list[str], drop_invalid_utf8: bool) -> Iterator[str]:
    """Yields the lines of UTF-8 files, stripped of white space at both ends.

    Args:
        paths: files, read in this order as if they were one: as in the original, the end of a file does not end a
            document.
        drop_invalid_utf8: whether bytes that are not UTF-8 are dropped (as in the original) instead of an error.

    Raises:
        UserError: with file and line, for bytes that are not UTF-8; for compressed files.
    """
    progress = reading_progress("reading", paths)

    def undecoded(path: str) -> Iterator[bytes]:
        with files.explain_read_errors(path), files.open_bytes(path) as reader:
            for number, line in enumerate(reader):
                if number == 0 and streams.is_compressed(line):
                    raise UserError(
                        f"{path} is compressed, which --algorithm=reference does not read; decompress it, or take "
                        "--algorithm=fast"
                    )
                yield line
                progress(len(line))

    for path in paths:
        if kind := row_files.detect_kind(path):
            raise UserError(
                f"{path} is a {kind} file, which --algorithm=reference does not read; take --algorithm=fast"
            )
        # As in the original, a byte order mark stays.
        yield from map(str.strip, streams.decode_lines(path, undecoded(path), drop_invalid_utf8, at_start=False))


def group_lines(lines: Iterator[str]) -> Iterator[list[str]]:
    """Yields lines, as `read_lines` does, by document; an empty line ends one."""
    for has_text, group in itertools.groupby(lines, bool):
        if has_text:
            yield list(group)


def read_corpus(
    documents: Iterator[list[str]], encode: Callable[[list[str]], tuple[np.ndarray, np.ndarray]]
) -> list[Document]:
    """Returns documents, as `grouped` yields them, tokenized; none is empty.

    `encode` cuts lines as a tokenizer's method of that name.
    """
    tokenized = [[ids for line in each if (ids := encode([line])[0].tolist())] for each in documents]
    return list(filter(None, tokenized))
