"""Tensors in a file under a format's names: read, checked against what the model needs, and brought into our form."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from official_bert.checkpoints.checkpoint import ENCODER, PARTS, Array, Inventory, numbered, shapes_of
from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig

_MOST_NAMES_SHOWN = 10
_EXACT_IN_FLOAT32 = ("float32", "float16", "bfloat16")


@dataclasses.dataclass(frozen=True)
class Source:
    """Tensors in a file, by the format's names.

    Attributes:
        path: the file, for errors.
        shapes: what it holds.
        read: returns one tensor, or raises a UserError that names file and tensor.
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
        """Our tensor as the format stores it."""
        return np.ascontiguousarray(value.T if self.transposed else value).reshape(self.shape)

    def from_external(self, value: Array, shape: tuple[int, ...]) -> Array:
        """The format's tensor in our shape."""
        return np.ascontiguousarray(value.reshape(shape[::-1]).T if self.transposed else value.reshape(shape))


# Returns the layout of a tensor from our name of it and its shape here.
LayoutRule = Callable[[str, tuple[int, ...]], Layout]


def identity(name: str, shape: tuple[int, ...]) -> Layout:
    """The layout rule of a format that stores every tensor as we do."""
    return Layout(False, shape)


def with_head_axis(config: BertConfig) -> LayoutRule:
    """Returns the layout rule of formats whose tensors of attention have an axis for the heads, as Keras' own layer."""
    heads, size = config.num_attention_heads, config.hidden_size // config.num_attention_heads

    def rule(name: str, shape: tuple[int, ...]) -> Layout:
        if re.search(r"attention_(query|key|value)/", name):
            return Layout(False, (*shape[:-1], heads, size))
        if name.endswith("attention_output/kernel"):
            return Layout(False, (heads, size, *shape[1:]))
        return Layout(False, shape)

    return rule


def collect(
    source: Source, config: BertConfig, table: Mapping[str, str], layout: LayoutRule, ignored: Mapping[str, str]
) -> tuple[dict[str, Array], dict[str, str]]:
    """Returns the weights that a file holds, by our names, after checking that it holds them wholly and nothing else.

    The second of the two is `loaded` as in `Inventory`. `table` has the format's names by ours, `ignored` regular
    expressions of names that are not weights, by what they are.

    Raises:
        UserError: a tensor is missing, unexpected, of another shape or damaged.
    """
    names = numbered(table, config)
    shapes: dict[str, tuple[int, ...]] = {}
    for part in PARTS:
        expected = shapes_of(part, config, _classes_in(source, part, names))
        held = {name: shape for name, shape in expected.items() if names.get(name) in source.shapes}
        if held or part == ENCODER:
            shapes |= {name: shape for name, shape in expected.items() if name in names}
    missing = [names[name] for name in shapes if names[name] not in source.shapes]
    wanted = {names[name] for name in shapes}
    unexpected = [name for name in source.shapes if name not in wanted and _kind(name, ignored) is None]
    layouts = {name: layout(name, shape) for name, shape in shapes.items()}
    misshapen = [
        f"{names[name]} has shape {list(source.shapes[names[name]])}; expected {list(layouts[name].shape)}"
        for name in shapes
        if names[name] in source.shapes and tuple(source.shapes[names[name]]) != layouts[name].shape
    ]
    if missing or unexpected or misshapen:
        raise UserError(
            f"{source.path} does not fit its configuration: {len(wanted) - len(missing)} tensors expected and found; "
            f"{len(missing)} missing{_listed(missing)}; {len(unexpected)} unexpected{_listed(unexpected)}; "
            f"{len(misshapen)} of another shape{_listed(misshapen)}"
        )
    weights = {
        name: layouts[name].from_external(checked(source.read(names[name]), names[name], source.path), shape)
        for name, shape in shapes.items()
    }
    return weights, {names[name]: name for name in shapes}


