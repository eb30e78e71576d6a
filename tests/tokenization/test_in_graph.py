import pathlib
import sys
import unicodedata
from typing import Any

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from official_bert.tokenization.casing import UNCASED, Casing
from official_bert.tokenization.exact import SPECIAL_TOKENS, FullTokenizer
from official_bert.tokenization.in_graph import GraphTokenizer
from tests.conftest import slow_after
from tests.make import refusal, write_vocab
from tests.tokenization.test_exact import ACCENTED, ASSIGNED, CASED, CASINGS, REAL_VOCABULARIES
from tests.tokenization.test_fast import ANY_TEXTS, CONTEXTS, LONG_WORDS, ODD_LINES, STAYING_MARKS, TRICKY_TEXTS


class Pair:
    """The exact tokenizer and the graph tokenizer as functions that are traced once."""

    def __init__(self, vocab_file: str, casing: Casing) -> None:
        self.exact = FullTokenizer(vocab_file, *casing)
        tokenizer = GraphTokenizer(self.exact)
        strings = [tf.TensorSpec([None], tf.string)]
        self.tokenize = tf.function(tokenizer.tokenize, input_signature=strings)
        self.tokenize_special = tf.function(
            lambda texts: tokenizer.tokenize(texts, special_tokens=True).ids, input_signature=strings
        )


def encode_utf8(text: str) -> bytes:
    """Encodes as UTF-8 without unpaired surrogates, which it cannot represent."""
    return text.encode("utf-8", "ignore")


def assert_exact(pair: Pair, texts: list[str]) -> None:
    texts = [encode_utf8(text).decode() for text in texts]
    tokens = pair.tokenize(tf.constant(texts, tf.string, [len(texts)]))
    ids, starts, ends, word_starts = (ragged.to_list() for ragged in tokens)
    assert len(ids) == len(texts)
    for row, text in enumerate(texts):
        expected = pair.exact.tokenize_with_offsets(text)
        assert ids[row] == pair.exact.convert_tokens_to_ids([piece.token for piece in expected]), ascii(text)
        assert starts[row] == [piece.start for piece in expected], ascii(text)
        assert ends[row] == [piece.end for piece in expected], ascii(text)
        assert word_starts[row] == [not piece.token.startswith("##") for piece in expected], ascii(text)


def assert_ids(pair: Pair, texts: list[str]) -> None:
    """Compares ids only. The exact tokenizer computes offsets slowly, so this suits long texts."""
    ids = pair.tokenize(tf.constant(texts)).ids.to_list()
    for row, text in enumerate(texts):
        assert ids[row] == pair.exact.convert_tokens_to_ids(pair.exact.tokenize(text)), ascii(text)


@pytest.fixture(scope="module")
def alphabet(tmp_path_factory: pytest.TempPathFactory) -> dict[Casing, Pair]:
    """A vocabulary of all letters, so that every character has its own id and few words are unknown."""
    letters = [chr(code) for code in ASSIGNED if chr(code).strip()]
    lines = [*SPECIAL_TOKENS, *letters, *("##" + letter for letter in letters)]
    path = write_vocab(tmp_path_factory.mktemp("alphabet") / "vocab.txt", lines)
    return {casing: Pair(path, casing) for casing in CASINGS}


