"""Compares the answers of exported functions with those the Python library gives for the same weights."""

import functools
import itertools
import math
import random
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_bert.checkpoints.loading import Loaded
from official_bert.export.graph_models import TOP_K, build_graph_model, choose_candidates
from official_bert.inference.features import FeatureExtractor
from official_bert.kinds import graph_model
from official_bert.kinds.classification.spec import ClassificationSpec
from official_bert.kinds.graph_inputs import span_texts, truncate
from official_bert.kinds.graph_model import GraphModel
from official_bert.kinds.names import (
    CLASSIFICATION,
    ENCODER,
    FILL_MASK,
    IDS_SIGNATURE,
    MULTIPLE_CHOICE,
    QUESTION_ANSWERING,
    REGRESSION,
    TAGGING,
    VECTORS,
)
from official_bert.kinds.regression.spec import RegressionSpec
from official_bert.kinds.text_spec import TextExample
from official_bert.tokenization.exact import FullTokenizer
from tests.conftest import WORDS
from tests.export.answers_in_python import (
    TEXTS_FOR,
    answers_in_python,
    assert_answers,
    assert_words,
    create_model,
    outputs_of_rows,
    question_windows,
    tokenize_row,
)
from tests.export.exported_models import CHOICES, CONFIG, LABELS, TEXTS, build_model, make_task_spec
from tests.make import VOCAB


@pytest.fixture(scope="module")
def tokenizer() -> FullTokenizer:
    return FullTokenizer.from_vocab(VOCAB)


@functools.cache
def exported(kind: str, tokenizer: FullTokenizer, **changes: Any) -> GraphModel:
    """Returns the functions that the model exports for a kind."""
    model = create_model(kind)
    if kind == FILL_MASK:
        model = keras.Model(model.input, model.output["masked_lm_logits"])
    return build_graph_model(model, tokenizer, kind, make_task_spec(kind, **changes))


def to_numpy(results: dict[str, Any]) -> dict[str, Any]:
    return {name: value.numpy() for name, value in results.items()}


def answers(functions: GraphModel, texts: Any) -> dict[str, Any]:
    return to_numpy(functions.answer(**{name: tf.constant(each) for name, each in texts.items()}))


PAIRS = {"text": TEXTS, "text_pair": TEXTS[::-1]}


@pytest.mark.parametrize(("kind", "texts"), [*TEXTS_FOR.items(), (CLASSIFICATION, PAIRS)])
def test_answers_are_those_of_python(kind: str, texts: dict[str, Any], tokenizer: FullTokenizer):
    settings = {"pair": "text_pair" in texts, "max_seq_length": 64 if kind == FILL_MASK else 20}
    functions = exported(kind, tokenizer, **settings)
    assert list(functions.inputs) == list(texts)
    expected = list(answers_in_python(kind, create_model(kind), tokenizer, texts, make_task_spec(kind, **settings)))
    assert_answers(answers(functions, texts), expected)
    assert len({str(np.round(list(answer.values())[-1], 4)) for answer in expected}) > 3  # so that the test can fail


@pytest.mark.parametrize(("kind", "pair"), [(CLASSIFICATION, False), (CLASSIFICATION, True), (REGRESSION, True)])
@pytest.mark.parametrize("stride", [3, 17])
def test_long_texts_are_read_in_the_windows_of_python(kind, pair, stride, tokenizer, monkeypatch):
    monkeypatch.setattr(graph_model, "_MAX_WINDOWS_PER_CALL", 7)
    texts = [*TEXTS, MANY_WORDS, MANY_WORDS[:60]]
    others = ["a", MANY_WORDS, "", "the cat", TEXTS[3], MANY_WORDS[300:], "\u200b"] if pair else [None] * len(texts)
    head = RegressionSpec(doc_stride=stride) if kind == REGRESSION else ClassificationSpec(
        labels=tuple(LABELS), doc_stride=stride
    )  # fmt: skip
    examples = [TextExample(str(row), *each) for row, each in enumerate(zip(texts, others, strict=True))]
    features = head.featurize(examples, tokenizer, 20)
    assert len(features) > 2 * len(texts)
    bounds = itertools.pairwise(features.splits.tolist())
    rows = [(features.input_ids[a:b].tolist(), features.segment_ids[a:b].tolist()) for a, b in bounds]
    expected = head.decode(list(outputs_of_rows(build_model(kind), rows).numpy()), features, examples)
    given = {"text": texts, "text_pair": others} if pair else {"text": texts}
    functions = exported(kind, tokenizer, pair=pair, doc_stride=stride)
    found = answers(functions, given)
    output = "value" if kind == REGRESSION else "probabilities"
    np.testing.assert_allclose(found[output], expected, rtol=1e-5, atol=1e-6)
    assert found["is_truncated"].sum() == features.num_truncated
    tokenized = to_numpy(functions.tokenize(**{name: tf.constant(each) for name, each in given.items()}))
    assert tokenized["text_index"].tolist() == features.details["example"].tolist()
    padded = zip(tokenized["input_ids"], tokenized["input_mask"], strict=True)
    assert [ids[mask > 0].tolist() for ids, mask in padded] == [ids for ids, _ in rows]


