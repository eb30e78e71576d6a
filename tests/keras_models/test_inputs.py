"""Text batches for fit, without a model: row weights, and what is random in each epoch."""

import numpy as np
import tensorflow as tf

from official_bert.data.dynamic_masking import DynamicMasking
from official_bert.keras_models.inputs import EpochCounter, Inputs
from official_bert.keras_models.masked_lm import MaskedLMHead
from official_bert.kinds.classification.spec import ClassificationSpec
from official_bert.kinds.features import NO_LABEL
from official_bert.kinds.spec import KindSpec
from official_bert.tokenization.exact import FullTokenizer
from official_bert.tokenization.fast import FastTokenizer
from tests.conftest import WORDS
from tests.make import VOCAB

TEXTS = ["the cat sat and a dog ran in the sun", "the cat sat in the sun", "a dog ran"]
MASKED_LM = MaskedLMHead(
    masking=DynamicMasking(
        vocab=FullTokenizer.from_vocab(VOCAB).vocab, max_predictions_per_seq=2, masked_lm_prob=0.3,
        do_whole_word_mask=False,
    )
)  # fmt: skip


def inputs_for(head: KindSpec) -> Inputs:
    return Inputs(
        head=head, tokenizer=FastTokenizer.from_vocab(VOCAB, True), max_seq_length=6, seed=3,
        strategy=tf.distribute.get_strategy(), is_compiled=False,
        has_one_hot=None,
    )  # fmt: skip


def test_each_window_weighs_as_its_text_does():
    data = inputs_for(ClassificationSpec(labels=("0", "1"), doc_stride=2))
    examples = data.examples(TEXTS, [0, 1, 0], sample_weight=[2.0, 3.0, 5.0], class_weight={1: 10.0})
    (inputs, labels, weights), *rest = data.training(examples, 32, False, EpochCounter()).as_numpy_iterator()
    assert not rest
    assert len(inputs["input_ids"]) > 2 + len(TEXTS)
    np.testing.assert_array_equal(np.unique(weights), [2.0, 5.0, 30.0])
    assert weights.tolist() == sorted(weights, key=[2.0, 30.0, 5.0].index)
    np.testing.assert_array_equal(labels, weights == 30.0)
    assert (weights == 2.0).sum() > (weights == 30.0).sum() > 1


def test_an_unused_prediction_of_a_masked_lm_has_no_label():
    data = inputs_for(MASKED_LM)
    batches = data.training(data.examples(["cat"], None), 1, False, EpochCounter())
    ((_, targets),) = batches.as_numpy_iterator()
    assert targets.tolist() == [[WORDS.index("cat"), NO_LABEL]]


def test_a_masked_lm_hides_other_tokens_in_each_epoch_and_text():
    data, counter = inputs_for(MASKED_LM), EpochCounter()
    texts = ["the cat sat in the sun"] * 16
    of_lists = data.training(data.examples(texts, None), 8, False, counter)
    of_data_set = data.convert_data_set(tf.data.Dataset.from_tensor_slices(texts), 8, counter)

    def positions(batches: tf.data.Dataset, epoch: int) -> list[list[list[int]]]:
        counter.on_epoch_begin(epoch)
        return [inputs["masked_lm_positions"].tolist() for inputs, _ in batches.as_numpy_iterator()]

    first, second = positions(of_lists, 0), positions(of_lists, 1)
    assert first != second
    assert first[0] != first[1]
    assert positions(of_lists, 0) == first
    assert [positions(of_data_set, epoch) for epoch in (0, 1)] == [first, second]
