"""The English prose included in every Python installation."""

import os

from data_gen.options import ProseOptions
from data_gen.text import python_prose
from official_bert.utils import files
from tests.make import assert_rejected, write_text


def test_prose_is_kept_and_code_is_not():
    text = (
        "Return the *number* of items in a ``list``. It is never negative; see below for more.\n\n"
        "   >>> len(x)\n   3\n\nname = value\n\n+---+---+\n| a | b |\n+---+---+\n\n"
        "Arguments: x -- y, z1 = [2, 3], 4 * 5.\n"
    )
    sentences = ["Return the number of items in a list.", "It is never negative; see below for more."]
    assert list(python_prose.sentences(text)) == sentences


# Texts without their start, "Return the". A text needs enough words and an end, and at most two levels of indentation.
PROSE = ["number of items.", "number of items:", "x1 of items.", "number\n    of items."]
OTHER = ["only item.", "number of items,", "x1 of x2.", "\n  number\n    of items."]


def test_prose_has_capitals_words_and_an_end():
    for ends, is_prose in ((PROSE, True), (OTHER, False)):
        assert [bool([*python_prose.sentences(f"Return the {end}")]) for end in ends] == [is_prose] * 4
    assert not list(python_prose.sentences("return the number of items."))


def test_documents_of_two_new_sentences_are_kept(monkeypatch):
    one, two, three, four, five = (f"This is the sentence called {name}." for name in "one two three four five".split())
    documents = [("m87", f"{one} {two}"), ("b", f"{one} {three}"), ("c", f"{three}"), ("m97", f"{four} {five}")]
    monkeypatch.setattr(python_prose, "reference_documents", lambda: documents)
    monkeypatch.setattr(python_prose, "docstring_documents", list)
    assert python_prose.gather() == ([[one, two]], [[four, five]])  # by the hash of the name: 5 and 4 of 100


def test_docstrings_of_nested_definitions_are_found(tmp_path, monkeypatch):
    (tmp_path / "module.py").write_text(
        "'Module.'\n"
        "try:\n    def a():\n        'A.'\n        class B:\n            'B.'\n"
        "except ImportError:\n    async def c():\n        'C.'\n"
        "match 1:\n    case 1:\n        def d():\n            'D.'\n"
        "if 0:\n    pass\nelse:\n    for e in [lambda: 'none']:\n        def e(): 'E.'\n"
    )
    (tmp_path / "invalid.py").write_text("def")
    (tmp_path / "latin.py").write_bytes(b"'\xe9'")
    (tmp_path / "missing.py").symlink_to("none")
    (tmp_path / "test").mkdir()
    for name in ("this.py", "test/a.py"):  # are left out
        (tmp_path / name).write_text("'Nothing.'")
    monkeypatch.setattr(os, "__file__", str(tmp_path / "os.py"))
    ((name, text),) = python_prose.docstring_documents()
    assert (name, text.split()) == ("module.py", ["Module.", "A.", "B.", "C.", "D.", "E."])
    for letter in "hgfedcba":
        write_text(tmp_path / letter / "x.py", "")
    names = [name for name, _ in python_prose.docstring_documents()]
    assert names == ["module.py", *(f"{each}/x.py" for each in "abcdefgh")]


def test_other_files_are_not_replaced(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(python_prose, "gather", lambda: ([["One.", "Two."], ["A.", "B."]], [["Three.", "Four."]]))
    options = ProseOptions(output_file=str(tmp_path / "text.txt"), heldout_file=str(tmp_path / "mine.txt"))
    python_prose.write(options)
    python_prose.write(options)
    assert "text.txt: 2 documents, 4 sentences, 0.00 MB" in capsys.readouterr().out
    assert (tmp_path / "text.txt").read_text() == "One.\nTwo.\n\nA.\nB.\n"
    (tmp_path / "text.txt").unlink()
    mine = write_text(tmp_path / "mine.txt", "my text\n")
    assert_rejected(("--heldout_file", mine), python_prose.write, options)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["my text\n"]
    files.write_text("memory://prose/mine.txt", "my text\n")
    (tmp_path / "link.txt").symlink_to("text.txt")
    options = ProseOptions(output_file=str(tmp_path / "text.txt"), heldout_file="memory://prose/mine.txt")
    assert_rejected(("--heldout_file", options.heldout_file), python_prose.write, options)
    options = ProseOptions(options.output_file, heldout_file=str(tmp_path / "link.txt"))
    assert_rejected(("--output_file", "--heldout_file", options.heldout_file), python_prose.write, options)
