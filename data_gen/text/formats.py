"""Text files of several formats to documents, one at a time.

sentences      a sentence per line, empty lines between documents: the original's format.
paragraphs     a paragraph per line, empty lines between documents.
wikiextractor  WikiExtractor's output: <doc ...>, the title, a paragraph per line, </doc>. The title is left out, as
               BERT's authors kept "only the text passages" of Wikipedia (section 3.1 of the paper).
jsonl          a JSON object per line, each a document; the lines of its text field are paragraphs.

Files of rows (Parquet and its like, see official_bert/utils/row_files.py) say what they are by their first bytes: each
row is a document, as in jsonl.

sentences.py splits paragraphs into sentences; official_bert/utils/streams.py reads the lines of compressed and
remote files.
"""

import collections
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from data_gen.options import TEXT_FORMATS, TextOptions
from data_gen.text.sentences import check_language, split_sentences
from official_bert.errors import UserError
from official_bert.utils import files, row_files, streams, tables
from official_bert.utils.counting import pluralize
from official_bert.utils.progress import Progress

Document = list[str]

_HEAD = 1 << 20  # bytes (and, of a single line, characters) that the format is found out from

# The line breaks of str.splitlines besides "\n", as BERT's tokenizer treats them: as white space, or by dropping them.
_INNER_BREAKS = str.maketrans(dict.fromkeys("\r\u2028\u2029", " ") | dict.fromkeys("\v\f\x1c\x1d\x1e\x85", ""))

_DOC_TITLE = re.compile(r'\btitle="(.*)"')  # greedy: titles may hold quotation marks
_OBJECT_START = re.compile(r'\{\s*("|\}|$)')


def read_documents(
    path: str,
    format: str = "auto",
    language: str = "en",
    text_field: str = "text",
    drop_invalid_utf8: bool = False,
    start: int = 0,
    end: int | None = None,
) -> Iterator[Document]:
    """Yields the documents of a file, each a list of sentences; neither is ever empty, no sentence holds a line break.

    One document is in memory at a time.

    Args:
        path: a local file, or one with "://" on a file system that TensorFlow or, failing that, fsspec knows.
        format: one of `TEXT_FORMATS` or `row_files.KINDS`; "auto" is as `detect_format` says.
        language: the code (ISO 639) of the language whose rules cut paragraphs into sentences; general rules serve
            for languages without their own.
        text_field: the field or column that holds the text, for "jsonl" and files of rows.
        drop_invalid_utf8: whether what is not UTF-8 is dropped instead of being an error.
        start: where to start, as `find_ranges` gives it.
        end: where to end, as `find_ranges` gives it; None to read to the file's end.

    Raises:
        UserError: at once, for an unknown format or something that is no language code; while reading, with file and
            line (of the decompressed text) or row, for text that is not UTF-8 or not of the format; for a file that is
            missing, unreadable, truncated or corrupt.
    """
    if format not in (*TEXT_FORMATS, *row_files.KINDS):
        raise UserError(f"there is no text format {format!r}; expected one of {', '.join(TEXT_FORMATS)}")
    check_language(language)
    return _documents(path, format, language, text_field, drop_invalid_utf8, start, end)


def read_with_options(
    path: str, format: str, options: TextOptions, start: int = 0, end: int | None = None
) -> Iterator[Document]:
    """Calls `read_documents` with the other arguments from the flags; `format` is as `format_of` returns it."""
    if _keeps_lines(format, options):
        format = "sentences"
    return read_documents(path, format, options.language, options.text_field, options.drop_invalid_utf8, start, end)


