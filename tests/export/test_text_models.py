"""Answers of the functions that are exported against those of the library in Python, on the same weights."""

import itertools
import math
import random
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_bert.checkpoints.loading import Loaded
from official_bert.export import text_models
from official_bert.export.graph_inputs import token_spans, truncated
from official_bert.export.text_models import ENCODER, FILL_MASK, TOP_K, text_model
from official_bert.inference.exports import IDS_SIGNATURE
from official_bert.inference.features import FeatureExtractor
from official_bert.inference.fill_mask import fill_mask
from official_bert.modeling.pretraining_model import encoder_of
from official_bert.modeling.task_models import (
    CLASSIFICATION,
    MULTI_LABEL,
    MULTIPLE_CHOICE,
    QUESTION_ANSWERING,
    REGRESSION,
    TAGGING,
    VECTORS,
)
from official_bert.tasks.heads import candidates, tagging
from official_bert.tasks.heads import questions as questions_module
from official_bert.tasks.heads.classes import ClassificationHead
from official_bert.tasks.heads.texts import RegressionHead, TextExample
from official_bert.tokenization.exact import FullTokenizer
from official_bert.tokenization.fast import FastTokenizer
from tests.conftest import WORDS
from tests.export.exported_models import CHOICES, CONFIG, LABELS, TEXTS, model_of, pretraining_model, task_spec_of

CLOSE = {"rtol": 1e-5, "atol": 1e-6}


@pytest.fixture
def tokenizer(vocab_file: str) -> FullTokenizer:
    return FullTokenizer(vocab_file)


def joined(tokenizer: FullTokenizer, first: str, second: str | None, length: int) -> tuple[list[int], list[int]]:
    """The tokens and segments of a text or pair, cut a token at a time, as in fine-tuning."""
    a = tokenizer.tokenize(first)
    b = None if second is None else tokenizer.tokenize(second)
    while len(a) + len(b or []) > length - (2 if b is None else 3):
        (a if b is None or len(a) > len(b) else b).pop()
    tokens = ["[CLS]", *a, "[SEP]"] if b is None else ["[CLS]", *a, "[SEP]", *b, "[SEP]"]
    segments = [0] * (len(a) + 2) + [1] * (len(tokens) - len(a) - 2)
    return tokenizer.convert_tokens_to_ids(tokens), segments


def padded_features(rows: list[tuple[list[int], list[int]]]) -> dict[str, np.ndarray]:
    """Pads the ids and segments of rows to the longest."""
    length = max(len(ids) for ids, _ in rows)

    def padded(column: list[list[int]]) -> np.ndarray:
        return np.array([[*values, *[0] * (length - len(values))] for values in column], np.int32)

    ids, segments = zip(*rows, strict=True)
    mask = [[1] * len(each) for each in ids]
    return {"input_ids": padded(ids), "input_mask": padded(mask), "segment_ids": padded(segments)}


def outputs_of_rows(model: keras.Model, rows: list[tuple[list[int], list[int]]]) -> Any:
    return model(padded_features(rows), training=False)


def outputs_of(model: keras.Model, ids: list[int], segments: list[int]) -> Any:
    return outputs_of_rows(model, [(ids, segments)])


def probabilities_of_choices(
    model: keras.Model, tokenizer: FullTokenizer, prompt: str, endings: list[str], length: int
):
    features = padded_features([joined(tokenizer, prompt, ending, length) for ending in endings])
    return tf.nn.softmax(model({name: value[None] for name, value in features.items()}, training=False)[0]).numpy()


def numpy_of(results: dict[str, Any]) -> dict[str, Any]:
    return {name: value.numpy() for name, value in results.items()}


