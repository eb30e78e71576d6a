"""Added tokens get the ids of Hugging Face's tokenizers in all three of our tokenizers."""

import json
import pickle
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from official_bert.errors import UserError
from official_bert.tokenization.added_tokens import AddedToken, parse_added_token
from official_bert.tokenization.casing import Casing, make_casing
from official_bert.tokenization.exact import FullTokenizer, Piece
from official_bert.tokenization.fast import FastTokenizer
from official_bert.tokenization.in_graph import GraphTokenizer
from tests.golden import make_added_tokens as golden

GOLDEN = json.loads(golden.PATH.read_text(encoding="utf-8"))
TEXTS = GOLDEN["texts"]
ADDED = tuple(map(parse_added_token, GOLDEN["added_tokens"]))
VOCABULARY = list(dict.fromkeys([*GOLDEN["vocabulary"], *(token.content for token in ADDED)]))
VOCAB = "".join(f"{token}\n" for token in VOCABULARY)
CASES = [
    pytest.param(make_casing(case["do_lower_case"], case["strip_accents"], ADDED), case["ids"], id=str(index))
    for index, case in enumerate(GOLDEN["cases"])
]


def tokenizer(casing: Casing, kind: type[FullTokenizer] = FullTokenizer, vocab: str = VOCAB) -> Any:
    return kind.from_vocab(vocab, **casing._asdict())


@pytest.mark.parametrize(("casing", "expected"), CASES)
def test_added_tokens_get_the_ids_of_transformers(casing: Casing, expected: list[list[int]]):
    exact = tokenizer(casing)
    for text, ids in zip(TEXTS, expected, strict=True):
        # Hugging Face always recognizes [MASK]. The original does so only on request.
        assert exact.convert_tokens_to_ids(exact.tokenize(text, special_tokens=True)) == ids, ascii(text)


@pytest.mark.slow
def test_the_golden_file_is_what_transformers_gives_now():
    assert golden.make_texts() == TEXTS
    assert len(TEXTS) >= 200
    for case in GOLDEN["cases"]:
        assert golden.compute_ids(case["do_lower_case"], case["strip_accents"]) == case["ids"]


@pytest.mark.parametrize(("casing", "expected"), CASES)
def test_the_fast_tokenizer_cuts_out_the_same_tokens(casing: Casing, expected: list[list[int]]):
    exact = tokenizer(casing)
    fast = pickle.loads(pickle.dumps(tokenizer(casing, FastTokenizer)))
    for texts in (TEXTS, [" ".join(TEXTS) * 3], [], [""]):
        for ours, theirs in zip(fast.encode(texts), exact.encode(texts), strict=True):
            np.testing.assert_array_equal(ours, theirs)
            assert ours.dtype == theirs.dtype


@pytest.mark.parametrize(("casing", "expected"), CASES)
def test_the_graph_cuts_out_the_same_tokens_at_the_same_places(casing: Casing, expected: list[list[int]]):
    exact = tokenizer(casing)
    graph = GraphTokenizer(exact)
    texts = [text for text in TEXTS if text]
    tokens = graph.tokenize(tf.constant(texts))
    for row, text in enumerate(texts):
        pieces = exact.tokenize_with_offsets(text)
        assert [piece.token for piece in pieces] == exact.tokenize(text)
        assert tokens.ids[row].numpy().tolist() == exact.convert_tokens_to_ids(piece.token for piece in pieces), text
        assert tokens.starts[row].numpy().tolist() == [piece.start for piece in pieces], ascii(text)
        assert tokens.ends[row].numpy().tolist() == [piece.end for piece in pieces], ascii(text)
        assert tokens.word_starts[row].numpy().tolist() == [piece.token[:2] != "##" for piece in pieces], ascii(text)
    ids = graph.tokenize(tf.constant(TEXTS), special_tokens=True).ids.to_list()
    assert ids == expected
    assert graph.tokenize(tf.constant([], tf.string)).ids.to_list() == []
    assert graph.tokenize(tf.constant([b"[E\xff1]"])).ids.to_list() == [[exact.vocab["[E1]"]]]


def test_an_added_token_has_its_place_in_the_text():
    pieces = tokenizer(make_casing(added_tokens=ADDED)).tokenize_with_offsets("é [E1] e\u0301<USER>\u0301!")
    assert pieces == [
        Piece("e", 0, 1),
        Piece("[E1]", 2, 6),
        Piece("e", 7, 9),
        Piece("<user>", 9, 15),
        Piece("!", 16, 17),
    ]


def test_an_added_token_at_the_end_of_the_vocabulary_is_no_piece_of_a_word():
    casing = make_casing(added_tokens=(AddedToken("gpu", special=True, normalized=False),))
    vocab = VOCAB + "gpu\n"
    assert tokenizer(casing, vocab=vocab).tokenize("GPU gpu") == ["gp", "##u", "gpu"]
    graph = GraphTokenizer(tokenizer(casing, vocab=vocab)).tokenize(tf.constant(["GPU gpu"]))
    assert graph.ids.to_list() == [[VOCABULARY.index("gp"), VOCABULARY.index("##u"), len(VOCABULARY)]]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"content": "[E1]", "single_word": True}, r"added token '\[E1\]' with single_word"),
        ({"content": "##x"}, "added token '##x' .it must not begin with ##"),
        ({"content": " x"}, "begin or end with white space"),
        ({"content": "a\nb"}, "contain control characters"),
        ({"content": ""}, "which has no content"),
        (7, "added token 7, which has no content"),
    ],
)
def test_tokens_that_cannot_be_found_are_rejected(value: Any, message: str):
    with pytest.raises(UserError, match=message):
        parse_added_token(value)


def test_an_added_token_that_the_vocabulary_lacks_is_named():
    with pytest.raises(UserError, match="the vocabulary has no line '<new>', which is an added token"):
        tokenizer(make_casing(added_tokens=(AddedToken("<new>"),)))


def test_settings_keep_added_tokens():
    casing = make_casing(True, False, ADDED)
    assert Casing.from_settings(json.loads(json.dumps(casing.settings))) == casing
    assert make_casing().settings == {"do_lower_case": True}
