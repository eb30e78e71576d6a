import numpy as np
import tensorflow as tf

from official_bert.export import graph_inputs
from official_bert.learning.batches import padded_inputs
from official_bert.tasks.heads.texts import TextExample, featurize
from official_bert.tokenization.exact import CLS, SEP
from official_bert.tokenization.fast import FastTokenizer


def test_pairs_are_packed_as_fine_tuning_packs_them(vocab_file: str):
    tokenizer = FastTokenizer(vocab_file)
    texts = [
        ("the cat", "sat"), ("the cat", "\u200b"), ("a b c d e f g", ""), ("a b c d", "e f g h"), ("", "a"),
    ]  # fmt: skip
    examples = [TextExample(str(number), *pair) for number, pair in enumerate(texts)]
    features = featurize(examples, tokenizer, 7)
    expected = padded_inputs(features, np.arange(len(texts)), 7, multiple=7)
    ids = [[tokenizer.exact.convert_tokens_to_ids(tokenizer.exact.tokenize(each)) for each in pair] for pair in texts]
    of_first, of_second = (
        graph_inputs.token_spans(tf.ragged.constant(each, tf.int32)) for each in zip(*ids, strict=True)
    )
    cls, sep = tokenizer.exact.convert_tokens_to_ids([CLS, SEP])
    first, second = graph_inputs.truncated(of_first, of_second, 7, without_empty=True)
    packed = graph_inputs.pack(first, second, cls, sep, without_empty=True)
    for name, values in expected.items():
        np.testing.assert_array_equal(packed[name].numpy(), values, name)
