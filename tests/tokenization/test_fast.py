import contextlib
import functools
import itertools
import random
import sys
import unicodedata
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from official_bert.tokenization import fast
from official_bert.tokenization.casing import UNCASED, Casing
from official_bert.tokenization.exact import SPECIAL_TOKENS
from official_bert.tokenization.fast import FastTokenizer
from tests.tokenization.test_exact import ASSIGNED, CASINGS, with_code_points


# Marks that are sorted like accents but not deleted. Only these, capital sigma and unassigned characters are slow.
def has_staying_mark(code: int) -> bool:
    marks = filter(unicodedata.combining, unicodedata.normalize("NFD", chr(code)))
    return any(unicodedata.category(mark) != "Mn" for mark in marks)


STAYING_MARKS = set(filter(has_staying_mark, ASSIGNED))


def assert_exact(tokenizer: FastTokenizer, texts: list[str]) -> None:
    ids, splits = tokenizer.encode(texts)
    assert (ids.dtype, splits.dtype, len(splits)) == (np.int32, np.int64, len(texts) + 1)
    assert (splits[0], splits[-1]) == (0, len(ids))
    for text, (start, end) in zip(texts, itertools.pairwise(splits.tolist()), strict=True):
        expected = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text))
        assert ids[start:end].tolist() == expected, ascii(text)


# A character at the start, middle and end of a word, after letters, by itself, and between punctuation.
CONTEXTS = "a{0}b {0}the e{0} {0} .{0},"
CONTEXTS_OF_SIGMA = "αΣ{0} αΣ{0}α {0}Σ"


def format_contexts(codes: list[int], contexts: str) -> list[str]:
    """Returns texts with these code points in the contexts. Those for the exact rules get separate texts."""
    fast = [contexts.format(chr(code)) for code in codes if code not in STAYING_MARKS]
    together = [" ".join(fast[start : start + 32]) for start in range(0, len(fast), 32)]
    return together + [contexts.format(chr(code)) for code in STAYING_MARKS]


def make_vocab(codes: list[int]) -> str:
    """Returns a vocabulary of letters, so that every character has its own id and few words are unknown."""
    # Excludes characters that are stripped as whitespace around a line of the file.
    letters = [chr(code) for code in codes if chr(code).strip()]
    return "\n".join([*SPECIAL_TOKENS, *letters, *("##" + letter for letter in letters)]) + "\n"


@functools.cache
def alphabet(casing: Casing) -> FastTokenizer:
    return FastTokenizer.from_vocab(make_vocab(ASSIGNED), **casing._asdict())


@with_code_points
@pytest.mark.parametrize("casing", CASINGS)
def test_every_assigned_code_point_is_tokenized_exactly(casing, codes):
    for contexts in (CONTEXTS + " 中{0}{0}", CONTEXTS_OF_SIGMA):
        assert_exact(alphabet(casing), format_contexts(codes, contexts))


@with_code_points
@pytest.mark.parametrize("casing", CASINGS)
def test_only_marks_that_stay_capital_sigma_and_unassigned_characters_need_the_exact_rules(casing, codes, monkeypatch):
    assert 38 <= len(STAYING_MARKS) < 60  # more with the Unicode data of later versions of Python
    expected = {"\u0378", "\ud800"} | ({"Σ"} if casing.do_lower_case else set())
    expected |= set(map(chr, STAYING_MARKS)) if casing.strip_accents else set()
    texts = [*map(chr, codes), *expected]
    alphabet(casing).encode(texts)  # looks up the characters beforehand
    basic, slow = alphabet(casing).basic_tokenizer, []
    exact = basic.tokenize
    monkeypatch.setattr(basic, "tokenize", lambda text: slow.append(text) or exact(text))
    alphabet(casing).encode(texts)
    assert {*slow} == expected


