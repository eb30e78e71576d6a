"""Detecting documents that contain an evaluation text."""

import gzip
import json

import pytest

from data_gen.text import exclusion
from data_gen.text.exclusion import DocumentFilter, ExcludedTexts
from tests import stored_texts
from tests.make import assert_rejected, write_text

TEXT = "A film to see twice, and “again”."


SAME = [["Before.", "A film to\tsee", "twice,  and “again”.", "After."], [TEXT.replace("film", "fi\ud83dlm")]]
SAME.append(["One wordAfilmtoseetwice,and“again”.and more"])
DIFFERENT = [[TEXT.lower()], [TEXT.removesuffix(".")], [], ["x" * 19]]


def test_comparison_ignores_only_white_space():
    excluded = ExcludedTexts([TEXT, "another text of twenty characters"])
    assert [excluded.is_in(document) for document in SAME + DIFFERENT] == [True] * 3 + [False] * 4


def test_short_texts_are_counted_and_ignored():
    excluded = ExcludedTexts(["a " * 19, "b" * 20, " ", "good", "good\n", "b " * 20])
    assert (excluded.texts, excluded.too_short) == (["b" * 20], 2)
    assert not excluded.is_in(["a" * 100])
    assert excluded.is_in(["a" + "b" * 20])
    same_start = ExcludedTexts([f"{'a' * 20}b", f"{'a' * 20}c"])
    assert [same_start.is_in([f"{'a' * 20}{end}"]) for end in "bcd"] == [True, True, False]


def test_excluded_documents_are_counted():
    kept = DocumentFilter(ExcludedTexts([TEXT]))
    assert list(kept([["One."], [TEXT], ["Two.", f"x{TEXT}"], ["Three."]])) == [["One."], ["Three."]]
    assert (kept.left_out, kept.counts) == (2, {"excluded": 2})
    assert list(DocumentFilter(None)([[TEXT]])) == [[TEXT]]
    assert DocumentFilter(None).counts == {}
    assert DocumentFilter(ExcludedTexts([TEXT])).counts == {"excluded": 0}


LONG = "twenty characters and more"


FILES = [
    ("dev.csv", f'text,label\n"{LONG}",1\n'),
    ("dev.csv", f"{LONG},1\nanother long text without a header,0\n"),
    ("dev.tsv", f"id\ttext\n1\t{LONG}\n"),
    ("dev.jsonl", json.dumps({"a": {"b": [1, LONG]}, "half": "\ud83d"}) + "\n"),
    ("dev", f"\nshort\n  {LONG}  \n"),
]


@pytest.mark.parametrize(("name", "content"), FILES)
def test_texts_are_read_from_all_file_formats(name, content, tmp_path):
    zipped = write_text(tmp_path / f"{name}.gz", gzip.compress(content.encode()))
    other, plain = write_text(tmp_path / "a.txt", "b" * 20), write_text(tmp_path / name, content)
    for path in (plain, zipped, stored_texts.parquet(tmp_path, [LONG, None])):
        excluded = exclusion.load([other, path])
        assert excluded.is_in([LONG])
        assert excluded.is_in(["b" * 20])
        assert not excluded.is_in(["another text of more than twenty characters"])


def test_the_number_of_texts_is_printed_and_files_without_a_usable_text_are_refused(tmp_path, capsys):
    path, none = write_text(tmp_path / "dev.csv", f"text,label\n{LONG},good\n"), str(tmp_path / "none.csv")
    exclusion.load_described([path])
    assert "any of 1 text (ignoring 3 of fewer than 20 characters)" in capsys.readouterr().out
    for row, names in (("good,1", (f"--exclude_texts={path}", 20)), ("a,1,2", (path, "line 2", 3, "2: text, label"))):
        write_text(tmp_path / "dev.csv", f"text,label\n{row}\n")
        assert_rejected(names, exclusion.load_described, [path])
    assert_rejected(("--exclude_texts", none), exclusion.load_described, [none])
