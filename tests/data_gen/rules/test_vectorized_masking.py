"""Masking many instances in one vectorized call."""

import random

import numpy as np

from data_gen.rules import vectorized_masking
from data_gen.rules.instances import make_document_instances
from data_gen.rules.masking import MaskingVocabulary
from data_gen.rules.random_numbers import Random
from official_bert.tokenization.exact import FullTokenizer
from tests.data_gen.samples import LENGTH, make_instance_config


def test_reference_and_fast_masking_agree_on_whole_words(corpus):
    """If the budget allows every word, both algorithms choose all of them, even across [SEP]."""
    tokenizer = FullTokenizer(corpus[1])
    vocabulary = MaskingVocabulary.from_vocab(tokenizer.vocab)
    settings = {"max_predictions_per_seq": LENGTH, "masked_lm_prob": 0.99, "do_whole_word_mask": True}
    config = make_instance_config(max_seq_length=LENGTH, vocabulary=vocabulary, **settings)
    sentences = ["unaffable zebras quarrel", "qwertyuiop asdfgh"]
    document = [tokenizer.convert_tokens_to_ids(tokenizer.tokenize(sentence)) for sentence in sentences]
    for instance in make_document_instances([document, document], 0, config, random.Random(0)):
        ids = np.zeros((1, LENGTH), np.uint16)
        ids[0, : len(instance.input_ids)] = instance.input_ids
        ids[0, instance.masked_lm_positions] = instance.masked_lm_ids
        candidate = (np.arange(LENGTH) < len(instance.input_ids)) & ~np.isin(ids, (2, 3))
        keys = Random(1).keys(1, LENGTH)
        chosen = vectorized_masking._choose_whole_words(ids, candidate, np.array([LENGTH]), keys, config)
        assert instance.masked_lm_positions == np.flatnonzero(chosen).tolist() == np.flatnonzero(candidate).tolist()
