import functools

import pytest

from official_bert.kinds.tagging.spec import Sentence
from official_bert.tasks import conll
from official_bert.utils import tables
from official_bert.utils.bad_rows import SKIP, BadRows, NoBadRows
from tests.make import assert_mentions, assert_rejected, refusal, write_text
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


@pytest.mark.parametrize("text", [CONLL, CONLL.replace(" ", "\t"), CONLL.replace("\n", "\r\n"), CONLL + "\n \n\n"])
def test_columns_are_read_with_the_last_one_as_the_tag(text: str, tmp_path):
    first = Sentence(("The", "cat", "sat"), ("O", "B-ANIMAL", "O"), 3)
    assert read(write_text(tmp_path / "a.txt", text)) == ([first, Sentence(("on", "mat"), ("O", "I-THING"), 7)], [])


def test_other_columns_are_chosen_by_number(tmp_path):
    path = write_text(tmp_path / "a.txt", "0 cat NN x\n1 sat VBD x\n")
    for tag_column in ("2", "-2"):
        expected = Sentence(("cat", "sat"), ("NN", "VBD"), 1)
        assert read(path, tag_column=tag_column, word_column=1) == ([expected], [])
    assert read(path, tag_column="none") == ([Sentence(("0", "1"), None, 1)], [])
    assert read(path, tag_column="-4", word_column=1)[0][0].tags == ("0", "1")
    # If the number of columns depends on the number of predicates in a sentence, columns are selected by number.
    path = write_text(tmp_path / "b.txt", "0 a DT\n\n0 cat NN *\n1 sat VBD *\n")
    assert [each.tags for each in read(path, word_column=1, tag_column="2")[0]] == [("DT",), ("NN", "VBD")]


def test_syntactic_words_are_read_from_conllu(tmp_path):
    path = write_text(tmp_path / "a.conllu", CONLLU)
    first, second = Sentence(("zu", "dem", "guten Hund"), ("ADP", "DET", "NOUN"), 4), Sentence(("#",), ("SYM",), 9)
    assert read(path) == ([first, second], [])
    for column, tags in (("xpos", ("APPR", "ART", "NN")), ("4", ("APPR", "ART", "NN")), ("none", None)):
        assert read(path, tag_column=column)[0][0] == Sentence(first.words, tags, 4)
    assert conll.collect_tags([first, second]) == ["ADP", "DET", "NOUN", "SYM"]


def test_real_sentences_are_read(test_data):
    sentences, problems = read(str(test_data / "tagging" / "de_gsd-ud-dev.conllu"))
    assert (len(sentences), len(conll.collect_tags(sentences)), problems) == (799, 17, [])


@pytest.mark.parametrize(("text", "name", "names"), [
    ("cat O\nsat X\n", "a.txt", ("line 2", "'X'", "NOUN, O")),
    ("cat O\nsat\n", "a.txt", ("line 2", 1, "expected 2")), ("Gaza\n\ncat O\n", "a.txt", ("line 1", "1 column", 2)),
    ("10 000 O\n", "a.txt", ("line 1", 3, 2)), ("cat\tO\n\tO\n", "a.txt", ("line 2", "word", 0, "of 2")),
    ("cat\t\n", "a.txt", ("line 1", "tag", -1, 2)), ("1\tcat\tcat\t_\n", "a.conllu", ("line 1", "tag", 3, 4)),
    ("1\tcat\n", "a.conllu", ("line 1", "tag", 3, 2)), ("cat NOUN\n", "a.conllu", ("line 1", "tag", 3, 2)),
])  # fmt: skip
def test_an_invalid_sentence_is_reported_and_the_rest_read(text: str, name: str, names, tmp_path):
    good = "1\tcat\tcat\tNOUN\n\n" if name.endswith(".conllu") else "a O\nan O\n\nthe O\n"
    path = write_text(tmp_path / name, text + "\n" + good)
    sentences, (problem,) = read(path, known_tags=["O", "NOUN"])
    assert len(sentences) == (1 if name.endswith(".conllu") else 2 + (text.startswith("Gaza")))
    assert_mentions(problem, path, *names)


@pytest.mark.parametrize("column", ["-1", "1", "2"])
def test_a_missing_tag_is_detected_for_every_tag_column(column: str, tmp_path):
    path = write_text(tmp_path / "a.txt", "EU NNP B-ORG\nGaza B-LOC\n\nthe DT O\n")
    assert_mentions(*read(path, tag_column=column)[1], path, "line 2", "2 columns", 3)


def test_a_file_with_only_words_has_no_tags(tmp_path):
    path = write_text(tmp_path / "a.txt", "the\ncat X\n")
    assert_rejected((path, "line 1", 0, "word", "tag"), conll.read, path, BadRows())
    assert_rejected((path, "1 bad", "first", "line 1"), conll.read, path, BadRows(SKIP, silent=True))
    assert read(path, tag_column="none")[0] == [Sentence(("the", "cat"), None, 1)]


