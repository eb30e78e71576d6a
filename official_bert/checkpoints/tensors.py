"""Tensors in a file, named and stored as a format does: read, checked and converted to our form, and back."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from official_bert.checkpoints.checkpoint import (
    CLASSIFIER_BIASES,
    ENCODER,
    LABELS_FILE,
    PARTS,
    SLOTS,
    TASK_HEADS,
    Array,
    Inventory,
    LoadedModel,
    LoadOverrides,
    get_part_shapes,
    numbered,
)
from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig

if TYPE_CHECKING:
    import keras

_MOST_NAMES_SHOWN = 10
_EXACT_IN_FLOAT32 = ("float32", "float16", "bfloat16")


@dataclasses.dataclass(frozen=True)
class Source:
    """Tensors in a file, by the format's names.

    Attributes:
        path: The file, for errors.
        shapes: The shapes of the tensors.
        read: Returns one tensor, or raises a UserError that names file and tensor.
    """

    path: str
    shapes: Mapping[str, tuple[int, ...]]
    read: Callable[[str], Array]


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a format stores a tensor: whether transposed, and in what shape."""

    transposed: bool
    shape: tuple[int, ...]

    def to_external(self, value: Array) -> Array:
        """Converts our tensor to the format's."""
        return np.ascontiguousarray(value.T if self.transposed else value).reshape(self.shape)

    def from_external(self, value: Array, shape: tuple[int, ...]) -> Array:
        """Converts the format's tensor to ours."""
        return np.ascontiguousarray(value.reshape(shape[::-1]).T if self.transposed else value.reshape(shape))


# Returns the layout of a tensor from our name and shape of it and the model's configuration.
LayoutRule = Callable[[str, tuple[int, ...], BertConfig], Layout]


def identity(name: str, shape: tuple[int, ...], config: BertConfig) -> Layout:
    """The layout rule of a format that stores every tensor as we do."""
    return Layout(False, shape)


def with_head_axis(name: str, shape: tuple[int, ...], config: BertConfig) -> Layout:
    """The layout rule of formats whose attention tensors have an axis for the heads, as Keras' own layer has."""
    heads, size = config.num_attention_heads, config.hidden_size // config.num_attention_heads
    if re.search(r"attention_(query|key|value)/", name):
        return Layout(False, (*shape[:-1], heads, size))
    if name.endswith("attention_output/kernel"):
        return Layout(False, (heads, size, *shape[1:]))
    return Layout(False, shape)


@dataclasses.dataclass(frozen=True)
class Naming:
    """How a format names and stores tensors.

    Attributes:
        names: The format's names, by ours.
        layout: How tensors are stored.
        ignored: Regular expressions for the names of tensors that are not weights, by kind.
        foreign: The same for tensors of other programs. They are ignored too, with a note that lists them.
        tied: Names of tensors that must equal others, which our output layer shares, by the others' names.
        slot_name: Returns the name of an optimizer slot from our name and the format's name of its variable and the
            slot. None if the format has no optimizer state.
        step: The name of the number of steps.
    """

    names: Mapping[str, str]
    layout: LayoutRule = identity
    ignored: Mapping[str, str] = dataclasses.field(default_factory=dict)
    foreign: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tied: Mapping[str, str] = dataclasses.field(default_factory=dict)
    slot_name: Callable[[str, str, str], str] | None = None
    step: str = ""


