"""The log of a training run: a line on the terminal, TensorBoard events, JSON lines."""

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
from official_bert.utils.progress import duration

TRAIN, EVAL, GENERAL, NOTICES = "train", "eval", "general", "notices"
_CHECKSUM = "crc32"  # the last key of each line: of the line without it


class TrainingLog:
    """Writes measurements by step, under the run's folder.

    `train.jsonl`, `eval.jsonl` and `general.jsonl` (evaluations on general text) hold a JSON object a line; the folders
    of these names hold TensorBoard events.
    `notices.jsonl` holds what happened out of the ordinary, a step and a sentence a line. Each line ends with its
    checksum.
    Nothing is written where `folder` is None (on all but one of several workers).

    Args:
        folder: the run's output folder, or None.
        first_step: the step that training starts from; measurements and notices of later steps, from before a stop, are
            removed: these steps are taken again. None for evaluation alone.
    """

    def __init__(self, folder: str | None, first_step: int | None) -> None:
        self._folder = folder
        self._writers: dict[str, Any] = {}
        if folder is not None:
            for kind in (TRAIN, EVAL, GENERAL, NOTICES):
                # Written again even where all is kept: the next line must not be joined to one cut short by a kill.
                if files.exists(_path(folder, kind)):
                    last = math.inf if first_step is None else first_step
                    kept = [line for line in read_log(folder, kind) if line["step"] <= last]
                    files.write_text(_path(folder, kind), "".join(map(line_of, kept)))
        if folder is not None and not importlib.util.find_spec("tensorboard"):
            print("no TensorBoard events are written: there is no tensorboard package")
            self._writers = dict.fromkeys((TRAIN, EVAL, GENERAL))

    def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Adds the measurements of a step to the JSON lines and the TensorBoard events."""
        if self._folder is None:
            return
        try:
            with tf.io.gfile.GFile(_path(self._folder, kind), "a") as writer:
                writer.write(line_of({"step": step, **values}))
            if kind != NOTICES and kind not in self._writers:
                self._writers[kind] = tf.summary.create_file_writer(os.path.join(self._folder, kind))
            if self._writers.get(kind):
                with self._writers[kind].as_default(step=step):
                    for name, value in values.items():
                        tf.summary.scalar(name, value)
                self._writers[kind].flush()
        except (OSError, tf.errors.OpError) as error:
            raise UserError(
                f"cannot write the log in {self._folder}: {error}; the checkpoints are intact: make room and run the "
                "same command to go on from the last one"
            ) from error

    def note(self, step: int, notice: str) -> None:
        """Keeps for the model card what happened out of the ordinary: a resumption, a skipped step."""
        self.write(NOTICES, step, {"notice": notice})


def line_of(values: Mapping[str, Any]) -> str:
    """Returns the line of a log that holds these values, with a checksum: most flipped digits are still JSON."""
    text = json.dumps(values)
    return f'{text[:-1]}, "{_CHECKSUM}": "{_checksum(text)}"}}\n'


def _checksum(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"


def read_log(folder: str, kind: str) -> list[dict[str, Any]]:
    """Returns a log of a run's folder in the order written; a last line cut short by a kill is left out.

    Raises:
        UserError: a line is not as it was written.
    """
    path = _path(folder, kind)
    if not files.exists(path):
        return []
    lines = []
    for number, line in enumerate(files.read_text(path).split("\n")[:-1], start=1):
        try:
            values = files.parse_json(line, f"{path}, line {number},")
        except UserError as error:
            raise UserError(f"{error}; remove that line") from error
        if not isinstance(values, dict) or not isinstance(values.get("step"), int):
            raise UserError(f"{path}, line {number}, holds no object with a step; remove that line")
        if values.pop(_CHECKSUM, None) != _checksum(line.rpartition(f', "{_CHECKSUM}"')[0] + "}"):
            raise UserError(f"{path}, line {number}, is not as it was written; remove that line")
        for name, value in values.items():
            if kind != NOTICES and not isinstance(value, int | float):
                wrong = f"has {value!r:.60} as {name}, which is no number"
                raise UserError(f"{path}, line {number}, {wrong}; remove that line")
        lines.append(values)
    return lines


def _path(folder: str, kind: str) -> str:
    return os.path.join(folder, f"{kind}.jsonl")


def next_sentence_part(values: Mapping[str, float], before: str) -> str:
    """Returns loss and accuracy of next sentences in words, after `before`; nothing where there is no such loss."""
    if "next_sentence_loss" not in values:
        return ""
    accuracy = 100 * values["next_sentence_accuracy"]
    return f"{before}next sentence {values['next_sentence_loss']:.4f} ({accuracy:.1f} %)"


def progress_line(step: int, num_steps: int, values: Mapping[str, float]) -> str:
    """Returns the terminal's line for the steps up to `step`; `values` are those that pretraining's monitor logs."""
    left = duration((num_steps - step) / values["steps_per_second"])
    return (
        f"step {step:,} of {num_steps:,}"
        f"  loss {values['loss']:.4f}"
        f"  masked LM {values['masked_lm_loss']:.4f} ({100 * values['masked_lm_accuracy']:.1f} % right)"
        f"{next_sentence_part(values, '  ')}"
        f"  rate {values['learning_rate']:.2e}"
        f"  gradient {values['gradient_norm']:.2f}"
        f"  {values['examples_per_second']:,.0f} examples/s {values['tokens_per_second']:,.0f} tokens/s"
        f"  {left} left"
    )
