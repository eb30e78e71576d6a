"""Which weights are not trained at all."""

import re
from collections.abc import Sequence

import keras

from official_bert.errors import UserError


def freeze(model: keras.Model, patterns: Sequence[str]) -> list[str]:
    """Takes layers out of training: they get no update and no decay, and the optimizer keeps nothing for them.

    To be called before the optimizer is built. The masked-LM output shares its matrix with word_embeddings and is
    frozen with it, except for its bias.

    Args:
        model: its layers with weights are looked at.
        patterns: regular expressions that must match a layer's whole name, such as "layer_[0-3]_.*" or ".*embeddings".

    Returns:
        The names of the frozen layers.

    Raises:
        UserError: a pattern is none or matches no layer, or no layer is left to train.
    """
    names = [layer.name for layer in model.layers if layer.weights]
    frozen = set()
    for pattern in patterns:
        try:
            matched = {name for name in names if re.fullmatch(pattern, name)}
        except re.error as error:
            raise UserError(f"{pattern!r} is not a regular expression: {error}") from error
        if not matched:
            raise UserError(
                f"no layer's whole name matches {pattern!r}; the layers with weights are {', '.join(names)}"
            )
        frozen |= matched
    if len(frozen) == len(names):
        raise UserError(f"{', '.join(map(repr, patterns))} freeze every layer, so that nothing is left to train")
    for name in frozen:
        model.get_layer(name).trainable = False
    return [name for name in names if name in frozen]
