"""Reading text as people have it: several formats, compressed or not, local or remote, a document at a time.

sentences      a sentence per line, empty lines between documents: the original's format.
paragraphs     a paragraph per line, empty lines between documents.
wikiextractor  WikiExtractor's output: <doc ...>, the title, a paragraph per line, </doc>. The title is left out, as
               BERT's authors kept "only the text passages" of Wikipedia (section 3.1 of the paper).
jsonl          a JSON object per line, each a document; the lines of its text field are paragraphs.

Paragraphs are cut into sentences by the rules of their language. Compression (gzip, bzip2, Zstandard) is recognised by
a file's first bytes, whatever its name.
"""

import bz2
import collections
import gzip
import io
import itertools
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import sentencex
import zstandard

from official_bert import files
from official_bert.errors import UserError

FORMATS = ("auto", "sentences", "paragraphs", "wikiextractor", "jsonl")

Document = list[str]

_BLOCK = 1 << 18  # bytes read at once
_COMPRESSED_BLOCK = 1 << 14  # bytes decompressed at once; smaller, as they can grow a thousandfold
_HEAD = 1 << 20  # bytes (and, of a single line, characters) that the format is found out from

_GZIP = re.compile(rb"\x1f\x8b")
_BZIP2 = re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)")  # the second: an empty stream
_ZSTANDARD = re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18")  # the second: a frame to be skipped, as of pzstd

# A paragraph that holds no sentence boundary within this many characters is tried again with twice as many. Without
# a window the cutter needs quadratic time, and an unpaired quotation mark hides all boundaries up to the end.
_WINDOW = 20_000

# The cutter panics on some of these before a period ("Plan B\u00a0."); for BERT's tokenizer all are a space.
_WIDE_SPACE = re.compile("[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")

# What str.splitlines knows beside "\n", as BERT's tokenizer takes it: white space, or control characters to be dropped.
_INNER_BREAKS = str.maketrans(dict.fromkeys("\r\u2028\u2029", " ") | dict.fromkeys("\v\f\x1c\x1d\x1e\x85", ""))

_DOC_TITLE = re.compile(r'\btitle="(.*)"')  # greedy: titles may hold quotation marks
_OBJECT_START = re.compile(r'\{\s*("|\}|$)')
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[a-z]+)*")


def read_documents(
    path: str, format: str = "auto", language: str = "en", json_field: str = "text", drop_invalid_utf8: bool = False
) -> Iterator[Document]:
    """Yields the documents of a file, each a list of sentences; neither is ever empty, no sentence holds a line break.

    One document is in memory at a time.

    Args:
        path: a local file, or one with "://" on a file system that TensorFlow or, failing that, fsspec knows.
        format: one of `FORMATS`; "auto" is as `found_format` says.
        language: the code (ISO 639) of the language whose rules cut paragraphs into sentences; general rules serve
            for languages without their own.
        json_field: the field that holds the text, for "jsonl".
        drop_invalid_utf8: whether what is not UTF-8 is dropped instead of being an error.

    Raises:
        UserError: at once, for an unknown format or something that is no language code; while reading, with file and
            line (of the decompressed text), for text that is not UTF-8 or not of the format; for a file that is
            missing, unreadable, truncated or corrupt.
    """
    if format not in FORMATS:
        raise UserError(f"there is no text format {format!r}; expected one of {', '.join(FORMATS)}")
    _check_language(language)
    return _documents(path, format, language, json_field, drop_invalid_utf8)


def found_format(path: str, language: str = "en") -> str:
    """Returns the format that "auto" stands for, found out from the first megabyte of the (decompressed) file.

    By the first line that is not empty, "wikiextractor" if it starts with "<doc ", "jsonl" if it starts like a JSON
    object. Else by all lines: "paragraphs" if more than half of the text (in characters) stands on lines that the
    cutter finds several sentences in, otherwise "sentences". (Characters, as headings and other short lines can
    outnumber the paragraphs. Half, as text cut into sentences by other rules than ours stays below a quarter, prose in
    paragraphs is above two thirds.)

    Args:
        path: as for `read_documents`.
        language: as for `read_documents`.

    Raises:
        UserError: the file is missing, unreadable, truncated or corrupt, or the language is no language code.
    """
    _check_language(language)
    return _format_of(_head(_lines(path)), language)


def told(formats: list[str]) -> str:
    """Returns which formats text files were found to have, in words."""
    counts = collections.Counter(formats)
    return "format of the text: " + ", ".join(f"{name} ({count} files)" for name, count in counts.items())


def is_compressed(start: bytes) -> bool:
    """Whether a file that starts with these ten bytes, or all that it has, is compressed in a way that is read."""
    return any(kind.match(start) for kind in (_GZIP, _BZIP2, _ZSTANDARD))


