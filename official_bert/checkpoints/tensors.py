"""Reads and checks the tensors in a checkpoint file, and converts names and layout between the file's format and ours.

In this library, a tensor's name is the path of its Keras variable in our models, such as pooler/kernel.
"""

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from official_bert.checkpoints.checkpoint import (
    CLASSIFIER_BIASES,
    ENCODER,
    LABELS_FILE,
    NUM_OUTPUTS,
    PARTS,
    SLOTS,
    TASK_HEADS,
    Array,
    Inventory,
    LoadedModel,
    LoadOverrides,
    find_part,
)
from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.modeling.layer_names import block, find_block_index
from official_bert.utils.counting import join_first

if TYPE_CHECKING:
    import keras

_MAX_NAMES_SHOWN = 10
_EXACT_IN_FLOAT32 = ("float32", "float16", "bfloat16")
# What most formats append to a layer's name for each of its variables.
SUFFIXES = {name: f"/{name}" for name in ("embeddings", "kernel", "bias", "gamma", "beta")}


def call_without_initial_values(function: Callable[["keras.StatelessScope"], Any]) -> Any:
    """Returns the result of a function that builds Keras models, whose variables get no initial values.

    Args:
        function: Receives the scope that holds the values that are assigned to variables.
    """
    import keras  # imported late, because the server of ONNX exports reads checksums without it

    def call() -> Any:
        with keras.StatelessScope(initialize_variables=False) as scope:
            return function(scope)

    # Keras would later draw the values of the variables, unless the thread that built them has ended.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(call).result()


@functools.cache
def get_pretraining_shapes(config: BertConfig) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the variables of a pre-training model, by path."""
    from official_bert.modeling.pretraining_model import build_pretraining_model

    # All blocks have the same variables. Keras cannot build the hundreds of blocks that a damaged file may ask for.
    first_block = dataclasses.replace(config, num_hidden_layers=1)
    shapes: dict[str, tuple[int, ...]] = call_without_initial_values(
        lambda _: {variable.path: tuple(variable.shape) for variable in build_pretraining_model(first_block).weights}
    )
    groups = itertools.groupby(shapes, key=lambda path: find_block_index(path) is not None)
    return {
        path.replace(block(0), block(index), 1): shapes[path]
        for is_block, paths in [(is_block, list(paths)) for is_block, paths in groups]
        for index in range(config.num_hidden_layers if is_block else 1)
        for path in paths
    }


def get_part_shapes(part: str, config: BertConfig, num_classes: int = 0) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the tensors of a part (encoder, pooler or head), by variable path.

    Args:
        part: A key of `PARTS`.
        config: The model's configuration.
        num_classes: Number of classes, for the parts that are classifiers.
    """
    if part in TASK_HEADS:
        outputs, layer = NUM_OUTPUTS.get(part, num_classes), PARTS[part]
        return {f"{layer}/kernel": (config.hidden_size, outputs), f"{layer}/bias": (outputs,)}
    return {path: shape for path, shape in get_pretraining_shapes(config).items() if find_part(path) == part}


def keep_parts(model: LoadedModel, parts: Iterable[str], format_name: str) -> LoadedModel:
    """Returns the model without the weights of other parts, and with a note that lists the parts that were dropped."""
    parts = set(parts)
    dropped = [part for part in model.parts if part not in parts]
    if not dropped:
        return model
    names = {name for part in parts for name in get_part_shapes(part, model.config)}
    return dataclasses.replace(
        model, weights={name: value for name, value in model.weights.items() if name in names}
    ).add_notes(f"dropped, because the {format_name} format cannot store it: {', '.join(dropped)}")


