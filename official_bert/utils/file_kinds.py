"""Recognizes kinds of files by their first bytes, for errors about a file of the wrong kind."""

import re
import shlex

from official_bert.errors import UserError

START = 1000  # bytes to inspect
TFRECORD, WEB_ARCHIVE = "a TFRecord file", "a web archive"

_KINDS = {
    "a Parquet file": rb"PAR1",
    "an Arrow file": rb"ARROW1\0\0|\xff{4}",
    WEB_ARCHIVE: rb"WARC/",
    "an HDF5 file": rb"\x89HDF",
    "a PDF document": rb"%PDF-",
    "a zip archive (as .xlsx, .keras and PyTorch files are)": rb"PK\x03\x04",
    "a compressed file": rb"\x1f\x8b|BZh[1-9]1AY&SY|\xfd7zXZ\0|\x28\xb5\x2f\xfd",
    "a safetensors file": rb'.{5}\0{3}\{"\w',
    TFRECORD: rb".{4}\0{4}.{4}",  # the upper half of a record's length
}


def describe(start: bytes) -> str | None:
    """Returns what a file is, such as "a zip archive", judging by its first bytes. None if they match no known kind."""
    return next((kind for kind, pattern in _KINDS.items() if re.match(pattern, start, re.DOTALL)), None)


def check_text(path: str, start: bytes) -> None:
    """Raises a UserError if the first bytes of a file show that it is not UTF-8 text.

    UTF-16 is recognized by its byte order mark or by more than 25 % zero bytes. ASCII text in UTF-16 without a mark
    needs this check, because it is valid UTF-8: the zero bytes are characters that tokenizers drop.

    Args:
        path: The file, for error messages.
        start: Its first bytes.
    """
    start = start[:START]
    if kind := describe(start):
        raise UserError(f"{path} is {kind}; expected text in UTF-8")
    if start.startswith((b"\xff\xfe", b"\xfe\xff")) or start.count(0) * 4 > len(start):
        what, encoding = f"byte 0x{start[0]:02x} is not UTF-8", "UTF-16"
        if start[0] < 0xFE:
            what = "every other byte is zero"
            encoding = "UTF-16LE" if start[1::2].count(0) > start[::2].count(0) else "UTF-16BE"
        raise UserError(
            f"{path}, line 1: {what}; convert the file to UTF-8, as by: iconv -f {encoding} -t UTF-8 "
            f"{shlex.quote(path)} > NEW_FILE"
        )
