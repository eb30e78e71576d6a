import random

import numpy as np
import pytest

from official_bert.errors import UserError
from official_bert.tasks import sequences
from official_bert.tasks.sequences import TextExample
from official_bert.tokenization import pairs
from official_bert.tokenization.fast import FastTokenizer


def test_many_lengths_are_cut_as_one_pair_is():
    rng = random.Random(0)
    for _ in range(300):
        la, lb, room = rng.randrange(12), rng.randrange(12), rng.randrange(14)
        a, b = list(range(la)), list(range(lb))
        pairs.truncate_at_the_end(a, b, room)
        got = pairs.lengths_truncated_at_the_end(np.array([la]), np.array([lb]), room)
        assert (len(a), len(b)) == (int(got[0][0]), int(got[1][0])), (la, lb, room)
        assert a == list(range(len(a)))


@pytest.mark.parametrize("pair", [False, True])
def test_features_are_those_of_one_example_at_a_time(pair, vocab_file):
    tokenizer = FastTokenizer(vocab_file)
    rng = random.Random(1)

    def text():
        return " ".join(rng.choices("the cat dog playing walked on mat, sun!".split(), k=rng.randrange(9)))

    examples = [TextExample(str(i), text(), text() if pair else None, i % 3) for i in range(40)]
    features = sequences.featurizer("classification", 3)(examples, tokenizer, 12)
    for number, example in enumerate(examples):
        a = tokenizer.exact.tokenize(example.text_a)
        b = tokenizer.exact.tokenize(example.text_b) if pair else []
        pairs.truncate_at_the_end(a, b, 12 - (3 if b else 2))
        tokens, segment_ids = pairs.join("[CLS]", "[SEP]", a, b or None)
        row = slice(features.splits[number], features.splits[number + 1])
        assert tokenizer.exact.convert_ids_to_tokens(features.input_ids[row].tolist()) == tokens
        assert features.segment_ids[row].tolist() == segment_ids
    assert features.targets["labels"].tolist() == [i % 3 for i in range(40)]


@pytest.mark.parametrize("doc_stride", [None, 2])
def test_a_second_text_without_tokens_is_none(doc_stride, vocab_file):
    tokenizer = FastTokenizer(vocab_file)
    texts = [("the cat", "sat"), ("the cat", "\u200b"), ("the cat sat on mat", "")]
    examples = [TextExample(str(number), *pair, 0) for number, pair in enumerate(texts)]
    features = sequences.featurizer("classification", 2, doc_stride)(examples, tokenizer, 7)
    rows = np.split(features.input_ids, features.splits[1:-1])
    tokens = [tokenizer.exact.convert_ids_to_tokens(row.tolist()) for row in rows]
    last = "the cat sat on mat" if doc_stride is None else "the cat"  # with windows the first text keeps half
    assert [" ".join(each) for each in tokens] == [
        "[CLS] the cat [SEP] sat [SEP]", "[CLS] the cat [SEP]", f"[CLS] {last} [SEP]"
    ]  # fmt: skip
    assert [row.sum() for row in np.split(features.segment_ids, features.splits[1:-1])] == [2, 0, 0]


def test_windows_cover_a_long_text_and_are_pooled(vocab_file):
    tokenizer = FastTokenizer(vocab_file)
    long = " ".join("abcdefghij")
    examples = [TextExample("0", long, None, 1), TextExample("1", "a", None, 0), TextExample("2", "", None, 0)]
    features = sequences.featurizer("classification", 2, doc_stride=3)(examples, tokenizer, 6)
    texts = [
        "".join(tokenizer.exact.convert_ids_to_tokens(features.input_ids[start + 1 : end - 1].tolist()))
        for start, end in zip(features.splits[:-1], features.splits[1:], strict=True)
    ]
    assert texts == ["abcd", "defg", "ghij", "a", ""]
    assert features.details["example"].tolist() == [0, 0, 0, 1, 2]
    assert features.targets["labels"].tolist() == [1, 1, 1, 0, 0]
    logits = [np.array(row) for row in ([0.0, 1.0], [0.0, 2.0], [0.0, 6.0], [1.0, 0.0], [0.0, 0.0])]
    predictions = sequences.decoder("classification")(logits, features, examples)
    np.testing.assert_allclose(predictions[:, 1], [1 / (1 + np.exp(-3.0)), 1 / (1 + np.e), 0.5])
    long_pairs = [TextExample("0", "k l", long, 1)]
    features = sequences.featurizer("classification", 2, doc_stride=4)(long_pairs, tokenizer, 9)
    rows = np.split(features.input_ids, features.splits[1:-1])
    assert ["".join(tokenizer.exact.convert_ids_to_tokens(row[4:-1].tolist())) for row in rows] == [
        "abcd",
        "efgh",
        "ij",
    ]
    with pytest.raises(UserError, match="doc_stride is 7, but only 4 tokens"):
        sequences.featurizer("classification", 2, doc_stride=7)(examples, tokenizer, 6)
