"""The lines of a plan's commands, and the names in its folder."""

import math
import os
import shlex
import sys
from collections.abc import Mapping
from typing import Any

from official_bert.utils import files
from official_bert.utils.signals import ending_with_this_process
from planning import text
from planning.options import Options
from planning.recipe import BATCH_SIZE, PART, Part, Size, compiles_whole_step, passes_over, warmup_of
from planning.text import TextCounts

TEXT_FOLDER, CONFIG_FILE, PLAN_FILE = "text", "bert_config.json", "plan.json"
_EVALUATED, _EVALUATION_BATCH = 100, 64  # batches, and records in each


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


def lines_here(options: Options, counts: TextCounts, size: Size, steps: int, dtype: str) -> list[str]:
    """The commands that train on this machine in the plan's folder, each to be given when those before are done."""

    def at(*names: str) -> str:
        return os.path.join(options.output_dir, *names)

    def records(name: str, source: str, share: float, passes: int) -> str:
        return records_line(options, counts, name, source, PART, masked_lm_prob=share, dupe_factor=passes)

    training = {
        "do_train": True, "do_eval": True, "input_file": at("train.tfrecord"),
        "eval_input_file": at("heldout.tfrecord"), "bert_config_file": at(CONFIG_FILE),
        "vocab_file": at(TEXT_FOLDER, text.VOCAB_FILE), "output_dir": at("model"), "init_from_records": True,
        "max_seq_length": PART.length, "max_predictions_per_seq": PART.predictions, "train_batch_size": BATCH_SIZE,
        "learning_rate": size.learning_rate, "num_train_steps": steps, "num_warmup_steps": warmup_of(steps),
        "warmup_jump": False, "dtype": dtype, "jit_compile": compiles_whole_step(dtype),
        "save_checkpoints_steps": math.ceil(steps / 5), "keep_checkpoint_max": 2,
        "eval_batch_size": _EVALUATION_BATCH, "max_eval_steps": _EVALUATED,
        "random_seed": options.random_seed, "plan": at(PLAN_FILE),
        **({} if counts.pairs else {"next_sentence_prediction": False}),
    }  # fmt: skip
    return [
        records("train", text.TEXT_FILE, PART.masked_share, passes_over(counts.tokens, steps)),
        records("heldout", text.HELDOUT_FILE, 0.15, 1),
        command_line("pretrain", training),
    ]


def reached_loss(folder: str) -> float:
    """Returns the held-out masked-LM loss of the model in a folder where the commands of `lines_here` ran."""
    path = os.path.join(folder, "model", "eval_results.txt")
    return float(dict(line.split(" = ") for line in files.read_text(path).splitlines())["masked_lm_loss"])


def process_of(line: str) -> list[str]:
    """Returns the words of a process that does what a line says, and that Linux ends when this one ends."""
    named = "import sys; sys.argv[0] = 'official-bert'"  # what model cards say that it was
    program = f"{ending_with_this_process()}; {named}; from official_bert_cli import main; main()"
    return [sys.executable, "-c", program, *shlex.split(line)[1:]]


def command_line(command: str, flags: Mapping[str, Any]) -> str:
    """Returns a command of official-bert with its flags, as it is typed."""

    def flag(name: str, value: Any) -> str:
        return f"--{'' if value else 'no'}{name}" if isinstance(value, bool) else f"--{name}={value}"

    return shlex.join(["official-bert", command, *(flag(name, value) for name, value in flags.items())])