@pytest.mark.parametrize(("pooling", "layers"), [("mean", [-1]), ("max", [1, -1]), ("cls", [2]), ("pooled", [-1])])
def test_vectors_are_those_of_features(pooling: str, layers: list[int], tokenizer: FullTokenizer):
    encoder = create_model(ENCODER)
    texts = [*TEXTS, "the cat ||| sat ||| on the mat", "a ||| ", " ||| a", "a\n ||| the cat " * 9]
    functions = build_graph_model(
        encoder, tokenizer, VECTORS, {"max_seq_length": 20, "pooling": pooling, "layers": layers}
    )
    found = answers(functions, {"text": texts})
    if pooling == "pooled":
        rows = [tokenize_row(tokenizer, *split_pair(text), 20) for text in texts]
        expected = outputs_of_rows(encoder, rows)["pooled_output"]
    else:
        extractor = FeatureExtractor(Loaded(encoder, CONFIG, tokenizer), layers, pooling, max_seq_length=20)
        features = list(extractor.extract(texts))
        assert [each.is_truncated for each in features] == found["is_truncated"].tolist()
        expected = [np.concatenate(list(each.values)) for each in features]
    np.testing.assert_allclose(found["vector"], expected, rtol=1e-5, atol=1e-6)


def split_pair(text: str) -> tuple[str, str | None]:
    """Returns the two texts of a pair. The second one is None if it has no tokens."""
    first, *second = text.rsplit(" ||| ", 1)
    return first, second[0] if second and second[0].strip() else None


def test_texts_without_masks_have_no_candidates(tokenizer: FullTokenizer):
    found = answers(exported(FILL_MASK, tokenizer), {"text": ["the cat", ""]})
    assert found["tokens"].shape == (2, 0, TOP_K)


# Long text without identical windows. Rounding would decide between equal answers.
MANY_WORDS = " ".join(
    random.Random(1).choices("The cat sat on the mat, dog ran in sun playing and walking a".split(), k=200)
)
CONTEXTS = [TEXTS[0], TEXTS[3], TEXTS[2] * 4, "the the the cat. the cat. the the the cat. " * 2, "", MANY_WORDS]


@pytest.mark.parametrize("version_2", [False, True])
def test_answers_to_questions_are_those_of_python(version_2: bool, tokenizer: FullTokenizer, monkeypatch):
    monkeypatch.setattr(graph_model, "_MAX_WINDOWS_PER_CALL", 16)
    asked = ["who sat?", "where did the dog and the cat run in the sun?", "", "who", "what", "why?"]
    texts = {"question": asked, "context": CONTEXTS}

    def answer_in_python(threshold: float) -> list[dict[str, Any]]:
        settings.update(null_score_diff_threshold=threshold)
        spec = make_task_spec(QUESTION_ANSWERING, **settings)
        return list(answers_in_python(QUESTION_ANSWERING, build_model(QUESTION_ANSWERING), tokenizer, texts, spec))

    settings: dict[str, Any] = {"version_2": version_2}
    expected = answer_in_python(
        float(np.median([answer["null_score_difference"] for answer in answer_in_python(0.0)])) + 1e-3
    )
    assert len({answer["answer"] for answer in expected}) > 2
    for context, answer in zip(CONTEXTS, expected, strict=True):
        assert answer["answer"] == context[answer["start"] : answer["end"]]
    functions = exported(QUESTION_ANSWERING, tokenizer, **settings)
    assert_answers(answers(functions, texts), expected, rtol=1e-4, atol=1e-5)
    _, windows = question_windows(tokenizer, texts, make_task_spec(QUESTION_ANSWERING))
    assert len(functions.tokenize(question=tf.constant(asked), context=tf.constant(CONTEXTS))["text_index"]) == len(
        windows
    )


def test_score_difference_equal_to_the_threshold_gives_an_answer(
    tokenizer: FullTokenizer, monkeypatch: pytest.MonkeyPatch
):
    def answer_at_threshold(threshold: float) -> dict[str, Any]:
        functions = exported(QUESTION_ANSWERING, tokenizer, version_2=True, null_score_diff_threshold=threshold)

        # Integers, so that the difference is exact.
        def logits(features: dict[str, Any], _: list[int | None]) -> Any:
            return tf.repeat(tf.cast(features["input_ids"] % 7, tf.float32)[..., None], 2, -1)

        monkeypatch.setattr(functions, "compute_window_logits", logits)
        return answers(functions, {"question": ["who sat?"], "context": [TEXTS[0]]})

    difference = float(answer_at_threshold(0.0)["null_score_difference"][0])
    assert difference == int(difference)
    assert answer_at_threshold(difference)["answer"][0] != b""
    assert answer_at_threshold(difference - 0.5)["answer"][0] == b""