@pytest.mark.parametrize("step", [10, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("casing", slow_after(1, CASINGS))
def test_every_assigned_code_point_is_cut_exactly(casing: Casing, step: int, alphabet: dict[Casing, Pair]):
    texts = [(CONTEXTS + " 中{0}{0}").format(chr(code)) for code in ASSIGNED[::step]]
    assert_ids(alphabet[casing], [" ".join(texts[start : start + 32]) for start in range(0, len(texts), 32)])


@pytest.mark.parametrize("casing", CASINGS)
def test_every_assigned_code_point_keeps_its_place(casing: Casing, alphabet: dict[Casing, Pair]):
    texts = [f"a{chr(code)}b{chr(code)} " for code in (*ASSIGNED[::29], *sorted(STAYING_MARKS))]
    assert_exact(alphabet[casing], ["".join(texts[start : start + 32]) for start in range(0, len(texts), 32)])


@pytest.mark.parametrize("casing", CASINGS)
def test_characters_that_are_not_assigned_are_letters(casing: Casing, alphabet: dict[Casing, Pair]):
    some = [*range(0x378, sys.maxunicode, 4099), 0x2FA1F, 0x30000, 0xE000, 0xF8FF, 0xFFFE, 0x10FFFF]
    codes = [code for code in some if unicodedata.category(chr(code)) in ("Cn", "Co")]
    assert len(codes) > 200
    assert_exact(alphabet[casing], [f"a{chr(code)} {chr(code)}Σ {chr(code)}," for code in codes])


@pytest.mark.parametrize("casing", [UNCASED, ACCENTED])
def test_capital_sigma_is_lowered_by_its_neighbours_beside_every_code_point(casing, alphabet):
    texts = [f"αΣ{chr(code)} αΣ{chr(code)}α {chr(code)}Σ" for code in ASSIGNED[::11]]
    assert_ids(alphabet[casing], [" ".join(texts[start : start + 16]) for start in range(0, len(texts), 16)])


def test_marks_that_stay_come_in_canonical_order(alphabet: dict[Casing, Pair]):
    marks = [chr(code) for code in sorted(STAYING_MARKS)][::3]
    marks += ["\u0301", "\u0323", "\u1dfa", "\u0b3f", "é", "각"]
    assert_exact(alphabet[UNCASED], [f"a{a}{b}{c}b" for a in marks for b in marks for c in marks[::4]])


@pytest.mark.parametrize(("name", "casing"), slow_after(2, REAL_VOCABULARIES))
@pytest.mark.parametrize("lines_each", [60, pytest.param(10_000, marks=pytest.mark.slow)])
def test_text_of_all_languages_is_cut_exactly(name: str, casing: Casing, lines_each: int, test_data: pathlib.Path):
    pair = Pair(str(test_data / "vocab" / name), casing)
    paths = sorted((test_data / "text").glob("*.txt"))
    assert len(paths) >= 7
    for path in paths:
        lines = [line for line in path.read_text(encoding="utf-8").split("\n") if line]
        assert_ids(pair, lines[:lines_each])
        assert_exact(pair, lines[:4])


@given(st.lists(st.one_of(TRICKY_TEXTS, ANY_TEXTS, LONG_WORDS), max_size=8), st.sampled_from(CASINGS))
@settings(max_examples=150)
def test_any_texts_are_cut_exactly(alphabet: dict[Casing, Pair], texts: list[str], casing: Casing):
    assert_exact(alphabet[casing], texts)


NEAR_SPECIAL_TOKENS = [*SPECIAL_TOKENS, *"[MASK MASK] [ ] [mask] the Σ αΣ 中".split(), *" \0\x05\x06\u0301\u302e"]
SPECIAL_TEXTS = st.lists(st.sampled_from(NEAR_SPECIAL_TOKENS), max_size=12).map("".join)


@given(st.lists(SPECIAL_TEXTS, max_size=4), st.sampled_from(CASINGS))
@settings(max_examples=100)
def test_special_tokens_are_found_as_the_exact_tokenizer_finds_them(alphabet, texts, casing):
    pair = alphabet[casing]
    found = pair.tokenize_special(tf.constant(texts, tf.string, [len(texts)])).to_list()
    for ids, text in zip(found, texts, strict=True):
        expected = pair.exact.convert_tokens_to_ids(pair.exact.tokenize(text, special_tokens=True))
        assert ids == expected, ascii(text)


CHARACTERS = [b"a", b"the ", b"[MASK]", b"\xef\xbb\xbf", b"\0", "é".encode(), "🙂".encode()]
NO_CHARACTERS = [b"\xe2\x82", b"\xf0\x9f", b"\xff", b"\x80", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80"]
BYTES = st.lists(st.sampled_from([*CHARACTERS, *NO_CHARACTERS]), max_size=8).map(b"".join)


@given(st.lists(BYTES, max_size=4))
@settings(max_examples=100)
def test_bytes_that_are_not_utf8_are_dropped_as_by_the_exact_tokenizer(alphabet, texts):
    pair = alphabet[UNCASED]
    strings: Any = tf.constant(texts, tf.string, [len(texts)])
    tokens, special = pair.tokenize(strings), pair.tokenize_special(strings).to_list()
    for row, text in enumerate(texts):
        expected = pair.exact.tokenize_with_offsets(text.decode("utf-8", "ignore"))
        assert tokens.ids[row].numpy().tolist() == pair.exact.convert_tokens_to_ids(pair.exact.tokenize(text))
        assert tokens.starts[row].numpy().tolist() == [piece.start for piece in expected]
        assert special[row] == pair.exact.convert_tokens_to_ids(pair.exact.tokenize(text, special_tokens=True))


@given(st.lists(st.sampled_from([*ODD_LINES, "-", "##ab", " ", "abc", "\U0010ffff", "5"]), max_size=8).map("".join))
@settings(max_examples=100)
def test_odd_lines_of_a_vocabulary_change_nothing(odd: Pair, text: str):
    assert_exact(odd, [text])


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    path = write_vocab(tmp_path_factory.mktemp("odd") / "vocab.txt", [*SPECIAL_TOKENS, *ODD_LINES, "\U0010ffff"])
    return Pair(path, CASED)


@pytest.mark.parametrize("length", [200, 201, 267, 801])
@pytest.mark.parametrize("letter", ["a", "é", "ก", "𐐀"])
def test_words_of_over_200_characters_are_unknown(letter: str, length: int, alphabet: dict[Casing, Pair]):
    assert_exact(alphabet[CASED], [f"the {letter * length} cat"])


def test_no_texts_and_empty_texts_have_no_pieces(alphabet: dict[Casing, Pair]):
    for texts in ([], [""], ["", ""], ["", "\n", " \u200b"], ["", "a", ""]):
        assert_exact(alphabet[UNCASED], texts)


def test_vocabulary_beyond_the_limits_of_the_kernel_is_refused(tmp_path: pathlib.Path):
    exact = FullTokenizer(write_vocab(tmp_path / "vocab.txt", [*SPECIAL_TOKENS, "a" * 2000]))
    assert "cannot take the vocabulary of 6 tokens" in refusal(GraphTokenizer, exact)
