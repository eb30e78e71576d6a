"""Masks of many instances at once."""

import random

import numpy as np

from data_gen.rules import vectorized_masking
from data_gen.rules.instances import InstanceConfig, instances_of_document
from data_gen.rules.masking import MaskingVocabulary
from data_gen.rules.random_numbers import Random
from official_bert.tokenization.exact import FullTokenizer
from tests.data_gen.samples import LENGTH


def test_reference_and_fast_masking_agree_on_whole_words(corpus: tuple[list[str], str]):
    """Where the budget allows every word, both choose all of them, across [SEP] too."""
    tokenizer = FullTokenizer(corpus[1])
    vocabulary = MaskingVocabulary.of(tokenizer.vocab)
    config = InstanceConfig(
        max_seq_length=LENGTH, max_predictions_per_seq=LENGTH, masked_lm_prob=0.99, short_seq_prob=0.0,
        do_whole_word_mask=True, cls=2, sep=3, vocabulary=vocabulary,
    )  # fmt: skip
    sentences = ["unaffable zebras quarrel", "qwertyuiop asdfgh"]
    document = [tokenizer.convert_tokens_to_ids(tokenizer.tokenize(sentence)) for sentence in sentences]
    for instance in instances_of_document([document, document], 0, config, random.Random(0)):
        ids = np.zeros((1, LENGTH), np.uint16)
        original = list(instance.input_ids)
        for position, label in zip(instance.masked_lm_positions, instance.masked_lm_ids, strict=True):
            original[position] = label
        ids[0, : len(original)] = original
        position = np.arange(LENGTH)[None, :]
        candidate = (position < len(original)) & ~np.isin(ids, (2, 3))
        keys = Random(1).keys(1, LENGTH)
        chosen = vectorized_masking._whole_words(ids, candidate, np.array([LENGTH]), keys, config)
        assert np.flatnonzero(chosen[0]).tolist() == np.flatnonzero(candidate[0]).tolist()
