"""Checks the losses and metrics that users pass to compile, and the form of the labels.

The models output logits. Losses must accept logits. Metrics of classes that expect probabilities or one-hot labels are
wrapped.
"""

import inspect
from typing import Any

import keras

from official_bert.errors import UserError
from official_bert.kinds.features import NO_LABEL
from official_bert.kinds.losses import MetricOfClasses, reads_indices, reads_logits
from official_bert.kinds.model import create_kind_model
from official_bert.kinds.spec import KindSpec
from official_bert.kinds.text_spec import LabelSpec

_CROSSENTROPIES, _ACCURACIES = ("crossentropy", "ce"), ("accuracy", "acc")  # Keras resolves them by shape


def check_losses(losses: Any, spec: KindSpec) -> Any:
    """Returns the losses unchanged, after checking that they fit the task and accept logits.

    Args:
        losses: A loss, or a list or dict of losses, as in compile.
        spec: The spec of the model's task.

    Raises:
        UserError: If a Keras loss does not fit the task, expects probabilities, or does not ignore the padding of tags.
    """
    kind_model = create_kind_model(spec)

    def check(item: Any) -> Any:
        instance = _create_instance(_name_crossentropy(item, spec), keras.losses)
        if _is_from_keras(instance):
            _check_fit(instance, keras.losses, kind_model.keras_losses, spec)
        return item

    return keras.tree.map_structure(check, losses)


def check_metrics(metrics: Any, spec: KindSpec, has_one_hot: bool | None = False) -> Any:
    """Returns the metrics, wrapped in MetricOfClasses if they expect probabilities or one-hot labels.

    "accuracy" is replaced by the accuracy of the task.

    Args:
        metrics: A metric, or a list or dict of metrics, as in compile.
        spec: The spec of the model's task.
        has_one_hot: Whether class labels are one-hot, or None if unknown (see `reads_one_hot`).

    Raises:
        UserError: If a Keras metric does not fit the task, or expects probabilities and cannot be wrapped.
    """
    kind_model = create_kind_model(spec)
    own = next(iter(keras.tree.flatten(kind_model.metrics())), None)

    def check(item: Any) -> Any:
        if isinstance(item, str) and item in _ACCURACIES and own is not None:
            # Keras resolves the name to this metric by itself.
            is_keras_choice = isinstance(own, keras.metrics.SparseCategoricalAccuracy)
            return item if is_keras_choice or own.name != "accuracy" else own
        instance = _create_instance(_name_crossentropy(item, spec), keras.metrics)
        if not _is_from_keras(instance) or type(instance) is keras.metrics.MeanMetricWrapper:
            return item
        wraps = isinstance(spec, LabelSpec)
        _check_fit(instance, keras.metrics, kind_model.keras_metrics, spec, checks_logits=not wraps)
        reads_labels = not spec.is_single_label or (reads_indices(instance) and has_one_hot is False)
        if not wraps or (reads_labels and reads_logits(instance)):
            return item
        return MetricOfClasses(instance, spec.is_single_label, name=item if isinstance(item, str) else instance.name)

    return keras.tree.map_structure(check, metrics)


def reads_one_hot(loss: Any, spec: KindSpec) -> bool | None:
    """Returns whether a loss expects a number for each class (such as one-hot rows) instead of class indices.

    Returns None if the loss accepts both, or if the task is not single-label classification.
    """
    if not isinstance(spec, LabelSpec) or not spec.is_single_label or isinstance(loss, dict | list):
        return None
    instance = _create_instance(loss, keras.losses)
    return not reads_indices(instance) if _is_from_keras(instance) else None


def check_labels(loss: Any, spec: KindSpec, labels: Any, logits: Any) -> None:
    """Raises a UserError if labels have a form (class indices or one-hot rows) that the loss does not accept.

    Args:
        loss: The compiled loss.
        spec: The spec of the model's task.
        labels: A tensor of labels, [B], [B, 1] or [B, C].
        logits: A tensor of logits, [B, C].
    """
    expects_one_hot = reads_one_hot(loss, spec)
    if expects_one_hot is None:
        return
    is_one_hot = len(labels.shape) == 2 and labels.shape[-1] == logits.shape[-1]
    if is_one_hot != expects_one_hot:
        form = "a row with a number per class" if is_one_hot else "the index of a class"
        remedy = "keras.losses.CategoricalCrossentropy" if is_one_hot else "keras.losses.SparseCategoricalCrossentropy"
        raise UserError(
            f"each label is {form}, which the loss {_get_name(_create_instance(loss, keras.losses))} does not accept; "
            f"convert the labels, or compile with {remedy}(from_logits=True)"
        )


def _name_crossentropy(item: Any, spec: KindSpec) -> Any:
    """Replaces the short names "crossentropy" and "ce" by the name of the cross-entropy of the task's labels."""
    if not isinstance(item, str) or item not in _CROSSENTROPIES:
        return item
    has_several_labels = isinstance(spec, LabelSpec) and not spec.is_single_label
    return "BinaryCrossentropy" if has_several_labels else "SparseCategoricalCrossentropy"


def _create_instance(item: Any, module: Any) -> Any:
    """Returns the Keras object for a loss or metric that is given as a name, class or function.

    Args:
        item: The loss or metric. An object is returned unchanged.
        module: keras.losses or keras.metrics.
    """
    instance = module.get(item) if isinstance(item, str) or inspect.isclass(item) else item
    if inspect.isfunction(instance) and _is_from_keras(instance):
        kinds = {name.lower(): kind for name, kind in vars(module).items() if inspect.isclass(kind)}
        kind = kinds.get(instance.__name__.replace("_", ""))
        return kind() if kind else instance
    return instance


def _check_fit(instance: Any, module: Any, names: Any, spec: KindSpec, checks_logits: bool = True) -> None:
    name, module_name = _get_name(instance), module.__name__.removeprefix("keras._tf_keras.")
    if name not in names:
        received = f"{module_name}.{name} does not fit {spec.kind.replace('_', ' ')}"
        scores = "; evaluate returns the scores of the answers" if spec.has_own_scores else ""
        raise UserError(f"{received}; use one of {', '.join(names)}, or a function of your own{scores}")
    config = instance.get_config()
    needed = {key: value for key, value in create_kind_model(spec).keras_arguments.items() if key in config}
    if checks_logits and any(config[key] != value for key, value in needed.items()):
        arguments = ", ".join(f"{key}={value}" for key, value in needed.items())
        problem = f"does not ignore the label {NO_LABEL}, which marks tokens without a label"
        if not config["from_logits"]:
            problem = "expects probabilities, but the model outputs logits"
        raise UserError(f"{name} {problem}; use {module_name}.{name}({arguments}) instead")


def _get_name(instance: Any) -> str:
    return getattr(instance, "__name__", type(instance).__name__)


def _is_from_keras(instance: Any) -> bool:
    """Returns whether a loss or metric is defined in Keras. Losses and metrics that users define are not checked."""
    return (instance if inspect.isfunction(instance) else type(instance)).__module__.startswith("keras.")
