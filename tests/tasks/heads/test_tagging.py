import functools
import pathlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from official_bert.tasks import conll
from official_bert.tasks.heads import tagging as head
from official_bert.tasks.heads.features import NO_LABEL
from official_bert.tasks.heads.tagging import Sentence, TaggingHead
from official_bert.tokenization.exact import FullTokenizer
from official_bert.tokenization.fast import FastTokenizer
from tests.make import refusal
from tests.tasks.bad_rows import read_kept

read = functools.partial(read_kept, conll.read)


def test_the_first_piece_of_each_word_is_labelled(tokenizer: FullTokenizer):
    words = ("the", "unaffable", "\u200b", "cat", "sunning")
    (window,) = head.cut_into_windows([words], tokenizer, 30)
    tokens = tokenizer.convert_ids_to_tokens(window.input_ids)
    assert tokens == "[CLS] the un ##aff ##able [UNK] cat sun ##n ##ing [SEP]".split()
    sentence = Sentence(words, ("D", "A", "X", "N", "N"), 1)
    labels = head.label_ids(window, sentence, {"A": 0, "D": 1, "N": 2, "X": 3})
    nothing = NO_LABEL
    assert labels == [nothing, 1, 0, nothing, nothing, 3, 2, 2, nothing, nothing, nothing]


@given(
    st.lists(st.sampled_from(["cat", "unaffable", "sunning", "zzzzzzzzz"]), min_size=1, max_size=30), st.integers(3, 12)
)
def test_every_word_is_tagged_once_and_none_is_cut(words: list[str], max_seq_length: int):
    tokenizer = FakeTokenizer()
    cut = head.cut_into_windows([words], tokenizer, max_seq_length)
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
    assert "max_seq_length=2 leaves no room" in refusal(head.cut_into_windows, [["cat"]], tokenizer, 2)


def test_tags_come_from_the_window_that_owns_the_word(tokenizer: FullTokenizer):
    sentences = [["the", "unaffable", "cat", "sat", "on", "the", "mat"], ["dog"]]
    cut = head.cut_into_windows(sentences, tokenizer, 6)
    assert len(cut) > 3
    labels = [f"tag {number}" for number in range(8)]
    logits = [np.full((9, 8), 5.0, np.float32) for _ in cut]  # what no word reads is not looked at
    for window, scores in zip(cut, logits, strict=True):
        for word, position in zip(window.words, window.positions, strict=True):
            scores[position] = 0.0
            scores[position, word] = np.log(7.0)
    tags, probabilities = head.tags_from_logits([7, 1], cut, logits, labels)
    assert tags == [[f"tag {number}" for number in range(7)], ["tag 0"]]
    assert probabilities[0] == pytest.approx([0.5] * 7)


def test_real_sentences_are_windowed_whole(test_data: pathlib.Path):
    tokenizer = FullTokenizer(str(test_data / "vocab" / "bert-base-multilingual-cased-vocab.txt"), do_lower_case=False)
    sentences, problems = read(str(test_data / "tagging" / "de_gsd-ud-dev.conllu"))
    assert len(sentences) == 799
    assert problems == []
    assert len(conll.tags_of(sentences)) == 17
    cut = head.cut_into_windows([sentence.words for sentence in sentences], tokenizer, 32)
    tagged = sorted((window.sentence, word) for window in cut for word in window.words)
    assert tagged == [(number, word) for number, each in enumerate(sentences) for word in range(len(each.words))]


def test_windows_of_tags_come_back_from_features(tokenizer: FullTokenizer):
    sentences = [Sentence(("the", "unaffable", "cat", "sat", "on"), None, 1), Sentence(("dog",), None, 7)]
    cut = head.cut_into_windows([each.words for each in sentences], tokenizer, 6)
    features = head.features_of(cut, sentences, {})
    assert features.targets == {}
    assert head.windows_of(features) == cut
    assert len(cut) > 2


def test_windows_begin_a_stride_apart_at_whole_words(tokenizer: FullTokenizer):
    letters = tokenizer.convert_tokens_to_ids(list("abcdefgh"))
    cut = head.cut_into_windows([tuple("abcdefgh")], tokenizer, 6, stride=2)
    assert [window.input_ids[1:-1] for window in cut] == [letters[first : first + 4] for first in (0, 2, 4)]


def test_a_word_that_just_fits_is_not_cut(vocab_file: str):
    sentences = [Sentence(("unaffable",), None, 1), Sentence(("the", "cat", "sat"), None, 2)]
    for length, is_cut in ((5, False), (4, True)):  # un ##aff ##able between [CLS] and [SEP]
        features = TaggingHead().featurize(sentences, FastTokenizer(vocab_file), length)
        assert features.is_cut.tolist() == [is_cut, False]


def test_the_margin_of_a_sentence_is_the_least_of_all_its_windows(tokenizer: FullTokenizer):
    sentences = [Sentence(tuple("abcdefgh"), None, 1)]
    cut = head.cut_into_windows([each.words for each in sentences], tokenizer, 6)
    assert len(cut) > 1
    for least in range(len(cut)):
        outputs = [np.tile(np.float32([0.0, 0.1 if least == number else 5.0]), (6, 1)) for number in range(len(cut))]
        margins = TaggingHead(labels=("X", "Y")).margins(outputs, head.features_of(cut, sentences, {}), sentences)
        assert margins == pytest.approx([np.tanh(0.05)], rel=1e-4)
