import functools
import pathlib
import re

import pytest

from official_bert.errors import UserError
from official_bert.kinds.tagging.spec import Sentence
from official_bert.tasks import conll
from official_bert.utils import tables
from official_bert.utils.bad_rows import SKIP, BadRows
from tests.make import refusal, write_text
from tests.tasks.bad_rows import KeptRows, read_kept

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


read = functools.partial(read_kept, conll.read)


def test_columns_are_read_with_the_last_one_as_the_tag(tmp_path: pathlib.Path):
    for text in (CONLL, CONLL.replace(" ", "\t"), CONLL.replace("\n", "\r\n"), CONLL + "\n \n\n"):
        sentences, problems = read(write_text(tmp_path / "a.txt", text))
        assert sentences == [
            Sentence(("The", "cat", "sat"), ("O", "B-ANIMAL", "O"), 3),
            Sentence(("on", "mat"), ("O", "I-THING"), 7),
        ]
        assert problems == []


def test_other_columns_are_chosen_by_number(tmp_path: pathlib.Path):
    path = write_text(tmp_path / "a.txt", "0 cat NN x\n1 sat VBD x\n")
    assert read(path, tag_column="2", word_column=1)[0] == [Sentence(("cat", "sat"), ("NN", "VBD"), 1)]
    assert read(path, tag_column="none")[0] == [Sentence(("0", "1"), None, 1)]
    assert read(path, tag_column="-2", word_column=1)[0][0].tags == ("NN", "VBD")


def test_conllu_gives_its_syntactic_words(tmp_path: pathlib.Path):
    path = write_text(tmp_path / "a.conllu", CONLLU)
    (first, second), problems = read(path)
    assert first == Sentence(("zu", "dem", "guten Hund"), ("ADP", "DET", "NOUN"), 4)
    assert second == Sentence(("#",), ("SYM",), 9)
    assert read(path, tag_column="xpos")[0][0].tags == ("APPR", "ART", "NN")
    assert conll.collect_tags([first, second]) == ["ADP", "DET", "NOUN", "SYM"]
    assert problems == []


@pytest.mark.parametrize(("text", "name", "reason"), [
    ("cat O\nsat X\n", "a.txt", "line 2: unknown tag 'X'; expected one of NOUN, O"),
    ("cat O\nsat\n", "a.txt", "line 2: 1 column; expected 2, as in the file's other rows"),
    ("Gaza\n\ncat O\n", "a.txt", "line 1: 1 column; expected 2, as in the file's other rows"),
    ("10 000 O\n", "a.txt", "line 1: 3 columns; expected 2, as in the file's other rows"),
    ("cat\tO\n\tO\n", "a.txt", "line 2: no word in column 0 of 2"),
    ("cat\t\n", "a.txt", "line 1: no tag in column -1 of 2"),
    ("1\tcat\tcat\t_\n", "a.conllu", "line 1: no tag in column 3 of 4"),
    ("1\tcat\n", "a.conllu", "line 1: no tag in column 3 of 2"),
    ("cat NOUN\n", "a.conllu", "line 1: no tag in column 3 of 2"),
])  # fmt: skip
def test_a_broken_sentence_is_named_and_the_rest_is_read(text: str, name: str, reason: str, tmp_path: pathlib.Path):
    good = "1\tcat\tcat\tNOUN\n\n" if name.endswith(".conllu") else "a O\nan O\n\nthe O\n"
    path = write_text(tmp_path / name, text + "\n" + good)
    sentences, (problem,) = read(path, known_tags=["O", "NOUN"])
    assert len(sentences) == (1 if name.endswith(".conllu") else 2 + (text.startswith("Gaza")))
    assert problem == f"{path}, {reason}"


def test_a_file_with_words_alone_has_no_tags(tmp_path: pathlib.Path):
    path = write_text(tmp_path / "a.txt", "the\ncat\n")
    assert "line 1: column 0 of 1 is both the word and the tag" in refusal(conll.read, path, BadRows())
    with pytest.raises(UserError, match=r"1 bad row; the first: .*line 1: column 0 of 1 is both"):
        conll.read(path, BadRows(SKIP, silent=True))
    assert read(path, tag_column="none")[0] == [Sentence(("the", "cat"), None, 1)]


def test_a_lost_tag_is_found_in_every_column(tmp_path: pathlib.Path):
    path = write_text(tmp_path / "a.txt", "EU NNP B-ORG\nGaza B-LOC\n\nthe DT O\n")
    for column in ("-1", "1", "2"):
        assert read(path, tag_column=column)[1] == [
            f"{path}, line 2: 2 columns; expected 3, as in the file's other rows"
        ]
    # If the number of columns depends on the number of predicates in a sentence, columns are selected by number.
    path = write_text(tmp_path / "b.txt", "0 a DT\n\n0 cat NN *\n1 sat VBD *\n")
    assert [each.tags for each in read(path, word_column=1, tag_column="2")[0]] == [("DT",), ("NN", "VBD")]