@pytest.mark.parametrize(("length", "stride"), [(20, None), (8, None), (64, None), (20, 3)])
def test_tags_are_those_of_python_for_texts_of_any_length(length: int, stride: int | None, tokenizer: FullTokenizer):
    texts = [*TEXTS, "playing unaffable " * 9, "a" * 12 + " b " + "c" * 190 + " d"]
    settings = {"max_seq_length": length, **({"doc_stride": stride} if stride else {})}
    spec = make_task_spec(TAGGING, **settings)
    expected = list(answers_in_python(TAGGING, build_model(TAGGING), tokenizer, {"text": texts}, spec))
    assert len({tag for answer in expected for tag in answer["tags"]}) > 1  # so that the test can fail
    found = answers(exported(TAGGING, tokenizer, **settings), {"text": texts})
    assert_answers(found, expected)
    assert_words(found, texts, tokenizer)


def test_pairs_are_truncated_one_token_at_a_time():
    for room in (5, 6, 11):
        lengths = [(a, b) for a in range(14) for b in range(14)]
        ragged = [tf.RaggedTensor.from_row_lengths(tf.zeros([sum(column)], tf.int32), list(column))
                  for column in zip(*lengths, strict=True)]  # fmt: skip
        first, second = truncate(span_texts(ragged[0]), span_texts(ragged[1]), room + 3)
        for (a, b), *kept in zip(lengths, first.lengths.numpy(), second.lengths.numpy(), strict=True):
            while a + b > room + (not b):  # a text without tokens has no [SEP]
                a, b = (a - 1, b) if a > b else (a, b - 1)
            assert kept == [a, b]


@functools.cache
def trace_ids_signature(kind: str, tokenizer: FullTokenizer) -> Any:
    return exported(kind, tokenizer).signatures()[IDS_SIGNATURE]


@pytest.mark.parametrize("kind", [CLASSIFICATION, MULTIPLE_CHOICE])  # blocks of TensorFlow and Keras operations
@pytest.mark.parametrize(("name", "wrong", "least", "most"), [
    ("input_ids", len(WORDS), 0, len(WORDS) - 1), ("input_ids", -1, 0, len(WORDS) - 1),
    ("segment_ids", 2, 0, 1), ("segment_ids", -1, 0, 1), ("input_mask", 2, 0, 1),
])  # fmt: skip
def test_ids_without_an_embedding_are_refused(kind, name, wrong, least, most, tokenizer):
    signature = trace_ids_signature(kind, tokenizer)
    shape = (2, CHOICES, 3) if kind == MULTIPLE_CHOICE else (2, 3)
    features = {each: np.ones(shape, np.int32) for each in ("input_ids", "input_mask", "segment_ids")}
    signature(**{each: tf.constant(value) for each, value in features.items()})
    features[name][1, ..., 2] = wrong
    message = rf"{name} has values outside of {least} to {most}.*\[{wrong}\]"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        signature(**{each: tf.constant(value) for each, value in features.items()})


def test_batches_are_padded_to_their_longest_text_only(tokenizer: FullTokenizer):
    functions = exported(CLASSIFICATION, tokenizer)
    for texts, length in ((["the cat", "a"], 4), ([""], 2), ([TEXTS[3]], 20)):
        shapes = {name: value.shape for name, value in functions.tokenize(text=tf.constant(texts)).items()}
        assert shapes == dict.fromkeys(("input_ids", "input_mask", "segment_ids"), (len(texts), length))
    assert math.prod(functions.tokenize(text=tf.zeros([0], tf.string))["input_ids"].shape) == 0


LONG = "the cat sat on the mat and the dog ran in the sun " * 3
SHORT_AND_LONG = ["the cat", LONG, ""]


@pytest.mark.parametrize(
    ("kind", "texts", "expected"),
    [
        (CLASSIFICATION, {"text": SHORT_AND_LONG}, [False, True, False]),
        (REGRESSION, {"text": SHORT_AND_LONG, "text_pair": ["", "the", LONG]}, [False, True, True]),
        (MULTIPLE_CHOICE, {"prompt": ["a", "a"], "endings": [["b"] * CHOICES, ["b"] * (CHOICES - 1) + [LONG]]},
         [False, True]),
        (QUESTION_ANSWERING, {"question": SHORT_AND_LONG, "context": ["b", "b", LONG]}, [False, True, False]),
        (TAGGING, {"text": ["the cat", LONG, "the " + "q" * 60]}, [False, False, True]),
    ],
)  # fmt: skip
def test_answers_report_truncated_texts(kind, texts, expected, tokenizer):
    functions = exported(kind, tokenizer, pair="text_pair" in texts)
    assert answers(functions, texts)["is_truncated"].tolist() == expected


def test_number_of_candidates_is_limited_by_the_vocabulary():
    vocab = {"a": 0, "c": 2}  # no piece has the id 1
    logits = tf.constant([[[1.0, 9.0, 2.0], [5.0, 9.0, 1.0]]])
    found = choose_candidates(logits, tf.constant([1]), vocab, top_k=5)
    assert found["tokens"].numpy().tolist() == [[[b"c", b"a"], [b"", b""]]]
    expected = np.exp([2.0, 1.0]) / np.exp([2.0, 1.0]).sum()
    np.testing.assert_allclose(found["probabilities"], [[expected, [0.0, 0.0]]], rtol=1e-5)
