"""The weights that pre-training starts from: a checkpoint of ours or of Google's TF1 releases, into a model."""

import dataclasses
import os
import re
from collections.abc import Iterator, Sequence

import keras

from official_bert.checkpoints import bundle, google_models
from official_bert.checkpoints.formats import tf1
from official_bert.checkpoints.run_checkpoints import stored_name
from official_bert.checkpoints.tensors import Layout, Source, identity
from official_bert.errors import UserError

# What checkpoints hold besides weights: in TF1's the optimizer's moments and the step, in ours the same and the graph.
_NOT_WEIGHTS = re.compile(
    r".*/adam_[mv]$|global_step$|(optimizer|loss_scale|place|best|save_counter)/|_CHECKPOINTABLE_OBJECT_GRAPH$"
)


@dataclasses.dataclass(frozen=True)
class LoadedWeights:
    """What came of loading weights.

    Attributes:
        taken: names in the checkpoint, by the path of the variable of ours that was filled from it.
        missing: what is wrong, by the path of the variable that kept its initial values.
        unused: names in the checkpoint that no variable was filled from.
        state: how many more tensors the checkpoint holds that are no weights: the optimizer's moments and the step.
    """

    taken: dict[str, str]
    missing: dict[str, str]
    unused: list[str]
    state: int

    def lines(self) -> Iterator[str]:
        """Yields a line for each tensor, and one that sums up."""
        for path, name in self.taken.items():
            yield f"  taken    {path}" + (f" from {name}" if name != stored_name(path) else "")
        for path, problem in self.missing.items():
            yield f"  missing  {path}: {problem}; it starts from random values"
        for name in self.unused:
            yield f"  unused   {name}"
        yield (
            f"{len(self.taken)} tensors taken, {len(self.missing)} missing, {len(self.unused)} unused, beside "
            f"{self.state} of the optimizer's and the step, which do not belong to the weights"
        )


def folder_of(path: str) -> str:
    """Returns the folder of the checkpoint that a path names, as of `load_weights`.

    Raises:
        UserError: there is no such checkpoint.
    """
    return os.path.dirname(_prefix_of(path))


def load_weights(model: keras.Model, path: str, allowed: Sequence[str] = ()) -> LoadedWeights:
    """Fills the model from a checkpoint of ours or of Google's TF1 releases.

    Args:
        model: a pre-training model.
        path: a checkpoint's path without .index (bert_model.ckpt, ckpt-1000), the folder of a run, or google:// and
            the name of one of Google's releases.
        allowed: regular expressions of whole names: weights of ours that may be missing in the checkpoint or have
            another shape there, and tensors there that may be left over.

    Raises:
        UserError: there is no such checkpoint, or something that is not allowed is missing, of another shape or left
            over; nothing is changed then.
    """
    source = bundle.open_bundle(_prefix_of(path))
    taken, missing, values = {}, {}, {}
    others = dict(source.shapes)  # what no variable of ours goes by
    for variable in model.variables:
        name, layout = _stored(source, variable.path, tuple(variable.shape))
        shape = source.shapes.get(name)
        others.pop(name, None)
        if shape == layout.shape:
            taken[variable.path] = name
            values[variable.path] = layout.from_external(source.read(name), tuple(variable.shape))
        else:
            has = "is missing" if shape is None else f"has shape {list(shape)}; expected {list(layout.shape)}"
            missing[variable.path] = f"{name} {has}"
    unused = [name for name in sorted(others) if not _NOT_WEIGHTS.match(name)]
    problems = missing | {name: f"{name} is left over" for name in unused}
    wrong = {
        name: problem for name, problem in problems.items() if not any(re.fullmatch(each, name) for each in allowed)
    }
    if wrong:
        raise UserError(
            f"{path} does not fit the model: {'; '.join(wrong.values())}; if that is meant, name them, as in "
            f"--init_allow={next(iter(wrong))}"
        )
    for variable in model.variables:
        if variable.path in values:
            variable.assign(values[variable.path])
    return LoadedWeights(taken, missing, unused, len(others) - len(unused))


def _prefix_of(path: str) -> str:
    if path.startswith("hf://"):
        raise UserError(f"{path} is in another format; run: official-bert convert --from={path} --to=FOLDER")
    return bundle.prefix_of(google_models.local_folder(path))


def _stored(source: Source, path: str, shape: tuple[int, ...]) -> tuple[str, Layout]:
    """The name of one of our variables in a checkpoint, and how it is stored there."""
    if tf1.is_google(source):
        return tf1.name_of(path), tf1.layout(path, shape)
    return stored_name(path), identity(path, shape)
