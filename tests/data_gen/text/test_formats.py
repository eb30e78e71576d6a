"""Reading documents from text files in every format, compressed or remote, and splitting paragraphs into sentences."""

import bz2
import fcntl
import functools
import gzip
import itertools
import json
import lzma
import os
import re
import struct
import types
from collections.abc import Callable

import fsspec
import pyarrow.parquet
import pytest
import tensorflow as tf
import zstandard

from data_gen.options import TEXT_FORMATS
from data_gen.text.formats import detect_format, find_ranges, read_documents
from official_bert.utils import row_files
from tests import stored_texts
from tests.make import assert_mentions, assert_rejected, flip_bits, refusal, run_python, write_text


@pytest.fixture
def written(tmp_path) -> Callable[[str | bytes], str]:
    """Writes the content of the file `text` and returns its path."""
    return functools.partial(write_text, tmp_path / "text")


def test_a_worker_takes_little_memory_for_a_very_long_line_and_imports_no_tensorflow(corpus, tmp_path):
    text = write_text(tmp_path / "long.txt", "return the value of the object " * 260_000 + "\nreturn the value\n")
    code = f"""
import sys
import numpy as np
from data_gen.pipelines import one_machine, worker
from data_gen.text import formats, token_store
from official_bert.tokenization import fast
documents, tokenizer = formats.read_documents({text!r}, "sentences"), fast.FastTokenizer({corpus[1]!r})
token_store.write_part("{tmp_path}/part", documents, tokenizer.encode, np.dtype("<u2"), [1])
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
assert not {{"tensorflow", "tensorflow_text", "keras"}} & set(sys.modules)
"""
    done = run_python("-c", code, check=True)
    assert int(done.stdout) / 1024 < 150  # MB; Python, NumPy and the character table take 40 of them


DOCUMENTS = [
    ["Dr. Smith went home.", "It rained, as it had all day.", "Nobody cared."],
    ["Ça va?", "“Oui,” dit-elle.", "Then they both went to the mat in the sun & sat down."],
]
TEXTS = {
    "sentences": "\n\n".join("\n".join(document) for document in DOCUMENTS) + "\n",
    "paragraphs": "".join(f"{d[0]} {d[1]}\n{d[2]}\n\n\n" for d in DOCUMENTS),
    "wikiextractor": "".join(
        f'<doc id="{n}" url="http://x/{n}" title="A "b" & {n}">\nA "b" & {n}\n\n{d[0]} {d[1]}\n\n{d[2]}\n</doc>\n'
        for n, d in enumerate(DOCUMENTS)
    ),
    "jsonl": "".join(json.dumps({"id": 1, "text": f"{d[0]} {d[1]}\n\n{d[2]}\n"}) + "\n" for d in DOCUMENTS),
}


SKIPPED_FRAME = b"\x50\x2a\x4d\x18" + struct.pack("<I", 3) + b"abc"
LONG_WINDOW = b"\x28\xb5\x2f\xfd\x00\x90"  # As of "zstd --long": a frame with a window of 256 MiB.
COMPRESSIONS: list[Callable[[bytes], bytes]] = [
    bytes,
    lambda text: gzip.compress(text[:50]) + gzip.compress(text[50:]),
    lambda text: bz2.compress(text[:50]) + bz2.compress(text[50:]),
    lambda text: lzma.compress(text[:50]) + lzma.compress(text[50:]),
    lambda text: zstandard.compress(text[:50]) + zstandard.compress(text[50:]),
    lambda text: LONG_WINDOW + struct.pack("<I", len(text) << 3 | 1)[:3] + text,  # a block that is not compressed
    lambda text: SKIPPED_FRAME + zstandard.compress(text) + SKIPPED_FRAME,
]


@pytest.mark.parametrize("compress", COMPRESSIONS)
@pytest.mark.parametrize("format", TEXTS)
def test_every_format_is_detected_and_gives_the_same_documents(format, compress, written):
    text = TEXTS[format]
    # A byte order mark, the ends of lines and empty lines at the ends change nothing.
    for changed in (text, "\ufeff\n  \r\n" + text, "\ufeff" + text.replace("\n", "\r\n"), text.rstrip()):
        path = written(compress(changed.encode()))
        assert detect_format(path) == format
        assert list(read_documents(path)) == list(read_documents(path, format)) == DOCUMENTS