def _check_language(language: str) -> None:
    # The cutter itself takes anything and falls back on general rules.
    if not _LANGUAGE.fullmatch(language):
        raise UserError(f"{language!r} is not a language code; expected one in lower case such as en, de or zh")


def _documents(path: str, format: str, language: str, json_field: str, drop_invalid_utf8: bool) -> Iterator[Document]:
    lines = _lines(path)
    if format == "auto":
        # The head is kept rather than read again: the file may be a pipe.
        head = _head(lines)
        format = _format_of(head, language)
        lines = itertools.chain(head, lines)
    texts = _decoded(path, lines, drop_invalid_utf8)
    cut = partial(_cut, language=language)
    if format == "sentences":
        yield from _from_sentences(texts)
    elif format == "paragraphs":
        yield from _from_paragraphs(texts, cut)
    elif format == "wikiextractor":
        yield from _from_wikiextractor(path, texts, cut)
    else:
        yield from _from_jsonl(path, texts, cut, json_field, drop_invalid_utf8)


def _head(lines: Iterator[bytes]) -> list[bytes]:
    """Returns the first lines, up to a megabyte or the end of the line that passes it."""
    head, size = [], 0
    for line in lines:
        head.append(line)
        size += len(line)
        if size >= _HEAD:
            break
    return head


def _format_of(head: list[bytes], language: str) -> str:
    texts = [line[:_HEAD].decode("utf-8", "ignore").removeprefix("\ufeff").strip() for line in head]
    texts = [text for text in texts if text]
    if not texts:
        return "sentences"
    if texts[0].startswith("<doc "):
        return "wikiextractor"
    if _OBJECT_START.match(texts[0]):
        return "jsonl"
    several = sum(len(text) for text in texts if len(_cut(text, language)) > 1)
    return "paragraphs" if 2 * several > sum(map(len, texts)) else "sentences"


# The formats. Each takes the stripped lines of a file.


def _from_sentences(lines: Iterable[str]) -> Iterator[Document]:
    document = []
    for line in lines:
        if line:
            document.append(line if len(line.splitlines()) == 1 else line.translate(_INNER_BREAKS))
        elif document:
            yield document
            document = []
    if document:
        yield document


def _from_paragraphs(lines: Iterable[str], cut: Callable[[str], list[str]]) -> Iterator[Document]:
    document: Document = []
    for line in lines:
        if line:
            document.extend(cut(line))
        elif document:
            yield document
            document = []
    if document:
        yield document


def _from_wikiextractor(path: str, lines: Iterable[str], cut: Callable[[str], list[str]]) -> Iterator[Document]:
    document: Document = []
    opened = 0  # the line of the open <doc>
    title: str | None = None  # where it can still come
    for number, line in enumerate(lines, start=1):
        if line.startswith("<doc "):
            if opened:
                raise UserError(f"{path}, line {opened}: the <doc ...> has no </doc> before the next, on line {number}")
            opened = number
            match = _DOC_TITLE.search(line)
            title = _unescaped(match[1]).strip() if match else None
        elif line == "</doc>":
            if not opened:
                raise UserError(f"{path}, line {number}: </doc> without a <doc ...> before it")
            if document:
                yield document
            document, opened = [], 0
        elif line:
            if not opened:
                raise UserError(
                    f"{path}, line {number}: text outside of <doc ...> and </doc>: {_shortened(line)}; expected "
                    "WikiExtractor's output, or another format"
                )
            line = _unescaped(line)
            if line != title:
                document.extend(cut(line))
            title = None
    if opened:
        raise UserError(f"{path}, line {opened}: the <doc ...> has no </doc>; the file is not whole")


def _from_jsonl(
    path: str, lines: Iterable[str], cut: Callable[[str], list[str]], field: str, drop_invalid_utf8: bool
) -> Iterator[Document]:
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(
                f"{path}, line {number}: invalid JSON ({error}): {_shortened(line)}; expected an object per line"
            ) from error
        if not isinstance(value, dict):
            raise UserError(f"{path}, line {number}: expected a JSON object, received {_shortened(line)}")
        if field not in value:
            raise UserError(
                f"{path}, line {number}: the JSON object has no field {field!r}; its fields are "
                f"{', '.join(map(repr, value)) or 'none'}"
            )
        text = value[field]
        if not isinstance(text, str):
            raise UserError(
                f"{path}, line {number}: the field {field!r} is not text, but {_shortened(json.dumps(text))}"
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            # Possible by escapes alone: JSON allows "\ud83d" without its second half.
            if not drop_invalid_utf8:
                raise UserError(
                    f"{path}, line {number}: \\u{ord(text[error.start]):04x} in the field {field!r} is half a "
                    "character; mend the file, or pass --drop_invalid_utf8 to drop it"
                ) from error
            text = text.encode("utf-8", "ignore").decode()
        document = cut(text)
        if document:
            yield document


def _unescaped(text: str) -> str:
    """Undoes the escapes that newer versions of WikiExtractor write, and no others."""
    if "&" not in text:
        return text
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:60]} ..."


