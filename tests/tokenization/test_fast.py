import functools
import itertools
import random
import sys
import unicodedata
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from official_bert.tokenization import fast
from official_bert.tokenization.casing import UNCASED, Casing
from official_bert.tokenization.exact import SPECIAL_TOKENS, BasicTokenizer
from official_bert.tokenization.fast import FastBasicTokenizer, FastTokenizer, normal_form
from tests.conftest import slow_after
from tests.tokenization.test_exact import ACCENTED, ASSIGNED, CASED, CASINGS, REAL_VOCABULARIES, with_code_points

# Marks that are sorted like accents but not deleted. Only these, capital sigma and unassigned characters are slow.
STAYING_MARKS = {
    code
    for code in ASSIGNED
    for made in unicodedata.normalize("NFD", chr(code))
    if unicodedata.combining(made) and unicodedata.category(made) != "Mn"
}


def assert_exact(tokenizer: FastTokenizer, texts: list[str]) -> None:
    ids, splits = tokenizer.encode(texts)
    assert (ids.dtype, splits.dtype, len(splits)) == (np.int32, np.int64, len(texts) + 1)
    assert (splits[0], splits[-1]) == (0, len(ids))
    for text, (start, end) in zip(texts, itertools.pairwise(splits.tolist()), strict=True):
        expected = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text))
        assert ids[start:end].tolist() == expected, ascii(text)


