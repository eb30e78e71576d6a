"""Added tokens get the ids of Hugging Face's tokenizers in all three of our tokenizers."""

import contextlib
import json
import pickle

import numpy as np
import pytest
import tensorflow as tf

from official_bert.modeling.fast.verification import run_functions_eagerly
from official_bert.tokenization.added_tokens import AddedToken, parse_added_token
from official_bert.tokenization.casing import Casing, make_casing
from official_bert.tokenization.exact import FullTokenizer, Piece, select_word_pieces
from official_bert.tokenization.fast import FastTokenizer
from official_bert.tokenization.in_graph import GraphTokenizer
from tests.golden import make_added_tokens as golden
from tests.make import assert_rejected
from tests.tokenization.test_in_graph import assert_exact, make_pair

GOLDEN = json.loads(golden.PATH.read_text(encoding="utf-8"))
TEXTS = GOLDEN["texts"]
ADDED = tuple(map(parse_added_token, GOLDEN["added_tokens"]))
VOCABULARY = list(dict.fromkeys([*GOLDEN["vocabulary"], *(token.content for token in ADDED)]))


def make_tokenizer(casing: Casing, kind: type[FullTokenizer] = FullTokenizer, *more: str) -> FullTokenizer:
    return kind.from_vocab("\n".join([*VOCABULARY, *more]), **casing._asdict())


@pytest.mark.parametrize("case", GOLDEN["cases"])
def test_all_tokenizers_give_added_tokens_the_ids_of_transformers(case):
    casing = make_casing(case["do_lower_case"], case["strip_accents"], ADDED)
    exact = make_tokenizer(casing)
    for text, ids in zip(TEXTS, case["ids"], strict=True):
        # Hugging Face always recognizes [MASK]. The original does so only on request.
        assert exact.convert_tokens_to_ids(exact.tokenize(text, special_tokens=True)) == ids, ascii(text)
        assert [piece.token for piece in exact.tokenize_with_offsets(text)] == exact.tokenize(text)
    fast = pickle.loads(pickle.dumps(make_tokenizer(casing, FastTokenizer)))
    for texts in (TEXTS, [" ".join(TEXTS) * 3], [], [""]):
        for one, other in zip(fast.encode(texts), exact.encode(texts), strict=True):
            np.testing.assert_array_equal(one, other, strict=True)
    with contextlib.nullcontext() if case == GOLDEN["cases"][0] else run_functions_eagerly():  # tracing takes seconds
        assert_exact(make_pair(exact), [*TEXTS, b"[E\xff1]"])


@pytest.mark.slow
def test_the_golden_file_is_what_transformers_gives_now():
    assert golden.make_texts() == TEXTS
    assert len(TEXTS) >= 200
    for case in GOLDEN["cases"]:
        assert golden.compute_ids(case["do_lower_case"], case["strip_accents"]) == case["ids"]


def test_added_tokens_have_offsets_in_the_text():
    pieces = make_tokenizer(make_casing(added_tokens=ADDED)).tokenize_with_offsets("é [E1] e\u0301<USER>\u0301!")
    expected = [("e", 0, 1), ("[E1]", 2, 6), ("e", 7, 9), ("<user>", 9, 15), ("!", 16, 17)]
    assert pieces == [Piece(*each) for each in expected]


def test_added_tokens_at_the_end_of_the_vocabulary_are_not_word_pieces():
    casing = make_casing(added_tokens=(AddedToken("gpu", special=True, normalized=False),))
    exact = make_tokenizer(casing, FullTokenizer, "gpu")
    assert exact.tokenize("GPU gpu") == ["gp", "##u", "gpu"]
    expected = exact.convert_tokens_to_ids(["gp", "##u", "gpu"])
    assert GraphTokenizer(exact).tokenize(tf.constant(["GPU gpu"])).ids.to_list() == [expected]


def test_tokens_that_cannot_be_found_are_rejected():
    assert_rejected(("'[E1]'", "single_word"), parse_added_token, {"content": "[E1]", "single_word": True})
    for text, *names in (("##x", "##"), (" x", "white"), ("x ", "white"), ("a\nb", "control"), ("", "content")):
        assert_rejected((repr(text), *names), parse_added_token, {"content": text})
    assert_rejected(7, parse_added_token, 7)


@pytest.mark.parametrize(("value", "expected"), [
    ("x", AddedToken("x", normalized=False, special=True)),
    ({"content": "x"}, AddedToken("x")),
    ({"content": "x", "special": True}, AddedToken("x", normalized=False, special=True)),
    ({"content": "x", "special": True, "normalized": True}, AddedToken("x", special=True)),
    ({"content": "x", "normalized": False, "lstrip": True}, AddedToken("x", lstrip=True, normalized=False)),
    ({"content": "x", "rstrip": True, "single_word": False}, AddedToken("x", rstrip=True)),
])  # fmt: skip
def test_only_special_tokens_are_searched_in_the_original_text_by_default(value, expected):
    assert parse_added_token(value) == expected


def test_words_are_not_split_into_added_tokens_at_the_end_of_the_vocabulary():
    vocab = {token: number for number, token in enumerate(["a", "[E1]", "b", "[E2]", "[E3]"])}
    added = [AddedToken(f"[E{number}]") for number in (1, 2, 3)]
    assert select_word_pieces(vocab, added, "x") == {"a": 0, "[E1]": 1, "b": 2}


def test_an_added_token_that_the_vocabulary_lacks_is_named():
    casing = make_casing(added_tokens=(AddedToken("<new>"),))
    assert_rejected(("vocabulary", "'<new>'"), make_tokenizer, casing)


def test_settings_keep_added_tokens():
    casing = make_casing(True, False, ADDED)
    assert Casing.from_settings(json.loads(json.dumps(casing.settings))) == casing
    assert make_casing().settings == {"do_lower_case": True}
    for settings in ({"do_lower_case": 1}, {"do_lower_case": True, "strip_accents": 1}):
        assert_rejected(("do_lower_case", 1, "true or false"), Casing.from_settings, settings)
