"""Freezes layers by name."""

import re
from collections.abc import Sequence

import keras

from official_bert.errors import UserError


def freeze(model: keras.Model, patterns: Sequence[str]) -> list[str]:
    """Freezes layers. They get no updates and no weight decay, and the optimizer stores no moments for them.

    Call it before the optimizer is built. The masked-LM output shares its matrix with word_embeddings and is frozen
    with it, except for its bias.

    Args:
        model: The model.
        patterns: Regular expressions that match whole layer names, such as "layer_[0-3]_.*" or ".*embeddings".

    Returns:
        The names of the frozen layers.

    Raises:
        UserError: If a pattern is invalid or matches no layer, or no trainable layer is left.
    """
    names = [layer.name for layer in model.layers if layer.weights]
    frozen = set()
    for pattern in patterns:
        try:
            matched = {name for name in names if re.fullmatch(pattern, name)}
        except re.error as error:
            raise UserError(f"{pattern!r} is not a regular expression: {error}") from error
        if not matched:
            raise UserError(f"{pattern!r} matches no whole layer name; the layers with weights are {', '.join(names)}")
        frozen |= matched
    if len(frozen) == len(names):
        raise UserError(f"{', '.join(map(repr, patterns))} would freeze every layer; leave at least one to train")
    for name in frozen:
        model.get_layer(name).trainable = False
    return [name for name in names if name in frozen]
