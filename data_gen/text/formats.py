"""Reads documents from text files of several formats.

sentences      One sentence per line, empty lines between documents: the format of the original.
paragraphs     One paragraph per line, empty lines between documents.
wikiextractor  WikiExtractor's output: <doc ...>, the title, one paragraph per line, </doc>. The title is left out,
               because BERT's authors kept "only the text passages" of Wikipedia (section 3.1 of the paper).
jsonl          One JSON object per line, each a document. The lines of its text field are paragraphs.

Files of rows (such as Parquet, see official_bert/utils/row_files.py) are detected by their first bytes. Each row is a
document, as in jsonl.

sentences.py splits paragraphs into sentences. official_bert/utils/streams.py reads the lines of compressed and remote
files.
"""

import collections
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from data_gen.options import TextOptions
from data_gen.text.documents import group_lines
from data_gen.text.sentences import check_language, split_sentences
from official_bert.errors import UserError
from official_bert.utils import files, row_files, streams, tables
from official_bert.utils.bad_rows import NoBadRows
from official_bert.utils.counting import pluralize
from official_bert.utils.progress import Progress

Document = list[str]

_HEAD = 1 << 20  # Maximum number of bytes, and of characters of a line, for detecting the format.

# The line breaks of str.splitlines other than "\n". BERT's tokenizer treats them as white space, or drops them.
_INNER_BREAKS = str.maketrans(dict.fromkeys("\r\u2028\u2029", " ") | dict.fromkeys("\v\f\x1c\x1d\x1e\x85", ""))

# Descriptions of the counts of `read_documents`.
_NOTES = {
    "invalid_bytes": "dropped bytes that are not UTF-8",
    "invalid_lines": "lines and rows with such bytes",
    "empty_rows": "rows without text",
    "empty_files": "files without text",
    "carriage_returns": (
        "lines with a carriage return in the middle (if it ends lines, as on old Macs, convert the file: "
        r"tr '\r' '\n' < FILE > NEW_FILE)"
    ),
}

_DOC_TITLE = re.compile(r'\btitle="(.*)"')  # Greedy, because titles can contain quotation marks.
_OBJECT_START = re.compile(r'\{\s*("|\}|$)')


def read_documents(
    path: str,
    format: str = "auto",
    language: str = "en",
    text_field: str = "text",
    drop_invalid_utf8: bool = False,
    start: int = 0,
    end: int | None = None,
    counts: collections.Counter[str] | None = None,
) -> Iterator[Document]:
    """Yields the documents of a file, each a list of sentences. Only one document is in memory at a time.

    Documents and sentences are never empty. Sentences contain no line breaks.

    Args:
        path: A local file, or a URL of a file system that TensorFlow or fsspec supports.
        format: One of options.TEXT_FORMATS or `row_files.KINDS`. "auto" calls `detect_format`.
        language: ISO 639 code of the language whose rules split paragraphs into sentences. Languages without rules use
            general ones.
        text_field: The field or column of the text, for "jsonl" and files of rows.
        drop_invalid_utf8: Whether to drop bytes that are not valid UTF-8 instead of raising an error.
        start: Start of one of the ranges from `find_ranges`, to read only this part. Defaults to the start of the file.
        end: End of the range. Defaults to the end of the file.
        counts: Counts to increase: "empty_rows", and the counts of `streams.decode_lines`.

    Raises:
        UserError: If the language code is invalid, the text is not UTF-8 or does not match the format, or the
            file is missing, unreadable or damaged.
    """
    check_language(language)
    split = partial(split_sentences, language=language)
    counts = collections.Counter() if counts is None else counts
    if format == "auto":
        format = detect_format(path, language)
    if format in row_files.KINDS:
        for position, row in row_files.read_rows(path, format, [text_field], (start, end), drop_invalid_utf8, counts):
            if row[text_field] is None:
                raise UserError(f"{path}, {position}: {text_field!r} is null; expected text")
            if document := split(row[text_field]):
                yield document
            counts["empty_rows"] += not document
        return
    lines = streams.read_lines(path, start, end)
    texts = map(str.strip, streams.decode_lines(path, lines, drop_invalid_utf8, not start, counts))
    if format in ("sentences", "paragraphs"):
        yield from _read_plain_text(texts, _keep_line if format == "sentences" else split)
    elif format == "wikiextractor":
        yield from _read_wikiextractor(path, texts, split)
    else:
        yield from _read_jsonl(path, texts, split, text_field, drop_invalid_utf8, counts)


