"""The checkpoints that a training run saves and restores.

A run's folder contains the checkpoints ckpt-<step>, bert_config.json, vocab.txt and tokenizer_config.json.
"""

import os
import re
from collections.abc import Collection
from typing import Any

import keras
import tensorflow as tf

from official_bert.checkpoints import bundle
from official_bert.errors import UserError, shorten_error
from official_bert.utils import files

_NAME, STATE_FILE = "ckpt", "checkpoint"


class RunCheckpoints:
    """The checkpoints of a run, named by their step: model, optimizer, position in the data and other variables.

    Variables are stored by name (model/<layer>/<variable>), not by object path, so that any program with the same
    layers can read them, under any distribution strategy.

    Args:
        folder: The run's output folder.
        variables: Keras variables by owner, such as "model" and "optimizer" (see `Pretrainer.variables`).
        keep: The number of newest checkpoints to keep.
    """

    def __init__(self, folder: str, variables: dict[str, list[Any]], keep: int) -> None:
        self._folder, self._keep = folder, keep
        self._named = {owner: {each.path: each.value for each in held} for owner, held in variables.items()}
        self._checkpoint = tf.train.Checkpoint(**self._named)

    def save(self, step: int) -> str:
        """Writes ckpt-<step> and returns its path.

        Removes checkpoints of later steps, and the oldest checkpoints if there are more than `keep`.

        If saving fails, the earlier checkpoints stay intact.

        Raises:
            UserError: If the checkpoint cannot be written.
        """
        path = os.path.join(self._folder, f"{_NAME}-{step}")
        try:
            files.make_folder(self._folder)
            self._checkpoint.write(path)
            saved = bundle.list_checkpoints(self._folder, _NAME)
            # Checkpoints of later steps were saved before the run was resumed from an earlier step.
            to_keep = [each for each in saved if parse_step(each) <= step][: self._keep]
            for each in saved:
                if each not in to_keep:
                    self._remove(each)
            self._write_state(path, to_keep)
        except (OSError, UserError, tf.errors.OpError) as error:
            # TensorFlow leaves an empty index file if the disk becomes full while it writes this file.
            if bundle.find_damage(path) is not None:
                self._remove(path)
            raise UserError(
                f"cannot save step {step} in {self._folder}: {shorten_error(error)}; the earlier checkpoints are "
                "intact. Free disk space and run the same command to resume from the last one."
            ) from error
        return path

    def _write_state(self, newest: str, saved: list[str]) -> None:
        """Writes the file named `checkpoint`, where other programs look up the newest checkpoint."""
        names = [f'model_checkpoint_path: "{os.path.basename(newest)}"']
        names += [f'all_model_checkpoint_paths: "{os.path.basename(each)}"' for each in reversed(saved)]
        files.write_text(os.path.join(self._folder, STATE_FILE), "\n".join(names) + "\n")

    def remove_unfinished(self) -> None:
        """Removes the files of interrupted saves, including checkpoints whose .index file is missing or empty."""
        files.remove_unfinished(self._folder)
        saved = bundle.list_checkpoints(self._folder, _NAME)
        complete = {os.path.basename(path) for path in saved if files.size(f"{path}.index")}
        for name in files.list_folder(self._folder) if files.exists(self._folder) else ():
            match = re.match(rf"{_NAME}-\d+(?=\.|_temp)", name)
            if match and match[0] not in complete:
                self._remove(os.path.join(self._folder, match[0]))

    def remove_all(self) -> None:
        """Removes all checkpoints."""
        for path in list_checkpoints(self._folder):
            self._remove(path)
        self.remove_unfinished()

    def _remove(self, prefix: str) -> None:
        """Removes the files of a checkpoint, .index first, because the other files are ignored without it."""
        folder, base = os.path.split(prefix)
        files.remove(f"{prefix}.index")
        for name in files.list_folder(folder):
            if name.startswith((f"{base}.", f"{base}_temp")):
                path = os.path.join(folder, name.rstrip("/"))
                files.remove_folder(path) if files.is_folder(path) else files.remove(path)

    def restore_latest(self) -> str | None:
        """Restores all variables from the newest complete checkpoint.

        Returns:
            The checkpoint's path, or None if the folder has no checkpoint.

        Raises:
            UserError: If no checkpoint is complete, or it does not fit the model.
        """
        path = find_newest_complete(self._folder)
        if path is not None:
            self.restore(path)
        return path

    def restore(self, path: str, leave: Collection[str] = ()) -> None:
        """Restores all variables, except those whose owner is in `leave`, from a complete checkpoint.

        Args:
            path: The path of the checkpoint without .index.
            leave: Owners whose variables keep their values, such as "optimizer".

        Raises:
            UserError: If the checkpoint does not fit the model.
        """
        wanted = {owner: held for owner, held in self._named.items() if owner not in leave}
        try:
            with files.link_to_plain_path(path) as readable:
                status = tf.train.Checkpoint(**wanted).read(readable)
                status.expect_partial().assert_existing_objects_matched()
        except AssertionError as error:  # TensorFlow's message shows Python objects, not names
            held = bundle.open_bundle(path).shapes
            names = [(owner, name) for owner, each in wanted.items() for name in each]
            missing = [f"{owner}/{name}" for owner, name in names if get_stored_name(name, owner) not in held]
            raise UserError(
                f"the checkpoint {path} lacks {len(missing)} of the {len(names)} tensors that this run needs, such as "
                f"{', '.join(missing[:3])}; it belongs to another model, optimizer or dtype"
            ) from error
        except (ValueError, tf.errors.OpError) as error:
            raise UserError(f"the checkpoint {path} does not fit the model: {error}") from error


def create_counter(name: str, value: int = 0) -> keras.Variable:
    """Returns a scalar int64 variable that can be stored in checkpoints."""
    return keras.Variable(value, dtype="int64", trainable=False, name=name)


def create_data_position() -> list[keras.Variable]:
    """Returns variables for the position in the data: phase, number of records read, fingerprint of the files."""
    return [create_counter(name) for name in ("phase", "position", "data")]


def parse_step(path: str) -> int:
    """Returns the step in a checkpoint's path, which ends with ckpt-<step>."""
    return int(path.rsplit("-", 1)[1])


def find_newest_complete(folder: str) -> str | None:
    """Returns the path without .index of a run's newest complete checkpoint, or None if the run has no checkpoint.

    Raises:
        UserError: If every checkpoint is damaged.
    """
    return bundle.find_newest_complete(folder, _NAME)


def list_checkpoints(folder: str) -> list[str]:
    """Returns the paths without .index of a run's checkpoints, complete or not, the newest first."""
    return bundle.list_checkpoints(folder, _NAME)


def find_newest_step(folder: str) -> int:
    """Returns the step of a run's newest checkpoint, complete or not, or 0 without checkpoints."""
    return max(map(parse_step, list_checkpoints(folder)), default=0)


def get_stored_name(path: str, owner: str = "model") -> str:
    """Returns the name under which a run's checkpoint stores a variable.

    Args:
        path: The path of the Keras variable.
        owner: The variable's owner, "model" or "optimizer".
    """
    return f"{owner}/{path.replace('/', '.S')}/.ATTRIBUTES/VARIABLE_VALUE"
