"""Weights in files: what a pre-training run saves and restores, and Google's TF1 checkpoints.

A folder of a run holds bert_config.json, vocab.txt and tokenizer_config.json beside the checkpoints ckpt-<step>.
"""

import dataclasses
import json
import os
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from official_bert import files
from official_bert.checkpoint_formats import bundle, google_files, tf1
from official_bert.checkpoint_formats.checkpoint import (
    CONFIG_FILE,
    TOKENIZER_FILE,
    VOCAB_FILE,
    Layout,
    Source,
    as_it_is,
)
from official_bert.config import BertConfig
from official_bert.errors import UserError
from official_bert.models import build_pretraining_model
from official_bert.tokenization import FullTokenizer

# What checkpoints hold besides weights: in TF1's the optimizer's averages and the step, in ours the same and the graph.
_NOT_WEIGHTS = re.compile(
    r".*/adam_[mv]$|global_step$|(optimizer|loss_scale|place|best|save_counter)/|_CHECKPOINTABLE_OBJECT_GRAPH$"
)


class RunCheckpoints:
    """The checkpoints of a run, named by their step: model, optimizer, place in the data, and what else it needs.

    Variables are stored under their own names (model/<layer>/<variable>), not by their place among Python objects, so
    that any program with the same layers reads them, under any strategy.

    Args:
        folder: the run's output folder.
        variables: Keras variables by what they belong to (see Pretrainer.variables).
        keep: how many checkpoints to keep, the newest ones.
    """

    def __init__(self, folder: str, variables: dict[str, list[Any]], keep: int) -> None:
        self._named = {owner: {each.path: each.value for each in held} for owner, held in variables.items()}
        self._manager = tf.train.CheckpointManager(
            tf.train.Checkpoint(**self._named), folder, max_to_keep=keep, checkpoint_name="ckpt", step_counter=None
        )

    def save(self, step: int) -> str:
        """Writes ckpt-<step> and removes the oldest beyond the number to keep; if it fails, older ones stay whole."""
        try:
            return str(self._manager.save(checkpoint_number=step))
        except (OSError, tf.errors.OpError) as error:
            for pattern in (f"ckpt-{step}.*", f"ckpt-{step}_temp*"):
                self._remove(tf.io.gfile.glob(os.path.join(self._manager.directory, pattern)))
            raise UserError(
                f"cannot save step {step} in {self._manager.directory}: {error}; the earlier checkpoints are intact: "
                "make room and run the same command to go on from the last one"
            ) from error

    def remove_unfinished(self) -> None:
        """Removes what saves that were killed have left: files of checkpoints without an index."""
        whole = {os.path.basename(path) for path in self._newest_first()}
        for path in tf.io.gfile.glob(os.path.join(self._manager.directory, "ckpt-*")):
            if re.split(r"\.|_temp", os.path.basename(path))[0] not in whole:
                self._remove([path])

    def _remove(self, paths: list[str]) -> None:
        for path in paths:
            tf.io.gfile.rmtree(path) if tf.io.gfile.isdir(path) else tf.io.gfile.remove(path)

    def newest(self) -> str | None:
        """Returns the path of the newest checkpoint, without .index; whether it is whole is not looked at."""
        return next(iter(self._newest_first()), None)

    def restore_latest(self, leave: Collection[str] = ()) -> str | None:
        """Restores everything from the newest whole checkpoint and returns its path, or None where there is none.

        One that is cut short or damaged is passed over with a warning.

        Args:
            leave: what variables belong to that keep the values they have.

        Raises:
            UserError: there are checkpoints, but none is whole, or one does not fit.
        """
        damaged = []
        wanted = {owner: held for owner, held in self._named.items() if owner not in leave}
        for path in self._newest_first():
            try:
                tf.train.Checkpoint(**wanted).restore(path).expect_partial().assert_existing_objects_matched()
                return path
            except AssertionError as error:  # TensorFlow's message shows Python objects, not names
                held = {name for name, _ in tf.train.list_variables(path)}
                names = [f"{owner}/{name}" for owner, each in wanted.items() for name in each]
                missing = [name for name in names if f"{_escaped(name)}/.ATTRIBUTES/VARIABLE_VALUE" not in held]
                raise UserError(
                    f"the checkpoint {path} lacks {len(missing)} of the {len(names)} tensors that this run needs, as "
                    f"{', '.join(missing[:3])}; it is of another model, optimizer or dtype"
                ) from error
            except ValueError as error:
                raise UserError(f"the checkpoint {path} does not fit the model: {error}") from error
            except (IndexError, RuntimeError, tf.errors.OpError) as error:  # IndexError: a file cut short
                print(f"warning: {path} is damaged and passed over: {str(error).splitlines()[0]}", flush=True)
                damaged.append(path)
        if damaged:
            raise UserError(
                f"none of the checkpoints {', '.join(damaged)} can be read; restore one from a copy, or give another "
                "--output_dir to begin anew"
            )
        return None

    def _newest_first(self) -> list[str]:
        # Those on disk, not those that the file "checkpoint" lists: it may be damaged, or written after a crash.
        found = {}
        for path in tf.io.gfile.glob(os.path.join(self._manager.directory, "ckpt-*.index")):
            if match := re.search(r"ckpt-(\d+)\.index$", path):
                found[int(match[1])] = path.removesuffix(".index")
        return [found[step] for step in sorted(found, reverse=True)]