def read_files(what: str, paths: list[str], options: TextOptions) -> Iterator[Document]:
    """Yields the documents of files, one file after the other, with lines of progress that begin with `what`.

    The formats that "auto" finds are printed. Errors are as for `read_documents`.
    """
    file_formats = [resolve_format(path, options) for path in paths]
    if options.input_format == "auto" and paths:
        print(describe_formats(file_formats, options))
    sizes = [files.size(path) for path in paths]
    progress = Progress(what, sum(sizes) / 1e6, "MB")
    for path, each, size, end in zip(paths, file_formats, sizes, itertools.accumulate(sizes), strict=True):
        done = end - size
        for document in read_with_options(path, each, options):
            yield document
            # About: characters are counted for bytes, of compressed files too.
            done = min(done + sum(map(len, document)), end)
            progress.update(done / 1e6)


def resolve_format(path: str, options: TextOptions) -> str:
    """Returns the format of a file: what it says itself, or else --input_format, or else as `detect_format`.

    Raises:
        UserError: as of `detect_format`; or a file of rows is read as text of some layout.
    """
    if options.input_format == "auto":
        return detect_format(path, options.language)
    if kind := row_files.detect_kind(path):
        raise UserError(
            f"{path} is a {kind} file, which --input_format={options.input_format} does not fit; leave that out"
        )
    return options.input_format


def detect_format(path: str, language: str = "en") -> str:
    """Returns the format of a file: of one of rows its kind, of text from its first (decompressed) megabyte.

    By the first line that is not empty, "wikiextractor" if it starts with "<doc ", "jsonl" if it starts like a JSON
    object. Else by all lines: "paragraphs" if more than half of the text (in characters) stands on lines that the
    cutter finds several sentences in, otherwise "sentences". (Characters, as headings and other short lines can
    outnumber the paragraphs. Half, as text cut into sentences by other rules than ours stays below a quarter, prose in
    paragraphs is above two thirds.)

    Raises:
        UserError: the file is missing, unreadable, truncated or corrupt, or the language is no language code.
    """
    check_language(language)
    return row_files.detect_kind(path) or _format_of(path, _head(streams.read_lines(path)), language)


def find_ranges(path: str, format: str, size: int) -> list[tuple[int, int | None]]:
    """Returns ranges of a file, of about `size` bytes each, that hold whole documents.

    The documents of all ranges, one after the other, are those of the file. A range is of bytes, or of what else a file
    of rows is cut by. A compressed or remote file is one range, and a range with a longer document is as long. The
    format is not "auto".

    Raises:
        UserError: the file is missing, unreadable or damaged.
    """
    if format in row_files.KINDS:
        return row_files.find_ranges(path, format, size)
    if files.is_remote(path) or files.size(path) <= size:
        return [(0, None)]
    starts = [0]
    last = "</doc>" if format == "wikiextractor" else ""  # line of a document
    with files.explain_read_errors(path), open(path, "rb") as reader:
        if streams.is_compressed(reader.read(10)):
            return [(0, None)]
        length = files.size(path)
        while (start := starts[-1] + size) < length:
            reader.seek(start)
            reader.readline()  # the rest of a line
            while (line := reader.readline()) and format != "jsonl" and line.decode("utf-8", "ignore").strip() != last:
                pass
            if not line or reader.tell() >= length:
                break
            starts.append(reader.tell())
    return list(zip(starts, [*starts[1:], None], strict=True))


def describe_formats(formats: list[str], options: TextOptions) -> str:
    """Returns the formats that --input_format=auto detected with their numbers of files, and a note on long lines."""
    kept = [_keeps_lines(format, options) for format in formats]
    counts = collections.Counter("sentences" if keeps else name for name, keeps in zip(formats, kept, strict=True))
    line = "format of the text: " + ", ".join(f"{name} ({pluralize(count, 'file')})" for name, count in counts.items())
    if any(kept):
        line += (
            f"\nnote: in {pluralize(sum(kept), 'file')} most of the text is on lines of several sentences; each is "
            "taken as one sentence; --input_format=paragraphs splits them"
        )
    return line


def _keeps_lines(format: str, options: TextOptions) -> bool:
    """Returns whether lines that were detected as paragraphs are read as one sentence each."""
    return format == "paragraphs" and options.input_format == "auto" and not options.detects_paragraphs