@pytest.mark.parametrize("pair", [False, True])
def test_classes_are_those_of_the_model(pair: bool, tokenizer: FullTokenizer):
    model = model_of(CLASSIFICATION)
    given = {"text": TEXTS, "text_pair": TEXTS[::-1]} if pair else {"text": TEXTS}
    functions = text_model(model, tokenizer, CLASSIFICATION, task_spec_of(CLASSIFICATION, pair=pair))
    assert list(functions.inputs) == list(given)
    found = numpy_of(functions.answer(**{name: tf.constant(texts) for name, texts in given.items()}))
    for row, text in enumerate(TEXTS):
        second = TEXTS[-1 - row] if pair and tokenizer.tokenize(TEXTS[-1 - row]) else None  # without tokens it is none
        logits = outputs_of(model, *joined(tokenizer, text, second, 20))[0]
        expected = tf.nn.softmax(logits).numpy()
        np.testing.assert_allclose(found["probabilities"][row], expected, **CLOSE)
        assert found["label"][row].decode() == LABELS[int(np.argmax(expected))]
        assert found["probability"][row] == pytest.approx(max(expected), rel=1e-5)
        assert [label.decode() for label in found["labels"][row]] == LABELS
    assert len(set(np.round(found["probabilities"][:, 0], 4))) > 3  # or the test could not fail


@pytest.mark.parametrize("kind", [MULTI_LABEL, REGRESSION])
def test_labels_by_themselves_and_values_are_those_of_the_model(kind: str, tokenizer: FullTokenizer):
    model = model_of(kind)
    found = numpy_of(text_model(model, tokenizer, kind, task_spec_of(kind)).answer(text=tf.constant(TEXTS)))
    for row, text in enumerate(TEXTS):
        outputs = outputs_of(model, *joined(tokenizer, text, None, 20)).numpy()[0]
        if kind == REGRESSION:
            np.testing.assert_allclose(found["value"][row], outputs, **CLOSE)
        else:
            np.testing.assert_allclose(found["probabilities"][row], 1 / (1 + np.exp(-outputs)), **CLOSE)


@pytest.mark.parametrize(("kind", "pair"), [(CLASSIFICATION, False), (CLASSIFICATION, True), (REGRESSION, True)])
@pytest.mark.parametrize("stride", [3, 17])
def test_long_texts_are_read_in_the_windows_of_python(kind, pair, stride, tokenizer, monkeypatch):
    monkeypatch.setattr(text_models, "_WINDOWS_AT_ONCE", 7)
    model, texts = model_of(kind), [*TEXTS, MANY_WORDS, MANY_WORDS[:60]]
    others = ["a", MANY_WORDS, "", "the cat", TEXTS[3], MANY_WORDS[300:], "\u200b"] if pair else [None] * len(texts)
    head = RegressionHead(doc_stride=stride) if kind == REGRESSION else ClassificationHead(
        labels=tuple(LABELS), doc_stride=stride
    )  # fmt: skip
    examples = [TextExample(str(row), *each) for row, each in enumerate(zip(texts, others, strict=True))]
    features = head.featurize(examples, FastTokenizer.of(tokenizer), 20)
    assert len(features) > 2 * len(texts)
    bounds = itertools.pairwise(features.splits.tolist())
    rows = [(features.input_ids[a:b].tolist(), features.segment_ids[a:b].tolist()) for a, b in bounds]
    expected = head.decode(list(outputs_of_rows(model, rows).numpy()), features, examples)
    given = {"text": texts, "text_pair": others} if pair else {"text": texts}
    functions = text_model(model, tokenizer, kind, task_spec_of(kind, pair=pair, doc_stride=stride))
    tensors = {name: tf.constant(each) for name, each in given.items()}
    found = numpy_of(functions.answer(**tensors))
    np.testing.assert_allclose(found["value" if kind == REGRESSION else "probabilities"], expected, **CLOSE)
    assert found["is_truncated"].sum() == features.cut
    tokenized = numpy_of(functions.tokenize(**tensors))
    assert tokenized["text_index"].tolist() == features.details["example"].tolist()
    padded = zip(tokenized["input_ids"], tokenized["input_mask"], strict=True)
    assert [ids[mask > 0].tolist() for ids, mask in padded] == [ids for ids, _ in rows]