def look_up_name(table: Mapping[str, str], suffixes: Mapping[str, str], path: str) -> str | None:
    """Returns a checkpoint format's name of a variable, or None if the format lacks it.

    Args:
        table: The format's name of each layer, by the layer's name in our models. A variable whose name in the format
            does not follow from its layer has an entry of its own. {} is replaced by the block number.
        suffixes: What the format appends to a layer's name for each of its variables, by the variable's name in our
            models (kernel, bias, gamma, ...).
        path: The path of the variable.
    """
    number, row = find_block_index(path), re.sub(r"^layer_\d+", "layer_{}", path)
    layer, variable = row.rsplit("/", 1)
    if row not in table and (layer not in table or variable not in suffixes):
        return None
    return (table[row] if row in table else table[layer] + suffixes[variable]).format(number)


@dataclasses.dataclass(frozen=True)
class TensorFile:
    """The tensors in a checkpoint file, by their names in the file.

    Attributes:
        path: Path of the file, for error messages.
        shapes: The shapes of the tensors, by name.
        read: Function that returns the tensor of a name, or raises a UserError that names the file and the tensor.
    """

    path: str
    shapes: Mapping[str, tuple[int, ...]]
    read: Callable[[str], Array]


@dataclasses.dataclass(frozen=True)
class Naming:
    """The tensor names and tensor layouts of a checkpoint format.

    Attributes:
        get_name: Function from the path of a Keras variable to the format's name, or None if the format has none.
        transposed: Regular expression that matches the variable paths of the matrices that the format stores
            transposed.
        splits_heads: Whether attention tensors have a separate axis for the heads, as in Keras' MultiHeadAttention.
        ignored: Regular expressions for the names of tensors in the file that are not weights, by a description of what
            they are.
        foreign: The same for tensors of other programs, such as a user's own head. They are ignored, too, but a note to
            the user lists them.
        slot_name: Function (path of a variable, the format's name of it, "adam_m" or "adam_v") that returns the
            format's name of this moment. None if the format has no optimizer state.
        step: The format's name of the tensor that contains the number of training steps.
    """

    get_name: Callable[[str], str | None]
    transposed: str = ""
    splits_heads: bool = False
    ignored: Mapping[str, str] = dataclasses.field(default_factory=dict)
    foreign: Mapping[str, str] = dataclasses.field(default_factory=dict)
    slot_name: Callable[[str, str, str], str] | None = None
    step: str = ""

    def get_stored_shape(self, name: str, shape: tuple[int, ...], config: BertConfig) -> tuple[int, ...]:
        """Returns the shape that a tensor has in the format's files.

        Args:
            name: Path of the Keras variable.
            shape: Shape of the Keras variable.
            config: The model's configuration.
        """
        if re.fullmatch(self.transposed, name):
            return shape[::-1]
        heads = config.num_attention_heads, config.hidden_size // config.num_attention_heads
        if self.splits_heads and re.search(r"attention_(query|key|value)/", name):
            return (*shape[:-1], *heads)
        if self.splits_heads and name.endswith("attention_output/kernel"):
            return (*heads, *shape[1:])
        return shape

    def to_stored(self, name: str, value: Array, config: BertConfig) -> Array:
        """Transposes and reshapes a tensor from the Keras model's layout to the file format's.

        Args:
            name: Path of the Keras variable.
            value: Value of the Keras variable.
            config: The model's configuration.
        """
        stored = value.T if re.fullmatch(self.transposed, name) else value
        return np.ascontiguousarray(stored).reshape(self.get_stored_shape(name, value.shape, config))

    def to_keras_layout(self, name: str, value: Array, shape: tuple[int, ...]) -> Array:
        """Transposes and reshapes a tensor from the file format's layout to the Keras model's.

        Args:
            name: Path of the Keras variable.
            value: The tensor in the format's layout.
            shape: Shape of the Keras variable.
        """
        return np.ascontiguousarray(value.T if re.fullmatch(self.transposed, name) else value.reshape(shape))


