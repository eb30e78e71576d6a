import pathlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from official_bert.errors import UserError
from official_bert.tasks import tagging
from official_bert.tasks.tagging import Sentence
from official_bert.tasks.task import NO_LABEL
from official_bert.tokenization.exact import FullTokenizer
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


@pytest.fixture
def tokenizer(vocab_file: str) -> FullTokenizer:
    return FullTokenizer(vocab_file)


def read(path: str, **more: Any) -> tuple[list[Sentence], list[str]]:
    """The good sentences, and the bad ones' problems."""
    bad_rows = KeptRows()
    return tagging.read(path, bad_rows, **more), bad_rows.problems


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
    assert tagging.tags_of([first, second]) == ["ADP", "DET", "NOUN", "SYM"]
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


def test_the_first_piece_of_each_word_is_labelled(tokenizer: FullTokenizer):
    words = ("the", "unaffable", "\u200b", "cat", "sunning")
    (window,) = tagging.cut_into_windows([words], tokenizer, 30)
    tokens = tokenizer.convert_ids_to_tokens(window.input_ids)
    assert tokens == "[CLS] the un ##aff ##able [UNK] cat sun ##n ##ing [SEP]".split()
    sentence = Sentence(words, ("D", "A", "X", "N", "N"), 1)
    labels = tagging.label_ids(window, sentence, {"A": 0, "D": 1, "N": 2, "X": 3})
    nothing = NO_LABEL
    assert labels == [nothing, 1, 0, nothing, nothing, 3, 2, 2, nothing, nothing, nothing]


@given(
    st.lists(st.sampled_from(["cat", "unaffable", "sunning", "zzzzzzzzz"]), min_size=1, max_size=30), st.integers(3, 12)
)
def test_every_word_is_tagged_once_and_none_is_cut(words: list[str], max_seq_length: int):
    tokenizer = FakeTokenizer()
    cut = tagging.cut_into_windows([words], tokenizer, max_seq_length)
    assert sorted(word for window in cut for word in window.words) == list(range(len(words)))
    for window in cut:
        assert len(window.input_ids) <= max_seq_length
        for word, position in zip(window.words, window.positions, strict=True):
            kept = tokenizer.tokenize(words[word])[: max_seq_length - 2]
            assert window.input_ids[position : position + len(kept)] == tokenizer.convert_tokens_to_ids(kept)


class FakeTokenizer:
    """A piece for each letter."""

    def tokenize(self, word: str) -> list[str]:
        return list(word)

    def convert_tokens_to_ids(self, tokens: list[str]) -> list[int]:
        return [ord(token[0]) for token in tokens]


def test_no_room_for_a_word_is_refused(tokenizer: FullTokenizer):
    with pytest.raises(UserError, match="--max_seq_length=2 leaves no room"):
        tagging.cut_into_windows([["cat"]], tokenizer, 2)


def test_tags_come_from_the_window_that_owns_the_word(tokenizer: FullTokenizer):
    sentences = [["the", "unaffable", "cat", "sat", "on", "the", "mat"], ["dog"]]
    cut = tagging.cut_into_windows(sentences, tokenizer, 6)
    assert len(cut) > 3
    labels = [f"tag {number}" for number in range(8)]
    logits = [np.full((9, 8), 5.0, np.float32) for _ in cut]  # what no word reads is not looked at
    for window, scores in zip(cut, logits, strict=True):
        for word, position in zip(window.words, window.positions, strict=True):
            scores[position] = 0.0
            scores[position, word] = np.log(7.0)
    tags, probabilities = tagging.tags_from_logits([7, 1], cut, logits, labels)
    assert tags == [[f"tag {number}" for number in range(7)], ["tag 0"]]
    assert probabilities[0] == pytest.approx([0.5] * 7)


def test_real_sentences_are_windowed_whole(test_data: pathlib.Path):
    tokenizer = FullTokenizer(str(test_data / "vocab" / "bert-base-multilingual-cased-vocab.txt"), do_lower_case=False)
    sentences, problems = read(str(test_data / "tagging" / "de_gsd-ud-dev.conllu"))
    assert len(sentences) == 799
    assert problems == []
    assert len(tagging.tags_of(sentences)) == 17
    cut = tagging.cut_into_windows([sentence.words for sentence in sentences], tokenizer, 32)
    tagged = sorted((window.sentence, word) for window in cut for word in window.words)
    assert tagged == [(number, word) for number, each in enumerate(sentences) for word in range(len(each.words))]
