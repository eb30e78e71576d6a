import pathlib
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_bert.errors import UserError
from official_bert.export import tf_hub
from official_bert.modeling.encoder import build_encoder
from official_bert.tokenization.exact import FullTokenizer
from tests.conftest import WORDS
from tests.export.exported_models import CONFIG, TEXTS, scattered


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("hub")
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    tokenizer = FullTokenizer(str(folder / "vocab.txt"))
    tf_hub.write(scattered(build_encoder(CONFIG, seed=1)), CONFIG, tokenizer, "\n".join(WORDS), str(folder))
    return folder


@pytest.fixture(scope="module")
def encoder(folder: pathlib.Path) -> Any:
    return tf.saved_model.load(str(folder / "encoder"))


@pytest.fixture(scope="module")
def preprocess(folder: pathlib.Path) -> Any:
    return tf.saved_model.load(str(folder / "preprocess"))


def test_texts_go_through_both(encoder: Any, preprocess: Any, folder: pathlib.Path):
    packed = preprocess.bert_pack_inputs([preprocess.tokenize(tf.constant(TEXTS))], 30)
    outputs = encoder(packed)
    model = scattered(build_encoder(CONFIG, seed=1))
    tokenizer = FullTokenizer(str(folder / "vocab.txt"))
    for row, text in enumerate(TEXTS):
        tokens = ["[CLS]", *tokenizer.tokenize(text)[:28], "[SEP]"]
        ids = np.array([tokenizer.convert_tokens_to_ids(tokens)], np.int32)
        np.testing.assert_array_equal(packed["input_word_ids"][row, : len(tokens)], ids[0])
        assert int(tf.reduce_sum(packed["input_mask"][row])) == len(tokens)
        expected = model({"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)})
        for name in ("default", "pooled_output"):
            np.testing.assert_allclose(outputs[name][row], expected["pooled_output"][0], rtol=1e-4, atol=1e-5)
        sequence = outputs["sequence_output"][row, : len(tokens)]
        np.testing.assert_allclose(sequence, expected["sequence_output"][0], rtol=1e-4, atol=1e-5)
    assert len(outputs["encoder_outputs"]) == CONFIG.num_hidden_layers
    np.testing.assert_array_equal(outputs["encoder_outputs"][-1], outputs["sequence_output"])


def test_preprocessing_pads_to_what_the_model_reads_and_packs_pairs(preprocess: Any):
    packed = preprocess(tf.constant(["the cat", ""]))
    assert {name: value.shape for name, value in packed.items()} == dict.fromkeys(
        ("input_word_ids", "input_mask", "input_type_ids"), (2, CONFIG.max_position_embeddings)
    )
    words = preprocess.tokenize(tf.constant(["the cats", "a"]))
    assert words.to_list() == [[[WORDS.index("the")], [WORDS.index("cat"), WORDS.index("##s")]], [[WORDS.index("a")]]]
    for first, second in ((words, words[::-1]), (words.merge_dims(1, 2), words[::-1].merge_dims(1, 2))):
        pair = preprocess.bert_pack_inputs([first, second], tf.constant(8))
        assert pair["input_type_ids"].numpy().tolist() == [[0] * 5 + [1, 1, 0], [0] * 3 + [1] * 4 + [0]]


def test_training_has_dropout_and_gradients_for_every_variable(encoder: Any, preprocess: Any):
    packed = preprocess(tf.constant(TEXTS))
    with tf.GradientTape() as tape:
        outputs = encoder(packed, training=True)
        loss = tf.reduce_sum(outputs["pooled_output"]) + tf.reduce_sum(outputs["sequence_output"])
    assert len(encoder.trainable_variables) == len(encoder.variables) > 30
    assert encoder.regularization_losses == []
    assert all(gradient is not None for gradient in tape.gradient(loss, encoder.trainable_variables))
    again = encoder(packed, training=True)["pooled_output"]
    assert not np.allclose(outputs["pooled_output"], again)
    np.testing.assert_array_equal(encoder(packed)["default"], encoder(packed, training=False)["default"])


def test_encoder_is_a_layer_of_a_keras_model_that_is_trained(folder: pathlib.Path, preprocess: Any):
    layer = keras.layers.TFSMLayer(str(folder / "encoder"), call_endpoint="serve", call_training_endpoint="train")
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in preprocess(tf.constant([""]))}
    model = keras.Model(inputs, keras.layers.Dense(2)(layer(inputs)["pooled_output"]))
    model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    packed = preprocess(tf.constant(TEXTS))
    before = model(packed).numpy()
    weights = [variable.numpy() for variable in layer.trainable_variables]
    model.fit(packed, np.arange(len(TEXTS)) % 2, batch_size=len(TEXTS), verbose=0)
    changed = [not np.array_equal(*pair) for pair in zip(weights, layer.trainable_variables, strict=True)]
    assert sum(changed) > 30
    assert not np.allclose(before, model(packed))


def test_encoder_without_pooler_is_refused(tmp_path: pathlib.Path, vocab_file: str):
    whole = build_encoder(CONFIG)
    encoder = keras.Model(whole.input, {"sequence_output": whole.output["sequence_output"]})
    with pytest.raises(UserError, match="has no pooler"):
        tf_hub.write(encoder, CONFIG, FullTokenizer(vocab_file), "", str(tmp_path / "hub"))
    assert not (tmp_path / "hub").exists()
