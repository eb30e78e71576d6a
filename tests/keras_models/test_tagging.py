"""Losses and scores of taggers: the weight of each sentence."""

import dataclasses

import keras
import numpy as np
import pytest

import official_bert
from official_bert.finetuning import batches
from tests.make import VOCAB, tiny_config

CONFIG = tiny_config(num_hidden_layers=1, max_position_embeddings=16)
TAGS = ["D", "N", "V"]


@pytest.fixture(scope="module")
def tagger() -> official_bert.TokenTagger:
    return official_bert.TokenTagger(CONFIG, VOCAB, labels=TAGS, max_seq_length=8)


def token_losses(model, sentences, tags):
    """Returns the loss of each word, by sentence."""
    of_sentences = []
    for sentence, row in zip(sentences, tags, strict=True):
        words = sentence.split()
        ids = [model._tokenizer.vocab[word] for word in ("[CLS]", *words, "[SEP]")]
        inputs = {"input_ids": ids, "input_mask": [1] * len(ids), "segment_ids": [0] * len(ids)}
        logits = model({name: np.array([values], np.int32) for name, values in inputs.items()}).numpy()[0, 1:-1]
        log = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        of_sentences.append(-log[np.arange(len(words)), [TAGS.index(tag) for tag in row.split()]])
    return of_sentences


@pytest.mark.parametrize("copies", [2, 3])  # batches with fewer sentences than positions, and with as many
def test_a_sentence_s_weight_is_that_of_its_words(copies, tagger):
    sentences, tags = ["the cat sat", "a dog"] * copies, ["D N V", "D N"] * copies
    weights = np.array([3.0, 0.5] * copies)
    losses = token_losses(tagger, sentences, tags)
    expected = sum(weight * each.sum() for weight, each in zip(weights, losses, strict=True)) / sum(map(len, losses))
    assert tagger.evaluate(sentences, tags, sample_weight=weights, verbose=0)[0] == pytest.approx(expected, rel=1e-5)
    features = tagger.head.featurize(tagger.head.examples(sentences, tags), tagger._tokenizer, 8)
    ids, targets = batches.pad_batch(features, np.arange(2 * copies), 8)
    assert ids["input_ids"].shape == (2 * copies, 6)
    assert tagger.evaluate(ids, targets, sample_weight=weights, verbose=0)[0] == pytest.approx(expected, rel=1e-5)


def test_the_loss_does_not_depend_on_what_shares_a_batch(tagger):
    sentences, tags = ["the cat sat", "a dog", "ran", "the mat"], ["D N V", "D N", "V", "D N"]
    expected = np.concatenate(token_losses(tagger, sentences, tags)).mean()
    for batch_size in (1, 3):
        loss, *_ = tagger.evaluate(sentences, tags, batch_size=batch_size, verbose=0)
        assert loss == pytest.approx(expected, rel=1e-5)


def test_the_loss_of_masks_does_not_depend_on_what_shares_a_batch():
    config = dataclasses.replace(CONFIG, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = official_bert.MaskedLM(config, VOCAB, masked_lm_prob=0.4)
    model.compile(keras.optimizers.SGD(0.0))
    texts = ["the cat sat on the mat in the sun", "a dog", "ran", "the mat"]
    expected = model.evaluate(texts, batch_size=4, verbose=0)[0]  # one batch: the mean of its tokens
    # The weights do not change, and the first epoch masks the same tokens as the evaluation.
    assert model.fit(texts, batch_size=3, verbose=0).history["loss"][0] == pytest.approx(expected, rel=1e-5)
