"""Losses and scores of taggers: the weight of each sentence."""

import keras
import numpy as np
import pytest

import official_bert
from official_bert.finetuning import batches
from tests.make import build_text_model, tiny_config


@pytest.fixture(scope="module")
def tagger() -> official_bert.TokenTagger:
    model = build_text_model("TokenTagger", labels=["D", "N", "V"], max_seq_length=8)
    model.compile(run_eagerly=True)
    return model


def token_losses(model, sentences, tags):
    """Returns the loss of each word, by sentence."""
    losses = []
    for sentence, row in zip(sentences, tags, strict=True):
        logits = model(model.preprocessor([sentence])).numpy()[0, 1 : 1 + len(row.split())]
        log = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        losses.append(-log[np.arange(len(log)), ["DNV".index(tag) for tag in row.split()]])
    return losses


@pytest.mark.parametrize("copies", [2, 3])  # batches with fewer sentences than positions, and with as many
def test_the_weight_of_a_sentence_applies_to_its_words(copies, tagger):
    sentences, tags, weights = ["the cat sat", "a dog"] * copies, ["D N V", "D N"] * copies, [3.0, 0.5] * copies
    losses = token_losses(tagger, sentences, tags)
    expected = sum(weight * each.sum() for weight, each in zip(weights, losses, strict=True)) / (5 * copies)
    features = tagger.spec.featurize(tagger.spec.make_examples(sentences, tags), tagger._tokenizer, 8)
    ids, targets = batches.pad_batch(features, np.arange(2 * copies), 8)
    assert ids["input_ids"].shape == (2 * copies, 6)
    for x, y in ((sentences, tags), (ids, targets)):
        loss, *_ = tagger.evaluate(x, y, sample_weight=np.array(weights), verbose=0)
        assert loss == pytest.approx(expected, rel=1e-5)


def test_the_tagging_loss_does_not_depend_on_the_other_texts_of_a_batch(tagger):
    sentences, tags = ["the cat sat", "a dog", "ran", "the mat"], ["D N V", "D N", "V", "D N"]
    expected = np.concatenate(token_losses(tagger, sentences, tags)).mean()
    for batch_size in (1, 3):
        loss, *_ = tagger.evaluate(sentences, tags, batch_size=batch_size, verbose=0)
        assert loss == pytest.approx(expected, rel=1e-5)


def test_the_masked_lm_loss_does_not_depend_on_the_other_texts_of_a_batch():
    config = tiny_config(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = build_text_model("MaskedLM", config, masked_lm_prob=0.4)
    model.compile(keras.optimizers.SGD(0.0), run_eagerly=True)
    texts = ["the cat sat on the mat in the sun", "a dog", "ran", "the mat"]
    expected = model.evaluate(texts, batch_size=4, verbose=0)[0]  # one batch: the mean of its tokens
    # The weights do not change, and the first epoch masks the same tokens as the evaluation.
    history = model.fit(texts, batch_size=3, validation_data=texts, verbose=0).history
    assert [history["loss"], history["val_loss"]] == [pytest.approx([expected], rel=1e-5)] * 2
