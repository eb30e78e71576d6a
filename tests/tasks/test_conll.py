import pathlib
from typing import Any

import pytest

from official_bert.errors import UserError
from official_bert.tasks import conll
from official_bert.tasks.heads.tagging import Sentence
from tests.tasks.bad_rows import KeptRows

CONLL = """-DOCSTART- -X- -X- O

The DT B-NP O
cat NN I-NP B-ANIMAL
sat VBD B-VP O

on IN B-PP O
mat NN B-NP I-THING
"""


CONLLU = """# sent_id = 1
# text = zum Hund
1-2\tzum\t_\t_\t_\t_\t_\t_\t_\t_
1\tzu\tzu\tADP\tAPPR\t_\t3\tcase\t_\t_
2\tdem\tder\tDET\tART\t_\t3\tdet\t_\t_
2.1\tist\tsein\tAUX\tVAFIN\t_\t_\t_\t_\t_
3\tguten Hund\tHund\tNOUN\tNN\t_\t0\troot\t_\t_

1\t#\t#\tSYM\t$\t_\t0\troot\t_\t_
"""


def read(path: str, **more: Any) -> tuple[list[Sentence], list[str]]:
    """The good sentences, and the bad ones' problems."""
    bad_rows = KeptRows()
    return conll.read(path, bad_rows, **more), bad_rows.problems


def written(path: pathlib.Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_columns_are_read_with_the_last_one_as_the_tag(tmp_path: pathlib.Path):
    for text in (CONLL, CONLL.replace(" ", "\t"), CONLL.replace("\n", "\r\n"), CONLL + "\n \n\n"):
        sentences, problems = read(written(tmp_path / "a.txt", text))
        assert sentences == [
            Sentence(("The", "cat", "sat"), ("O", "B-ANIMAL", "O"), 3),
            Sentence(("on", "mat"), ("O", "I-THING"), 7),
        ]
        assert problems == []


def test_other_columns_are_chosen_by_number(tmp_path: pathlib.Path):
    path = written(tmp_path / "a.txt", "0 cat NN x\n1 sat VBD x\n")
    assert read(path, tag_column="2", word_column=1)[0] == [Sentence(("cat", "sat"), ("NN", "VBD"), 1)]
    assert read(path, tag_column="none")[0] == [Sentence(("0", "1"), None, 1)]
    assert read(path, tag_column="-2", word_column=1)[0][0].tags == ("NN", "VBD")


def test_conllu_gives_its_syntactic_words(tmp_path: pathlib.Path):
    path = written(tmp_path / "a.conllu", CONLLU)
    (first, second), problems = read(path)
    assert first == Sentence(("zu", "dem", "guten Hund"), ("ADP", "DET", "NOUN"), 4)
    assert second == Sentence(("#",), ("SYM",), 9)
    assert read(path, tag_column="xpos")[0][0].tags == ("APPR", "ART", "NN")
    assert conll.tags_of([first, second]) == ["ADP", "DET", "NOUN", "SYM"]
    assert problems == []


@pytest.mark.parametrize(("text", "name", "reason"), [
    ("cat O\nsat\n", "a.txt", "line 2: unknown tag 'sat'; expected one of NOUN, O"),
    ("cat\tO\n\tO\n", "a.txt", "line 2: no word in column 0 of 2"),
    ("cat\t\n", "a.txt", "line 1: no tag in column -1 of 2"),
    ("1\tcat\tcat\t_\n", "a.conllu", "line 1: no tag in column 3 of 4"),
    ("1\tcat\n", "a.conllu", "line 1: no tag in column 3 of 2"),
    ("cat NOUN\n", "a.conllu", "line 1: no tag in column 3 of 2"),
])  # fmt: skip
def test_a_broken_sentence_is_named_and_the_rest_is_read(text: str, name: str, reason: str, tmp_path: pathlib.Path):
    good = "1\tcat\tcat\tNOUN\n\n"
    path = written(tmp_path / name, text + "\n" + good)
    sentences, (problem,) = read(path, known_tags=["O", "NOUN"])
    assert len(sentences) == 1
    assert problem == f"{path}, {reason}"


def test_files_without_sentences_and_impossible_columns_are_refused(tmp_path: pathlib.Path):
    path = written(tmp_path / "a.txt", "\n\n")
    with pytest.raises(UserError, match="has no sentences"):
        read(path)
    with pytest.raises(UserError, match="the tag column is 'upos'"):
        read(path, tag_column="upos")


def test_a_word_or_tag_that_is_not_known_is_told(tmp_path: pathlib.Path):
    bad_rows = KeptRows()
    rows = [(1, {"words": ["a", None], "tags": ["X", "Y"]}), (2, {"words": ["a"], "tags": ["X"]})]
    assert len(conll.from_rows(rows, "a.jsonl", bad_rows, "words", "tags")) == 1
    assert bad_rows.problems == ["a.jsonl, line 1: 0 words and 2 tags; expected a tag for each word"]