@pytest.mark.parametrize(("pooling", "layers"), [("mean", [-1]), ("max", [1, -1]), ("cls", [2]), ("pooled", [-1])])
def test_vectors_are_those_of_features(pooling: str, layers: list[int], tokenizer: FullTokenizer):
    encoder = encoder_of(pretraining_model())
    texts = [*TEXTS, "the cat ||| sat ||| on the mat", "a ||| ", " ||| a", "a\n ||| the cat " * 9]
    functions = text_model(encoder, tokenizer, VECTORS, {"max_seq_length": 20, "pooling": pooling, "layers": layers})
    found = numpy_of(functions.answer(text=tf.constant(texts)))
    if pooling == "pooled":
        expected = [outputs_of(encoder, *joined(tokenizer, *parts_of(text), 20))["pooled_output"][0] for text in texts]
    else:
        extractor = FeatureExtractor(Loaded(encoder, CONFIG, tokenizer), layers, pooling, max_seq_length=20)
        features = list(extractor.extract(texts))
        assert [each.is_truncated for each in features] == found["is_truncated"].tolist()
        expected = [np.concatenate(list(each.values)) for each in features]
    np.testing.assert_allclose(found["vector"], expected, **CLOSE)


def parts_of(text: str) -> tuple[str, str | None]:
    """A text, or the two texts of a pair, of which the second one has tokens."""
    first, *second = text.rsplit(" ||| ", 1)
    return first, second[0] if second and second[0].strip() else None


def test_choices_are_those_of_the_model(tokenizer: FullTokenizer):
    model = model_of(MULTIPLE_CHOICE)
    functions = text_model(model, tokenizer, MULTIPLE_CHOICE, task_spec_of(MULTIPLE_CHOICE))
    endings = [[TEXTS[(row + place) % len(TEXTS)] for place in range(CHOICES)] for row in range(len(TEXTS))]
    found = numpy_of(functions.answer(prompt=tf.constant(TEXTS), endings=tf.constant(endings)))
    for row, text in enumerate(TEXTS):
        expected = probabilities_of_choices(model, tokenizer, text, endings[row], 20)
        np.testing.assert_allclose(found["probabilities"][row], expected, **CLOSE)
        assert found["choice"][row] == np.argmax(expected)


def test_masks_are_filled_as_in_python(tokenizer: FullTokenizer):
    whole = pretraining_model()
    model = keras.Model(whole.input, whole.output["masked_lm_logits"])
    texts = ["the [MASK] sat on the [MASK].", "no mask", "[MASK]", "[mask] [SEP] a [MASK] b" * 2]
    found = numpy_of(text_model(model, tokenizer, FILL_MASK, {"max_seq_length": 64}).answer(text=tf.constant(texts)))
    assert found["tokens"].shape == found["probabilities"].shape == (4, 2, TOP_K)
    for row, text in enumerate(texts):
        expected = fill_mask(whole, tokenizer, CONFIG, text, TOP_K) if "[MASK]" in text else []
        for place in range(2):
            if place < len(expected):
                candidates = expected[place]
                assert [token.decode() for token in found["tokens"][row, place]] == [each.token for each in candidates]
                probabilities = [each.probability for each in candidates]
                np.testing.assert_allclose(found["probabilities"][row, place], probabilities, **CLOSE)
            else:
                assert set(found["tokens"][row, place]) == {b""}
                assert not found["probabilities"][row, place].any()


def test_texts_without_any_mask_have_no_fillings(tokenizer: FullTokenizer):
    whole = pretraining_model()
    model = keras.Model(whole.input, whole.output["masked_lm_logits"])
    found = text_model(model, tokenizer, FILL_MASK, {"max_seq_length": 64}).answer(text=tf.constant(["the cat", ""]))
    assert found["tokens"].shape == (2, 0, TOP_K)


# Long, and without windows that are alike, between whose answers rounding would decide.
MANY_WORDS = " ".join(
    random.Random(1).choices("The cat sat on the mat, dog ran in sun playing and walking a".split(), k=200)
)
CONTEXTS = [TEXTS[0], TEXTS[3], TEXTS[2] * 4, "the the the cat. the cat. the the the cat. " * 2, "", MANY_WORDS]


