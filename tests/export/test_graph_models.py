"""Compares the answers of exported functions with the answers of the same weights in Python."""

import itertools
import random
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from official_bert.export.graph_models import TOP_K, build_graph_model, choose_candidates
from official_bert.inference import exports
from official_bert.kinds import graph_inputs, graph_model, names
from tests.export import exported_models as samples
from tests.export.exported_models import SETTINGS, TEXTS, TEXTS_FOR, answer_in_python, make_source
from tests.make import WORDS, assert_mentions, slow_after

# Long text without identical windows. Rounding would decide between equal answers.
_WORDS = "The cat sat on the mat, dog ran in sun playing and walking a".split()
MANY_WORDS = " ".join(random.Random(1).choices(_WORDS, k=200))
CONTEXTS = [TEXTS[0], TEXTS[3], TEXTS[2] * 4, "the the the cat. the cat. the the the cat. " * 2, "", MANY_WORDS]
ASKED = ["who sat?", "where did the dog and the cat run in the sun?", "", "who", "what", "why?"]
QUESTIONS = {"question": ASKED, "context": CONTEXTS}
LONG = [*TEXTS, MANY_WORDS, MANY_WORDS[:60]]
PAIRS = {"text": LONG, "text_pair": ["a", MANY_WORDS, "", "the cat", TEXTS[3], MANY_WORDS[300:], "\u200b"]}
SENTENCES = {"text": [*TEXTS, "playing unaffable " * 9, "a" * 12 + " b " + "c" * 190 + " d"]}
JOINED = ["the cat ||| sat ||| on the mat", "a ||| ", " ||| a", "a\n ||| the cat " * 9, "[MASK] ||| a [SEP]"]
TEXT_PAIRS = {"text": [*TEXTS, *JOINED]}


def exported(kind: str, **changes: Any) -> Any:
    """Returns the functions that the model exports for a kind."""
    return build_graph_model(make_source(kind, **changes))


def run(function: Any, texts: dict[str, Any]) -> dict[str, Any]:
    results = function(**{name: tf.constant(each) for name, each in texts.items()})
    return {name: value.numpy() for name, value in results.items()}


@pytest.mark.parametrize(("kind", "texts", "changes"), slow_after(15, [
    *((kind, texts, SETTINGS.get(kind, {})) for kind, texts in TEXTS_FOR.items()),
    (names.CLASSIFICATION, PAIRS, {"pair": True}),
    (names.CLASSIFICATION, {"text": LONG}, {"doc_stride": 17}),
    (names.TAGGING, SENTENCES, {"max_seq_length": 8}),
    (names.TAGGING, SENTENCES, {"doc_stride": 3}),
    (names.QUESTION_ANSWERING, QUESTIONS, {"version_2": True, "null_score_diff_threshold": 0.9}),
    (names.VECTORS, TEXT_PAIRS, {"pooling": "pooled", "layers": [-1]}),
    *((names.VECTORS, TEXT_PAIRS, {"pooling": pooling, "layers": [2]}) for pooling in ("mean", "max", "cls")),
    (names.QUESTION_ANSWERING, QUESTIONS, {}),
    (names.CLASSIFICATION, PAIRS, {"pair": True, "doc_stride": 17}),
    (names.TAGGING, SENTENCES, samples.BILSTM.to_dict()),
]))  # fmt: skip
def test_graph_answers_equal_python_answers(kind: str, texts: dict[str, Any], changes: dict[str, Any], monkeypatch):
    monkeypatch.setattr(graph_model, "_MAX_WINDOWS_PER_CALL", 7)
    functions = exported(kind, **changes)
    assert list(functions.inputs) == list(texts)
    expected = answer_in_python(make_source(kind, **changes), texts)
    answers = run(functions.answer, texts)
    samples.assert_answers(answers, expected, rtol=1e-4, atol=1e-5)
    # Answers differ, so that the test can fail.
    assert len({str(row) for row in exports.to_rows(expected)}) > 2
    assert all(len(set(expected[name].ravel())) > 2 for name in ("tags", "answer") if name in expected)
    if kind == names.TAGGING:
        for text, *spans in zip(texts["text"], answers["words"], answers["starts"], answers["ends"], strict=True):
            assert all(text[start:end] == word.decode() for word, start, end in zip(*spans, strict=True) if start >= 0)


