"""Rejects losses and metrics that expect probabilities: the models output logits."""

import inspect
from typing import Any

import keras

from official_bert.errors import UserError
from official_bert.kinds.features import NO_LABEL
from official_bert.kinds.losses import TaggingLoss
from official_bert.kinds.metrics import MetricOfClasses
from official_bert.kinds.model import model_for
from official_bert.kinds.spec import KindSpec

_CROSSENTROPIES, _ACCURACIES = ("crossentropy", "ce"), ("accuracy", "acc")  # Keras resolves them by shape
# Losses and metrics of Keras that expect probabilities and have no argument for logits.
_FOR_PROBABILITIES = {
    "KLDivergence", "Poisson", "Dice", "Tversky", "CategoricalGeneralizedCrossEntropy", "kl_divergence", "poisson",
    "dice", "tversky", "categorical_generalized_cross_entropy",
}  # fmt: skip


def check_losses(losses: Any, head: KindSpec) -> Any:
    """Returns the losses, unchanged, if they can be computed from logits.

    Args:
        losses: A loss, or a list or dict of losses, as compile takes them.
        head: The head that outputs the logits.

    Raises:
        UserError: If a loss expects probabilities, or reads the padding of tags. The message shows the loss to use.
    """
    own = model_for(head).loss()
    ignores_padding = isinstance(own, TaggingLoss)

    def check(given: Any) -> Any:
        if isinstance(given, str) and given in _CROSSENTROPIES:
            given = type(next(iter(keras.tree.flatten(own)))).__name__.replace(
                "TaggingLoss", "SparseCategoricalCrossentropy"
            )
        made = _create(given, keras.losses)
        if not isinstance(made, keras.losses.SparseCategoricalCrossentropy) or not ignores_padding:
            return _check(given, made, keras.losses, head)
        if made.ignore_class != NO_LABEL or not made.get_config()["from_logits"]:
            line = f"keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class={NO_LABEL})"
            raise UserError(f"tokens without a label have {NO_LABEL}; leave out the loss, or use {line}")
        return given

    return keras.tree.map_structure(check, losses)


def check_metrics(metrics: Any, head: KindSpec) -> Any:
    """Returns the metrics if they can be computed from logits.

    "accuracy" becomes the accuracy of the head, and F1Score and FBetaScore receive probabilities.

    Args:
        metrics: A metric, or a list or dict of metrics, as compile takes them.
        head: The head that outputs the logits.

    Raises:
        UserError: If a metric expects probabilities. The message shows the metric to use.
    """
    own = next(iter(keras.tree.flatten(model_for(head).metrics())))

    def check(given: Any) -> Any:
        if isinstance(given, str) and given in _ACCURACIES:
            # Keras itself resolves the name to this metric.
            is_keras_choice = isinstance(own, keras.metrics.SparseCategoricalAccuracy)
            return given if is_keras_choice or own.name != "accuracy" else own
        made = _create(given, keras.metrics)
        if isinstance(made, keras.metrics.FBetaScore) and _is_from_keras(made) and not head.is_value:
            return _f_score(made, head)
        return _check(given, made, keras.metrics, head)

    return keras.tree.map_structure(check, metrics)


def _create(given: Any, module: Any) -> Any:
    """Returns the loss or metric of a name, class or function of Keras, as an object if it has a class."""
    made = module.get(given) if isinstance(given, str) or inspect.isclass(given) else given
    if inspect.isfunction(made) and _is_from_keras(made):
        kind = getattr(module, made.__name__.title().replace("_", ""), None)
        return kind() if kind else made
    return made


def _check(given: Any, made: Any, module: Any, head: KindSpec) -> Any:
    argument = _missing_argument(made, head)
    if argument is None:
        return given
    name = getattr(made, "__name__", type(made).__name__)
    module_name = module.__name__.removeprefix("keras._tf_keras.")
    remedy = f"use {module_name}.{name}({argument}) instead" if argument else "compute it from the result of predict"
    raise UserError(f"{name} expects probabilities, but the model outputs logits; {remedy}")


def _missing_argument(made: Any, head: KindSpec) -> str | None:
    """Returns the argument that lets a loss or metric take logits, "" if it has none, or None if it needs none."""
    if not _is_from_keras(made):
        return None
    config = {} if inspect.isfunction(made) else made.get_config()
    if config.get("from_logits") is False:
        return "from_logits=True"
    if head.is_value or "from_logits" in config:
        return None
    if "threshold" in config:  # 0 is the logit of one half
        return None if config["threshold"] == 0 else "threshold=0"
    if "thresholds" in config:
        return None if config["thresholds"] in (0, [0]) or config.get("top_k") else "thresholds=0"
    name = getattr(made, "__name__", type(made).__name__)
    return "" if name in _FOR_PROBABILITIES or "num_thresholds" in config else None


def _f_score(made: Any, head: KindSpec) -> MetricOfClasses:
    """Returns F1Score or FBetaScore for the logits of a head. Keras' own take one-hot rows and probabilities."""
    loss = model_for(head).loss()
    is_single_label = isinstance(loss, keras.losses.SparseCategoricalCrossentropy)
    if is_single_label or isinstance(loss, keras.losses.BinaryCrossentropy):
        return MetricOfClasses(made, is_single_label)
    hint = "; evaluate gives the f1 of its answers" if head.has_own_scores else ""
    kind = head.kind.replace("_", " ")
    raise UserError(f"{type(made).__name__} is for classes of texts, which {kind} has not; leave it out{hint}")


def _is_from_keras(made: Any) -> bool:
    """Returns whether a function or the class of an object is part of Keras. Nothing is known of users' own."""
    return (made if inspect.isfunction(made) else type(made)).__module__.startswith("keras.")
