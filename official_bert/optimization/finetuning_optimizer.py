"""The optimizer of fine-tuning: the original's, with optional layer-wise learning-rate decay."""

from typing import Any

import keras

from official_bert.modeling import layer_names
from official_bert.optimization.loss_scale import DynamicLossScale
from official_bert.optimization.optimizers import BertAdamW, LayerwiseAdamW
from official_bert.optimization.schedules import WarmupPolynomialDecay


def create_bert_optimizer(
    model: keras.Model,
    num_layers: int,
    *,
    num_steps: int,
    learning_rate: float,
    warmup_proportion: float,
    layer_decay: float,
    scales_loss: bool = False,
    **settings: Any,
) -> tuple[BertAdamW, WarmupPolynomialDecay]:
    """Creates the optimizer and learning-rate schedule for fine-tuning. The optimizer is built for the model's weights.

    Call it in the scope of the distribution strategy.

    Args:
        model: The model to train.
        num_layers: Number of encoder blocks.
        num_steps: Number of training steps, after which the learning rate is 0.
        learning_rate: Peak learning rate.
        warmup_proportion: Fraction of the steps in which the learning rate warms up.
        layer_decay: Learning rate of each layer, as a fraction of the learning rate of the layer above it. 1.0 trains
            all layers alike.
        scales_loss: Whether to scale the loss, as float16 requires.
        settings: Other arguments of BertAdamW. adam_bias_correction defaults to True.
    """
    schedule = WarmupPolynomialDecay(learning_rate, num_steps, int(num_steps * warmup_proportion))
    factors = compute_layer_factors(model, num_layers, layer_decay)
    settings = {"adam_bias_correction": True, **settings}
    optimizer = LayerwiseAdamW(schedule, factors, **settings) if factors else BertAdamW(schedule, **settings)
    optimizer.build(model.trainable_variables)
    if scales_loss:
        optimizer.loss_scale = DynamicLossScale()
    return optimizer, schedule


def compute_layer_factors(model: keras.Model, num_layers: int, decay: float) -> dict[str, float]:
    """Returns the factor of the learning rate for each variable, by path, for layer-wise decay. Empty if `decay` is 1.

    The factor is 1 for the head and the pooler (which are left out of the result), `decay` for the last block, `decay
    ** 2` for the block before it, and so on down to the embeddings.

    Args:
        model: The model to train.
        num_layers: Number of encoder blocks.
        decay: Learning rate of each layer, as a fraction of the learning rate of the layer above it.
    """
    if decay == 1.0:
        return {}
    factors = {}
    for variable in model.trainable_variables:
        name = variable.path.split("/")[-2]
        block = layer_names.find_block_index(name)
        if block is not None:
            factors[variable.path] = decay ** (num_layers - block)
        elif name in layer_names.EMBEDDINGS:
            factors[variable.path] = decay ** (num_layers + 1)
    return factors