def _documents(
    path: str, format: str, language: str, text_field: str, drop_invalid_utf8: bool, start: int, end: int | None
) -> Iterator[Document]:
    cut = partial(split_sentences, language=language)
    if format == "auto":
        format = row_files.detect_kind(path) or format
    if format in row_files.KINDS:
        for position, row in row_files.read_rows(path, format, [text_field], (start, end), drop_invalid_utf8):
            if row[text_field] is None:
                raise UserError(f"{path}, {position}: {text_field!r} is null; expected text")
            if document := cut(row[text_field]):
                yield document
        return
    lines = streams.read_lines(path, start, end)
    if format == "auto":
        # The head is kept, not read again, because the file may be a pipe.
        head = list(_head(lines))
        format = _format_of(path, head, language)
        lines = itertools.chain(head, lines)
    texts = map(str.strip, streams.decode_lines(path, lines, drop_invalid_utf8, at_start=not start))
    if format in ("sentences", "paragraphs"):
        yield from _from_lines(texts, _one_sentence if format == "sentences" else cut)
    elif format == "wikiextractor":
        yield from _from_wikiextractor(path, texts, cut)
    else:
        yield from _from_jsonl(path, texts, cut, text_field, drop_invalid_utf8)


def _head(lines: Iterator[bytes]) -> Iterator[bytes]:
    """Yields the first lines, up to a megabyte or the end of the line that passes it."""
    size = 0
    for line in lines:
        yield line
        size += len(line)
        if size >= _HEAD:
            break


def _format_of(path: str, head: Iterable[bytes], language: str) -> str:
    stripped = (line[:_HEAD].strip() for line in streams.decode_lines(path, head, drop_invalid_utf8=True))
    not_empty = filter(None, stripped)
    first = next(not_empty, None)
    if first is None:
        return "sentences"
    if first.startswith("<doc "):
        return "wikiextractor"
    if _OBJECT_START.match(first):
        return "jsonl"
    texts = [first, *not_empty]
    several = sum(len(text) for text in texts if len(split_sentences(text, language)) > 1)
    return "paragraphs" if 2 * several > sum(map(len, texts)) else "sentences"


# The formats. Each function takes the stripped lines of a file.


def _from_lines(lines: Iterable[str], cut: Callable[[str], list[str]]) -> Iterator[Document]:
    document: Document = []
    for line in lines:
        if line:
            document.extend(cut(line))
        elif document:
            yield document
            document = []
    if document:
        yield document


def _one_sentence(line: str) -> list[str]:
    return [line if len(line.splitlines()) == 1 else line.translate(_INNER_BREAKS)]


def _from_wikiextractor(path: str, lines: Iterable[str], cut: Callable[[str], list[str]]) -> Iterator[Document]:
    document: Document = []
    opened = 0  # the line of the open <doc>
    title: str | None = None  # while the line with the title may still come
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
            value = files.parse_json_line(line)
        except UserError as error:
            raise UserError(
                f"{path}, line {number}: {error}: {_shortened(line)}; expected an object per line"
            ) from error
        if not isinstance(value, dict):
            raise UserError(f"{path}, line {number}: expected a JSON object, received {_shortened(line)}")
        if drop_invalid_utf8 and isinstance(value.get(field), str):
            # By escapes, JSON allows half of a surrogate pair.
            value[field] = value[field].encode("utf-8", "ignore").decode()
        if problem := tables.find_text_problem(value, [field]):
            flag = ", or pass --drop_invalid_utf8" if isinstance(value.get(field), str) else ""
            raise UserError(f"{path}, line {number}: {problem}{flag}")
        if document := cut(value[field]):
            yield document


def _unescaped(text: str) -> str:
    """Undoes the escapes that newer versions of WikiExtractor write, and no others."""
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:60]} ..."
