import random

import numpy as np
import pytest
import tensorflow as tf

from official_bert.kinds import graph_inputs
from official_bert.kinds.classification.spec import ClassificationSpec
from official_bert.kinds.multi_label.spec import MultiLabelSpec
from official_bert.kinds.text_spec import TextExample
from official_bert.tokenization import pairs, truncation
from tests.make import assert_mentions, assert_rejected

LABELS = ("a", "b", "c")
LONG = " ".join("abcdefghij")


def read_rows(tokenizer, texts: list, max_seq_length: int, doc_stride: int | None = None):
    """Returns the features of texts or pairs of texts, and the tokens of each row as a string."""
    rows = [(text, None) if isinstance(text, str) else text for text in texts]
    examples = [TextExample(str(number), *pair, label=int(number == 0)) for number, pair in enumerate(rows)]
    features = ClassificationSpec(labels=LABELS, doc_stride=doc_stride).featurize(examples, tokenizer, max_seq_length)
    ids = np.split(features.input_ids, features.splits[1:-1])
    return features, [" ".join(tokenizer.convert_ids_to_tokens(row.tolist())) for row in ids]


@pytest.mark.parametrize("pair", [False, True])
def test_batch_features_equal_features_of_single_examples(pair: bool, tokenizer):
    rng = random.Random(1)

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
    unlabelled = [examples[0], TextExample("1", "a")]
    assert ClassificationSpec(labels=LABELS).featurize(unlabelled, tokenizer, 12).targets == {}


@pytest.mark.parametrize(("doc_stride", "last"), [(None, "the cat sat on mat"), (2, "the cat")])
def test_a_second_text_without_tokens_is_ignored(doc_stride: int | None, last: str, tokenizer):
    texts = [("the cat", "sat"), ("the cat", "\u200b"), ("the cat sat on mat", "")]
    features, rows = read_rows(tokenizer, texts, 7, doc_stride)
    assert rows == ["[CLS] the cat [SEP] sat [SEP]", "[CLS] the cat [SEP]", f"[CLS] {last} [SEP]"]
    assert features.segment_ids.sum() == 2


def test_examples_are_displayed_with_both_texts_of_a_pair():
    pairs = [TextExample("0", "the cat", "a dog", 1), TextExample("1", "sun", "", 0), TextExample("2", "a", None, 2)]
    spec = ClassificationSpec(labels=LABELS, pair=True)
    assert spec.collect_texts(pairs) == {"text": ["the cat", "sun", "a"], "text_pair": ["a dog", "", ""]}
    outcomes = spec.outcomes(np.eye(3)[[1, 2, 2]], pairs)
    shown = [(each.text, each.expected, each.predicted, each.correct) for each in outcomes]
    assert shown == [("the cat ||| a dog", "b", "b", True), ("sun ||| ", "a", "c", False), ("a", "c", "c", True)]


def test_windows_cover_a_long_text_and_are_pooled(tokenizer):
    features, rows = read_rows(tokenizer, [LONG, "a", ""], 6, doc_stride=3)
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
def test_windows_cover_a_long_second_text(texts, doc_stride: int, windows, is_truncated, tokenizer):
    features, rows = read_rows(tokenizer, texts, 9, doc_stride)
    assert [row.split(" [SEP]")[1].replace(" ", "") for row in rows] == windows
    assert features.is_truncated.tolist() == is_truncated
    note = ClassificationSpec(labels=LABELS, doc_stride=doc_stride).describe_truncation(1, 2, 9)
    assert_mentions(note, "3 tokens", "1 of 2 first texts")


def test_lengths_without_room_and_strides_that_skip_tokens_are_refused(tokenizer):
    assert_rejected(("max_seq_length", 3, 4), read_rows, tokenizer, [("a", "b")], 3)
    for texts, length, room in (([("k l", LONG)], 9, 6), ([LONG], 6, 4)):
        assert_rejected(("doc_stride", 7, room), read_rows, tokenizer, texts, length, 7)


def test_multi_label_predictions_are_above_one_half_and_as_certain_as_the_least_certain_label():
    head, predictions = MultiLabelSpec(labels=LABELS), np.array([[0.5, 0.6, 0.1], [0.9, 0.2, 0.99]])
    assert head.predicted_labels(predictions) == [(1,), (0, 2)]
    examples = head.make_examples(["a", "b"], [["c", "a"], [2, 0]])  # the order of the classes does not matter
    assert [each.label for each in examples] == [(0, 2), (0, 2)]
    outcomes = [(each.expected, each.predicted, each.certainty) for each in head.outcomes(predictions, examples)]
    assert outcomes == [("a, c", "b", 0.5), ("a, c", "a, c", pytest.approx(0.8))]


def test_rows_without_ids_and_masks_of_another_shape_are_refused_by_the_graph():
    for ids, mask, *names in (([[]], [[]], "input_ids", "1 to 2"), ([[0, 2]] * 2, [[1, 1]], "input_mask", "input_ids")):
        features = {"input_ids": tf.constant(ids, tf.int32), "input_mask": tf.constant(mask, tf.int32)}
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            graph_inputs.check_features(features, {"input_ids": 3, "input_mask": 2}, max_length=2)
        assert_mentions(str(caught.value), *names)