# Cutting into sentences.


def _cut(text: str, language: str) -> list[str]:
    """Returns the sentences of paragraphs that are separated by line breaks."""
    sentences = []
    for paragraph in text.splitlines():
        if not paragraph.isascii():
            paragraph = _WIDE_SPACE.sub(" ", paragraph)
        for sentence in _windowed(paragraph, language):
            if stripped := sentence.strip():
                sentences.append(stripped)
    return sentences


def _windowed(paragraph: str, language: str) -> Iterator[str]:
    start, window = 0, _WINDOW
    while start + window < len(paragraph):
        *whole, _ = _segmented(paragraph[start : start + window], language)
        yield from whole
        # The last one may go on beyond the window, and comes again.
        start += sum(map(len, whole))
        window = _WINDOW if whole else 2 * window
    yield from _segmented(paragraph[start:], language)


def _segmented(text: str, language: str) -> list[str]:
    """Returns pieces that joined are the text."""
    try:
        return sentencex.segment(language, text)
    except BaseException as error:
        # A defect of the cutter, met on odd characters; its class cannot be imported. A paragraph that stays whole does
        # less harm than a corpus that cannot be read.
        if type(error).__name__ != "PanicException":
            raise
        return [text]


# From a path to lines.


def _decoded(path: str, lines: Iterable[bytes], drop_invalid_utf8: bool) -> Iterator[str]:
    """Yields the lines as text, stripped of white space at both ends, and of a byte order mark at the file's start."""
    handling = "ignore" if drop_invalid_utf8 else "strict"
    mark = "\ufeff"
    for number, line in enumerate(lines, start=1):
        try:
            text = line.decode("utf-8", handling)
        except UnicodeDecodeError as error:
            raise UserError(
                f"{path}, line {number}: byte 0x{line[error.start]:02x} at column {error.start + 1} is not "
                "UTF-8; convert the file to UTF-8, or pass --drop_invalid_utf8 to drop such bytes"
            ) from error
        if mark:
            text, mark = text.removeprefix(mark), ""
        yield text.strip()


def _lines(path: str) -> Iterator[bytes]:
    """Yields the lines of a file, decompressed."""
    number = 0
    try:
        with ExitStack() as stack:
            for line in _decompressed(_opened(path, stack)):
                yield line
                number += 1
    except FileNotFoundError as error:
        raise UserError(f"there is no file {path}") from error
    except EOFError as error:
        raise UserError(
            f"{path} ends within its compressed data, after line {number} of the text; copy or download it again"
        ) from error
    except (OSError, zlib.error, zstandard.ZstdError) as error:
        place = f" after line {number} of the text" if number else ""
        raise UserError(f"cannot read {path}{place}: {getattr(error, 'strerror', None) or error}") from error
    except Exception as error:  # the error classes of TensorFlow and of fsspec's many file systems
        if not files.is_remote(path):
            raise
        raise UserError(f"cannot read {path}: {error or type(error).__name__}") from error


def _opened(path: str, stack: ExitStack) -> io.BufferedReader:
    if not files.is_remote(path):
        return stack.enter_context(io.BufferedReader(io.FileIO(path), _BLOCK))
    reader = stack.enter_context(files.open_bytes(path))
    return io.BufferedReader(_Stream(iter(partial(reader.read, _BLOCK), b"")), _BLOCK)


def _decompressed(reader: io.BufferedReader) -> io.BufferedReader:
    start = reader.peek(10)
    raw: Any
    if _GZIP.match(start):
        raw = gzip.GzipFile(fileobj=reader)
    elif _BZIP2.match(start):
        raw = bz2.BZ2File(reader)
    elif _ZSTANDARD.match(start):
        raw = _Stream(_zstandard_blocks(reader))
    else:
        return reader
    return io.BufferedReader(raw, _BLOCK)


def _zstandard_blocks(reader: io.BufferedReader) -> Iterator[bytes]:
    # Not the library's own file object, which takes the end of a truncated file for the end of the text. The window is
    # the largest there is: corpora are packed with "zstd --long=31".
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31)
    frame = None
    block = b""
    while block or (block := reader.read(_COMPRESSED_BLOCK)):
        frame = frame or decompressor.decompressobj()
        yield frame.decompress(block)
        block = b""
        if frame.eof:
            block, frame = frame.unused_data, None
    if frame:
        raise EOFError


class _Stream(io.RawIOBase):
    """Blocks of bytes as a file to read."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        super().__init__()
        self._blocks = blocks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._rest = memoryview(block)
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count
