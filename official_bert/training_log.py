"""What a run tells while it trains: a line on the terminal, TensorBoard events, JSON lines."""

import json
import os
from collections.abc import Mapping

import tensorflow as tf

from official_bert import files
from official_bert.progress import duration

TRAIN, EVAL = "train", "eval"


class TrainingLog:
    """Writes measurements by step, under the run's folder.

    `train.jsonl` and `eval.jsonl` hold a JSON object a line; the folders `train` and `eval` hold TensorBoard events.
    Nothing is written where `folder` is None (on all but one of several workers).

    Args:
        folder: the run's output folder, or None.
        first_step: the step that the run starts from; lines of later steps, from before a stop, are removed.
    """

    def __init__(self, folder: str | None, first_step: int) -> None:
        self._folder = folder
        self._writers = {}
        if folder is not None:
            for kind in (TRAIN, EVAL):
                kept = [line for line in read_log(folder, kind) if line["step"] <= first_step]
                files.write_text(_path(folder, kind), "".join(json.dumps(line) + "\n" for line in kept))
                self._writers[kind] = tf.summary.create_file_writer(os.path.join(folder, kind))

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Adds the measurements of a step to the JSON lines and the TensorBoard events."""
        if self._folder is None:
            return
        with tf.io.gfile.GFile(_path(self._folder, kind), "a") as writer:
            writer.write(json.dumps({"step": step, **values}) + "\n")
        with self._writers[kind].as_default(step=step):
            for name, value in values.items():
                tf.summary.scalar(name, value)
        self._writers[kind].flush()


def read_log(folder: str, kind: str) -> list[dict[str, float]]:
    """Returns the measurements of a run's folder in the order written; a last line cut short by a kill is left out."""
    path = _path(folder, kind)
    if not files.exists(path):
        return []
    return [json.loads(line) for line in files.read_text(path).splitlines(keepends=True) if line.endswith("\n")]


def _path(folder: str, kind: str) -> str:
    return os.path.join(folder, f"{kind}.jsonl")


def progress_line(step: int, num_steps: int, values: Mapping[str, float]) -> str:
    """Returns the terminal's line for the steps up to `step`; `values` are those that training.py logs."""
    left = duration((num_steps - step) / values["steps_per_second"])
    return (
        f"step {step:,} of {num_steps:,}"
        f"  loss {values['loss']:.4f}"
        f"  masked LM {values['masked_lm_loss']:.4f} ({100 * values['masked_lm_accuracy']:.1f} % right)"
        f"  next sentence {values['next_sentence_loss']:.4f} ({100 * values['next_sentence_accuracy']:.1f} %)"
        f"  rate {values['learning_rate']:.2e}"
        f"  gradient {values['gradient_norm']:.2f}"
        f"  {values['examples_per_second']:,.0f} examples/s {values['tokens_per_second']:,.0f} tokens/s"
        f"  {left} left"
    )