def test_only_tabs_and_blanks_separate_columns(tmp_path):
    path = write_text(tmp_path / "a.txt", "10\u00a0000 CD O \n\u3000  SP _\n\u2028 SP O\n\n\u3000\tSP\tO\n")
    first = Sentence(("10\u00a0000", "\u3000", "\u2028"), ("O", "_", "O"), 1)
    assert read(path) == ([first, Sentence(("\u3000",), ("O",), 5)], [])
    path = write_text(tmp_path / "a.txt", ", O\n; O\n| O\n1,000 O\n")
    assert read(path)[0][0].words == (",", ";", "|", "1,000")
    assert read(write_text(tmp_path / "a.txt", "1,000 O\ncat O\n"))[0][0].words == ("1,000", "cat")


@pytest.mark.parametrize(("text", "line", "separator"), [
    ("EU,NNP,B-ORG\nrejects,VBZ,O\n,,,O\n", 1, ","), ("Sentence: 1,EU,NNP,O\n,rejects,VBZ,O\n,the,DT,O\n", 2, ","),
    ("EU;B-ORG\nrejects;O\n", 1, ";"), ("EU|B-ORG\nrejects|O\n", 1, "|"),
])  # fmt: skip
def test_other_separators_are_named(text: str, line: int, separator: str, tmp_path):
    path = write_text(tmp_path / "train.csv", text)
    assert_rejected((path, f"line {line}", f"'{separator}'", "--task=table"), read, path)


def test_a_table_with_a_word_in_each_row_gives_sentences(tmp_path):
    text = '"Sentence #",Word,POS,Tag\nS1,Thousands,NNS,O\n,of,IN,O\n,",",",",O\nS2,Iran,NNP,B-geo\nS2,ran,VBD,O\n'
    path = write_text(tmp_path / "train.csv", text)
    right = [Sentence(("Thousands", "of", ","), ("O", "O", "O"), 2), Sentence(("Iran", "ran"), ("B-geo", "O"), 5)]
    assert read(path) == (right, [])
    assert read(path, tag_column="2")[0][0].tags == ("NNS", "IN", ",")
    assert read(path, tag_column="none")[0][1] == Sentence(("Iran", "ran"), None, 5)
    assert_mentions(*read(path, known_tags=["O"])[1], path, "line 5", "B-geo")
    assert conll.read_rows(tables.read_rows(path, BadRows()), path, BadRows(), "Word", "Tag") == right
    for bad_rows, has_flags in ((BadRows(), True), (NoBadRows(), False)):
        message = refusal(conll.read_rows, [(1, {"word": "a"})], path, bad_rows, "Word", None)
        assert ("--text_column" in message) == has_flags
    write_text(tmp_path / "train.csv", text.replace("of,IN,O", "of,IN,"))
    assert_mentions(*read(path)[1], path, "line 2", 3, 0)


def test_comments_before_a_sentence_are_counted(tmp_path, capsys: pytest.CaptureFixture[str]):
    text = "# id O\n# text = the\nthe _ _ O\ncat _ _ B-X\n\n#\thttp://a\n# _ _ O\n1 _ _ O\n# _ _ O\n\n# end\n\n"
    first, second = Sentence(("the", "cat"), ("O", "B-X"), 3), Sentence(("#", "1", "#"), ("O", "O", "O"), 7)
    path = write_text(tmp_path / "a.txt", text + "#1 _ _ O\n")
    assert read(path) == ([first, second, Sentence(("#1",), ("O",), 13)], [])
    assert "a.txt: ignored 4 comment lines before sentences (the first is line 1)" in capsys.readouterr().out
    path = write_text(tmp_path / "a.txt", "# #\n1 CD\n\na DT\n# #\n")  # "#" has the tag "#" in the Penn Treebank
    assert [each.words for each in read(path)[0]] == [("#", "1"), ("a", "#")]
    conll.read(path, BadRows(silent=True))
    assert capsys.readouterr().out == ""


def test_files_without_sentences_and_impossible_columns_are_refused(tmp_path):
    path = write_text(tmp_path / "a.txt", "\n\n")
    assert_rejected((path, "sentences"), read, path)
    assert_rejected(("--tag_column", "'upos'"), read, path, tag_column="upos")


@pytest.mark.parametrize(("rows", "names"), [
    ([(["a", None], ["X", "Y"])], [("line 1", 0, 2)]),
    ([("a dog", "DET"), ("the dog", "DET Z")], [("line 1", 2, "1 tags"), ("line 2", "Z", "DET, X, Y")]),
])  # fmt: skip
def test_a_row_with_different_numbers_of_words_and_tags_is_reported(rows, names):
    table = [{"words": words, "tags": tags} for words, tags in [*rows, (["a"], ["X"])]]
    bad_rows = KeptRows()
    places = [*range(1, len(table)), "row 9"]  # the last one is that of a file without lines
    read_sentences = conll.read_rows(zip(places, table, strict=True), "a", bad_rows, "words", "tags", ["DET", "X", "Y"])
    assert read_sentences == [Sentence(("a",), ("X",), len(table))]
    for problem, each in zip(bad_rows.problems, names, strict=True):
        assert_mentions(problem, "a", *each)
