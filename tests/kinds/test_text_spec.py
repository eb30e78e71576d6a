import dataclasses
import random
import re

import numpy as np
import pytest
import tensorflow as tf

from official_bert.kinds import graph_inputs
from official_bert.kinds.classification.spec import ClassificationSpec
from official_bert.kinds.features import padded_inputs
from official_bert.kinds.multi_label.spec import MultiLabelSpec
from official_bert.kinds.text_spec import TextExample, featurize
from official_bert.tokenization import pairs, truncation
from official_bert.tokenization.exact import CLS, SEP
from official_bert.tokenization.fast import FastTokenizer
from tests.make import assert_mentions, assert_rejected

LABELS = ("a", "b", "c")
LONG = " ".join("abcdefghij")


def read_rows(tokenizer: FastTokenizer, texts: list, max_seq_length: int, doc_stride: int | None = None):
    """Returns the features of texts or pairs of texts, and the tokens of each row as a string."""
    rows = [(text, None) if isinstance(text, str) else text for text in texts]
    examples = [TextExample(str(number), *pair, label=int(number == 0)) for number, pair in enumerate(rows)]
    features = ClassificationSpec(labels=LABELS, doc_stride=doc_stride).featurize(examples, tokenizer, max_seq_length)
    ids = np.split(features.input_ids, features.splits[1:-1])
    return features, [" ".join(tokenizer.convert_ids_to_tokens(row.tolist())) for row in ids]


@pytest.mark.parametrize("pair", [False, True])
def test_batch_features_equal_features_of_single_examples(pair: bool, vocab_file: str):
    tokenizer, rng = FastTokenizer(vocab_file), random.Random(1)

    def text() -> str:
        return " ".join(rng.choices("the cat dog playing walked on mat, sun!".split(), k=rng.randrange(9)))

    examples = [TextExample(str(i), text(), text() if pair else None, i % 3) for i in range(40)]
    features = ClassificationSpec(labels=LABELS).featurize(examples, tokenizer, 12)
    for number, example in enumerate(examples):
        a, b = tokenizer.tokenize(example.text_a), tokenizer.tokenize(example.text_b or "")
        room = 12 - (3 if b else 2)
        assert features.is_truncated[number] == (len(a) + len(b) > room)
        a, b = truncation.truncate_pair(a, b, room)
        tokens, segment_ids = pairs.join("[CLS]", "[SEP]", a, b or None)
        row = slice(features.splits[number], features.splits[number + 1])
        assert tokenizer.convert_ids_to_tokens(features.input_ids[row].tolist()) == tokens
        assert features.segment_ids[row].tolist() == segment_ids
    assert features.targets["labels"].tolist() == [i % 3 for i in range(40)]
    unlabelled = [examples[0], dataclasses.replace(examples[1], label=None)]
    assert ClassificationSpec(labels=LABELS).featurize(unlabelled, tokenizer, 12).targets == {}


@pytest.mark.parametrize(("doc_stride", "last"), [(None, "the cat sat on mat"), (2, "the cat")])
def test_a_second_text_without_tokens_is_ignored(doc_stride: int | None, last: str, vocab_file: str):
    texts = [("the cat", "sat"), ("the cat", "\u200b"), ("the cat sat on mat", "")]
    features, rows = read_rows(FastTokenizer(vocab_file), texts, 7, doc_stride)
    assert rows == ["[CLS] the cat [SEP] sat [SEP]", "[CLS] the cat [SEP]", f"[CLS] {last} [SEP]"]
    assert features.segment_ids.sum() == 2


def test_a_pair_needs_room_for_a_token_of_each_text(vocab_file: str):
    _, rows = read_rows(FastTokenizer(vocab_file), [("a b", "c d"), ("a", "")], 5)
    assert rows == ["[CLS] a [SEP] c [SEP]", "[CLS] a [SEP]"]
    assert_rejected(("max_seq_length", 3, 4), read_rows, FastTokenizer(vocab_file), [("a", "b")], 3)


def test_examples_are_displayed_with_both_texts_of_a_pair():
    pairs = [TextExample("0", "the cat", "a dog", 1), TextExample("1", "sun", "", 0), TextExample("2", "a", None, 2)]
    spec = ClassificationSpec(labels=LABELS, pair=True)
    assert spec.collect_texts(pairs) == {"text": ["the cat", "sun", "a"], "text_pair": ["a dog", "", ""]}
    outcomes = spec.outcomes(np.eye(3)[[1, 2, 2]], pairs)
    shown = [(each.text, each.expected, each.predicted, each.correct) for each in outcomes]
    assert shown == [("the cat ||| a dog", "b", "b", True), ("sun ||| ", "a", "c", False), ("a", "c", "c", True)]


def test_windows_cover_a_long_text_and_are_pooled(vocab_file: str):
    features, rows = read_rows(FastTokenizer(vocab_file), [LONG, "a", ""], 6, doc_stride=3)
    assert rows == [f"[CLS] {' '.join(part)} [SEP]".replace("  ", " ") for part in ("abcd", "defg", "ghij", "a", "")]
    assert features.details["example"].tolist() == [0, 0, 0, 1, 2]
    assert features.targets["labels"].tolist() == [1, 1, 1, 0, 0]
    logits = [np.array(row) for row in ([0.0, 1.0], [0.0, 2.0], [0.0, 6.0], [1.0, 0.0], [0.0, 0.0])]
    predictions = ClassificationSpec(labels=LABELS[:2]).decode(logits, features, [None] * 3)
    np.testing.assert_allclose(predictions[:, 1], [1 / (1 + np.exp(-3.0)), 1 / (1 + np.e), 0.5])


