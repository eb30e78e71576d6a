"""Short trainings on a part of the text, from whose losses the law says what a longer one comes to.

Texts differ in how regular they are, and vocabularies in how much there is to learn: that is measured, not guessed. The
first loss says how soon it falls, those of longer pilots how far.
"""

import dataclasses
import math
import os
import shlex
import shutil
import signal
import subprocess

from official_bert.errors import UserError
from official_bert.pretraining.corpus_initialization import MOST_TOKENS
from official_bert.pretraining.scaling_law import Reached, block_parameters
from official_bert.utils import files
from planning.command_lines import CONFIG_FILE, PLAN_FILE, TEXT_FOLDER, lines_here, process_of, reached_loss
from planning.options import Options
from planning.recipe import SIZES, tokens_of
from planning.text import HELDOUT_FILE, TEXT_FILE, VOCAB_FILE, TextCounts

STEPS = (300, 1200, 4800)
_MOST_OF_RUN = 0.4  # a pilot's share of the steps that the plan's time is enough for
PILOT_FOLDER = "pilot"


def steps_of(steps: int) -> tuple[int, ...]:
    """Returns the steps of each pilot, where the plan's time is enough for some steps of the model that they train."""
    first, *longer = STEPS
    return (first, *(each for each in longer if each <= _MOST_OF_RUN * steps))


def train(options: Options, counts: TextCounts, steps: int, dtype: str) -> Reached:
    """Trains the smallest model for some steps, as the plan's commands do, and returns what it reached.

    Args:
        options: the plan's. Its folder holds the text, what is held out of it and its vocabulary; what the commands
            write there is removed again.
        counts: of the text.
        steps: of training.
        dtype: that they compute in.

    Raises:
        UserError: a command has failed.
    """
    size = SIZES[0]
    folder = os.path.join(options.output_dir, TEXT_FOLDER)
    own = os.path.join(options.output_dir, PILOT_FOLDER)
    files.remove_folder(own)  # of a pilot that was killed
    try:
        os.makedirs(os.path.join(own, TEXT_FOLDER))
        for name in (HELDOUT_FILE, VOCAB_FILE):
            shutil.copyfile(os.path.join(folder, name), os.path.join(own, TEXT_FOLDER, name))
        source, part = os.path.join(folder, TEXT_FILE), os.path.join(own, TEXT_FOLDER, TEXT_FILE)
        # As much as is trained on, and as the initial weights are counted from: they are worse from less.
        _copy_part(source, part, max(MOST_TOKENS, tokens_of(steps)) / counts.tokens)
        config = size.config(counts.vocab_size)
        files.write_text(os.path.join(own, CONFIG_FILE), config.to_json())
        files.write_text(os.path.join(own, PLAN_FILE), '{"phases": []}')  # there is nothing to expect yet
        for line in lines_here(dataclasses.replace(options, output_dir=own), counts, size, steps, dtype):
            _do(line)
        reached = Reached(reached_loss(own), tokens_of(steps), block_parameters(config))
    finally:
        files.remove_folder(own)
    if not math.isfinite(reached.loss):
        raise UserError(f"the pilot's held-out loss is {reached.loss}: its training has failed; try another text")
    return reached


def _do(line: str) -> None:
    """Does what a command's line says; the command ends with this process.

    Raises:
        UserError: it has failed.
    """
    done = subprocess.run(process_of(line), capture_output=True, errors="replace", check=False)
    if done.returncode:
        how = f"ended by {signal.Signals(-done.returncode).name}" if done.returncode < 0 else "failed"
        # Its last line says why; those before are warnings. The folder that they name is removed.
        why = done.stderr.strip().rpartition("\n")[2] or "it said nothing"
        raise UserError(f"the pilot's {shlex.split(line)[1]} {how}: {why}")


def _copy_part(source: str, target: str, share: float) -> None:
    """Copies the first lines of a text, its documents in an order of chance."""
    size, written = os.path.getsize(source), 0
    with open(source, "rb") as reader, open(target, "wb") as writer:
        for line in reader:
            written += writer.write(line)
            if written >= share * size:
                break