def read_weights(described: LoadedModel, source: TensorFile, naming: Naming, overrides: LoadOverrides) -> LoadedModel:
    """Reads a model's weights from a file, and the optimizer state if `overrides` asks for it.

    The file must contain either all tensors of a part (encoder, pooler, each head) or no tensor of the part. Tensors
    that belong to no part and are not in `naming.ignored` or `naming.foreign` are errors.

    Args:
        described: The model without its weights: configuration, vocabulary and so on.
        source: The tensors in the file.
        naming: How the file names and stores tensors.
        overrides: The user's settings. `allow` lists problems that are not errors.

    Returns:
        `described` with weights, labels, optimizer state, step, inventory and additional notes.

    Raises:
        UserError: If a tensor is damaged, or is missing, unexpected or of another shape and `overrides` does not allow
            it. Also if the number of classes differs from the number of their names.
    """
    config = described.config
    names, shapes = _get_expected_tensors(config, source, naming)
    stored_shapes = {name: naming.get_stored_shape(name, shape, config) for name, shape in shapes.items()}
    loaded = _check_tensors(source, naming, names, stored_shapes, overrides.allow)

    def read(theirs: str, name: str) -> Array:
        value = _convert_to_float32(source.read(theirs), theirs, source.path)
        return naming.to_keras_layout(name, value, shapes[name])

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
    source: TensorFile,
    naming: Naming,
    names: Mapping[str, str],
    stored_shapes: Mapping[str, tuple[int, ...]],
    allow: Iterable[str] | None,
) -> dict[str, str]:
    """Compares the tensors in a file with the expected ones.

    Args:
        source: The tensors in the file.
        naming: How the file names tensors, and which it contains in addition.
        names: The variable path of each expected tensor, by its name in the file.
        stored_shapes: The shape that each expected tensor should have in the file, by variable path.
        allow: Regular expressions for problems that are not errors (see `LoadOverrides`).

    Returns:
        The variable path of each tensor that can be loaded, by its name in the file.

    Raises:
        UserError: If a tensor is missing, unexpected or of another shape, and `allow` does not match its name.
    """
    kinds = {**naming.ignored, **naming.foreign}
    # Descriptions of the problems, by the name that --init_allow must match to allow them.
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


def _describe_shape(source: TensorFile, name: str, expected: tuple[int, ...]) -> str:
    return f"{name} has shape {list(source.shapes[name])}; expected {list(expected)}"


def _get_expected_tensors(
    config: BertConfig, source: TensorFile, naming: Naming
) -> tuple[dict[str, str], dict[str, tuple[int, ...]]]:
    """Returns the Keras variables of all parts (encoder, heads) that the file contains.

    Returns:
        The path of each variable by its name in the file, and the shape of each variable by path.
    """
    paths: dict[str, str] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for part in PARTS:
        bias = source.shapes.get(naming.get_name(f"{PARTS[part]}/bias") or "", ()) if part in TASK_HEADS else ()
        part_shapes = get_part_shapes(part, config, bias[0] if len(bias) == 1 else 0)
        expected = {theirs: name for name in part_shapes if (theirs := naming.get_name(name)) is not None}
        is_there = part == ENCODER or any(theirs in source.shapes for theirs in expected)
        # A user's own head may have the same name as one of BERT's heads.
        is_foreign = part in TASK_HEADS and any(
            source.shapes.get(theirs) != naming.get_stored_shape(name, part_shapes[name], config)
            and _find_kind(theirs, naming.foreign) is not None
            for theirs, name in expected.items()
        )
        if is_there and not is_foreign:
            paths |= expected
            shapes |= {name: part_shapes[name] for name in expected.values()}
    return paths, shapes


def is_allowed(name: str, allow: Iterable[str]) -> bool:
    """Returns whether one of the regular expressions in `allow` matches the whole name."""
    return any(re.fullmatch(pattern, name) for pattern in allow)


def allow_hint(names: list[str]) -> str:
    """Returns the end of an error message, which suggests --init_allow for the tensors in `names`."""
    return f"; if this is intended, allow it by name, as in --init_allow={names[0]}"


