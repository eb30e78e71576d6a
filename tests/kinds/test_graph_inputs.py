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
    texts = [
        ("the cat", "sat"), ("the cat", "\u200b"), ("a b c d e f g", ""), ("a b c d", "e f g h"), ("", "a"),
    ]  # fmt: skip
    examples = [TextExample(str(number), *pair) for number, pair in enumerate(texts)]
    features = featurize(examples, tokenizer, 7)
    expected = padded_inputs(features, np.arange(len(texts)), 7, multiple=7)
    ids = [[tokenizer.convert_tokens_to_ids(tokenizer.tokenize(each)) for each in pair] for pair in texts]
    of_first, of_second = (
        graph_inputs.span_texts(tf.ragged.constant(each, tf.int32)) for each in zip(*ids, strict=True)
    )
    cls, sep = tokenizer.convert_tokens_to_ids([CLS, SEP])
    first, second = graph_inputs.truncate(of_first, of_second, 7)
    packed = graph_inputs.pack(first, second, cls, sep, drop_empty=True)
    for name, values in expected.items():
        np.testing.assert_array_equal(packed[name].numpy(), values, name)


def test_windows_over_texts_are_those_of_python():
    rng = np.random.default_rng(0)
    lengths, room = rng.integers(0, 30, 50), rng.integers(3, 9, 50)
    found = graph_inputs.build_windows(tf.constant(lengths, tf.int32), tf.constant(room, tf.int32), 5)
    numbers, offsets, sizes = truncation.build_windows(lengths, room, 5)
    for one, other in ((found.texts, numbers), (found.starts, offsets), (found.lengths, sizes)):
        np.testing.assert_array_equal(one, other)


def test_a_token_is_read_in_the_window_that_python_reads_it_in():
    for count, room, stride in ((30, 8, 3), (17, 6, 6), (40, 9, 4), (5, 8, 3)):
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


@pytest.mark.parametrize("value", [-1, 3])
def test_a_value_without_an_embedding_is_refused(value: int):
    features = {"input_ids": tf.constant([[0, 2]])}
    np.testing.assert_array_equal(graph_inputs.check_ranges(features, {"input_ids": 3})["input_ids"], [[0, 2]])
    with pytest.raises(tf.errors.InvalidArgumentError, match="input_ids has values outside of 0 to 2"):
        graph_inputs.check_ranges({"input_ids": tf.constant([[0, value]])}, {"input_ids": 3})
