"""The weights that pre-training starts from: a checkpoint of any format, into a model."""

import dataclasses
import os
import re
from collections.abc import Callable, Iterator, Sequence

import keras

from official_bert.checkpoints import named_models, reading
from official_bert.checkpoints.checkpoint import CONFIG_FILE, ENCODER, PARTS, PRETRAINING
from official_bert.checkpoints.formats import own, tf1
from official_bert.checkpoints.formats.format import CheckpointPath
from official_bert.checkpoints.model_files import describes_hugging_face, find_tokenizer
from official_bert.checkpoints.run_checkpoints import stored_name
from official_bert.checkpoints.tensors import LayoutRule, Source, identity
from official_bert.checkpoints.vocabulary import FoundTokenizer
from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.utils import files

_HEADS = [part for part in PARTS if part in PRETRAINING - {ENCODER}]
_OF_TASKS = [name for part in PARTS if part not in PRETRAINING for name in PARTS[part]]

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
        new_heads: the parts that the checkpoint has not, whose weights are the initial ones.
    """

    taken: dict[str, str]
    missing: dict[str, str]
    unused: list[str]
    state: int
    new_heads: list[str]

    def lines(self) -> Iterator[str]:
        """Yields a line for each tensor, and one that sums up."""
        for path, name in self.taken.items():
            yield f"  taken    {path}" + (f" from {name}" if name not in (path, stored_name(path)) else "")
        for path, problem in self.missing.items():
            yield f"  missing  {path}: {problem}; it starts from random values"
        for name in self.unused:
            yield f"  unused   {name}"
        yield (
            f"{len(self.taken)} tensors taken, {len(self.missing)} missing, {len(self.unused)} unused, beside "
            f"{self.state} of the optimizer's and the step, which do not belong to the weights"
        )
        if self.new_heads:
            yield f"the checkpoint has no {', no '.join(self.new_heads)}: what it lacks begins anew"


@dataclasses.dataclass(frozen=True)
class InitialFiles:
    """What stands beside the weights of a checkpoint.

    Attributes:
        tokenizer: its vocabulary and casing.
        config: its sizes, rates and activation; None where there is none.
    """

    tokenizer: FoundTokenizer
    config: BertConfig | None


def find_files(path: str) -> InitialFiles:
    """Returns what stands beside the checkpoint that a path names, as of `load_weights`.

    Raises:
        UserError: there is no such checkpoint, or it is damaged.
    """
    folder = named_models.local_folder(path)
    opened = _open_bundle(folder)
    if opened is None or describes_hugging_face(os.path.dirname(opened.path)):
        checkpoint = reading.read(folder)[1]
        vocabularies = {} if checkpoint.vocab is None else {f"that of {path}": checkpoint.vocab}
        return InitialFiles(FoundTokenizer(path, vocabularies, checkpoint.casing, path), checkpoint.config)
    beside = os.path.dirname(opened.path)
    config_file = os.path.join(beside, CONFIG_FILE)
    config = BertConfig.from_json_file(config_file) if files.exists(config_file) else None
    return InitialFiles(find_tokenizer(beside), config)


def load_weights(model: keras.Model, path: str, allowed: Sequence[str] = ()) -> LoadedWeights:
    """Fills the model from a checkpoint of any format.

    A head that the checkpoint lacks wholly begins anew; heads for tasks, which the model lacks, are left unused.

    Args:
        model: a pre-training model.
        path: a checkpoint's path without .index (bert_model.ckpt, ckpt-1000), a folder, or a name, as for
            `reading.read`.
        allowed: regular expressions of whole names: other weights of ours that may be missing in the checkpoint, and
            other tensors there that may be left over; of Google's and our own checkpoints also weights that may have
            another shape there.

    Raises:
        UserError: there is no such checkpoint, or something that is not allowed is missing, of another shape or left
            over; nothing is changed then.
    """
    stored = _open(path)
    source = stored.source
    taken, missing, values = {}, {}, {}
    others = dict(source.shapes)  # what no variable of ours goes by
    for variable in model.variables:
        name, layout = stored.name_of(variable.path), stored.layout(variable.path, tuple(variable.shape))
        shape = source.shapes.get(name)
        others.pop(name, None)
        if shape == layout.shape:
            taken[variable.path] = name
            values[variable.path] = layout.from_external(source.read(name), tuple(variable.shape))
        else:
            has = "is missing" if shape is None else f"has shape {list(shape)}; expected {list(layout.shape)}"
            missing[variable.path] = f"{name} {has}"
    unused = [name for name in sorted(others) if not _NOT_WEIGHTS.match(name)]
    new_heads = [part for part in _HEADS if all(stored.name_of(name) not in source.shapes for name in PARTS[part])]
    expected = {name for part in new_heads for name in PARTS[part]} | stored.of_tasks
    problems = missing | {name: f"{name} is left over" for name in unused}
    wrong = {
        name: problem
        for name, problem in problems.items()
        if name not in expected and not any(re.fullmatch(each, name) for each in allowed)
    }
    if wrong:
        raise UserError(
            f"{path} does not fit the model: {'; '.join(wrong.values())}; if that is meant, name them, as in "
            f"--init_allow={next(iter(wrong))}"
        )
    for variable in model.variables:
        if variable.path in values:
            variable.assign(values[variable.path])
    return LoadedWeights(taken, missing, unused, len(others) - len(unused), new_heads)


@dataclasses.dataclass(frozen=True)
class _Stored:
    """The tensors of a checkpoint, and how ours are found among them."""

    source: Source
    name_of: Callable[[str], str]  # the name there of one of ours
    layout: LayoutRule
    of_tasks: set[str]  # the names there of weights of heads for tasks, and of other programs


def _open(path: str) -> _Stored:
    folder = named_models.local_folder(path)
    source = _open_bundle(folder)
    if source is None:  # a reader of another format has given the tensors our names
        weights = reading.read(folder)[1].weights
        shapes = {name: value.shape for name, value in weights.items()}
        return _Stored(Source(path, shapes, weights.__getitem__), str, identity, set(_OF_TASKS))
    if tf1.is_google(source):
        of_tasks = {tf1.NAMES[name] for name in _OF_TASKS if name in tf1.NAMES}
        others = {name for name in source.shapes if re.fullmatch("|".join(tf1.OTHER_PROGRAMS.values()), name)}
        return _Stored(source, tf1.name_of, tf1.layout, of_tasks | others)
    return _Stored(source, stored_name, identity, {stored_name(name) for name in _OF_TASKS})


def _open_bundle(path: str) -> Source | None:
    """A checkpoint of Google's or ours, whose tensors may be other ones than its configuration says; else None."""
    found = CheckpointPath(path)
    return found.bundle if isinstance(found.bundle, Source) and (tf1.detect(found) or own.detect(found)) else None