@pytest.mark.parametrize("version_2", [False, True])
def test_answers_to_questions_are_those_of_python(version_2: bool, tokenizer: FullTokenizer, monkeypatch):
    monkeypatch.setattr(text_models, "_WINDOWS_AT_ONCE", 16)
    model = model_of(QUESTION_ANSWERING)
    limits = questions_module.Limits(max_seq_length=20, doc_stride=5, max_query_length=6)
    asked = ["who sat?", "where did the dog and the cat run in the sun?", "", "who", "what", "why?"]
    questions = [
        questions_module.Question(str(number), *each, None)
        for number, each in enumerate(zip(asked, CONTEXTS, strict=True))
    ]
    cut = questions_module.cut_into_windows(questions, tokenizer, limits)
    logits = outputs_of_rows(model, [(window.input_ids, window.segment_ids) for window in cut])
    starts, ends = (logits[name].numpy() for name in ("start_logits", "end_logits"))
    predictions = candidates.predict(questions, cut, starts, ends, version_2, n_best_size=6, max_answer_length=4)
    threshold = float(np.median([prediction.null_score_difference for prediction in predictions]))
    task_spec = task_spec_of(QUESTION_ANSWERING, version_2=version_2, null_score_diff_threshold=threshold + 1e-3)
    functions = text_model(model, tokenizer, QUESTION_ANSWERING, task_spec)
    found = numpy_of(functions.answer(question=tf.constant(asked), context=tf.constant(CONTEXTS)))
    answers = [prediction.answer(version_2, threshold + 1e-3) for prediction in predictions]
    assert len({answer.text for answer in answers}) > 2
    for row, answer in enumerate(answers):
        assert found["answer"][row].decode() == answer.text == CONTEXTS[row][answer.start : answer.end]
        assert (found["start"][row], found["end"][row]) == (answer.start, answer.end)
        assert found["probability"][row] == pytest.approx(answer.probability, rel=1e-4)
        difference = predictions[row].null_score_difference
        assert found["null_score_difference"][row] == pytest.approx(difference, rel=1e-4, abs=1e-5)
    assert len(functions.tokenize(question=tf.constant(asked), context=tf.constant(CONTEXTS))["text_index"]) == len(cut)


def test_a_difference_that_is_the_threshold_is_answered(tokenizer: FullTokenizer, monkeypatch: pytest.MonkeyPatch):
    def answers(threshold: float) -> dict[str, Any]:
        task_spec = task_spec_of(QUESTION_ANSWERING, version_2=True, null_score_diff_threshold=threshold)
        functions = text_model(model_of(QUESTION_ANSWERING), tokenizer, QUESTION_ANSWERING, task_spec)

        # Whole numbers, so that the difference is exact.
        def logits(features: dict[str, Any], _: list[int | None]) -> Any:
            return tf.repeat(tf.cast(features["input_ids"] % 7, tf.float32)[..., None], 2, -1)

        monkeypatch.setattr(functions, "_in_chunks", logits)
        return numpy_of(functions.answer(question=tf.constant(["who sat?"]), context=tf.constant([TEXTS[0]])))

    difference = float(answers(0.0)["null_score_difference"][0])
    assert difference == int(difference)
    assert answers(difference)["answer"][0] != b""
    assert answers(difference - 0.5)["answer"][0] == b""


@pytest.mark.parametrize(("length", "stride"), [(20, None), (8, None), (64, None), (20, 3)])
def test_tags_are_those_of_python_for_texts_of_any_length(length: int, stride: int | None, tokenizer: FullTokenizer):
    model = model_of(TAGGING)
    texts = [*TEXTS, "playing unaffable " * 9, "a" * 12 + " b " + "c" * 190 + " d"]
    sentences = [tokenizer.basic_tokenizer.tokenize(text) for text in texts]
    cut = tagging.cut_into_windows(sentences, tokenizer, length, stride)
    logits = outputs_of_rows(model, [(window.input_ids, [0] * len(window.input_ids)) for window in cut]).numpy()
    tags, probabilities = tagging.tags_from_logits([*map(len, sentences)], cut, logits, LABELS)
    settings = {"max_seq_length": length, **({"doc_stride": stride} if stride else {})}
    functions = text_model(model, tokenizer, TAGGING, task_spec_of(TAGGING, **settings))
    found = numpy_of(functions.answer(text=tf.constant(texts)))
    assert len({tag for row in tags for tag in row}) > 1  # or the test could not fail
    for row, text in enumerate(texts):
        count = len(sentences[row])
        assert [tag.decode() for tag in found["tags"][row]] == tags[row] + [""] * (max(map(len, tags)) - count)
        np.testing.assert_allclose(found["probabilities"][row, :count], probabilities[row], **CLOSE)
        starts, ends = found["starts"][row], found["ends"][row]
        words = [text[start:end] for start, end in zip(starts[:count], ends[:count], strict=True)]
        assert [word.decode() for word in found["words"][row, :count]] == words
        assert [tokenizer.basic_tokenizer.tokenize(word) for word in words] == [[word] for word in sentences[row]]
        assert (starts[count:] == -1).all()
        assert (ends[count:] == -1).all()


