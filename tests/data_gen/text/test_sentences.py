"""Splitting paragraphs into sentences."""

import itertools
import json
import types

import pytest
import sentencex

from data_gen.text.formats import detect_format, read_documents


@pytest.mark.parametrize("space", "\u00a0\u1680\u2003\u202f\u205f\u3000")
def test_wide_spaces_before_a_period_are_accepted(space, written):
    text = f"This is plan B{space}. Then he came. 第一{space}。"
    (document,) = read_documents(written(text), "paragraphs")
    assert "Then he came." in document


def test_paragraph_stays_unsplit_if_the_splitter_fails(written, monkeypatch):
    def fail(language: str, text: str) -> None:
        raise type("PanicException", (BaseException,), {})

    monkeypatch.setattr("data_gen.text.sentences.sentencex", types.SimpleNamespace(segment=fail))
    assert list(read_documents(written("It is. It was."), "paragraphs")) == [["It is. It was."]]


def test_sentence_boundaries_depend_on_the_language(written):
    path = written("Er kam bzw. ging am 3. Mai z.B. nach Rom.")
    assert [len(document) for document in read_documents(path, "paragraphs", "de")] == [1]
    assert [len(document) for document in read_documents(path, "paragraphs", "en")] == [3]


def test_languages_may_have_three_letters_or_a_script(written):
    for language in ("yue", "zh-hans"):
        assert list(read_documents(written("一。"), "paragraphs", language)) == [["一。"]]


@pytest.mark.parametrize("format", ["paragraphs", "jsonl", "auto"])
def test_long_line_is_split_like_short_ones(format, written):
    sentences = [f"This is sentence {number}, which someone wrote." for number in range(100_000)]
    text = " ".join(sentences)
    assert len(text) > 4_000_000
    path = written(json.dumps({"text": text}) if format == "jsonl" else text)
    assert list(read_documents(path, format)) == [sentences]


def test_a_big_line_without_sentence_ends_is_one_sentence(written):
    path = written("word " * 1_000_000)
    assert detect_format(path) == "sentences"
    for format in "sentences", "paragraphs":
        assert list(read_documents(path, format)) == [[("word " * 1_000_000).strip()]]


def test_real_paragraphs_are_split_like_the_library_does(test_data):
    path = test_data / "text" / "de_xquad.txt"
    lines = path.read_text(encoding="utf-8-sig").split("\n")
    expected = [
        [s.strip() for line in group for s in sentencex.segment("de", line.replace("\u00a0", " ").strip())]
        for empty, group in itertools.groupby(lines, key=lambda line: not line.strip())
        if not empty
    ]
    assert list(read_documents(str(path), language="de")) == expected
