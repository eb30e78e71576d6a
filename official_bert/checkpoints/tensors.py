"""Tensors in a file, with the names and layout of a format: reads, checks and converts them to ours, and back."""

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
    expand_blocks,
    get_part_shapes,
)
from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig

if TYPE_CHECKING:
    import keras

_MAX_NAMES_SHOWN = 10
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
class Naming:
    """A format's names and layout of tensors.

    Attributes:
        names: The format's names, by ours.
        transposed: Regular expression for our names of the matrices that the format stores transposed.
        splits_heads: Whether attention tensors have an axis for the heads, as in Keras' own layer.
        ignored: Regular expressions for the names of tensors that are not weights, by kind.
        foreign: The same for tensors of other programs. They are ignored with a note that lists them.
        slot_name: Returns the name of an optimizer slot from our name and the format's name of its variable and the
            slot. None if the format has no optimizer state.
        step: The name of the number of steps.
    """

    names: Mapping[str, str]
    transposed: str = ""
    splits_heads: bool = False
    ignored: Mapping[str, str] = dataclasses.field(default_factory=dict)
    foreign: Mapping[str, str] = dataclasses.field(default_factory=dict)
    slot_name: Callable[[str, str, str], str] | None = None
    step: str = ""

    def get_stored_shape(self, name: str, shape: tuple[int, ...], config: BertConfig) -> tuple[int, ...]:
        """Returns the shape in which the format stores a tensor, from our name and shape of it."""
        if re.fullmatch(self.transposed, name):
            return shape[::-1]
        heads = config.num_attention_heads, config.hidden_size // config.num_attention_heads
        if self.splits_heads and re.search(r"attention_(query|key|value)/", name):
            return (*shape[:-1], *heads)
        if self.splits_heads and name.endswith("attention_output/kernel"):
            return (*heads, *shape[1:])
        return shape

    def to_stored(self, name: str, value: Array, config: BertConfig) -> Array:
        """Converts a tensor from this library's layout to the file format's, by transposing and reshaping."""
        stored = value.T if re.fullmatch(self.transposed, name) else value
        return np.ascontiguousarray(stored).reshape(self.get_stored_shape(name, value.shape, config))

    def from_format(self, name: str, value: Array, shape: tuple[int, ...]) -> Array:
        """Converts a tensor from the file format's layout to this library's, by transposing and reshaping."""
        return np.ascontiguousarray(value.T if re.fullmatch(self.transposed, name) else value.reshape(shape))