def test_encoder_gives_its_outputs_and_the_mask(tokenizer: FullTokenizer):
    encoder = encoder_of(pretraining_model())
    found = numpy_of(text_model(encoder, tokenizer, ENCODER, {"max_seq_length": 20}).answer(text=tf.constant(TEXTS)))
    for row, text in enumerate(TEXTS):
        ids, segments = joined(tokenizer, text, None, 20)
        expected = outputs_of(encoder, ids, segments)
        np.testing.assert_allclose(found["pooled_output"][row], expected["pooled_output"][0], **CLOSE)
        np.testing.assert_allclose(found["sequence_output"][row, : len(ids)], expected["sequence_output"][0], **CLOSE)
        assert found["input_mask"][row].sum() == len(ids)


def test_pairs_are_cut_as_one_token_at_a_time_would():
    for room in (5, 6, 11):
        lengths = [(a, b) for a in range(14) for b in range(14)]
        ragged = [tf.RaggedTensor.from_row_lengths(tf.zeros([sum(column)], tf.int32), list(column))
                  for column in zip(*lengths, strict=True)]  # fmt: skip
        first, second = truncated(token_spans(ragged[0]), token_spans(ragged[1]), room + 3)
        for (a, b), *kept in zip(lengths, first.lengths.numpy(), second.lengths.numpy(), strict=True):
            while a + b > room:
                a, b = (a - 1, b) if a > b else (a, b - 1)
            assert kept == [a, b]


@pytest.mark.parametrize("kind", [CLASSIFICATION, MULTIPLE_CHOICE])  # blocks of TensorFlow's and Keras' operations
@pytest.mark.parametrize(("name", "wrong", "least", "most"), [
    ("input_ids", len(WORDS), 0, len(WORDS) - 1), ("input_ids", -1, 0, len(WORDS) - 1),
    ("segment_ids", 2, 0, 1), ("segment_ids", -1, 0, 1), ("input_mask", 2, 0, 1),
])  # fmt: skip
def test_ids_without_an_embedding_are_refused(kind, name, wrong, least, most, tokenizer):
    signature = text_model(model_of(kind), tokenizer, kind, task_spec_of(kind)).signatures()[IDS_SIGNATURE]
    shape = (2, CHOICES, 3) if kind == MULTIPLE_CHOICE else (2, 3)
    features = {each: np.ones(shape, np.int32) for each in ("input_ids", "input_mask", "segment_ids")}
    signature(**{each: tf.constant(value) for each, value in features.items()})
    features[name][1, ..., 2] = wrong
    message = rf"{name} has values outside of {least} to {most}.*\[{wrong}\]"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        signature(**{each: tf.constant(value) for each, value in features.items()})


def test_batches_are_padded_to_their_longest_text_only(tokenizer: FullTokenizer):
    functions = text_model(model_of(CLASSIFICATION), tokenizer, CLASSIFICATION, task_spec_of(CLASSIFICATION))
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
def test_answers_say_whether_a_text_was_cut(kind, texts, expected, tokenizer):
    task_spec = {**task_spec_of(kind), "pair": "text_pair" in texts}
    functions = text_model(model_of(kind), tokenizer, kind, task_spec)
    answers = functions.answer(**{name: tf.constant(values) for name, values in texts.items()})
    assert answers["is_truncated"].numpy().tolist() == expected
