"""Masking many instances in one vectorized call."""

import random

import numpy as np

from data_gen.rules import masking, vectorized_masking
from data_gen.rules.instances import instances_of_document
from data_gen.rules.masking import MaskingVocabulary
from data_gen.rules.random_numbers import Random
from official_bert.tokenization.exact import FullTokenizer
from tests.data_gen.samples import LENGTH, make_instance_config


def test_reference_and_fast_masking_agree_on_whole_words(corpus):
    """If the budget allows every word, both algorithms choose all of them, even across [SEP]."""
    tokenizer = FullTokenizer(corpus[1])
    vocabulary = MaskingVocabulary.of(tokenizer.vocab)
    settings = {"max_predictions_per_seq": LENGTH, "masked_lm_prob": 0.99, "do_whole_word_mask": True}
    config = make_instance_config(max_seq_length=LENGTH, vocabulary=vocabulary, **settings)
    sentences = ["unaffable zebras quarrel", "qwertyuiop asdfgh"]
    document = [tokenizer.convert_tokens_to_ids(tokenizer.tokenize(sentence)) for sentence in sentences]
    for instance in instances_of_document([document, document], 0, config, random.Random(0)):
        ids = np.zeros((1, LENGTH), np.uint16)
        ids[0, : len(instance.input_ids)] = instance.input_ids
        ids[0, instance.masked_lm_positions] = instance.masked_lm_ids
        candidate = (np.arange(LENGTH) < len(instance.input_ids)) & ~np.isin(ids, (2, 3))
        keys = Random(1).keys(1, LENGTH)
        chosen = vectorized_masking._choose_whole_words(ids, candidate, np.array([LENGTH]), keys, config)
        assert instance.masked_lm_positions == np.flatnonzero(chosen).tolist() == np.flatnonzero(candidate).tolist()


def test_marked_tokens_belong_to_the_previous_word_and_lose_their_marks():
    vocabulary = MaskingVocabulary(list(range(50)), frozenset({49}), frozenset((2, 3)), 4)
    settings = {"max_predictions_per_seq": 6, "masked_lm_prob": 0.4, "do_whole_word_mask": True}
    config = make_instance_config(vocabulary=vocabulary, **settings)
    plain = [2, 10, 11, 12, 13, 49, 3, 14, 15, 16, 17, 18, 19, 20, 21, 3]
    ids = np.array([[*plain[:2], 50 + 11, *plain[3:8], 50 + 15, 50 + 16, *plain[10:]]] * 200, np.uint16)
    words = [{1, 2}, {3}, {4, 5}, {7, 8, 9}, *({position} for position in range(10, 15))]
    masked, positions, labels, predictions = vectorized_masking.mask(ids, np.full(200, 16), config, Random("marks"))
    rng = random.Random(0)
    hidden = [set(row[:number].tolist()) for row, number in zip(positions, predictions, strict=True)]
    restored = masked.copy()
    for row, (at, label, number) in enumerate(zip(positions, labels, predictions, strict=True)):
        restored[row, at[:number]] = label[:number]
    assert (restored == plain).all()
    for _ in range(200):
        one, at, label = masking.mask(ids[0].tolist(), 6, vocabulary, True, rng)
        hidden.append(set(at))
        assert [label[at.index(place)] if place in at else one[place] for place in range(16)] == plain
    for chosen in hidden:
        assert all(word <= chosen or not word & chosen for word in words)
    assert {1, 2, 3, 7, 9} <= set().union(*hidden)
