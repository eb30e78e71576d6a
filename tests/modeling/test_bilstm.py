"""BiLSTMs between encoder and head: fine-tuned with the encoder, or trained on the features of a frozen one."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_bert.modeling.bilstm import extend_encoder
from official_bert.modeling.encoder import build_encoder
from official_bert.modeling.head_input import FEATURES, HeadInput
from tests.make import assert_rejected, build_task_model, list_weights, tiny_config
from tests.modeling.small_models import inputs_of_encoder, random_batch, randomize_weights

UNITS = 3


@pytest.mark.parametrize("num_layers", [5, 1])  # more than the last four, and only one
def test_features_equal_the_selected_encoder_layers(num_layers: int):
    config = tiny_config(num_hidden_layers=num_layers)
    encoder = randomize_weights(build_encoder(config, return_all_layers=True), 0)
    batch = inputs_of_encoder(random_batch(config, 0, batch=1, length=5))
    layers = [np.asarray(each) for each in encoder(batch)["encoder_outputs"]]
    embeddings = np.asarray(keras.Model(encoder.input, encoder.get_layer("embeddings_dropout").output)(batch))
    expected = {"embeddings": embeddings, "last_hidden": layers[-1], "second_to_last_hidden": [embeddings, *layers][-2]}
    expected |= {"sum_last_four": sum(layers[-4:]), "concat_last_four": np.concatenate(layers[-4:], axis=-1)}
    expected["sum_all"] = sum(layers)
    assert tuple(expected) == FEATURES
    for head, values in expected.items():
        model = extend_encoder(encoder, head, UNITS)
        features = keras.Model(model.input, model.get_layer("bilstm_0").input[0])
        # In training as well: a frozen encoder has no dropout.
        np.testing.assert_allclose(features(batch, training=True), values, atol=1e-5)


def test_both_directions_read_the_whole_text_without_padding():
    model = extend_encoder(randomize_weights(build_encoder(tiny_config()), 0), "bilstm", UNITS, seed=1)
    batch = inputs_of_encoder(random_batch(tiny_config(), 1, batch=1, length=9))
    batch["input_mask"] = np.array([[1] * 6 + [0] * 3], np.int32)
    whole = model(batch)
    cut = model({name: values[:, :6] for name, values in batch.items()})
    assert whole["sequence_output"].shape == (1, 9, 2 * UNITS)
    assert whole["pooled_output"].shape == (1, 4 * UNITS)
    np.testing.assert_allclose(whole["sequence_output"][:, :6], cut["sequence_output"], atol=1e-5)
    np.testing.assert_allclose(whole["pooled_output"], cut["pooled_output"], atol=1e-5)
    ends = np.asarray(whole["sequence_output"])[:, [5, 0]]
    np.testing.assert_array_equal(whole["pooled_output"], ends.reshape(1, -1))
    # The vector of the first token contains the backward direction, which has read the last token.
    ids = batch["input_ids"].copy()
    ids[0, 5] = (ids[0, 5] + 1) % tiny_config().vocab_size
    change = np.abs(np.asarray(model({**batch, "input_ids": ids})["sequence_output"] - whole["sequence_output"]))
    assert change[0, 0, UNITS:].max() > 1e-6


@pytest.mark.parametrize("head", ["linear", "bilstm", "second_to_last_hidden"])  # one of each form
def test_only_trainable_weights_have_gradients(head: str):
    encoder = build_encoder(tiny_config(num_hidden_layers=1), seed=0)
    model = build_task_model("tagging", encoder, 4, seed=1, head_input=HeadInput(head, UNITS))
    batch = inputs_of_encoder(random_batch(tiny_config(), 1, batch=1, length=5))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(batch) ** 2)
    trained = {variable.path for variable in model.trainable_variables}
    assert all(gradient is not None for gradient in tape.gradient(loss, model.trainable_variables))
    assert any(path.startswith("word_embeddings") for path in trained) == (head in ("linear", "bilstm"))
    assert any("bilstm" in path for path in trained) == (head != "linear")
    assert "token_classifier/kernel" in trained


def test_head_and_units_are_stored_unless_the_head_reads_the_encoder():
    given = HeadInput("bilstm", UNITS)
    assert HeadInput.from_dict(given.to_dict()) == given
    assert HeadInput().to_dict() == {}
    assert (HeadInput().lstm_units, HeadInput(lstm_units=1).lstm_units) == (768, 1)
    assert HeadInput(lstm_units=100_000).lstm_units == 100_000
    for units in (0, 100_001):
        assert_rejected(("lstm_units", units, 1, "100,000"), HeadInput, "bilstm", units)


def test_each_direction_and_layer_has_different_initial_weights():
    config = tiny_config(num_hidden_layers=1)
    weights = [list_weights(extend_encoder(build_encoder(config, seed=0), "bilstm", UNITS, 1)) for _ in range(2)]
    first, second = ([value for path, value in each.items() if path.endswith("recurrent_kernel")] for each in weights)
    assert len({kernel.tobytes() for kernel in first}) == len(first) == 4
    np.testing.assert_equal(first, second)
