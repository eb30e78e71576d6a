"""Rejects losses and metrics that expect probabilities, because the models output logits."""

import inspect
from typing import Any

import keras

from official_bert.errors import UserError
from official_bert.kinds.features import NO_LABEL
from official_bert.kinds.losses import MetricOfClasses, TaggingLoss
from official_bert.kinds.model import create_model
from official_bert.kinds.spec import KindSpec

_CROSSENTROPIES, _ACCURACIES = ("crossentropy", "ce"), ("accuracy", "acc")  # Keras resolves them by shape
# Losses and metrics of Keras that expect probabilities and have no argument for logits.
_FOR_PROBABILITIES = {
    "KLDivergence", "Poisson", "Dice", "Tversky", "CategoricalGeneralizedCrossEntropy", "kl_divergence", "poisson",
    "dice", "tversky", "categorical_generalized_cross_entropy",
}  # fmt: skip


def check_losses(losses: Any, head: KindSpec) -> Any:
    """Returns the losses unchanged if all of them accept logits.

    Args:
        losses: A loss, or a list or dict of losses, as in compile.
        head: The head that outputs the logits.

    Raises:
        UserError: If a loss expects probabilities, or does not ignore the padding of tags.
    """
    own = create_model(head).loss()
    ignores_padding = isinstance(own, TaggingLoss)

    def check(item: Any) -> Any:
        if isinstance(item, str) and item in _CROSSENTROPIES:
            item = type(next(iter(keras.tree.flatten(own)))).__name__.replace(
                "TaggingLoss", "SparseCategoricalCrossentropy"
            )
        instance = _create(item, keras.losses)
        if not isinstance(instance, keras.losses.SparseCategoricalCrossentropy) or not ignores_padding:
            return _check(item, instance, keras.losses, head)
        if instance.ignore_class != NO_LABEL or not instance.get_config()["from_logits"]:
            line = f"keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class={NO_LABEL})"
            raise UserError(f"the label {NO_LABEL} marks tokens without a label; remove the loss, or use {line}")
        return item

    return keras.tree.map_structure(check, losses)


def check_metrics(metrics: Any, head: KindSpec) -> Any:
    """Returns the metrics if all of them accept logits.

    "accuracy" is replaced by the accuracy of the head. F1Score and FBetaScore are wrapped to receive probabilities.

    Args:
        metrics: A metric, or a list or dict of metrics, as in compile.
        head: The head that outputs the logits.

    Raises:
        UserError: If a metric expects probabilities, or is an accuracy and the head has none.
    """
    own = next(iter(keras.tree.flatten(create_model(head).metrics())), None)

    def check(item: Any) -> Any:
        if isinstance(item, str) and item in _ACCURACIES:
            if own is None:
                raise UserError(
                    f"{item!r} is not defined for {head.kind}, which have no classes; remove it from metrics"
                )
            # Keras resolves the name to this metric by itself.
            is_keras_choice = isinstance(own, keras.metrics.SparseCategoricalAccuracy)
            return item if is_keras_choice or own.name != "accuracy" else own
        instance = _create(item, keras.metrics)
        if isinstance(instance, keras.metrics.FBetaScore) and _is_from_keras(instance) and not head.is_value:
            return _f_score(instance, head)
        return _check(item, instance, keras.metrics, head)

    return keras.tree.map_structure(check, metrics)


def _create(item: Any, module: Any) -> Any:
    """Returns the Keras object for the name, class or function of a loss or metric."""
    instance = module.get(item) if isinstance(item, str) or inspect.isclass(item) else item
    if inspect.isfunction(instance) and _is_from_keras(instance):
        kind = getattr(module, instance.__name__.title().replace("_", ""), None)
        return kind() if kind else instance
    return instance


def _check(item: Any, instance: Any, module: Any, head: KindSpec) -> Any:
    argument = _missing_argument(instance, head)
    if argument is None:
        return item
    name = getattr(instance, "__name__", type(instance).__name__)
    module_name = module.__name__.removeprefix("keras._tf_keras.")
    remedy = f"use {module_name}.{name}({argument}) instead" if argument else "compute it from the output of predict"
    raise UserError(f"{name} expects probabilities, but the model outputs logits; {remedy}")


def _missing_argument(instance: Any, head: KindSpec) -> str | None:
    """Returns the argument that makes a loss or metric accept logits, "" if there is none, or None if not needed."""
    if not _is_from_keras(instance):
        return None
    config = {} if inspect.isfunction(instance) else instance.get_config()
    if config.get("from_logits") is False:
        return "from_logits=True"
    if head.is_value or "from_logits" in config:
        return None
    if "threshold" in config:  # A logit of 0 is a probability of 0.5.
        return None if config["threshold"] == 0 else "threshold=0"
    if "thresholds" in config:
        return None if config["thresholds"] in (0, [0]) or config.get("top_k") else "thresholds=0"
    name = getattr(instance, "__name__", type(instance).__name__)
    return "" if name in _FOR_PROBABILITIES or "num_thresholds" in config else None


def _f_score(instance: Any, head: KindSpec) -> MetricOfClasses:
    """Returns F1Score or FBetaScore for logits. Keras' own expect one-hot rows and probabilities."""
    loss = create_model(head).loss()
    is_single_label = isinstance(loss, keras.losses.SparseCategoricalCrossentropy)
    if is_single_label or isinstance(loss, keras.losses.BinaryCrossentropy):
        return MetricOfClasses(instance, is_single_label)
    hint = "; evaluate returns the f1 of the answers" if head.has_own_scores else ""
    kind = head.kind.replace("_", " ")
    raise UserError(
        f"{type(instance).__name__} needs one or more classes per text, which {kind} does not have; remove it{hint}"
    )


def _is_from_keras(instance: Any) -> bool:
    """Returns whether a function or the class of an object is defined in Keras. User-defined ones are not checked."""
    return (instance if inspect.isfunction(instance) else type(instance)).__module__.startswith("keras.")