@pytest.mark.parametrize("compress", COMPRESSIONS)
@pytest.mark.parametrize("format", TEXT_FORMATS)
def test_empty_files_contain_no_documents(format, compress, written):
    for text in b"", b"\n \n\t\r\n":
        path = written(compress(text))
        assert list(read_documents(path, format)) == []
        assert detect_format(path) == "sentences"


def test_a_table_is_not_read_as_sentences(tmp_path):
    for name, content in (("a.csv", "id,text\n1,It is.\n"), ("a.tsv", "text\nIt is.\n"), ("a.json", '[{"text": "a"}]')):
        path = write_text(tmp_path / name, content)
        assert_rejected((path, "JSON", "--input_format=sentences"), detect_format, path)
    assert detect_format(write_text(tmp_path / "b.csv", '{ "text": "It is."}')) == "jsonl"
    for text in ("{It} is.", "<document> It is.", "BZh9 is not bzip2."):
        assert detect_format(write_text(tmp_path / "b", text)) == "sentences"


def test_documents_without_text_are_left_out(written):
    doc = '<doc id="1" url="" title="{0}">\n{0}\n\n{1}\n</doc>\n'
    path = written(doc.format("Title", "") + doc.format("B", "B") + doc.format("", ""))
    assert list(read_documents(path)) == [["B"]]  # a second line equal to the title is text
    assert list(read_documents(written('{"text": ""}\n\n{"text": " \\n "}\n{"text": "a"}'))) == [["a"]]


@pytest.mark.parametrize("title", ["A&B", "A&amp;B"])
def test_wikiextractor_escapes_are_undone_once(title, written):
    """The title is left out of the text, whether or not the attribute is escaped."""
    text = "AT&amp;T is &lt;b&gt; but &amp;lt; &amp;gt; and &copy stay."
    path = written(f'<doc id="1" title="{title}">\nA&amp;B\n{text}\n</doc>\n')
    assert list(read_documents(path)) == [["AT&T is <b> but &lt; &gt; and &copy stay."]]


@pytest.mark.parametrize("format", TEXTS)
def test_sentences_contain_no_line_breaks(format, written):
    line = "a\rb\vc\fd\x1ce\x1df\x1eg\x85h\u2028i\u2029j"
    changed = {"wikiextractor": f"<doc >\n{line}\n</doc>", "jsonl": json.dumps({"text": f"{line}\r\n\n"})}
    (document,) = read_documents(written(changed.get(format, line)), format)
    # In the original's format, the tokenizer handles these characters.
    assert document == (["a bcdefgh i j"] if format == "sentences" else list("abcdefghij"))


def test_documents_are_yielded_before_the_end_of_the_file(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with open(os.open(path, os.O_RDWR), "wb", buffering=0) as pipe:
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 1 << 20)
        pipe.write(b"One.\nTwo.\n\n" * 60_000)
        assert next(read_documents(str(path), "sentences")) == ["One.", "Two."]


DOC = '<doc id="1" url="" title="t">\nt\n\nText.\n'
FAULTS = [
    ("auto", b"a\nb\ncd\xffe\n", "line 3", "0xff", "column 3", "UTF-8", "--drop_invalid_utf8"),
    ("auto", "some text\n".encode("utf-16"), "line 1", "0xff", "UTF-16", "UTF-8"),
    ("auto", b"\xfe\xff" + "第一。\n".encode("utf-16-be"), "line 1", "0xfe", "UTF-16", "UTF-8"),
    ("sentences", "some text\n".encode("utf-16-le"), "line 1", "UTF-16LE"),
    ("auto", "some text\n".encode("utf-16-be"), "line 1", "UTF-16BE"),
    ("jsonl", b'{"text": "a"}\n{"text": "\xe4"}', "line 2", "0xe4", "column 11", "UTF-8"),
    ("auto", '{"text": "a"}\n\n{"text": "a}', "line 3", "JSON", "column 10", '{"text": "a}'),
    ("auto", '{\n"text": "a"\n}', "line 1", "JSON", "column 2", "object"),
    ("jsonl", '{"text": ' + "1" * 5000 + "}", "line 1", "JSON", 5000, "..."),
    ("jsonl", '{"text": "a", "score": NaN}', "line 1", "JSON", "NaN"),
    ("jsonl", '["a"]', "line 1", "JSON", '["a"]'),
    ("auto", '{"a": 1, "b": 2}', "line 1", "'text'", "'a', 'b'"),
    ("auto", "{}", "line 1", "'text'", "none"),
    ("auto", '{"text": "a"}\n{"text": null}', "line 2", "text", "null"),
    ("auto", '{"text": "a\\ud83d"}', "line 1", "text", "\\ud83d", "--drop_invalid_utf8"),
    ("auto", f"{DOC}</doc>\n{DOC}", "line 6", "<doc", "</doc>", "incomplete"),
    ("auto", f"{DOC}{DOC}</doc>", "line 1", "<doc", "</doc>", "line 5"),
    ("auto", f"{DOC}</doc>\n</doc>", "line 6", "</doc>", "<doc", "before"),
    ("auto", f"{DOC}</doc>\n\nMore.\n", "line 7", "<doc", "</doc>", "More."),
]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("compress", [bytes, zstandard.compress])
def test_errors_name_file_and_line(fault, compress, written):
    format, text, line, *names = fault
    path = written(compress(text if isinstance(text, bytes) else text.encode()))
    assert_rejected((f"{path}, {line}", *names), list, read_documents(path, format))


