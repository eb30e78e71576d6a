"""Exports of a model with added tokens."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf
import tokenizers

from official_bert.checkpoints import finetuned
from official_bert.checkpoints.loading import open_model
from official_bert.export.options import ONNX, SAVED_MODEL
from official_bert.inference import exports
from official_bert.inference.onnx_model import OnnxPredictor
from official_bert.keras_models.text_classifier import TextClassifier
from official_bert.kinds.names import CLASSIFICATION
from official_bert.tokenization.added_tokens import AddedToken
from official_bert.tokenization.casing import UNCASED
from tests.export.exported_models import CONFIG, build_model, export, make_task_spec
from tests.make import VOCAB

TOKENS = (AddedToken("[E1]", special=True, normalized=False), AddedToken("<user>"))
VOCAB_WITH_TOKENS = VOCAB + "".join(f"{token.content}\n" for token in TOKENS)
TEXTS = ["the [E1] cat", "<USER>sat on the[E1].", "[e1] cat"]
IDS = [["the", "[E1]", "cat"], ["<user>", "sat", "on", "the", "[E1]", "."]]


@pytest.mark.slow
def test_every_form_of_a_model_cuts_out_its_added_tokens(tmp_path: pathlib.Path):
    config = CONFIG.__class__(**{**CONFIG.to_dict(), "vocab_size": CONFIG.vocab_size + 2})
    casing = UNCASED._replace(added_tokens=TOKENS)
    folder = str(tmp_path / "model")
    model = build_model(CLASSIFICATION, config)
    finetuned.save(folder, model, make_task_spec(CLASSIFICATION), config, VOCAB_WITH_TOKENS, casing)
    tokenizer = open_model(folder).tokenizer
    assert [tokenizer.tokenize(text) for text in TEXTS[:2]] == IDS
    classifier = TextClassifier.from_checkpoint(folder)
    expected = classifier.predict(TEXTS)
    classifier.save(tmp_path / "model.keras")
    again = TextClassifier.load(str(tmp_path / "model.keras"))
    assert again.casing == casing
    np.testing.assert_array_equal(again.predict(TEXTS), expected)
    ids = again.preprocessor(tf.constant(TEXTS))["input_ids"][1].numpy().tolist()
    assert ids == tokenizer.convert_tokens_to_ids(["[CLS]", *IDS[1], "[SEP]"])

    saved_model = tf.saved_model.load(export(folder, tmp_path / "saved_model", SAVED_MODEL))
    answers = saved_model.signatures["serving_default"](text=tf.constant(TEXTS))
    np.testing.assert_allclose(answers["probabilities"], expected, atol=1e-6)

    onnx_folder = export(folder, tmp_path / "onnx", ONNX)
    answers = OnnxPredictor(onnx_folder).run(exports.to_columns({"text": TEXTS}))
    np.testing.assert_allclose(answers["probabilities"], expected, atol=1e-6)
    theirs = tokenizers.Tokenizer.from_file(f"{onnx_folder}/assets/tokenizer.json")
    theirs.encode_special_tokens = True
    for text in TEXTS:
        assert theirs.encode(text, add_special_tokens=False).tokens == tokenizer.tokenize(text)
