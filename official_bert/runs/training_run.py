"""What commands that train share: devices, the lock, missing checkpoints, and non-finite losses."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any, NoReturn

import tensorflow as tf

from official_bert.checkpoints import run_checkpoints
from official_bert.errors import UserError
from official_bert.optimization import distribution
from official_bert.runs.locks import lock_folder
from official_bert.runs.training_log import TRAIN, read_log
from official_bert.utils import files


def make_strategy(options: Any) -> tf.distribute.Strategy:
    """Returns the distribution strategy that the options of a training command select."""
    return distribution.get_strategy(
        options.strategy, options.tpu_name, options.tpu_zone, options.gcp_project,
        worker_hosts=options.worker_hosts, worker_index=options.worker_index,
    )  # fmt: skip


@contextlib.contextmanager
def open_training_run(options: Any) -> Iterator[tf.distribute.Strategy]:
    """Yields the distribution strategy of a training command, and locks its output folder within this context.

    If there are several workers, only one of them, the chief, holds the lock and writes files.

    Raises:
        UserError: If the devices cannot be used, another process holds the lock, or another worker is lost.
    """
    if options.deterministic:
        tf.config.experimental.enable_op_determinism()
    # A strategy over several workers must be created before TensorFlow executes anything.
    strategy = make_strategy(options)
    is_chief = strategy.extended.should_checkpoint
    lock = lock_folder(options.output_dir, "output_dir") if is_chief else contextlib.nullcontext()
    with distribution.explain_lost_workers(strategy), lock:
        yield strategy


def has_lost_checkpoints(folder: str, checkpoint_folder: str, save_steps: float) -> bool:
    """Returns whether a run that has no checkpoints now had some before.

    If the run was killed before its first save, it never had any.

    Args:
        folder: The run's folder, which contains its log.
        checkpoint_folder: The folder of the checkpoints.
        save_steps: Number of steps between checkpoints.
    """
    if files.exists(os.path.join(checkpoint_folder, run_checkpoints.STATE_FILE)):  # Written after each save.
        return True
    return any(line["step"] > save_steps for line in read_log(folder, TRAIN))


def refuse_nonfinite_loss(problem: str, checkpoint_folder: str, step: int, remedy: str) -> NoReturn:
    """Raises a UserError about a loss or gradient that is not finite.

    Args:
        problem: The first part of the message.
        checkpoint_folder: The folder of the run's checkpoints.
        step: The first step that was not finite, counted from 1. Checkpoints from this step on are unusable.
        remedy: What the user can do, in the imperative.
    """
    earlier: list[str] = []
    later: list[str] = []
    for path in run_checkpoints.list_checkpoints(checkpoint_folder):
        (earlier if run_checkpoints.parse_step(path) < step else later).append(os.path.basename(path))
    if later:
        start = f"resume from {earlier[0]}" if earlier else "start again"
        checkpoints = f"Remove {', '.join(later)}, which were saved while steps were skipped, to {start}"
    elif earlier:
        checkpoints = f"The same command resumes from {earlier[0]}, which was saved before it"
    else:
        checkpoints = "No checkpoint was saved before it"
    raise UserError(f"{problem}. {checkpoints}. To avoid it, {remedy}.")