def _check_labels(
    labels: tuple[str, ...] | None, weights: Mapping[str, Array]
) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """Checks that each class has a label. Returns the labels (None without a classifier) and notes.

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
    """Returns the first description in `kinds` whose regular expression matches a tensor's name, or None.

    Args:
        name: Name of the tensor.
        kinds: Regular expressions of kinds of tensors, by description.
    """
    return next((kind for kind, pattern in kinds.items() if re.fullmatch(pattern, name)), None)


def _convert_to_float32(value: Array, name: str, path: str) -> Array:
    if value.dtype.name not in _EXACT_IN_FLOAT32:
        raise UserError(f"{name} in {path} is {value.dtype.name}; expected one of {', '.join(_EXACT_IN_FLOAT32)}")
    value = value.astype(np.float32)
    if not np.isfinite(value).all():
        raise UserError(f"{name} in {path} contains values that are not finite; restore the file from a copy")
    return value


def _list_names(names: Iterable[str]) -> str:
    return f": {shown}" if (shown := join_first(list(names), _MAX_NAMES_SHOWN)) else ""


def to_external(weights: Mapping[str, Array], config: BertConfig, naming: Naming, format_name: str) -> dict[str, Array]:
    """Converts weights to the names and layout of a checkpoint format.

    Args:
        weights: The weights in the layout of the Keras model, by variable path.
        config: The model's configuration.
        naming: The names and layout of the format.
        format_name: The name of the format, for error messages.

    Raises:
        UserError: If the format has no name for one of the weights.
    """
    names = {name: naming.get_name(name) for name in weights}
    unmapped = [name for name, theirs in names.items() if theirs is None]
    if unmapped:
        raise UserError(f"the {format_name} format cannot store {', '.join(unmapped)}; choose another --to_format")
    return {str(names[name]): naming.to_stored(name, value, config) for name, value in weights.items()}


@dataclasses.dataclass(frozen=True)
class AssignedWeights:
    """Which variables of a model have a weight of the same path and shape.

    Attributes:
        loaded: The paths of variables that have such a weight.
        missing: For each other variable, by path, the reason: the weight is missing or has another shape.
        unused: The names of weights for which the model has no variable.
    """

    loaded: list[str]
    missing: dict[str, str]
    unused: list[str]


def compare_weights(model: "keras.Model", weights: Mapping[str, Any]) -> AssignedWeights:
    """Compares weights, which are arrays by variable path, with the variables of a model. Nothing is assigned."""
    missing, variables = {}, {variable.path: variable for variable in model.weights}
    for path, variable in variables.items():
        if path not in weights:
            missing[path] = f"{path} is missing"
        elif tuple(weights[path].shape) != tuple(variable.shape):
            missing[path] = f"{path} has shape {list(weights[path].shape)}; expected {list(variable.shape)}"
    loaded = [path for path in variables if path not in missing]
    return AssignedWeights(loaded, missing, [name for name in weights if name not in variables])


def assign_weights(model: "keras.Model", weights: Mapping[str, Any], allow_missing: bool = False) -> AssignedWeights:
    """Assigns weights to the variables of a model that have the same path.

    The states of random number generators are not weights and keep their values.

    Args:
        model: Any Keras model.
        weights: Arrays or Keras variables, by variable path.
        allow_missing: Whether a variable without a weight of its shape keeps its value. If false, this is an error.

    Returns:
        The paths of the variables that were assigned or not, and of the unused weights.

    Raises:
        UserError: If a variable has no weight of its shape and `allow_missing` is false. In this case nothing is
            assigned.
    """
    result = compare_weights(model, weights)
    if result.missing and not allow_missing:
        raise UserError(f"the weights do not fit {model.name}: {'; '.join(result.missing.values())}")
    for variable in model.weights:
        if variable.path not in result.missing:
            variable.assign(weights[variable.path])
    return result
