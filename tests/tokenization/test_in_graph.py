import functools
import sys
import types
import unicodedata

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from official_bert.tokenization.casing import UNCASED, Casing
from official_bert.tokenization.exact import SPECIAL_TOKENS, FullTokenizer
from official_bert.tokenization.in_graph import GraphTokenizer
from tests.make import assert_rejected, slow_after
from tests.tokenization import test_fast
from tests.tokenization.test_exact import ASSIGNED, CASED, CASINGS, REAL_VOCABULARIES, SOME
from tests.tokenization.test_fast import STAYING_MARKS, make_vocab, odd_tokenizer


def make_pair(exact: FullTokenizer) -> types.SimpleNamespace:
    """Returns the exact tokenizer and the graph tokenizer as functions that are traced once."""
    graph = GraphTokenizer(exact)
    traced = functools.partial(tf.function, autograph=False, input_signature=[tf.TensorSpec([None], tf.string)])
    special = traced(lambda texts: graph.tokenize(texts, special_tokens=True).ids)
    return types.SimpleNamespace(exact=exact, tokenize=traced(graph.tokenize), tokenize_special=special)


@functools.cache
def alphabet(casing: Casing, every: bool = False) -> types.SimpleNamespace:
    return make_pair(FullTokenizer.from_vocab(make_vocab(ASSIGNED if every else SOME), **casing._asdict()))


def assert_exact(pair: types.SimpleNamespace, texts: list[str] | list[bytes]) -> None:
    # UTF-8 cannot represent unpaired surrogates.
    sent = [text if isinstance(text, bytes) else text.encode("utf-8", "ignore") for text in texts]
    strings = tf.constant(sent, tf.string, [len(sent)])
    tokens = [ragged.to_list() for ragged in (*pair.tokenize(strings), pair.tokenize_special(strings))]
    for text, *found in zip(sent, *tokens, strict=True):
        decoded = text.decode("utf-8", "ignore")
        pieces = pair.exact.tokenize_with_offsets(decoded)
        special = pair.exact.tokenize(decoded, special_tokens=True)
        assert found == [
            pair.exact.convert_tokens_to_ids([piece.token for piece in pieces]),
            [piece.start for piece in pieces],
            [piece.end for piece in pieces],
            [not piece.token.startswith("##") for piece in pieces],
            pair.exact.convert_tokens_to_ids(special),
        ], ascii(text)


def assert_ids(pair: types.SimpleNamespace, texts: list[str]) -> None:
    """Compares ids only. The exact tokenizer computes offsets slowly, so this suits long texts."""
    for text, ids in zip(texts, pair.tokenize(tf.constant(texts)).ids.to_list(), strict=True):
        assert ids == pair.exact.convert_tokens_to_ids(pair.exact.tokenize(text)), ascii(text)


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("casing", slow_after(1, CASINGS))
def test_every_assigned_code_point_is_tokenized_exactly(casing, every):
    for contexts in (test_fast.CONTEXTS + " 中{0}{0}", test_fast.CONTEXTS_OF_SIGMA):
        texts = [contexts.format(chr(code)) for code in (ASSIGNED if every else SOME)]
        assert_ids(alphabet(casing, every), [" ".join(texts[start : start + 32]) for start in range(0, len(texts), 32)])


@pytest.mark.parametrize("casing", CASINGS)
def test_offsets_are_kept_and_unassigned_code_points_are_letters(casing):
    unassigned = [*range(0x378, sys.maxunicode, 4099), 0x2FA1F, 0x30000, 0xE000, 0xF8FF, 0xFFFE, 0x10FFFF]
    unassigned = [code for code in unassigned if unicodedata.category(chr(code)) in ("Cn", "Co")]
    assert len(unassigned) > 200
    texts = [f"a{chr(code)}b{chr(code)} " for code in (*ASSIGNED[::29], *sorted(STAYING_MARKS))]
    texts += [f"a{chr(code)} {chr(code)}Σ {chr(code)}," for code in unassigned]
    assert_exact(alphabet(casing), ["".join(texts[start : start + 32]) for start in range(0, len(texts), 32)])


def test_remaining_marks_are_in_canonical_order():
    marks = [chr(code) for code in sorted(STAYING_MARKS)][::3]
    marks += ["\u0301", "\u0323", "\u1dfa", "\u0b3f", "é", "각"]
    assert_exact(alphabet(UNCASED), [f"a{a}{b}{c}b" for a in marks for b in marks for c in marks[::4]])


@pytest.mark.parametrize(("name", "casing"), slow_after(1, REAL_VOCABULARIES))
@pytest.mark.parametrize("lines_each", [60, pytest.param(10_000, marks=pytest.mark.slow)])
def test_text_of_all_languages_is_tokenized_exactly(name, casing, lines_each, test_data):
    pair = make_pair(FullTokenizer(str(test_data / "vocab" / name), *casing))
    paths = sorted((test_data / "text").glob("*.txt"))
    assert len(paths) >= 7
    for path in paths:
        lines = [line for line in path.read_text(encoding="utf-8").split("\n") if line]
        assert_ids(pair, lines[:lines_each])
        assert_exact(pair, lines[:4])


NEAR_SPECIAL_TOKENS = [*SPECIAL_TOKENS, *"[MASK MASK] [ ] [mask] the Σ αΣ 中".split(), *" \0\x05\x06\u0301\u302e"]
SPECIAL_TEXTS = st.lists(st.sampled_from(NEAR_SPECIAL_TOKENS), max_size=12).map("".join)
CHARACTERS = [b"a", b"the ", b"[MASK]", b"\xef\xbb\xbf", b"\0", "é".encode(), "🙂".encode()]
NO_CHARACTERS = [b"\xe2\x82", b"\xf0\x9f", b"\xff", b"\x80", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80"]
BYTES = st.lists(st.sampled_from([*CHARACTERS, *NO_CHARACTERS]), max_size=8).map(b"".join)


ANY_TEXTS = st.one_of(test_fast.TRICKY_TEXTS, test_fast.ANY_TEXTS, test_fast.LONG_WORDS, SPECIAL_TEXTS, BYTES)


@given(st.lists(ANY_TEXTS, max_size=8), st.sampled_from(CASINGS))
@settings(max_examples=100)
def test_any_texts_and_bytes_are_tokenized_exactly(texts, casing):
    assert_exact(alphabet(casing), texts)


odd_pair = functools.cache(lambda: make_pair(odd_tokenizer(CASED)))


@given(test_fast.ODD_TEXTS)
@settings(max_examples=50)
def test_odd_lines_of_a_vocabulary_change_nothing(text):
    assert_exact(odd_pair(), [text])


def test_words_of_over_200_characters_are_unknown():
    lengths, letters = [200, 201, 267, 801], ["a", "é", "ก", "𐐀"]
    assert_exact(alphabet(CASED), [f"the {letter * length} cat" for length in lengths for letter in letters])


def test_no_texts_and_empty_texts_have_no_pieces():
    for texts in ([], [""], ["", ""], ["", "\n", " \u200b"], ["", "a", ""]):
        assert_exact(alphabet(UNCASED), texts)


def test_vocabulary_beyond_the_limits_of_the_kernel_is_refused():
    exact = FullTokenizer.from_vocab("\n".join([*SPECIAL_TOKENS, "a" * 2000]))
    assert_rejected(("tensorflow-text", 6), GraphTokenizer, exact)