def read_weights(described: LoadedModel, source: Source, naming: Naming, overrides: LoadOverrides) -> LoadedModel:
    """Returns a model with the weights of a file, and with the optimizer's state if `overrides` asks for it.

    The file must contain every tensor of a part or none of them, and nothing else.

    Args:
        described: The model without weights.
        source: The file.
        naming: How the file names and stores tensors.
        overrides: The settings of the user.

    Raises:
        UserError: If a tensor is missing, unexpected, of another shape or damaged, and `overrides` does not allow it,
            or if the number of classes is not the number of their names.
    """
    config = described.config
    names, shapes = numbered(naming.names, config), _expected_shapes(config, source, naming)
    layouts = {name: naming.layout(name, shape, config) for name, shape in shapes.items()}
    kinds = {**naming.ignored, **naming.foreign}
    wanted = {names[name] for name in shapes}
    # The name that --init_allow allows each problem by, and its description.
    missing = {name: names[name] for name in shapes if names[name] not in source.shapes}
    unexpected = {name: name for name in source.shapes if name not in wanted and _kind(name, kinds) is None}
    misshapen = {
        name: f"{names[name]} has shape {list(source.shapes[names[name]])}; expected {list(layouts[name].shape)}"
        for name in shapes
        if name not in missing and tuple(source.shapes[names[name]]) != layouts[name].shape
    }
    allow = overrides.allow or ()
    refused = [
        {name: each for name, each in problems.items() if not is_allowed(name, allow)}
        for problems in (missing, unexpected, misshapen)
    ]
    if any(refused):
        whats = ("missing", "unexpected", "of another shape")
        lists = "; ".join(
            f"{len(each)} {what}{_listed(each.values())}" for what, each in zip(whats, refused, strict=True)
        )
        hint = allow_hint([name for each in refused for name in each]) if overrides.allow is not None else ""
        raise UserError(
            f"{source.path} does not fit its configuration: {len(wanted) - len(missing)} tensors expected and found; "
            f"{lists}{hint}"
        )
    loaded = {names[name]: name for name in shapes if name not in missing and name not in misshapen}

    def read(theirs: str, name: str) -> Array:
        return layouts[name].from_external(checked(source.read(theirs), theirs, source.path), shapes[name])

    weights = {name: read(theirs, name) for theirs, name in loaded.items()}
    slots, step = {}, described.step
    if overrides.optimizer and naming.slot_name is not None:
        owners = {
            naming.slot_name(name, theirs, slot): (name, slot) for theirs, name in loaded.items() for slot in SLOTS
        }
        absent = [name for name in [*owners, naming.step] if name not in source.shapes]
        if absent:
            raise UserError(
                f"{source.path} lacks {len(absent)} tensors of the optimizer's state, {absent[0]} among them; released "
                "checkpoints have none: convert without --optimizer"
            )
        for theirs, (name, slot) in owners.items():
            if tuple(source.shapes[theirs]) != layouts[name].shape:
                raise UserError(
                    f"{theirs} in {source.path} has shape {list(source.shapes[theirs])}; expected "
                    f"{list(layouts[name].shape)}"
                )
            slots[f"{name}/{slot}"] = read(theirs, name)
        step = int(source.read(naming.step))
        loaded |= {theirs: f"{name}/{slot}" for theirs, (name, slot) in owners.items()} | {naming.step: "step"}
    left_behind: dict[str, list[str]] = {}
    for name in sorted(set(source.shapes) - set(loaded)):
        left_behind.setdefault(_kind(name, kinds) or "others", []).append(name)
    notes = tuple(
        f"ignored {len(ignored)} tensors {kind}{_listed(ignored)}"
        for kind, ignored in left_behind.items()
        if kind in naming.foreign
    )
    labels, label_notes = _check_labels(described.labels, weights)
    return dataclasses.replace(
        described,
        weights=weights,
        slots=slots,
        step=step,
        labels=labels,
        notes=(*described.notes, *notes, *label_notes),
        inventory=Inventory(loaded, left_behind),
    )