# Characters that the two implementations could treat differently: marks, sigmas, ideographs, spaces, control
# characters, deleted, unassigned and private-use characters, unpaired surrogates, and special notation of the
# vocabulary.
TRICKY = [
    *"aAbeéE\u0130ıΣσςßẞ中\U00020000각\ud800\ue000\uffff\U0010ffff\ufdd0\u0378\u1b4e\u0301\u0323\u0345\u1dfa",
    *"\u302e\u302f\U0001d165\U0001d15e\u094d\u0b4b\u1b44 \u00a0\u1680\u2003\u3000\u2028\u2029\u0085\t\n\r\x0b\x0c\x1c",
    *"\0\x1f\x01\x7f\u00ad\u200b\u200d\u200e\ufeff\ufffd\U000e0041.,'-#_$^|~·«。！①²ﬁＡ🙂",
    *("##", "##a", "[MASK]", "[UNK]", "[PAD]", "the", "\r\n", "ing"),
]
TRICKY_TEXTS = st.lists(st.sampled_from(TRICKY), max_size=15).map("".join)
ANY_TEXTS = st.text(alphabet=st.characters(), max_size=20)
LONG_WORDS = st.builds(
    lambda start, letter, length, end: start + letter * length + end,
    st.sampled_from(["", "Σ ", "the,", "ab", "中", "\n"]),
    st.sampled_from(["a", "é", "e\u0301", "ß", "\u0130", "각", "ก", "𐐀", "b\u00ad", "中", "-", "x\u302e"]),
    st.sampled_from([33, 34, 49, 50, 51, 66, 67, 68, 99, 100, 101, 199, 200, 201, 202, 250, 801]),
    st.sampled_from(["", " Σ", ".the", "s", "\u0301", "\u200b", "\n"]),
)


@example([], UNCASED)
@example(["", "the cat", "", "\n", " \u200b", ""], UNCASED)
@given(st.lists(st.one_of(TRICKY_TEXTS, ANY_TEXTS, LONG_WORDS), max_size=8), st.sampled_from(CASINGS))
@settings(max_examples=120)
def test_any_texts_are_tokenized_exactly(texts, casing):
    assert_exact(alphabet(casing), texts)


def test_long_texts_many_texts_and_a_full_cache(vocab_file, monkeypatch):
    texts = ["the cat sat " * (number % 7) + "\u0378 dog" * (number % 11 == 0) for number in range(5000)]
    texts[500] = "the dog ran on the mat. " * 20_000
    assert_exact(FastTokenizer(vocab_file), texts)
    for name, value in {"_BATCH_CHARACTERS": 40, "_CACHED_WORDS": 10, "_LONGEST_CACHED": 8}.items():
        monkeypatch.setattr(fast, name, value)
    monkeypatch.setattr("official_bert.tokenization.exact._CACHED_WORDS", 10)
    rng = random.Random(2)
    words = ["the", "cat.", "unaffable", "dogs", "playing", "of", "zebra", "ΣΑΣ", "\u0903"]
    texts = [" ".join(rng.choices(words, k=rng.choice([0, 1, 3, 100]))) for _ in range(50)]
    assert_exact(FastTokenizer(vocab_file), [*texts, "the" * 50, "cat" + " " * 200])


def test_threads_share_the_caches_of_words_and_characters(vocab_file, monkeypatch):
    monkeypatch.setattr(fast, "_CACHED_WORDS", 5)  # so that the cache is cleared during lookups
    rng = random.Random(3)
    words = [first + second for first in ("the", "cat", "mat", "dog") for second in ("s", "ing", "ed", "x", "y")]
    letters = [chr(code) for code in ASSIGNED[::50]]
    texts = [" ".join(rng.choices(words, k=rng.randrange(1, 9))) + rng.choice(letters) for _ in range(400)]
    tokenizer = FastTokenizer(vocab_file)
    expected = [tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text)) for text in texts]
    with contextlib.ExitStack() as stack:
        stack.callback(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(1e-6)
        threads = stack.enter_context(ThreadPoolExecutor(4))
        assert list(threads.map(lambda text: tokenizer.encode([text])[0].tolist(), texts)) == expected


# Equal lines, and lines that are never equal to a word.
ODD_LINES = [
    *("a", "b", " a ", "##b\t", "", "##", "a b", "##b c", "a-b", "ab-", "##-", "--", "中文", "##中", "###", "##b##b"),
    *("a\x0bb", "\x0b", "a\u0301", "\u2028", "[CLS", "##[UNK]", "\ufffd", "c", "##c", "c", "", "\U0010ffff1", "dd"),
    *("\0", "a\0b", "\u200b", "a\u00a0b", "\u00adc", "Σ", "##Σ", "ς", "##ς", "##'s", "[UNK]", "\U0010ffff5", "A"),
]


@functools.cache
def odd_tokenizer(casing: Casing) -> FastTokenizer:
    vocab = "\n".join([*SPECIAL_TOKENS, *ODD_LINES, "\U0010ffff"]) + "\n"
    return FastTokenizer.from_vocab(vocab, **casing._asdict())


ODD_TEXTS = st.lists(st.sampled_from([*ODD_LINES, *TRICKY, "-", "##ab", " ", "abc", "5"]), max_size=8).map("".join)


@given(ODD_TEXTS, st.sampled_from(CASINGS))
@settings(max_examples=120)
def test_odd_lines_of_a_vocabulary_change_nothing(text, casing):
    assert_exact(odd_tokenizer(casing), [text])