def test_only_tabs_and_blanks_separate_columns(tmp_path: pathlib.Path):
    path = write_text(tmp_path / "a.txt", "10\u00a0000 CD O \n\u3000  SP O\n\u2028 SP O\n\n\u3000\tSP\tO\n")
    sentences, problems = read(path)
    assert problems == []
    assert [each.words for each in sentences] == [("10\u00a0000", "\u3000", "\u2028"), ("\u3000",)]
    assert {tag for each in sentences for tag in each.tags or ()} == {"O"}


@pytest.mark.parametrize("text", [
    "EU,NNP,B-ORG\nrejects,VBZ,O\n,,,O\n",
    "Sentence: 1,EU,NNP,O\n,rejects,VBZ,O\n,the,DT,O\n",
    "EU;B-ORG\nrejects;O\n",
    "EU|B-ORG\nrejects|O\n",
])  # fmt: skip
def test_other_separators_are_named(text: str, tmp_path: pathlib.Path):
    path = write_text(tmp_path / "train.csv", text)
    assert re.search(
        r"train\.csv, line [12]: the columns seem to be separated by '[,;|]'.*--task=table", refusal(read, path)
    )
    commas = write_text(tmp_path / "a.txt", ", O\n; O\n| O\n1,000 O\n")
    assert read(commas)[0][0].words == (",", ";", "|", "1,000")


def test_a_table_with_a_word_in_each_row_gives_sentences(tmp_path: pathlib.Path):
    text = (
        'Sentence #,Word,POS,Tag\nSentence: 1,Thousands,NNS,O\n,of,IN,O\n,",",",",O\nSentence: 2,Iran,NNP,B-geo\n'
        "Sentence: 2,ran,VBD,O\n"
    )
    path = write_text(tmp_path / "train.csv", text)
    right = [
        Sentence(("Thousands", "of", ","), ("O", "O", "O"), 2),
        Sentence(("Iran", "ran"), ("B-geo", "O"), 5),
    ]
    assert read(path) == (right, [])
    assert read(path, tag_column="2")[0][0].tags == ("NNS", "IN", ",")
    assert read(path, tag_column="none")[0][1] == Sentence(("Iran", "ran"), None, 5)
    rows = tables.read_rows(path, BadRows())
    assert conll.read_rows(rows, path, BadRows(), "Word", "Tag") == right
    write_text(tmp_path / "train.csv", text.replace("of,IN,O", "of,IN,"))
    assert read(path)[1] == [f"{path}, line 2: 3 words and 0 tags; expected a tag for each word"]


def test_comments_before_a_sentence_are_counted(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]):
    text = (
        "# id 1 domain=en\n# text = the cat\nthe _ _ O\ncat _ _ B-X\n\n#\thttp://a\n# _ _ O\n1 _ _ O\n# _ _ O\n\n"
        "# end\n\n#1 _ _ O\n"
    )
    path = write_text(tmp_path / "a.txt", text)
    sentences, problems = read(path)
    assert sentences == [
        Sentence(("the", "cat"), ("O", "B-X"), 3),
        Sentence(("#", "1", "#"), ("O",) * 3, 7),
        Sentence(("#1",), ("O",), 13),
    ]  # fmt: skip
    assert problems == []
    assert "a.txt: ignored 4 comment lines before sentences (the first is line 1)" in capsys.readouterr().out
    path = write_text(tmp_path / "a.txt", "# #\n1 CD\n\na DT\n# #\n")  # "#" has the tag "#" in the Penn Treebank
    assert [each.words for each in read(path)[0]] == [("#", "1"), ("a", "#")]
    conll.read(path, BadRows(silent=True))
    assert capsys.readouterr().out == ""


def test_files_without_sentences_and_impossible_columns_are_refused(tmp_path: pathlib.Path):
    path = write_text(tmp_path / "a.txt", "\n\n")
    assert "has no sentences" in refusal(read, path)
    assert "--tag_column is 'upos'" in refusal(read, path, tag_column="upos")


def test_a_word_or_tag_that_is_not_known_is_told(tmp_path: pathlib.Path):
    bad_rows = KeptRows()
    rows = [(1, {"words": ["a", None], "tags": ["X", "Y"]}), (2, {"words": ["a"], "tags": ["X"]})]
    assert len(conll.read_rows(rows, "a.jsonl", bad_rows, "words", "tags")) == 1
    assert bad_rows.problems == ["a.jsonl, line 1: 0 words and 2 tags; expected a tag for each word"]