@pytest.mark.parametrize(("kind", "texts"), [(names.CLASSIFICATION, PAIRS), (names.QUESTION_ANSWERING, QUESTIONS)])
def test_graph_windows_equal_python_windows(kind: str, texts: dict[str, Any]):
    changes = {"pair": kind == names.CLASSIFICATION, "doc_stride": 5}
    source = make_source(kind, **changes)
    examples = source.spec.make_prediction_examples(texts, source.tokenizer)
    features = source.spec.featurize(examples, source.tokenizer, 20)
    found = run(exported(kind, **changes).tokenize, texts)
    assert len(features) == len(found["text_index"]) > 2 * len(features.is_truncated)
    for name in ("input_ids", "segment_ids"):
        rows = [row[mask > 0].tolist() for row, mask in zip(found[name], found["input_mask"], strict=True)]
        expected = getattr(features, name)
        assert rows == [expected[start:end].tolist() for start, end in itertools.pairwise(features.splits)]


def test_score_difference_equal_to_the_threshold_gives_an_answer():
    def answer_at_threshold(threshold: float) -> dict[str, Any]:
        functions = exported(names.QUESTION_ANSWERING, version_2=True, null_score_diff_threshold=threshold)
        # Integers, so that the difference is exact.
        functions.compute_window_logits = lambda features, _: tf.repeat(
            tf.cast(features["input_ids"] % 7, tf.float32)[..., None], 2, axis=-1
        )
        return run(functions.answer, {"question": ["who sat?"], "context": [TEXTS[0]]})

    difference = float(answer_at_threshold(0.0)["null_score_difference"][0])
    assert difference == int(difference)
    assert answer_at_threshold(difference)["answer"][0] != b""
    assert answer_at_threshold(difference - 0.5)["answer"][0] == b""


def test_pairs_are_truncated_one_token_at_a_time():
    lengths = list(itertools.product(range(14), repeat=2))
    one, other = (
        graph_inputs.span_texts(tf.RaggedTensor.from_row_lengths(tf.zeros([sum(column)], tf.int32), list(column)))
        for column in zip(*lengths, strict=True)
    )
    for room in (5, 6, 11):
        first, second = graph_inputs.truncate(one, other, room + 3)
        for (a, b), *kept in zip(lengths, first.lengths.numpy(), second.lengths.numpy(), strict=True):
            while a + b > room + (not b):  # a text without tokens has no [SEP]
                a, b = (a - 1, b) if a > b else (a, b - 1)
            assert kept == [a, b]


# Blocks of TensorFlow and of Keras operations.
@pytest.mark.parametrize("kind", [names.CLASSIFICATION, names.MULTIPLE_CHOICE])
def test_ids_without_an_embedding_are_refused(kind: str):
    answer = exported(kind)._answer_client_ids
    shape = (2, samples.CHOICES, 3) if kind == names.MULTIPLE_CHOICE else (2, 3)
    features = {each: np.ones(shape, np.int32) for each in ("input_ids", "input_mask", "segment_ids")}
    run(answer, features)
    limits = {"input_ids": len(WORDS) - 1, "segment_ids": 1, "input_mask": 1}
    for (name, most), is_negative in itertools.product(limits.items(), (False, True)):
        wrong = -1 if is_negative else most + 1
        changed = {**features, name: features[name].copy()}
        changed[name][1, ..., 2] = wrong
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            run(answer, changed)
        assert_mentions(str(caught.value), name, f"0 to {most}", wrong)


@pytest.mark.parametrize("kind", [names.MULTI_LABEL, names.TAGGING, names.QUESTION_ANSWERING])
def test_an_empty_batch_has_no_answers(kind: str):
    answer = exported(kind, **SETTINGS.get(kind, {})).answer
    answers = answer(**{name: tf.constant([], tf.string) for name in TEXTS_FOR[kind]})
    assert {len(value) for value in answers.values()} == {0}


def test_batches_are_padded_to_their_longest_text_only():
    for texts, length in ((["the cat", "a"], 4), ([""], 2), ([TEXTS[3]], 20), (np.zeros([0], str), 2)):
        features = run(exported(names.CLASSIFICATION).tokenize, {"text": texts})
        expected = dict.fromkeys(("input_ids", "input_mask", "segment_ids"), (len(texts), length))
        assert {name: value.shape for name, value in features.items()} == expected


def test_the_number_of_candidates_depends_on_the_masks_and_the_vocabulary():
    functions = exported(names.FILL_MASK, max_seq_length=64)
    assert run(functions.answer, {"text": ["the cat", ""]})["tokens"].shape == (2, 0, TOP_K)
    vocab = {"a": 0, "c": 2}  # no piece has the id 1
    logits = tf.constant([[[1.0, 9.0, 2.0], [5.0, 9.0, 1.0]]])
    found = choose_candidates(logits, tf.constant([1]), vocab, top_k=5)
    assert found["tokens"].numpy().tolist() == [[[b"c", b"a"], [b"", b""]]]
    expected = np.exp([2.0, 1.0]) / np.exp([2.0, 1.0]).sum()
    np.testing.assert_allclose(found["probabilities"], [[expected, [0.0, 0.0]]], rtol=1e-5)
