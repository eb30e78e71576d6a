"""Tokens per word, and the proposal of new words."""

import json

import pytest

from official_bert.adaptation import words
from official_bert.tokenization.casing import UNCASED
from tests.adaptation.adapted_models import make_options
from tests.make import VOCAB


def test_words_that_save_most_tokens_come_first():
    counts = {"catdog": 10, "running": 6, "sunny": 5, "cat": 100, "rare": 4}
    proposals = words.propose_words(VOCAB, counts, 10)
    # A word outside the vocabulary is split into single letters (c ##a ##t). Merging cat ##d ##o ##g saves 3 tokens.
    assert [(each.word, each.saved) for each in proposals] == [("catdog", 30), ("running", 24), ("sunny", 10)]
    assert proposals[0].pieces == ["cat", "##d", "##o", "##g"]
    assert [each.word for each in words.propose_words(VOCAB, counts, 1)] == ["catdog"]


def test_tokens_saved_by_an_earlier_word_are_counted_once():
    # un ##aff ##able, then un ##aff ##able ##s: after the first word is added, the second saves only one token.
    proposals = words.propose_words(VOCAB, {"unaffable": 50, "unaffables": 20, "playing": 25}, 3)
    assert [(each.word, each.saved) for each in proposals] == [("unaffable", 100), ("playing", 25), ("unaffables", 20)]


def test_unknown_word_saves_one_token():
    (proposal,) = words.propose_words(VOCAB, {"日": 5}, 3)
    assert (proposal.word, proposal.pieces, proposal.saved) == ("日", ["[UNK]"], 5)


def test_description_has_pieces_per_word_and_unknown_characters():
    described = words.describe_words(VOCAB, {"cat": 6, "running": 2, "ca日": 2})
    assert "1.800 tokens per word; 20.00 % of the words are split into three or more, 20.000 % are [UNK]" in described
    assert described.endswith("characters that make words [UNK], with the number of words: '日' 2")


def test_words_are_counted_as_the_tokenizer_separates_them(tmp_path):
    (tmp_path / "text.txt").write_text("The cat-dog sat.\nthe cat\n\nThe sun\n")
    counts = words.count_words(str(tmp_path / "text.txt"), UNCASED).counts
    assert counts == {"the": 3, "cat": 2, "-": 1, "dog": 1, "sat": 1, ".": 1, "sun": 1}


def test_tokens_are_estimated_for_the_whole_text_if_only_a_sample_is_counted(source, tmp_path, monkeypatch):
    monkeypatch.setattr(words, "_MAX_WORDS", 8)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "domain.txt").write_text("cat\n" * 400 + "\n".join("abcdefgh"))
    options = make_options(source, "text.txt", tmp_path / "model", new_words=0)
    words.make_initial_model(options, words.read_checkpoint(options)[0], [], str(tmp_path))
    assert json.loads((tmp_path / "words.json").read_text())["tokens"] == pytest.approx(408, rel=0.05)
