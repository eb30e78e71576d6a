from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from official_bert.kinds import graph_inputs
from official_bert.kinds.features import padded_inputs
from official_bert.kinds.text_spec import TextExample, featurize
from official_bert.tokenization.exact import CLS, SEP
from official_bert.tokenization.fast import FastTokenizer
from tests.make import assert_mentions


def test_pairs_are_packed_as_in_fine_tuning(vocab_file: str):
    tokenizer = FastTokenizer(vocab_file)
    texts = [("the cat", "sat"), ("the cat", "\u200b"), ("a b c d e f g", ""), ("a b c d", "e f g h"), ("", "a")]
    features = featurize([TextExample("", *pair) for pair in texts], tokenizer, 7)
    ids = [
        tf.ragged.constant([tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text)) for text in column], tf.int32)
        for column in zip(*texts, strict=True)
    ]
    first, second = graph_inputs.truncate(graph_inputs.span_texts(ids[0]), graph_inputs.span_texts(ids[1]), 7)
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
    def check(ids: list[list[int]], mask: list[list[int]]) -> dict[str, Any]:
        features = {"input_ids": tf.constant(ids, tf.int32), "input_mask": tf.constant(mask, tf.int32)}
        return graph_inputs.check_features(features, {"input_ids": 3, "input_mask": 2}, max_length=2)

    np.testing.assert_array_equal(check([[0, 2]], [[1, 1]])["input_ids"], [[0, 2]])
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        check(ids, mask)
    assert_mentions(str(caught.value), *names)
