import random

import numpy as np
import pytest

from official_bert.errors import UserError
from official_bert.kinds.classification.spec import ClassificationSpec
from official_bert.kinds.multi_label.spec import MultiLabelSpec
from official_bert.kinds.text_spec import TextExample
from official_bert.tokenization import pairs, truncation
from official_bert.tokenization.fast import FastTokenizer

LABELS = ("a", "b", "c")


@pytest.mark.parametrize("pair", [False, True])
def test_features_are_those_of_one_example_at_a_time(pair, vocab_file):
    tokenizer = FastTokenizer(vocab_file)
    rng = random.Random(1)

    def text():
        return " ".join(rng.choices("the cat dog playing walked on mat, sun!".split(), k=rng.randrange(9)))

    examples = [TextExample(str(i), text(), text() if pair else None, i % 3) for i in range(40)]
    features = ClassificationSpec(labels=LABELS[:3]).featurize(examples, tokenizer, 12)
    for number, example in enumerate(examples):
        a = tokenizer.tokenize(example.text_a)
        b = tokenizer.tokenize(example.text_b) if pair else []
        assert features.is_truncated[number] == (len(a) + len(b) > 12 - (3 if b else 2))
        a, b = truncation.truncate_pair(a, b, 12 - (3 if b else 2))
        tokens, segment_ids = pairs.join("[CLS]", "[SEP]", a, b or None)
        row = slice(features.splits[number], features.splits[number + 1])
        assert tokenizer.convert_ids_to_tokens(features.input_ids[row].tolist()) == tokens
        assert features.segment_ids[row].tolist() == segment_ids
    assert features.targets["labels"].tolist() == [i % 3 for i in range(40)]


@pytest.mark.parametrize("doc_stride", [None, 2])
def test_a_second_text_without_tokens_is_none(doc_stride, vocab_file):
    tokenizer = FastTokenizer(vocab_file)
    texts = [("the cat", "sat"), ("the cat", "\u200b"), ("the cat sat on mat", "")]
    examples = [TextExample(str(number), *pair, 0) for number, pair in enumerate(texts)]
    features = ClassificationSpec(labels=LABELS[:2], doc_stride=doc_stride).featurize(examples, tokenizer, 7)
    rows = np.split(features.input_ids, features.splits[1:-1])
    tokens = [tokenizer.convert_ids_to_tokens(row.tolist()) for row in rows]
    last = "the cat sat on mat" if doc_stride is None else "the cat"  # with windows, the first text keeps half
    assert [" ".join(each) for each in tokens] == [
        "[CLS] the cat [SEP] sat [SEP]", "[CLS] the cat [SEP]", f"[CLS] {last} [SEP]"
    ]  # fmt: skip
    assert [row.sum() for row in np.split(features.segment_ids, features.splits[1:-1])] == [2, 0, 0]


def test_windows_cover_a_long_text_and_are_pooled(vocab_file):
    tokenizer = FastTokenizer(vocab_file)
    long = " ".join("abcdefghij")
    examples = [TextExample("0", long, None, 1), TextExample("1", "a", None, 0), TextExample("2", "", None, 0)]
    features = ClassificationSpec(labels=LABELS[:2], doc_stride=3).featurize(examples, tokenizer, 6)
    texts = [
        "".join(tokenizer.convert_ids_to_tokens(features.input_ids[start + 1 : end - 1].tolist()))
        for start, end in zip(features.splits[:-1], features.splits[1:], strict=True)
    ]
    assert texts == ["abcd", "defg", "ghij", "a", ""]
    assert features.details["example"].tolist() == [0, 0, 0, 1, 2]
    assert features.targets["labels"].tolist() == [1, 1, 1, 0, 0]
    logits = [np.array(row) for row in ([0.0, 1.0], [0.0, 2.0], [0.0, 6.0], [1.0, 0.0], [0.0, 0.0])]
    predictions = ClassificationSpec(labels=LABELS[:2]).decode(logits, features, examples)
    np.testing.assert_allclose(predictions[:, 1], [1 / (1 + np.exp(-3.0)), 1 / (1 + np.e), 0.5])
    long_pairs = [TextExample("0", "k l", long, 1)]
    features = ClassificationSpec(labels=LABELS[:2], doc_stride=4).featurize(long_pairs, tokenizer, 9)
    rows = np.split(features.input_ids, features.splits[1:-1])
    assert ["".join(tokenizer.convert_ids_to_tokens(row[4:-1].tolist())) for row in rows] == [
        "abcd",
        "efgh",
        "ij",
    ]
    # If the first text leaves less room than the stride, the windows move closer together and skip no token.
    crowded = ClassificationSpec(labels=LABELS[:2], doc_stride=6).featurize(
        [TextExample("0", "k l m n", long, 1), TextExample("1", "k", long, 1)], tokenizer, 9
    )
    rows = np.split(crowded.input_ids, crowded.splits[1:-1])
    texts = ["".join(tokenizer.convert_ids_to_tokens(row.tolist())) for row in rows]
    assert crowded.is_truncated.tolist() == [True, False]  # a first text that leaves less than half to the second
    exact = ClassificationSpec(labels=LABELS[:2], doc_stride=6).featurize(
        [TextExample("0", "k l m", long, 1)], tokenizer, 9
    )
    assert exact.is_truncated.tolist() == [False]
    assert [text.split("[SEP]")[1] for text in texts] == ["abc", "def", "ghi", "j", "abcde", "fghij"]
    with pytest.raises(UserError, match="doc_stride is 7, but only 6 tokens"):
        ClassificationSpec(labels=LABELS[:2], doc_stride=7).featurize(long_pairs, tokenizer, 9)
    with pytest.raises(UserError, match="doc_stride is 7, but only 4 tokens"):
        ClassificationSpec(labels=LABELS[:2], doc_stride=7).featurize(examples, tokenizer, 6)


def test_classes_by_themselves_are_those_above_a_half_and_as_certain_as_the_least_certain():
    head = MultiLabelSpec(labels=LABELS)
    predictions = np.array([[0.5, 0.6, 0.1], [0.9, 0.2, 0.99]])
    assert head.predicted_labels(predictions) == [(1,), (0, 2)]
    assert [head.certainty(row) for row in predictions] == pytest.approx([0.5, 0.8])