def read_with_options(
    path: str,
    format: str,
    options: TextOptions,
    counts: collections.Counter[str],
    start: int = 0,
    end: int | None = None,
) -> Iterator[Document]:
    """Calls `read_documents` with the language and other settings from the flags.

    Args:
        path: The file.
        format: The result of `resolve_format`.
        options: The flags.
        counts: Counts to increase: "empty_files", and the counts of `read_documents`.
        start: Start of a range from `find_ranges`.
        end: End of the range. Defaults to the end of the file.
    """
    if _keeps_lines(format, options):
        format = "sentences"
    settings = (options.language, options.text_field, options.drop_invalid_utf8)
    documents = read_documents(path, format, *settings, start, end, counts)
    first = next(documents, None)
    counts["empty_files"] += first is None and not start and end is None
    yield from itertools.chain([first] if first else [], documents)


def read_files(what: str, paths: list[str], options: TextOptions) -> Iterator[Document]:
    """Yields the documents of several files. Prints the detected formats, progress lines, and notes about the text.

    Args:
        what: Title of the progress lines.
        paths: The files.
        options: The flags.

    Raises:
        UserError: See `read_documents`.
    """
    file_formats = [resolve_format(path, options) for path in paths]
    if options.input_format == "auto" and paths:
        print(describe_formats(file_formats, options))
    sizes = [files.size(path) for path in paths]
    progress = Progress(what, sum(sizes) / 1e6, "MB")
    counts: collections.Counter[str] = collections.Counter()
    for path, each, size, end in zip(paths, file_formats, sizes, itertools.accumulate(sizes), strict=True):
        done = end - size
        for document in read_with_options(path, each, options, counts):
            yield document
            # An estimate: characters instead of bytes, uncompressed instead of compressed.
            done = min(done + sum(map(len, document)), end)
            progress.update(done / 1e6)
    print(describe_counts(counts), end="")


def describe_counts(counts: Mapping[str, int], prefix: str = "") -> str:
    """Returns a line with the text that was left out or may be misread, or "" if there is none.

    Args:
        counts: Counts of `read_with_options`, by name.
        prefix: Prefix of the names.
    """
    notes = [f"{text}: {counts[prefix + name]:,}" for name, text in _NOTES.items() if counts.get(prefix + name)]
    return f"note: {'; '.join(notes)}\n" if notes else ""


def resolve_format(path: str, options: TextOptions) -> str:
    """Returns the value of --input_format or, if it is "auto", the detected format of the file.

    Raises:
        UserError: If --input_format names a text format for a file of rows. See also `detect_format`.
    """
    if options.input_format == "auto":
        return detect_format(path, options.language)
    if kind := row_files.detect_kind(path):
        raise UserError(f"{path} is a {kind} file, but --input_format is {options.input_format}; remove the flag")
    return options.input_format


def detect_format(path: str, language: str = "en") -> str:
    """Detects the format of a file from its first megabyte, decompressed.

    Files of rows are detected first. If the first non-empty line starts with "<doc ", the format is "wikiextractor". If
    it starts like a JSON object, it is "jsonl". It is "paragraphs" if more than half of the text is on lines with
    several sentences, and "sentences" otherwise. The threshold counts characters, because headings and other short
    lines can outnumber the paragraphs.

    Raises:
        UserError: If the file is missing, unreadable or damaged, or the language code is invalid, or if plain text has
            the name of a table, such as text.csv.
    """
    check_language(language)
    return row_files.detect_kind(path) or _detect_text_format(path, _read_head(streams.read_lines(path)), language)


def find_ranges(path: str, format: str, size: int) -> list[tuple[int, int | None]]:
    """Splits a file into ranges of about `size` bytes that contain complete documents.

    A range is longer than `size` if it contains a long document. Compressed and remote files are a single range.

    Args:
        path: The file.
        format: The format of the file, not "auto".
        size: Wanted size of a range in bytes.

    Returns:
        Start and end of each range, for `read_documents`: byte offsets or, for files of rows, see
        row_files.find_ranges.

    Raises:
        UserError: If the file is missing, unreadable or damaged.
    """
    if format in row_files.KINDS:
        return row_files.find_ranges(path, format, size)
    if files.is_remote(path) or files.size(path) <= size:
        return [(0, None)]
    starts = [0]
    last = "</doc>" if format == "wikiextractor" else ""  # The last line of a document.
    with files.explain_read_errors(path), open(path, "rb") as reader:
        if streams.is_compressed(reader.read(10)):
            return [(0, None)]
        length = files.size(path)
        while (start := starts[-1] + size) < length:
            reader.seek(start)
            reader.readline()  # Skips the rest of a line.
            while (line := reader.readline()) and format != "jsonl" and line.decode("utf-8", "ignore").strip() != last:
                pass
            if not line or reader.tell() >= length:
                break
            starts.append(reader.tell())
    return list(zip(starts, [*starts[1:], None], strict=True))


