"""The lines of a plan's commands, and the names in its folder."""

import os
import shlex
from collections.abc import Mapping
from typing import Any

from planning import text
from planning.options import Options
from planning.recipe import Part
from planning.text import TextCounts

TEXT_FOLDER, CONFIG_FILE = "text", "bert_config.json"


def records_line(options: Options, counts: TextCounts, name: str, source: str, part: Part, **more: Any) -> str:
    """The command that makes records of one length from a file of the plan's text."""
    folder = os.path.join(options.output_dir, TEXT_FOLDER)
    objective = {} if counts.pairs else {"sentence_objective": "none"}
    return command_line("make-records", {
        "input_file": os.path.join(folder, source), "input_format": "sentences",
        "output_file": os.path.join(options.output_dir, f"{name}.tfrecord"),
        "vocab_file": os.path.join(folder, text.VOCAB_FILE), "max_seq_length": part.length,
        "max_predictions_per_seq": part.predictions, "random_seed": options.random_seed, **more, **objective,
    })  # fmt: skip


def command_line(command: str, flags: Mapping[str, Any]) -> str:
    """Returns a command of official-bert with its flags, as it is typed."""

    def flag(name: str, value: Any) -> str:
        return f"--{'' if value else 'no'}{name}" if isinstance(value, bool) else f"--{name}={value}"

    return shlex.join(["official-bert", command, *(flag(name, value) for name, value in flags.items())])
