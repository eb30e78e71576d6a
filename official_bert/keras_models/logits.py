"""Keras' losses and metrics for models that give logits: by default many of Keras' take probabilities."""

import inspect
from typing import Any

import keras

from official_bert.errors import UserError
from official_bert.kinds.features import NO_LABEL
from official_bert.kinds.losses import TaggingLoss
from official_bert.kinds.metrics import MetricOfClasses
from official_bert.kinds.model import model_for
from official_bert.kinds.spec import KindSpec

_CROSSENTROPIES, _ACCURACIES = ("crossentropy", "ce"), ("accuracy", "acc")  # Keras chooses them by the labels' shape
# What of Keras reads probabilities and has no argument for logits.
_OF_PROBABILITIES = {
    "KLDivergence", "Poisson", "Dice", "Tversky", "CategoricalGeneralizedCrossEntropy", "kl_divergence", "poisson",
    "dice", "tversky", "categorical_generalized_cross_entropy",
}  # fmt: skip


def losses_of_logits(losses: Any, head: KindSpec) -> Any:
    """Returns losses as compile takes them, those that are given by name or by class made for logits.

    Args:
        losses: a loss, or a list or dict of such.
        head: what gives the logits.

    Raises:
        UserError: a loss would take logits for probabilities.
    """

    def for_logits(loss: Any) -> Any:
        if isinstance(loss, str) and loss in _CROSSENTROPIES:
            return next(iter(keras.tree.flatten(model_for(head).loss())))
        is_kind = _is_kind(loss)
        made = _for_logits(loss, keras.losses, head) if is_kind else loss
        is_sparse = isinstance(made, keras.losses.SparseCategoricalCrossentropy)
        if is_sparse and made.ignore_class != NO_LABEL and isinstance(own := model_for(head).loss(), TaggingLoss):
            if is_kind:
                return own
            line = f"keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class={NO_LABEL})"
            raise UserError(f"tokens without a label have {NO_LABEL}; leave out the loss, or write {line}")
        return made if is_kind else _for_logits(loss, keras.losses, head)

    return keras.tree.map_structure(for_logits, losses)


def metrics_of_logits(metrics: Any, head: KindSpec) -> Any:
    """Returns metrics as compile takes them, made for logits as by `losses_of_logits`."""

    def for_logits(metric: Any) -> Any:
        if not (isinstance(metric, str) and metric in _ACCURACIES):
            return _for_logits(metric, keras.metrics, head)
        own = next(iter(keras.tree.flatten(model_for(head).metrics())))
        # Keras itself chooses this one where it is right; others it compares with one half, or at padding too.
        is_keras_choice = isinstance(own, keras.metrics.SparseCategoricalAccuracy)
        return metric if is_keras_choice or own.name != "accuracy" else own

    return keras.tree.map_structure(for_logits, metrics)


def _for_logits(given: Any, module: Any, head: KindSpec) -> Any:
    """A loss or metric as it was given, or, of a name, made for logits."""
    is_kind = _is_kind(given)
    made = module.get(given) if is_kind else given
    if inspect.isfunction(made):
        kind = getattr(module, made.__name__.title().replace("_", ""), None)
        made = kind() if kind and _is_of_keras(made) else made
    if isinstance(made, keras.metrics.FBetaScore) and _is_of_keras(made) and not head.is_value:
        return _f_score(made, head)
    argument = _argument_for_logits(made, head)
    if argument is None:
        return given
    name = getattr(made, "__name__", type(made).__name__)
    if not argument:
        raise UserError(
            f"{name} takes probabilities, and the model gives logits; leave it out, or compute it from what predict "
            "returns"
        )
    if is_kind:
        return type(made)(**{argument: argument == "from_logits"}, name=given if isinstance(given, str) else made.name)
    line = f"{module.__name__.removeprefix('keras._tf_keras.')}.{name}({argument}={argument == 'from_logits' or 0})"
    raise UserError(f"{name} as given takes probabilities, and the model gives logits; write {line}")


def _is_kind(given: Any) -> bool:
    """Whether it is a name or a class, of which Keras makes a loss or metric with its defaults."""
    return isinstance(given, str) or inspect.isclass(given)


def _f_score(made: Any, head: KindSpec) -> MetricOfClasses:
    """Keras' F1Score or FBetaScore of a head's logits, which by itself takes rows of 0 and 1, and probabilities."""
    loss = model_for(head).loss()
    has_one_class = isinstance(loss, keras.losses.SparseCategoricalCrossentropy)
    if has_one_class or isinstance(loss, keras.losses.BinaryCrossentropy):
        return MetricOfClasses(made, has_one_class)
    hint = "; evaluate gives the f1 of its answers" if head.has_own_scores else ""
    kind = head.kind.replace("_", " ")
    raise UserError(f"{type(made).__name__} is for classes of texts, which {kind} has not; leave it out{hint}")


def _argument_for_logits(made: Any, head: KindSpec) -> str | None:
    """What a loss or metric lacks to take logits: an argument, "" where there is none, None where nothing lacks."""
    if not _is_of_keras(made):
        return None
    config = {} if inspect.isfunction(made) else made.get_config()
    if config.get("from_logits") is False:
        return "from_logits"
    if head.is_value or "from_logits" in config:
        return None
    if "threshold" in config:  # 0 is the logit of one half
        return None if config["threshold"] == 0 else "threshold"
    if "thresholds" in config:
        return None if config["thresholds"] in (0, [0]) or config.get("top_k") else "thresholds"
    name = getattr(made, "__name__", type(made).__name__)
    return "" if name in _OF_PROBABILITIES or "num_thresholds" in config else None


def _is_of_keras(made: Any) -> bool:
    """Whether it is Keras' own; of a user's own, and of a class below Keras', nothing is known."""
    return (made if inspect.isfunction(made) else type(made)).__module__.startswith("keras.")
