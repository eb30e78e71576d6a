"""The same documents give the same records in every text file format."""

import gzip
import json
import lzma
import pathlib
import re

import pytest

from data_gen.options import VocabularyOptions
from data_gen.text import formats
from data_gen.vocabulary import learning
from tests.data_gen.samples import contents, make_records
from tests.make import assert_rejected, write_text
from tests.stored_texts import STORED, parquet


@pytest.fixture(scope="module")
def texts(corpus) -> list[str]:
    return ["\n".join(document) for document in formats.read_documents(corpus[0][0])]


def make_and_learn(source: str, vocab_file: str, folder: pathlib.Path, **changes: str):
    """Returns the records and the vocabulary that are made from a file."""
    make_records(([source], vocab_file), folder, **changes)
    learned = learning.learn(VocabularyOptions(input_file=[source], vocab_file="none", vocab_size=200))
    return contents(folder, "*.tfrecord"), learned.pieces


@pytest.fixture(scope="module")
def expected(corpus, texts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    path = write_text(folder / "plain.txt", "\n\n".join(texts))
    return make_and_learn(path, corpus[1], folder, input_format="paragraphs")


@pytest.mark.parametrize("store", ["jsonl", "xz", *STORED])
def test_every_kind_of_file_gives_the_same_records(store, corpus, texts, expected, tmp_path):
    if store in STORED:
        source = STORED[store](tmp_path, texts)
    else:
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
        source = write_text(tmp_path / f"texts.{store}", lzma.compress(lines) if store == "xz" else lines)
    assert make_and_learn(source, corpus[1], tmp_path / "out") == expected


def test_lines_of_several_sentences_stay_whole_as_in_the_original(corpus, texts, tmp_path, capsys):
    path = write_text(tmp_path / "text.txt", "\n\n".join(text.replace("\n", " ") + "\nEnd." for text in texts))
    assert formats.detect_format(path) == "paragraphs"
    made = []
    for name in ("auto", "sentences", "paragraphs"):
        make_records(([path], corpus[1]), tmp_path / name, input_format=name)
        made.append(contents(tmp_path / name, "*.tfrecord"))
    assert made[0] == made[1] != made[2]
    assert "text: sentences (1 file)\nnote: in 1 file most of the text is on lines of sev" in capsys.readouterr().out
    documents = list(formats.read_files("reading", [path], VocabularyOptions([path], "v")))
    assert documents == list(formats.read_documents(path, "paragraphs"))
    assert "note" not in capsys.readouterr().out


def test_text_that_is_left_out_or_misread_is_counted(tmp_path, capsys):
    rows = rb'{"text": "a\ud83db \ud83d\ude00"}' + b'\n{"text": " "}\n'
    contents = [b"\n", rows, b"One.\rTwo.\r", b"a\xffb\r\n\xe4\n\nc"]
    paths = [write_text(tmp_path / f"{number}", content) for number, content in enumerate(contents)]
    options = VocabularyOptions(input_file=paths, vocab_file="v", drop_invalid_utf8=True)
    documents = list(formats.read_files("reading", [*paths, parquet(tmp_path, ["", "d"])], options))
    assert documents == [["ab 😀"], ["One.", "Two."], ["ab"], ["c"], ["d"]]
    (note,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("note: "))
    assert re.findall(r": (\d+)", note) == ["5", "3", "2", "1", "1"]  # half of a surrogate pair has three bytes
    assert r"tr '\r' '\n'" in note


def test_the_field_and_the_language_of_the_flags_are_used(tmp_path):
    text = "Er kam bzw. ging am 3. Mai z.B. nach Rom."  # one sentence by the rules of German only
    rows = write_text(tmp_path / "rows", json.dumps({"text": "", "body": text}))
    options = VocabularyOptions(input_file=[rows], vocab_file="v", text_field="body", language="de")
    assert list(formats.read_files("reading", [rows], options)) == [[text]]
    assert formats.resolve_format(write_text(tmp_path / "plain", text), options) == "sentences"


def test_files_that_a_format_or_the_reference_algorithm_cannot_read_are_rejected(corpus, tmp_path):
    stored, rows = parquet(tmp_path, ["One.", "Two."]), write_text(tmp_path / "rows", '{"text": "the value"}\n')
    zipped = write_text(tmp_path / "text.gz", gzip.compress(b"the cat sat\n"))
    reference = {"algorithm": "reference", "num_shards": 1}
    for path, flags, *names in (
        (stored, {"input_format": "jsonl"}, "parquet", "--input_format", "jsonl"),
        (stored, reference, "parquet", "--algorithm=reference", "--algorithm=fast"),
        (zipped, reference, "--algorithm=reference", "--algorithm=fast"),
        (rows, reference, "jsonl", "--algorithm=reference", "--input_format=sentences"),
    ):
        assert_rejected((path, *names), make_records, ([path], corpus[1]), tmp_path / "out", **flags)
    made = make_records(([rows], corpus[1]), tmp_path / "out", input_format="sentences", **reference)
    assert made["text_tokens"] > 2