def describe_formats(formats: list[str], options: TextOptions) -> str:
    """Returns lines that list the detected formats with their numbers of files.

    A note is added if files with one sentence per line seem to contain lines of several sentences.
    """
    kept = [_keeps_lines(format, options) for format in formats]
    counts = collections.Counter("sentences" if keeps else name for name, keeps in zip(formats, kept, strict=True))
    line = "format of the text: " + ", ".join(f"{name} ({pluralize(count, 'file')})" for name, count in counts.items())
    if any(kept):
        line += (
            f"\nnote: in {pluralize(sum(kept), 'file')} most of the text is on lines of several sentences, which are "
            "read as one sentence each; pass --input_format=paragraphs to split them"
        )
    return line


def _keeps_lines(format: str, options: TextOptions) -> bool:
    """Returns whether the lines of a file that was detected as paragraphs are each treated as one sentence."""
    return format == "paragraphs" and options.input_format == "auto" and not options.detects_paragraphs


def _read_head(lines: Iterator[bytes]) -> Iterator[bytes]:
    """Yields the first lines of a file, until they have a megabyte or more in total."""
    size = 0
    for line in lines:
        yield line
        size += len(line)
        if size >= _HEAD:
            break


def _detect_text_format(path: str, head: Iterable[bytes], language: str) -> str:
    stripped = (line[:_HEAD].strip() for line in streams.decode_lines(path, head, drop_invalid_utf8=True))
    not_empty = filter(None, stripped)
    first = next(not_empty, None)
    if first is None:
        return "sentences"
    if first.startswith("<doc "):
        return "wikiextractor"
    if _OBJECT_START.match(first):
        return "jsonl"
    if tables.has_table_extension(path):
        raise UserError(
            f"{path} contains no JSON lines, and each of its lines would be read as a sentence; convert it to JSON "
            f"lines ({tables.JSON_ROWS}), or pass --input_format=sentences if it is plain text"
        )
    texts = [first, *not_empty]
    several = sum(len(text) for text in texts if len(split_sentences(text, language)) > 1)
    return "paragraphs" if 2 * several > sum(map(len, texts)) else "sentences"


# The readers of the formats take the stripped lines of a file.


def _read_plain_text(lines: Iterable[str], split: Callable[[str], list[str]]) -> Iterator[Document]:
    for group in group_lines(lines):
        yield [sentence for line in group for sentence in split(line)]


def _keep_line(line: str) -> list[str]:
    return [line if len(line.splitlines()) == 1 else line.translate(_INNER_BREAKS)]


def _read_wikiextractor(path: str, lines: Iterable[str], split: Callable[[str], list[str]]) -> Iterator[Document]:
    document: Document = []
    opened = 0  # The line number of the open <doc>, or 0.
    title: str | None = None  # The title, until the line with the title has been skipped.
    for number, line in enumerate(lines, start=1):
        if line.startswith("<doc "):
            if opened:
                raise UserError(f"{path}, line {opened}: the <doc ...> has no </doc> before the next, on line {number}")
            opened = number
            match = _DOC_TITLE.search(line)
            title = _unescape(match[1]).strip() if match else None
        elif line == "</doc>":
            if not opened:
                raise UserError(f"{path}, line {number}: </doc> without a <doc ...> before it")
            if document:
                yield document
            document, opened = [], 0
        elif line:
            if not opened:
                raise UserError(
                    f"{path}, line {number}: text outside of <doc ...> and </doc>: {tables.shorten(line)}; expected "
                    "WikiExtractor's output; pass another --input_format"
                )
            line = _unescape(line)
            if line != title:
                document.extend(split(line))
            title = None
    if opened:
        raise UserError(f"{path}, line {opened}: the <doc ...> has no </doc>; the file is incomplete")


def _read_jsonl(
    path: str,
    lines: Iterable[str],
    split: Callable[[str], list[str]],
    field: str,
    drop_invalid_utf8: bool,
    counts: collections.Counter[str],
) -> Iterator[Document]:
    for number, value in tables.parse_json_lines(path, lines, NoBadRows()):
        if drop_invalid_utf8 and isinstance(value.get(field), str):
            # By escapes, JSON allows half of a surrogate pair.
            value[field] = streams.drop_invalid_bytes(value[field].encode("utf-8", "surrogatepass"), counts)
        if problem := tables.find_text_problem(value, [field]):
            flag = ", or pass --drop_invalid_utf8" if isinstance(value.get(field), str) else ""
            raise UserError(f"{path}, line {number}: {problem}{flag}")
        if document := split(value[field]):
            yield document
        counts["empty_rows"] += not document


def _unescape(text: str) -> str:
    """Reverses the HTML escapes that newer versions of WikiExtractor write, and no others."""
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