@pytest.mark.parametrize(("texts", "doc_stride", "windows", "is_truncated"), [
    ([("k l", LONG)], 4, ["abcd", "efgh", "ij"], [False]), ([("k l m", LONG)], 6, ["abc", "def", "ghi", "j"], [False]),
    # If the first text leaves less room than the stride, the windows move closer together and skip no token. It is
    # truncated if it leaves less than half to the second.
    ([("k l m n", LONG), ("k", LONG)], 6, ["abc", "def", "ghi", "j", "abcde", "fghij"], [True, False]),
])  # fmt: skip
def test_windows_cover_a_long_second_text(texts, doc_stride: int, windows, is_truncated, vocab_file: str):
    features, rows = read_rows(FastTokenizer(vocab_file), texts, 9, doc_stride)
    assert [row.split(" [SEP]")[1].replace(" ", "") for row in rows] == windows
    assert features.is_truncated.tolist() == is_truncated
    note = ClassificationSpec(labels=LABELS, doc_stride=doc_stride).describe_truncation(1, 2, 9)
    assert re.match("truncated to 3 tokens .*: 1 of 2 first texts", note)


def test_a_stride_that_skips_tokens_is_refused(vocab_file: str):
    for texts, length, room in (([("k l", LONG)], 9, 6), ([LONG], 6, 4)):
        assert_rejected(("doc_stride", 7, room), read_rows, FastTokenizer(vocab_file), texts, length, 7)


def test_multi_label_predictions_are_above_one_half_and_as_certain_as_the_least_certain_label():
    head = MultiLabelSpec(labels=LABELS)
    predictions = np.array([[0.5, 0.6, 0.1], [0.9, 0.2, 0.99]])
    assert head.predicted_labels(predictions) == [(1,), (0, 2)]
    assert [head.certainty(row) for row in predictions] == pytest.approx([0.5, 0.8])


def test_the_order_of_the_classes_of_a_text_does_not_matter():
    head = MultiLabelSpec(labels=LABELS)
    examples = head.make_examples(["a", "b"], [["c", "a"], [2, 0]])
    assert [each.label for each in examples] == [(0, 2), (0, 2)]
    assert head.outcomes(np.array([[0.9, 0.1, 0.8]] * 2), examples)[0].expected == "a, c"


def test_pairs_are_packed_as_in_fine_tuning(vocab_file: str):
    tokenizer = FastTokenizer(vocab_file)
    texts = [("the cat", "sat"), ("the cat", "\u200b"), ("a b c d e f g", ""), ("a b c d", "e f g h"), ("", "a")]
    features = featurize([TextExample("", *pair) for pair in texts], tokenizer, 7)
    columns = [tf.RaggedTensor.from_row_splits(*tokenizer.encode(column)) for column in zip(*texts, strict=True)]
    spans = [graph_inputs.span_texts(column) for column in columns]
    first, second = graph_inputs.truncate(spans[0], spans[1], 7)
    packed = graph_inputs.pack(first, second, *tokenizer.convert_tokens_to_ids([CLS, SEP]), drop_empty=True)
    for name, values in padded_inputs(features, np.arange(len(texts)), 7, multiple=7).items():
        np.testing.assert_array_equal(packed[name].numpy(), values, name)


def test_texts_that_lost_tokens_are_detected():
    spans = graph_inputs.span_texts(tf.ragged.constant([[1, 2, 3], [4]], tf.int32))
    shorter = spans._replace(lengths=tf.constant([2, 1]))
    assert graph_inputs.have_lost_tokens((spans, shorter), (spans, spans)).numpy().tolist() == [True, False]
    assert graph_inputs.have_lost_tokens((shorter, None), (spans, None)).numpy().tolist() == [True, False]


@pytest.mark.parametrize(("ids", "mask", "names"), [
    ([[0, -1]], [[1, 1]], ("input_ids", "0 to 2")), ([[0, 3]], [[1, 1]], ("input_ids", "0 to 2")),
    ([[0, 2]], [[1, 1, 1]], ("input_mask", "input_ids")), ([[0, 2], [0, 2]], [[1, 1]], ("input_mask", "input_ids")),
    ([[0, 2, 1]], [[1, 1, 1]], ("input_ids", "1 to 2")), ([[]], [[]], ("input_ids", "1 to 2")),
])  # fmt: skip
def test_ids_that_the_model_cannot_read_are_refused(ids: list[list[int]], mask: list[list[int]], names):
    def check(ids: list[list[int]], mask: list[list[int]]):
        features = {"input_ids": tf.constant(ids, tf.int32), "input_mask": tf.constant(mask, tf.int32)}
        return graph_inputs.check_features(features, {"input_ids": 3, "input_mask": 2}, max_length=2)

    np.testing.assert_array_equal(check([[0, 2]], [[1, 1]])["input_ids"], [[0, 2]])
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        check(ids, mask)
    assert_mentions(str(caught.value), *names)