def find_slow_texts(tokenizer: FastTokenizer, texts: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the texts that are passed as a whole to the exact rules."""
    found: list[str] = []
    exact = BasicTokenizer(*tokenizer.casing[:2])
    tokenizer.encode(texts)  # looks up the characters beforehand
    with monkeypatch.context() as patch:
        patch.setattr(tokenizer.basic_tokenizer, "tokenize", lambda text: found.append(text) or exact.tokenize(text))
        tokenizer.encode(texts)
    return found


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
@pytest.mark.parametrize("casing", slow_after(1, CASINGS))
def test_every_assigned_code_point_is_tokenized_exactly(casing, codes):
    for contexts in (CONTEXTS + " 中{0}{0}", CONTEXTS_OF_SIGMA):
        assert_exact(alphabet(casing), format_contexts(codes, contexts))


@with_code_points
@pytest.mark.parametrize("casing", CASINGS)
def test_only_marks_that_stay_and_capital_sigma_need_the_exact_rules(casing, codes, monkeypatch):
    slow = find_slow_texts(alphabet(casing), [chr(code) for code in codes], monkeypatch)
    assert 38 <= len(STAYING_MARKS) < 60  # more with the Unicode data of later versions of Python
    sigma = {ord("Σ")} if casing.do_lower_case else set()
    assert set(map(ord, slow)) == sigma | (STAYING_MARKS if casing.strip_accents else set())


NORMAL_FORMS = [
    ("aÉ,中\u3000\u200b", UNCASED, ["a", "e", " , ", " 中 ", " ", ""]),
    ("aÉ,中\u3000\u200b", CASED, ["a", "É", " , ", " 中 ", " ", ""]),
    ("각Σ\u302e\u0378\ud800", UNCASED, ["\u1100\u1161\u11a8", *[None] * 4]),
    ("É각Σ\u302e\u0378", ACCENTED, ["é", "각", None, "\u302e", None]),
    ("Σ\u302e\u0378\ud800", CASED, ["Σ", "\u302e", None, None]),
]


@pytest.mark.parametrize(("characters", "casing", "forms"), NORMAL_FORMS)
def test_normal_form_is_what_a_character_becomes_in_every_context(characters, casing, forms):
    assert [normal_form(character, BasicTokenizer(*casing[:2])) for character in characters] == forms


def assert_exact_words(casing: Casing, texts: list[str]) -> None:
    exact = BasicTokenizer(*casing[:2])
    expected = [word for text in texts for word in [*exact.tokenize(text), fast.TEXT_END]][:-1]
    assert FastBasicTokenizer(exact).words(texts) == expected


@with_code_points
@pytest.mark.parametrize("casing", CASINGS)
def test_fast_words_equal_exact_words_for_every_code_point(casing, codes):
    texts = [CONTEXTS.format(chr(code)) for code in [*codes, 0x378, 0xD800]]
    for start in range(0, len(texts), 2000):
        assert_exact_words(casing, texts[start : start + 2000])


@given(st.lists(st.text()), st.sampled_from(CASINGS))
def test_fast_words_equal_exact_words_of_any_text(texts, casing):
    assert_exact_words(casing, texts)


@pytest.mark.parametrize("every", [10, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "casing"), slow_after(2, REAL_VOCABULARIES))
def test_real_text_is_tokenized_exactly_on_the_fast_path(name, casing, every, test_data, monkeypatch):
    tokenizer = FastTokenizer(str(test_data / "vocab" / name), *casing)
    paths = [*sorted((test_data / "text").glob("*.txt")), test_data / "corpus" / "enwiki" / "wiki_00"]
    lines = [line for path in paths for line in path.read_text(encoding="utf-8").split("\n")][::every]
    assert_exact(tokenizer, lines)
    assert len(find_slow_texts(tokenizer, lines, monkeypatch)) < 0.001 * len(lines)
    assert_exact(tokenizer, format_contexts(ASSIGNED[::every], CONTEXTS))


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


@given(st.lists(st.one_of(TRICKY_TEXTS, ANY_TEXTS, LONG_WORDS), max_size=8), st.sampled_from(CASINGS))
@settings(max_examples=200)
def test_any_texts_are_tokenized_exactly(texts, casing):
    assert_exact(alphabet(casing), texts)


@pytest.mark.parametrize("letter", ["a", "é", "ก", "𐐀"])
@pytest.mark.parametrize("length", [99, 100, 101, 200, 201, 800, 801])
def test_words_of_over_200_characters_are_unknown(letter, length):
    assert_exact(alphabet(CASED), ["the", letter * length, "cat"])
    assert len(alphabet(CASED).encode([letter * length])[0]) == (length if length <= 200 else 1)


def test_no_texts_and_empty_texts_have_no_pieces():
    for texts in ([], [""], ["", ""], ["", "\n", " \u200b"]):
        assert_exact(alphabet(UNCASED), texts)
        assert not len(alphabet(UNCASED).encode(texts)[0])
    assert_exact(alphabet(UNCASED), ["", "the cat", "", "sat.", ""])


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
    words = [f"{first}{second}" for first in ("the", "cat", "mat", "dog") for second in ("s", "ing", "ed", "x", "y")]
    letters = [chr(code) for code in ASSIGNED[::50]]
    texts = [" ".join(rng.choices(words, k=rng.randrange(1, 9))) + rng.choice(letters) for _ in range(400)]
    tokenizer = FastTokenizer(vocab_file)
    expected = [tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text)) for text in texts]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            ids = list(threads.map(lambda text: tokenizer.encode([text])[0].tolist(), texts))
    finally:
        sys.setswitchinterval(before)
    assert ids == expected


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
@settings(max_examples=200)
def test_odd_lines_of_a_vocabulary_change_nothing(text, casing):
    assert_exact(odd_tokenizer(casing), [text])


def test_odd_lines_of_a_vocabulary_do_not_disable_the_fast_path(monkeypatch):
    texts = ["a b", "a-b", "中文", "[UNK]", "", "a\x0bb"]
    assert find_slow_texts(odd_tokenizer(UNCASED), texts, monkeypatch) == []


def test_vocabulary_with_very_long_lines():
    vocab = "\n".join([*SPECIAL_TOKENS, "a" * 2000, "a" * 200, "b"])
    assert_exact(FastTokenizer.from_vocab(vocab), ["a" * 200, "b", "a", "", "the\nb", "a" * 2000])
