"""Writes the log of a training run: lines on the terminal, TensorBoard events, and JSON lines."""

import importlib.util
import json
import math
import os
import zlib
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from official_bert.errors import UserError
from official_bert.utils import files

TRAIN, EVAL, GENERAL, NOTICES = "train", "eval", "general", "notices"
_CHECKSUM = "crc32"  # The last key of each line, computed from the line without it.


class TrainingLog:
    """Writes measurements of steps to log files in the folder of a run.

    `train.jsonl`, `eval.jsonl` and `general.jsonl` (evaluations on general text) contain one JSON object per line. The
    folders `train`, `eval` and `general` contain the same as TensorBoard events. `notices.jsonl` contains unusual
    events, with a step and a sentence per line. Each line ends with its checksum.

    Args:
        folder: The run's output folder. If None, nothing is written. Pass None on all workers except the chief.
        first_step: The step that training starts from. Lines of later steps, from an earlier start of the run, are
            removed, because these steps are repeated. None if nothing is trained; all lines are then kept.
    """

    def __init__(self, folder: str | None, first_step: int | None) -> None:
        self._folder = folder
        self._writers: dict[str, Any] = {}
        if folder is not None:
            for kind in (TRAIN, EVAL, GENERAL, NOTICES):
                # Rewritten even if all lines are kept: a kill may have left an incomplete last line.
                if files.exists(_get_path(folder, kind)):
                    last = math.inf if first_step is None else first_step
                    kept = [line for line in read_log(folder, kind) if line["step"] <= last]
                    files.write_text(_get_path(folder, kind), "".join(map(format_line, kept)))
        if folder is not None and not importlib.util.find_spec("tensorboard"):
            print("no TensorBoard events are written because the package tensorboard is not installed")
            self._writers = dict.fromkeys((TRAIN, EVAL, GENERAL))

    def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Writes the measurements of a step as a JSON line and TensorBoard events.

        Args:
            kind: TRAIN, EVAL or GENERAL, which determines the file.
            step: Number of steps done.
            values: The measurements, by name.
        """
        if self._folder is None:
            return
        try:
            with tf.io.gfile.GFile(_get_path(self._folder, kind), "a") as writer:
                writer.write(format_line({"step": step, **values}))
            if kind != NOTICES and kind not in self._writers:
                self._writers[kind] = tf.summary.create_file_writer(os.path.join(self._folder, kind))
            if self._writers.get(kind):
                with self._writers[kind].as_default(step=step):
                    for name, value in values.items():
                        tf.summary.scalar(name, value)
                self._writers[kind].flush()
        except (OSError, tf.errors.OpError) as error:
            raise UserError(
                f"cannot write the log in {self._folder}: {error}. The checkpoints are intact. Free disk space and run "
                "the same command to resume from the last one."
            ) from error

    def note(self, step: int, notice: str) -> None:
        """Writes an unusual event, such as a skipped step, to notices.jsonl, which the model card includes."""
        self.write(NOTICES, step, {"notice": notice})


def format_line(values: Mapping[str, Any]) -> str:
    """Returns a line of the log with a checksum, which is needed because most corrupted digits are still valid JSON."""
    text = json.dumps(values)
    return f'{text[:-1]}, "{_CHECKSUM}": "{_checksum(text)}"}}\n'


def _checksum(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"


def read_log(folder: str, kind: str) -> list[dict[str, Any]]:
    """Returns the lines of a run's log in the order in which they were written. An incomplete last line is left out.

    Args:
        folder: Folder of the run.
        kind: TRAIN, EVAL, GENERAL or NOTICES, which determines the file.

    Raises:
        UserError: If a line was changed after it was written.
    """
    path = _get_path(folder, kind)
    if not files.exists(path):
        return []
    lines = []
    for number, line in enumerate(files.read_text(path).split("\n")[:-1], start=1):
        try:
            values = files.parse_json(line, f"{path}, line {number},")
        except UserError as error:
            raise UserError(f"{error}. Remove that line.") from error
        if not isinstance(values, dict) or not isinstance(values.get("step"), int):
            raise UserError(f"{path}, line {number}, holds no object with a step. Remove that line.")
        if values.pop(_CHECKSUM, None) != _checksum(line.rpartition(f', "{_CHECKSUM}"')[0] + "}"):
            raise UserError(f"{path}, line {number}, was changed after it was written. Remove that line.")
        for name, value in values.items():
            if kind != NOTICES and not isinstance(value, int | float):
                problem = f"has {value!r:.60} as {name}, which is not a number"
                raise UserError(f"{path}, line {number}, {problem}. Remove that line.")
        lines.append(values)
    return lines


def _get_path(folder: str, kind: str) -> str:
    return os.path.join(folder, f"{kind}.jsonl")
