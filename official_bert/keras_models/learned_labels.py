"""Learns the class names of a model that was created without labels, from the labels passed to fit."""

from typing import Any

import keras

from official_bert.errors import UserError
from official_bert.kinds import class_labels
from official_bert.kinds.input_adapters import are_ids


def learn_labels(model: Any, x: Any, y: Any, verbose: Any) -> None:
    """Gives a TextModel without labels the labels in `y`, and replaces its last layer by a new one for them.

    All other layers are kept, including the user's changes. The model must be compiled again.

    Args:
        model: The TextModel.
        x: Argument of fit.
        y: Argument of fit.
        verbose: Whether to print the labels.

    Raises:
        UserError: If the labels are not names or numbers in a list, or too few, or the model was quantized.
    """
    if y is None or are_ids(x):
        raise UserError(
            "fit can only learn the labels from lists of texts and labels; create the model with labels=[...]"
        )
    labels = class_labels.learn_label_names(y)
    class_labels.check_label_names(labels, 2 if model.spec.is_single_label else 1, {})
    last = model.outputs[0]._keras_history.operation
    if model.get_config()["quantization"] or last is not model.get_layer("logits"):
        raise UserError(
            f"{model.name} is quantized, or has layers after its logits; to fit it, create it with labels=[...]"
        )
    model.spec, model.compiled = model._replace_labels(tuple(labels)), False
    with model.distribute_strategy.scope():
        _replace_classes(model, len(labels))
    if verbose:
        print(f"note: learned the labels {', '.join(labels)} from y")


def _replace_classes(model: Any, num_classes: int) -> None:
    """Replaces the last dense layer by a new one with the same settings for `num_classes` classes."""
    logits = model.get_layer("logits")
    dense = logits.input._keras_history.operation
    x = dense.input
    for old in (dense, logits):
        units = {"units": num_classes} if old is dense else {}
        new = type(old).from_config(old.get_config() | units)
        x = new(x)
        for variable, old_variable in zip(new.variables, old.variables, strict=True):
            variable.regularizer, variable.constraint = old_variable.regularizer, old_variable.constraint
        model._tracker.replace_tracked_value("layers", old, new)
    # What keras.Function adds to an operation is the graph of a functional model.
    graph = vars(keras.Function(model.input, x))
    model.__dict__.update({name: graph[name] for name in graph.keys() - vars(keras.Operation()).keys()})
