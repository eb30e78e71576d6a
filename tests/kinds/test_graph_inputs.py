import numpy as np
import pytest
import tensorflow as tf

from official_bert.finetuning.batches import padded_inputs
from official_bert.kinds import graph_inputs
from official_bert.kinds.text_spec import TextExample, featurize
from official_bert.tokenization import truncation
from official_bert.tokenization.exact import CLS, SEP
from official_bert.tokenization.fast import FastTokenizer
from official_bert.tokenization.in_graph import row_positions


def test_pairs_are_packed_as_fine_tuning_packs_them(vocab_file: str):
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


def test_windows_over_texts_are_those_of_python():
    rng = np.random.default_rng(0)
    lengths, room = rng.integers(0, 30, 50), rng.integers(3, 9, 50)
    found = graph_inputs.build_windows(tf.constant(lengths, tf.int32), tf.constant(room, tf.int32), 5)
    expected = truncation.build_windows(lengths, room, 5)
    for one, other in zip((found.texts, found.starts, found.lengths), expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_token_is_read_in_the_window_that_python_reads_it_in():
    for count, room, stride in ((30, 8, 3), (17, 6, 6), (40, 9, 4), (5, 8, 3), (33, 30, 20)):
        found = graph_inputs.build_windows(tf.constant([count]), tf.constant([room]), stride)
        rows, positions = row_positions(found.lengths)
        tokens = tf.gather(found.starts, rows) + positions
        is_best = graph_inputs.has_most_context(found, rows, positions, tokens, count).numpy()
        owners = dict(zip(tokens.numpy()[is_best].tolist(), rows.numpy()[is_best].tolist(), strict=True))
        spans = list(zip(found.starts.numpy(), (found.starts + found.lengths).numpy(), strict=True))
        assert owners == dict(enumerate(truncation.assign_tokens(spans, count).tolist()))
        assert len(owners) == int(np.sum(is_best)) == count


def test_only_what_lost_a_token_is_shorter():
    spans = graph_inputs.span_texts(tf.ragged.constant([[1, 2, 3], [4]], tf.int32))
    shorter = spans._replace(lengths=tf.constant([2, 1]))
    assert graph_inputs.have_lost_tokens((spans, shorter), (spans, spans)).numpy().tolist() == [True, False]
    assert graph_inputs.have_lost_tokens((shorter, None), (spans, None)).numpy().tolist() == [True, False]


def test_a_value_without_an_embedding_is_refused():
    features = graph_inputs.check_ranges({"input_ids": tf.constant([[0, 2]])}, {"input_ids": 3})
    np.testing.assert_array_equal(features["input_ids"], [[0, 2]])
    for value in (-1, 3):
        with pytest.raises(tf.errors.InvalidArgumentError, match="input_ids has values outside of 0 to 2"):
            graph_inputs.check_ranges({"input_ids": tf.constant([[0, value]])}, {"input_ids": 3})
