"""The extracted text of web crawls: WARC files whose records are of type conversion, a page each."""

import io
from collections.abc import Iterator, Sequence
from typing import Any

from official_bert.errors import UserError
from official_bert.utils import streams

_COLUMNS = ("text", "url")
_LONGEST_LINE = 1 << 16  # bytes of a header
_CHUNK = 1 << 20
_END = b"\r\n\r\n"  # of a record


def rows(
    path: str, columns: Sequence[str] | None, part: tuple[int, int | None]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """As row_files.read_rows, with texts as bytes; such a file is always one part.

    Records of type warcinfo are passed over, records of other types but conversion are an error.
    """
    wanted = _COLUMNS if columns is None else columns
    if absent := [name for name in wanted if name not in _COLUMNS]:
        raise UserError(f"{path}: text of a web crawl has no column {absent[0]!r}; it has {', '.join(_COLUMNS)}")
    number = 0
    with streams.errors_explained(path, "record", lambda: number), streams.opened(path) as reader:
        while (line := reader.readline(_LONGEST_LINE)) != b"":
            position = f"record {number + 1}"
            if not line.startswith(b"WARC/"):
                raise UserError(f"{path}, {position}: expected a WARC record, received {line[:60]!r}")
            header = _header(path, position, reader)
            url = header.get("warc-target-uri", "").strip("<>")
            position += f" ({url})" if url else ""
            content = _content(path, position, header, reader)
            number += 1
            kind = header.get("warc-type")
            if kind == "warcinfo":
                continue
            if kind != "conversion":
                raise UserError(
                    f"{path}, {position}: a record of type {kind}; expected extracted text, a WET file, whose records "
                    "are of type conversion"
                )
            row = {"text": content, "url": url}
            yield position, {name: row[name] for name in wanted}


def _header(path: str, position: str, reader: io.BufferedReader) -> dict[str, str]:
    """Returns the fields of a record's header; their names are in lower case."""
    fields = {}
    while line := reader.readline(_LONGEST_LINE).decode("utf-8", "replace").rstrip("\r\n"):
        name, colon, value = line.partition(":")
        if not colon:
            raise UserError(f"{path}, {position}: expected a field of a WARC header, received {line[:60]!r}")
        fields[name.lower()] = value.strip()
    return fields


def _content(path: str, position: str, header: dict[str, str], reader: io.BufferedReader) -> bytes:
    length = header.get("content-length", "nothing")
    if not length.isascii() or not length.isdecimal():
        raise UserError(f"{path}, {position}: the Content-Length is {length[:60]}; expected a number of bytes")
    # In pieces, because a wrong length may be more than there is memory.
    left, pieces = int(length) if len(length) < 16 else 1 << 60, []
    while left and (piece := reader.read(min(left, _CHUNK))):
        left -= len(piece)
        pieces.append(piece)
    if left or reader.read(len(_END)) != _END:
        where = "the file ends before that" if left else "the record does not end there"
        raise UserError(
            f"{path}, {position}: the Content-Length is {length} bytes, but {where}; copy or download the file again"
        )
    return b"".join(pieces)