def read_weights(described: LoadedModel, source: Source, naming: Naming, overrides: LoadOverrides) -> LoadedModel:
    """Returns a model with the weights of a file, and with the optimizer's state if `overrides` asks for it.

    The file must contain every tensor of a part or none, and nothing else.

    Args:
        described: The model without weights.
        source: The file.
        naming: How the file names and stores tensors.
        overrides: The settings of the user.

    Raises:
        UserError: If a tensor is missing, unexpected, of another shape or damaged, and `overrides` does not allow it,
            or if the number of classes differs from the number of their names.
    """
    config = described.config
    names, shapes = expand_blocks(naming.names, config), _get_expected_shapes(config, source, naming)
    stored_shapes = {name: naming.get_stored_shape(name, shape, config) for name, shape in shapes.items()}
    loaded = _check_tensors(source, naming, {names[name]: name for name in shapes}, stored_shapes, overrides.allow)

    def read(theirs: str, name: str) -> Array:
        value = _convert_to_float32(source.read(theirs), theirs, source.path)
        return naming.from_format(name, value, shapes[name])

    weights = {name: read(theirs, name) for theirs, name in loaded.items()}
    slots, step = {}, described.step
    if overrides.optimizer and naming.slot_name is not None:
        owners = {
            naming.slot_name(name, theirs, slot): (name, slot) for theirs, name in loaded.items() for slot in SLOTS
        }
        absent = [name for name in [*owners, naming.step] if name not in source.shapes]
        if absent:
            raise UserError(
                f"{source.path} lacks {len(absent)} tensors of the optimizer's state, such as {absent[0]}. Released "
                "checkpoints have no optimizer state; remove --optimizer."
            )
        for theirs, (name, slot) in owners.items():
            if source.shapes[theirs] != stored_shapes[name]:
                raise UserError(f"{source.path}: {_describe_shape(source, theirs, stored_shapes[name])}")
            slots[f"{name}/{slot}"] = read(theirs, name)
        step = int(source.read(naming.step))
        loaded |= {theirs: f"{name}/{slot}" for theirs, (name, slot) in owners.items()} | {naming.step: "step"}
    left_behind: dict[str, list[str]] = {}
    for name in sorted(set(source.shapes) - set(loaded)):
        left_behind.setdefault(_find_kind(name, {**naming.ignored, **naming.foreign}) or "others", []).append(name)
    notes = tuple(
        f"ignored {len(ignored)} tensors {kind}{_list_names(ignored)}"
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


def _check_tensors(
    source: Source,
    naming: Naming,
    names: Mapping[str, str],
    stored_shapes: Mapping[str, tuple[int, ...]],
    allow: Iterable[str] | None,
) -> dict[str, str]:
    """Returns our names of the tensors that can be loaded, by the format's names.

    Raises:
        UserError: If another tensor is missing, unexpected or of another shape, and `allow` does not match its name.
    """
    kinds = {**naming.ignored, **naming.foreign}
    # Descriptions by the name that --init_allow allows the problem by.
    missing = {name: theirs for theirs, name in names.items() if theirs not in source.shapes}
    misshapen = {
        name: _describe_shape(source, theirs, stored_shapes[name])
        for theirs, name in names.items()
        if name not in missing and tuple(source.shapes[theirs]) != stored_shapes[name]
    }
    unexpected = {name: name for name in source.shapes if name not in names and _find_kind(name, kinds) is None}
    refused = {
        what: {name: each for name, each in problems.items() if not is_allowed(name, allow or ())}
        for what, problems in (("missing", missing), ("unexpected", unexpected), ("of another shape", misshapen))
    }
    if any(refused.values()):
        lists = "; ".join(f"{len(each)} {what}{_list_names(each.values())}" for what, each in refused.items())
        hint = "" if allow is None else allow_hint([name for each in refused.values() for name in each])
        raise UserError(
            f"{source.path} does not fit its configuration: {len(names) - len(missing)} tensors expected and found; "
            f"{lists}{hint}"
        )
    return {theirs: name for theirs, name in names.items() if name not in missing and name not in misshapen}


def _describe_shape(source: Source, name: str, expected: tuple[int, ...]) -> str:
    return f"{name} has shape {list(source.shapes[name])}; expected {list(expected)}"


def _get_expected_shapes(config: BertConfig, source: Source, naming: Naming) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the tensors of the parts that a file contains, by our names."""
    names = expand_blocks(naming.names, config)
    shapes: dict[str, tuple[int, ...]] = {}
    for part in PARTS:
        part_shapes = get_part_shapes(part, config, _get_num_classes(source, part, names))
        expected = {name: shape for name, shape in part_shapes.items() if name in names}
        is_there = part == ENCODER or any(names[name] in source.shapes for name in expected)
        # A user's own head may have the name of one of BERT's.
        is_foreign = part in TASK_HEADS and any(
            source.shapes.get(names[name]) != naming.get_stored_shape(name, shape, config)
            and _find_kind(names[name], naming.foreign) is not None
            for name, shape in expected.items()
        )
        if is_there and not is_foreign:
            shapes |= expected
    return shapes


def _get_num_classes(source: Source, part: str, names: Mapping[str, str]) -> int:
    """Returns the number of classes of a head, which no configuration contains."""
    bias = next((name for name, shape in PARTS[part].items() if shape == "C"), "")
    shape = source.shapes.get(names.get(bias, ""), ())
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
        UserError: If the number of classes differs from the number of names.
    """
    classifier = next((name for name in CLASSIFIER_BIASES if name in weights), None)
    if labels is None or (classifier and len(labels) == len(weights[classifier])):
        return labels, ()
    if not classifier:
        return None, (f"{LABELS_FILE} names classes, but the checkpoint has no classifier: the names were ignored",)
    raise UserError(
        f"{LABELS_FILE} names {len(labels)} classes, but the classifier has {len(weights[classifier])}; list the names "
        "of all classes in the file, or remove it"
    )


def _find_kind(name: str, kinds: Mapping[str, str]) -> str | None:
    """Returns the first kind whose regular expression matches the name."""
    return next((kind for kind, pattern in kinds.items() if re.fullmatch(pattern, name)), None)


def _convert_to_float32(value: Array, name: str, path: str) -> Array:
    if value.dtype.name not in _EXACT_IN_FLOAT32:
        raise UserError(f"{name} in {path} is {value.dtype.name}; expected one of {', '.join(_EXACT_IN_FLOAT32)}")
    value = value.astype(np.float32)
    if not np.isfinite(value).all():
        raise UserError(f"{name} in {path} contains values that are not finite; restore the file from a copy")
    return value


def _list_names(names: Iterable[str]) -> str:
    names = list(names)
    shown = ", ".join(names[:_MAX_NAMES_SHOWN])
    more = f" and {len(names) - _MAX_NAMES_SHOWN} more" if len(names) > _MAX_NAMES_SHOWN else ""
    return f": {shown}{more}" if names else ""


def to_external(weights: Mapping[str, Array], config: BertConfig, naming: Naming, format_name: str) -> dict[str, Array]:
    """Returns weights with the names and layout of a format.

    Raises:
        UserError: If the format has no name for one of them.
    """
    names = expand_blocks(naming.names, config)
    unmapped = [name for name in weights if name not in names]
    if unmapped:
        raise UserError(f"the {format_name} format cannot store {', '.join(unmapped)}; choose another --to_format")
    return {names[name]: naming.to_stored(name, value, config) for name, value in weights.items()}


@dataclasses.dataclass(frozen=True)
class AssignedWeights:
    """The result of assigning weights to a model.

    Attributes:
        loaded: The paths of the variables that have a weight.
        missing: For each other variable, by path, why it has no weight.
        unused: The names of the weights that no variable has.
    """

    loaded: list[str]
    missing: dict[str, str]
    unused: list[str]


def compare_weights(model: "keras.Model", weights: Mapping[str, Any]) -> AssignedWeights:
    """Compares weights with the variables of a model. Returns the paths that match, are missing, or are unused."""
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
        The paths that were assigned, missing or unused.

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
