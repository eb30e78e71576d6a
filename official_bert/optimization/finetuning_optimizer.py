"""Fine-tuning's optimizer: the original's with its schedule, and with a rate for each layer if that is asked for."""

from typing import Any

import keras

from official_bert.modeling import layer_names
from official_bert.optimization.loss_scale import DynamicLossScale
from official_bert.optimization.optimizers import BertAdamW, LayerwiseAdamW
from official_bert.optimization.schedules import WarmupPolynomialDecay


def bert_optimizer(
    model: keras.Model,
    num_layers: int,
    *,
    num_steps: int,
    learning_rate: float,
    warmup_proportion: float,
    layer_decay: float,
    adam_bias_correction: bool = True,
    scales_loss: bool = False,
) -> tuple[BertAdamW, WarmupPolynomialDecay]:
    """Returns the optimizer that the command and fit share, built for the model's weights, and its schedule.

    It is to be called within the scope of the strategy.

    Args:
        model: with the weights to train.
        num_layers: blocks of its encoder.
        num_steps: of the whole training; the rate falls to 0 by then.
        learning_rate: the highest.
        warmup_proportion: the share of the steps in which the rate rises.
        layer_decay: the rate of each layer by that of the layer above.
        adam_bias_correction: Whether Adam corrects the bias of its moments, which the original's does not.
        scales_loss: whether the loss is scaled, as float16 needs it.
    """
    schedule = WarmupPolynomialDecay(learning_rate, num_steps, int(num_steps * warmup_proportion))
    factors = layer_factors(model, num_layers, layer_decay)
    settings: dict[str, Any] = {"adam_bias_correction": adam_bias_correction}
    optimizer = LayerwiseAdamW(schedule, factors, **settings) if factors else BertAdamW(schedule, **settings)
    optimizer.build(model.trainable_variables)
    if scales_loss:
        optimizer.loss_scale = DynamicLossScale()
    return optimizer, schedule


def layer_factors(model: keras.Model, num_layers: int, decay: float) -> dict[str, float]:
    """Returns what each variable's learning rate is multiplied with, by its path; empty for a decay of 1.

    The head and the pooler have 1, the last block `decay`, the one before it its square, the embeddings one power more
    than the first block.
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