def counter(name: str, value: int = 0) -> keras.Variable:
    """Returns a number to keep in checkpoints, int64."""
    return keras.Variable(value, dtype="int64", trainable=False, name=name)


def place_in_data() -> list[keras.Variable]:
    """Returns what a run keeps of its place: its phase, how many records of it were used, its files' fingerprint."""
    return [counter(name) for name in ("phase", "position", "data")]


def step_of(path: str) -> int:
    """Returns the step in the name of a checkpoint of ours, ckpt-<step>."""
    return int(path.rsplit("-", 1)[1])


def newest_step(folder: str) -> int:
    """Returns the step of a run's newest checkpoint, whether that is whole or not; 0 where there is none."""
    paths = tf.io.gfile.glob(os.path.join(folder, "ckpt-*.index"))
    return max((step_of(path.removesuffix(".index")) for path in paths), default=0)


def description(config: BertConfig, vocab_file: str | None, do_lower_case: bool) -> dict[str, str]:
    """Returns what stands beside a model's checkpoints: configuration, vocabulary, tokenizer settings, by file name."""
    contents = {CONFIG_FILE: config.to_json()}
    if vocab_file:
        contents[VOCAB_FILE] = files.read_text(vocab_file)
        contents[TOKENIZER_FILE] = json.dumps({"do_lower_case": do_lower_case}, indent=2) + "\n"
    return contents


def check_description(folder: str, contents: dict[str, str]) -> None:
    """Raises a UserError if the folder holds a run of another configuration or vocabulary."""
    for name, content in contents.items():
        path = os.path.join(folder, name)
        if files.exists(path) and files.read_text(path) != content:
            raise UserError(
                f"{path} differs from what was given: the folder holds another run; give the same "
                f"{'--bert_config_file' if name == CONFIG_FILE else '--vocab_file and --do_lower_case'} or another "
                "--output_dir"
            )


def save_description(folder: str, contents: dict[str, str]) -> None:
    """Writes the files of `description` into the run's folder."""
    for name, content in contents.items():
        files.write_text(os.path.join(folder, name), content)


def load_pretraining_model(folder: str) -> tuple[keras.Model, BertConfig, FullTokenizer]:
    """Returns the model of a run's newest checkpoint, its configuration and its tokenizer.

    Raises:
        UserError: the folder lacks one of them.
    """
    config = BertConfig.from_json_file(os.path.join(folder, CONFIG_FILE))
    vocab_file = os.path.join(folder, VOCAB_FILE)
    if not files.exists(vocab_file):
        raise UserError(
            f"{folder} has no {VOCAB_FILE}; pass --vocab_file to run_pretraining, or copy the vocabulary there and "
            f'beside it a {TOKENIZER_FILE} that says {{"do_lower_case": true}} or false'
        )
    do_lower_case = google_files.casing_in(os.path.join(folder, TOKENIZER_FILE))
    tokenizer = FullTokenizer(vocab_file, do_lower_case)
    path = tf.train.latest_checkpoint(folder)
    if path is None:
        raise UserError(
            f"{folder} has no checkpoint; run_pretraining saves the first one after --save_checkpoints_steps"
        )
    model = build_pretraining_model(config)
    load_weights(model, path)
    return model, config, tokenizer


@dataclasses.dataclass(frozen=True)
class LoadedWeights:
    """What came of loading weights.

    Attributes:
        taken: names in the checkpoint, by the path of the variable of ours that was filled from it.
        missing: what is wrong, by the path of the variable that kept its initial values.
        unused: names in the checkpoint that no variable was filled from.
        state: how many more tensors the checkpoint holds that are no weights: averages of the optimizer, the step.
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


def load_weights(model: keras.Model, path: str, allowed: Sequence[str] = ()) -> LoadedWeights:
    """Fills the model from a checkpoint of ours or of Google's TF1 releases.

    Args:
        model: a pre-training model.
        path: a checkpoint's path without .index (bert_model.ckpt, ckpt-1000), or the folder of a run.
        allowed: regular expressions of whole names: weights of ours that may be missing in the checkpoint or have
            another shape there, and tensors there that may be left over.

    Raises:
        UserError: there is no such checkpoint, or something that is not allowed is missing, of another shape or left
            over; nothing is changed then.
    """
    source = bundle.open_bundle(bundle.prefix_of(path))
    taken, missing, values = {}, {}, {}
    others = dict(source.shapes)  # what no variable of ours goes by
    for variable in model.variables:
        name, layout = _stored(source, variable.path, tuple(variable.shape))
        shape = source.shapes.get(name)
        others.pop(name, None)
        if shape == layout.shape:
            taken[variable.path] = name
            values[variable.path] = layout.ours(source.read(name), tuple(variable.shape))
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


def _stored(source: Source, path: str, shape: tuple[int, ...]) -> tuple[str, Layout]:
    """The name of one of our variables in a checkpoint, and how it is stored there."""
    if tf1.is_format(source):
        return tf1.name_of(path), tf1.layout(path, shape)
    return stored_name(path), as_it_is(path, shape)


def stored_name(path: str) -> str:
    """Returns the name of one of our variables in our checkpoints."""
    return f"model/{path.replace('/', '.S')}/.ATTRIBUTES/VARIABLE_VALUE"


def _escaped(name: str) -> str:
    owner, path = name.split("/", 1)
    return f"{owner}/{path.replace('/', '.S')}"