def _expected_shapes(config: BertConfig, source: Source, naming: Naming) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the tensors of the parts that a file contains, by our names."""
    names = numbered(naming.names, config)
    shapes: dict[str, tuple[int, ...]] = {}
    for part in PARTS:
        of_part = get_part_shapes(part, config, _num_classes(source, part, names))
        expected = {name: shape for name, shape in of_part.items() if name in names}
        is_there = part == ENCODER or any(names[name] in source.shapes for name in expected)
        # A head of the user's own may have the name of one of BERT's.
        is_foreign = part in TASK_HEADS and any(
            source.shapes.get(names[name]) != naming.layout(name, shape, config).shape
            and _kind(names[name], naming.foreign) is not None
            for name, shape in expected.items()
        )
        if is_there and not is_foreign:
            shapes |= expected
    return shapes


def _num_classes(source: Source, part: str, names: Mapping[str, str]) -> int:
    """Returns the number of classes of a head, which no configuration contains."""
    bias = next((name for name, shape in PARTS[part].items() if shape == "C"), None)
    shape = source.shapes.get(names.get(bias, ""), ()) if bias else ()
    return shape[0] if len(shape) == 1 else 0


def is_allowed(name: str, allow: Iterable[str]) -> bool:
    """Returns whether one of the regular expressions matches the whole name."""
    return any(re.fullmatch(pattern, name) for pattern in allow)


def allow_hint(names: list[str]) -> str:
    """Returns the end of an error about tensors that --init_allow can allow."""
    return f"; if this is intended, allow it by name, as in --init_allow={names[0]}"


def _check_labels(
    labels: tuple[str, ...] | None, weights: Mapping[str, Array]
) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """Returns the names of the classes of a classifier, and notes.

    Raises:
        UserError: If there is another number of classes than names.
    """
    classifier = next((name for name in CLASSIFIER_BIASES if name in weights), None)
    if labels is None or (classifier and len(labels) == len(weights[classifier])):
        return labels, ()
    if not classifier:
        return None, (f"{LABELS_FILE} names classes, but there is no classifier: the names were ignored",)
    raise UserError(
        f"{LABELS_FILE} names {len(labels)} classes, but the classifier beside it has {len(weights[classifier])}; give "
        "the file the names of all classes, or remove it"
    )


def _kind(name: str, kinds: Mapping[str, str]) -> str | None:
    """Returns the first kind whose regular expression matches the name."""
    return next((kind for kind, pattern in kinds.items() if re.fullmatch(pattern, name)), None)


def checked(value: Array, name: str, path: str) -> Array:
    """Returns a tensor of a file as float32.

    Raises:
        UserError: If it has another type or is not finite.
    """
    if value.dtype.name not in _EXACT_IN_FLOAT32:
        raise UserError(f"{name} in {path} is {value.dtype.name}; expected one of {', '.join(_EXACT_IN_FLOAT32)}")
    value = value.astype(np.float32)
    if not np.isfinite(value).all():
        raise UserError(f"{name} in {path} holds values that are not finite; restore the file from a copy")
    return value


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    shown = ", ".join(names[:_MOST_NAMES_SHOWN])
    more = f" and {len(names) - _MOST_NAMES_SHOWN} more" if len(names) > _MOST_NAMES_SHOWN else ""
    return f": {shown}{more}" if names else ""


def to_external(weights: Mapping[str, Array], config: BertConfig, naming: Naming, format_name: str) -> dict[str, Array]:
    """Returns weights as a format names and stores them.

    Raises:
        UserError: If the format has no name for one of them.
    """
    names = numbered(naming.names, config)
    unmapped = [name for name in weights if name not in names]
    if unmapped:
        raise UserError(f"the {format_name} format has no place for {', '.join(unmapped)}; choose another --to_format")
    return {names[name]: naming.layout(name, value.shape, config).to_external(value) for name, value in weights.items()}


@dataclasses.dataclass(frozen=True)
class AssignedWeights:
    """The result of assigning weights to a model.

    Attributes:
        loaded: The paths of the variables that have a weight.
        missing: Why the other variables have none, by path.
        unused: The names of the weights that no variable has.
    """

    loaded: list[str]
    missing: dict[str, str]
    unused: list[str]


def compare_weights(model: "keras.Model", weights: Mapping[str, Any]) -> AssignedWeights:
    """Returns what `assign_weights` would assign."""
    missing, variables = {}, {variable.path: variable for variable in model.weights}
    for path, variable in variables.items():
        if path not in weights:
            missing[path] = f"{path} is missing"
        elif tuple(weights[path].shape) != tuple(variable.shape):
            missing[path] = f"{path} has shape {list(weights[path].shape)}; expected {list(variable.shape)}"
    loaded = [path for path in variables if path not in missing]
    return AssignedWeights(loaded, missing, [name for name in weights if name not in variables])


def assign_weights(model: "keras.Model", weights: Mapping[str, Any], allow_missing: bool = False) -> AssignedWeights:
    """Assigns weights to a model's variables of the same path, but not to the states of its random generators.

    Args:
        model: Any Keras model.
        weights: Arrays or variables by path.
        allow_missing: Whether variables without a weight of their shape keep their values.

    Returns:
        The paths that were assigned, and those that are missing or unused.

    Raises:
        UserError: If a variable has no weight of its shape and `allow_missing` is false. Nothing is assigned then.
    """
    result = compare_weights(model, weights)
    if result.missing and not allow_missing:
        raise UserError(f"the weights do not fit {model.name}: {'; '.join(result.missing.values())}")
    for variable in model.weights:
        if variable.path not in result.missing:
            variable.assign(weights[variable.path])
    return result
