"""Batches and weights of small models."""

import keras
import numpy as np

from official_bert.modeling.config import BertConfig


def random_batch(config: BertConfig, seed: int, batch: int = 3, length: int = 12):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(4, length + 1, batch)
    input_mask = (np.arange(length) < lengths[:, None]).astype("int32")
    first = rng.integers(1, lengths)
    return {
        "input_ids": rng.integers(0, config.vocab_size, (batch, length)).astype("int32") * input_mask,
        "input_mask": input_mask,
        "segment_ids": (np.arange(length) >= first[:, None]).astype("int32") * input_mask,
        "masked_lm_positions": np.sort(rng.integers(0, lengths[:, None], (batch, 4))).astype("int32"),
    }


def randomize_weights(model: keras.Model, seed: int) -> keras.Model:
    """Sets random weights, large enough that every part of the model matters, including biases and normalization."""
    rng = np.random.default_rng(seed)
    for variable in model.variables:
        variable.assign(rng.normal(1.0 if variable.name == "gamma" else 0.0, 0.3, variable.shape))
    return model


def inputs_of_encoder(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: batch[name] for name in ("input_ids", "input_mask", "segment_ids")}