@pytest.mark.parametrize(("other_line", "format"), [("Fifteen letters", "sentences"), ("Only fourteen.", "paragraphs")])
def test_text_is_paragraphs_if_more_than_half_of_it_is_on_lines_of_several_sentences(other_line, format, written):
    assert detect_format(written(f"One is. Two is.\n{other_line}\n")) == format


@pytest.mark.parametrize("language", ["German", "", "EN", "english"])
def test_an_unknown_language_is_an_error(language):
    for call in (lambda: list(read_documents("x", language=language)), lambda: detect_format("x", language)):
        assert_rejected(("--language", f"'{language}'"), call)


@pytest.mark.parametrize(("format", "content"), [
    ("sentences", b"\xef\xbb\xbfa b\nc\n\nd\n\xe3\x80\x80\n\n\ne f g\r\n\r\nh\n"),
    ("paragraphs", b"One. Two.\n\n\nThree. Four.\nFive.\n \nSix."),
    ("wikiextractor", b'<doc title="A">\nA\n\nOne. Two.\n</doc>\n\n<doc i="2">\nB.\n</doc>\n<doc id="3">\nx\n</doc>\n'),
    ("jsonl", b'{"text": "One. Two."}\n\n{"text": "Three."}\n{"text": "x"}\n'),
])  # fmt: skip
def test_ranges_contain_all_documents_of_the_file(format, content, written):
    path = written(content * 3)
    whole, numbers = list(read_documents(path, format)), set()
    for size in range(1, 3 * len(content) + 1):
        ranges = find_ranges(path, format, size)
        assert (ranges[0][0], ranges[-1][1]) == (0, None)
        parts = (read_documents(path, format, start=start, end=end) for start, end in ranges)
        assert list(itertools.chain(*parts)) == whole
        numbers.add(len(ranges))
    assert {1, 2, 3} <= numbers
    assert find_ranges(written(gzip.compress(content * 3)), format, 10) == [(0, None)]


@pytest.mark.parametrize("kind", stored_texts.STORED)
def test_rows_are_documents_whose_lines_are_paragraphs(kind, tmp_path):
    texts = ["", " \n", *(f"{d[0]} {d[1]}\n\n{d[2]}\n" for d in DOCUMENTS)]
    paths = row_files.expand([stored_texts.STORED[kind](tmp_path, texts)], "input_file")
    assert {detect_format(path) for path in paths} == {kind}
    assert list(itertools.chain(*map(read_documents, paths))) == DOCUMENTS
    ranges = [(path, *part) for path in paths for part in find_ranges(path, kind, 1)]
    parts = (read_documents(path, kind, start=start, end=end) for path, start, end in ranges)
    assert list(itertools.chain(*parts)) == DOCUMENTS


def test_the_column_of_the_text_is_chosen(tmp_path):
    table = stored_texts.table(["none"]).append_column("body", [["It is."]])
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    assert list(read_documents(str(tmp_path / "a.parquet"), text_field="body")) == [["It is."]]


fast_bzip2, fast_xz = functools.partial(bz2.compress, compresslevel=1), functools.partial(lzma.compress, preset=0)
COMPRESSORS = [gzip.compress, fast_bzip2, fast_xz, zstandard.ZstdCompressor(write_checksum=True).compress]