def collect_slots(
    source: Source,
    slots: Mapping[str, str],
    step: str,
    weights: Mapping[str, Array],
    layout: LayoutRule,
    whose: str,
    repair_hint: str,
) -> tuple[dict[str, Array], int]:
    """Returns the optimizer's moments in a file, by our names as in `Checkpoint.slots`, and the step.

    `slots` has our names of the moments by the format's, whose name of the step is `step`. `whose` says what tensors
    are missing, for the error.

    Raises:
        UserError: a tensor is missing, of another shape or damaged.
    """
    absent = [name for name in [*slots, step] if name not in source.shapes]
    if absent:
        raise UserError(f"{source.path} lacks {len(absent)} tensors of {whose}, {absent[0]} among them; {repair_hint}")
    values = {}
    for theirs, ours in slots.items():
        name = ours.rpartition("/")[0]
        shape, stored = weights[name].shape, layout(name, weights[name].shape)
        if source.shapes[theirs] != stored.shape:
            raise UserError(
                f"{theirs} in {source.path} has shape {list(source.shapes[theirs])}; expected {list(stored.shape)}"
            )
        values[ours] = stored.from_external(checked(source.read(theirs), theirs, source.path), shape)
    return values, int(source.read(step))


def take_inventory(source: Source, loaded: Mapping[str, str], ignored: Mapping[str, str]) -> Inventory:
    """Returns what became of a file's tensors: `loaded` as in `Inventory`, `ignored` as for `collect`."""
    left_behind: dict[str, list[str]] = {}
    for name in sorted(set(source.shapes) - set(loaded)):
        left_behind.setdefault(_kind(name, ignored) or "others", []).append(name)
    return Inventory(loaded, left_behind)


def ignored_notes(inventory: Inventory, kinds: Iterable[str]) -> tuple[str, ...]:
    """Returns a note for each of these kinds that a file has tensors of, with their names."""
    return tuple(
        f"ignored {len(names)} tensors {kind}{_listed(names)}"
        for kind, names in inventory.left_behind.items()
        if kind in kinds
    )


def _kind(name: str, kinds: Mapping[str, str]) -> str | None:
    """The first kind whose regular expression the name matches."""
    return next((kind for kind, pattern in kinds.items() if re.fullmatch(pattern, name)), None)


def checked(value: Array, name: str, path: str) -> Array:
    """Returns a tensor read from a file as float32; raises a UserError if it is of another kind or not finite."""
    if value.dtype.name not in _EXACT_IN_FLOAT32:
        raise UserError(f"{name} in {path} is {value.dtype.name}; expected one of {', '.join(_EXACT_IN_FLOAT32)}")
    value = value.astype(np.float32)
    if not np.isfinite(value).all():
        raise UserError(f"{name} in {path} holds values that are not finite; restore the file from a copy")
    return value


def _classes_in(source: Source, part: str, names: Mapping[str, str]) -> int:
    """The number of classes that a head was made for, which no configuration says."""
    bias = next((name for name, shape in PARTS[part].items() if shape == "C"), None)
    shape = source.shapes.get(names.get(bias, ""), ()) if bias else ()
    return shape[0] if len(shape) == 1 else 0


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    shown = ", ".join(names[:_MOST_NAMES_SHOWN])
    more = f" and {len(names) - _MOST_NAMES_SHOWN} more" if len(names) > _MOST_NAMES_SHOWN else ""
    return f": {shown}{more}" if names else ""


def to_external(
    weights: Mapping[str, Array], config: BertConfig, table: Mapping[str, str], layout: LayoutRule, format_name: str
) -> dict[str, Array]:
    """Returns weights under a format's names, as it stores them.

    Raises:
        UserError: the format has no name for one of them.
    """
    names = numbered(table, config)
    unmapped = [name for name in weights if name not in names]
    if unmapped:
        raise UserError(f"the {format_name} format has no place for {', '.join(unmapped)}; choose another --to_format")
    return {names[name]: layout(name, value.shape).to_external(value) for name, value in weights.items()}
