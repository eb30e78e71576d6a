"""Word boundaries for whole-word masking in languages where BERT's own words are shorter than real words."""

import random
import sys

import numpy as np
import pytest

from data_gen.rules.masking import MaskingVocabulary
from data_gen.text.word_boundaries import MarkingTokenizer, WordBoundaries, get_continuation_mark, load
from official_bert.tokenization.casing import UNCASED, Casing
from official_bert.tokenization.exact import SPECIAL_TOKENS, parse_vocab
from official_bert.tokenization.fast import FastTokenizer
from tests.make import ROOT, assert_rejected, write_text
from tests.tokenization.test_exact import CASINGS

WORDS = "机器\n机器学习\n学习者\n模型\nDNA测序\nin\nÜ\nかな\nC++\n"
LETTERS = "我们用机器学习者模型 abdinst测序かなは文,+。étü\u0301\u0323"


def tokenizer(words: str, casing: Casing = UNCASED) -> MarkingTokenizer:
    letters = [letter for letter in dict.fromkeys(LETTERS + LETTERS.upper()) if letter.strip()]
    vocab = "\n".join([*SPECIAL_TOKENS, *letters, *("##" + letter for letter in letters)]) + "\n"
    return MarkingTokenizer(FastTokenizer.from_vocab(vocab, **casing._asdict()), WordBoundaries(None, words))


def group_words(cutter: MarkingTokenizer, text: str) -> list[list[str]]:
    """Returns the tokens of a text, grouped by what is masked together."""
    mark, words = get_continuation_mark(cutter.tokenizer.vocab), []
    for index in cutter.encode(["学", text])[0][1:].tolist():
        (token,) = cutter.tokenizer.convert_ids_to_tokens([index % mark])
        if index >= mark or token.startswith("##"):
            words[-1].append(token)
        else:
            words.append([token])
    return words


@pytest.mark.parametrize(("text", "words"), [
    ("我们用机器学习者模型。", "我 们 用 机器学习 者 模型 。"),  # the longest listed words
    ("DNA测序 dna测序", "d##n##a测序 d##n##a 测 序"),
    # Words of the basic tokenizer are not split.
    ("机 器模 型 学习 学习者", "机 器 模 型 学 习 学习者"),
    ("instab inst", "i##n##s##t##a##b i##n##s##t"),  # although "in" is a listed word
    ("文かなは机器", "文 か##な##は 机器"),
    ("bDNA测序", "b##d##n##a测序"),  # "bdna" begins before the listed word
])  # fmt: skip
def test_pieces_of_a_listed_word_belong_together(text, words):
    assert list(map("".join, group_words(tokenizer(WORDS), text))) == words.split()


def test_ids_equal_the_tokenizers_and_both_ways_to_find_words_agree(monkeypatch):
    rng = random.Random(0)
    pieces = [*LETTERS, *WORDS.split(), "\u200b", "\ud800", "\t", "Σ", "\u0378"]
    texts = ["".join(rng.choices(pieces, k=rng.randrange(12))) for _ in range(2000)]
    for casing in CASINGS:
        cutter = tokenizer(WORDS, casing)
        ids, splits = cutter.encode(texts)
        mark = get_continuation_mark(cutter.tokenizer.vocab)
        for found, plain in zip((ids % mark, splits), cutter.tokenizer.encode(texts), strict=True):
            assert np.array_equal(found, plain)
        assert 1000 < np.count_nonzero(ids >= mark) < len(ids) / 2
        with monkeypatch.context() as patch:
            patch.setattr(np, "array_equal", lambda *_: False)
            slow, _ = cutter.encode(texts)
        assert np.array_equal(slow, ids)
    assert [len(part) for part in tokenizer(WORDS).encode([])] == [0, 1]
    assert tokenizer(WORDS).encode(["", " "])[1].tolist() == [0, 0, 0]


def test_the_continuation_mark_exceeds_all_ids_of_a_vocabulary_with_equal_lines():
    vocab = parse_vocab("\n".join([*SPECIAL_TOKENS, "a", "a", "a", "b"]))
    offset = MaskingVocabulary.from_vocab(vocab).continuation_offset
    assert get_continuation_mark(vocab) == offset == len(vocab) + 2 == 9


def test_the_segmenter_finds_words(monkeypatch):
    pytest.importorskip("rjieba")
    cutter = MarkingTokenizer(tokenizer(WORDS).tokenizer, load("jieba"))
    assert [len(word) for word in group_words(cutter, "我们用机器学习模型。")] == [2, 1, 2, 2, 2, 1]
    assert len(group_words(cutter, "\ud800我们")) == 2
    assert load("jieba").identity.startswith("jieba: rjieba ")
    monkeypatch.setitem(sys.modules, "rjieba", None)
    assert_rejected(("rjieba", f"{ROOT}[jieba]"), load, "jieba")


@pytest.mark.parametrize(("content", "names"), [
    (None, ["jieba"]),
    ("", ["words"]),
    ("\ufeff\n \n", ["words"]),
    ("机器\n机器 学习\n", ["line 2", "机器 学习"]),
])  # fmt: skip
def test_invalid_word_boundaries_are_rejected(content, names, tmp_path):
    if content is not None:
        write_text(tmp_path / "words.txt", content)
    path = str(tmp_path / "words.txt")
    assert_rejected(("--word_boundaries", path, *names), load, path)


def test_identity_depends_on_the_list(tmp_path):
    assert WordBoundaries(None, "机器\n").identity != WordBoundaries(None, "机器学习\n").identity
    path = write_text(tmp_path / "words.txt", "\ufeff机器\n\n")
    assert list(load(path).find_spans("用机器")) == [(0, 1, False), (1, 3, True)]
    assert list(load(path).find_spans("机器机器用")) == [(0, 2, True), (2, 4, True), (4, 5, False)]