@pytest.mark.parametrize("compress", COMPRESSIONS)
@pytest.mark.parametrize("scheme", ["ram", "memory"])
def test_remote_files_are_read_through_tensorflow_or_fsspec(scheme, compress):
    path = f"{scheme}://text_formats_{COMPRESSIONS.index(compress)}"
    with tf.io.gfile.GFile(path, "wb") if scheme == "ram" else fsspec.open(path, "wb") as writer:
        writer.write(compress(TEXTS["jsonl"].encode()))
    assert list(read_documents(path)) == DOCUMENTS


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    words = dict.fromkeys(("memory://missing", "ram://missing", "/missing/file"), "exist")
    for path, word in {**words, "nope://missing": "Protocol", str(tmp_path): "directory"}.items():
        for format in ("auto", "jsonl"):
            assert_rejected((path, word), list, read_documents(path, format))
        assert_rejected((path, word), detect_format, path)


@pytest.mark.parametrize("compress", COMPRESSORS)
def test_a_truncated_compressed_file_is_an_error_that_counts_the_lines_before_it(compress, written):
    content = compress(TEXTS["sentences"].encode())
    for length in range(12, len(content)):
        path = written(content[:length])
        told = refusal(list, read_documents(path, "sentences"))
        assert_mentions(told, path, "compressed")
        assert re.search(r"line \d\b", told)
    assert_rejected((path, "compressed"), detect_format, path)
    content = compress("".join(f"{number * 7919 % 104729} {number**3}\n" for number in range(40_000)).encode())
    told = refusal(list, read_documents(written(content[: len(content) // 2]), "sentences"))
    assert 6_000 < int(re.findall(r"line (\d+)", told)[0]) < 34_000


@pytest.mark.parametrize("compress", COMPRESSORS)
def test_a_corrupt_compressed_file_is_an_error(compress, written):
    content = compress("".join(f"{number * 7919 % 104729}\n" for number in range(5000)).encode())
    for position in range(12, len(content), len(content) // 20):
        path = written(content)
        flip_bits(path, position, 0x55)
        assert_rejected(path, list, read_documents(path, "sentences"))


@pytest.mark.parametrize("space", "\u00a0\u1680\u2003\u202f\u205f\u3000")
def test_wide_spaces_before_a_period_are_accepted(space, written):
    text = f"This is plan B{space}. Then he came. 第一{space}。"
    (document,) = read_documents(written(text), "paragraphs")
    assert "Then he came." in document


def test_paragraph_stays_unsplit_if_the_splitter_fails(written, monkeypatch):
    failures = iter([type("PanicException", (BaseException,), {}), KeyboardInterrupt])

    def fail(language: str, text: str) -> None:
        raise next(failures)

    monkeypatch.setattr("data_gen.text.sentences.sentencex", types.SimpleNamespace(segment=fail))
    assert list(read_documents(written("It is. It was."), "paragraphs")) == [["It is. It was."]]
    with pytest.raises(KeyboardInterrupt):
        list(read_documents(written("It is. It was."), "paragraphs"))


def test_sentence_boundaries_depend_on_the_language(written):
    path = written("Er kam bzw. ging am 3. Mai z.B. nach Rom.")
    assert [len(document) for document in read_documents(path, "paragraphs", "de")] == [1]
    assert [len(document) for document in read_documents(path, "paragraphs", "en")] == [3]
    for language in ("yue", "zh-hans"):  # three letters, or with a script
        assert list(read_documents(written("一。"), "paragraphs", language)) == [["一。"]]


@pytest.mark.parametrize("format", ["paragraphs", "jsonl", "auto"])
def test_long_line_is_split_like_short_ones(format, written):
    sentences = [f"This is sentence {number}, which someone wrote." for number in range(100_000)]
    text = " ".join(sentences)
    path = written(json.dumps({"text": text}) if format == "jsonl" else text)
    assert list(read_documents(path, format)) == [sentences]


def test_a_big_line_without_sentence_ends_is_one_sentence(written):
    path = written("word " * 1_000_000)
    assert detect_format(path) == "sentences"
    for format in "sentences", "paragraphs":
        assert list(read_documents(path, format)) == [[("word " * 1_000_000).strip()]]
