"""Freezes layers, selected by name, so that they are not trained."""

import re
from collections.abc import Sequence

import keras

from official_bert.errors import UserError
from official_bert.modeling import layer_names

ALL = "all"  # a pattern that matches all layers of the encoder, but no heads


def freeze(model: keras.Model, patterns: Sequence[str]) -> list[str]:
    """Freezes layers by name: they get no updates and no weight decay, and the optimizer stores no moments for them.

    Call it before the optimizer is built. The masked-LM output shares its matrix with word_embeddings and is frozen
    with it, except for its bias.

    Args:
        model: The model.
        patterns: Regular expressions that match whole layer names, such as "layer_[0-3]_.*" or ".*embeddings". "all"
            means all layers of the encoder including the pooler.

    Returns:
        The names of the frozen layers.

    Raises:
        UserError: If a pattern is invalid or matches no layer.
    """
    names = [layer.name for layer in model.layers if layer.weights]
    frozen = set()
    for pattern in patterns:
        try:
            matched = {
                name
                for name in names
                if (layer_names.is_in_encoder(name) if pattern == ALL else re.fullmatch(pattern, name))
            }
        except re.error as error:
            raise UserError(f"{pattern!r} is not a regular expression: {error}") from error
        if not matched:
            raise UserError(f"{pattern!r} matches no whole layer name; the layers with weights are {', '.join(names)}")
        frozen |= matched
    for name in frozen:
        model.get_layer(name).trainable = False
    return [name for name in names if name in frozen]


def check_trainable(model: keras.Model) -> None:
    """Raises a UserError if a model has no trainable weights."""
    if not model.trainable_weights:
        raise UserError(
            "every layer is frozen, so there is nothing to train; pass fewer patterns to freeze, or set "
            "model.get_layer(name).trainable = True for a layer"
        )
