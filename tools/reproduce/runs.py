"""Runs the commands of an experiment in separate processes. A command whose results exist is skipped."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from official_bert.errors import UserError
from official_bert.utils import files
from official_bert.utils.signals import end_with_parent_statement
from tools.reproduce.tables import Flags


class Run(NamedTuple):
    """A command of official-bert, its flags, and the folder of its results."""

    folder: str
    command: str
    flags: Flags

    def line(self) -> str:
        """Returns the command line as a user would type it."""
        return shlex.join(["official-bert", self.command, *map(_format_flag, self.flags.items())])


def _format_flag(item: tuple[str, Any]) -> str:
    name, value = item
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no{name}"
    return f"--{name}={','.join(value) if isinstance(value, list) else value}"


def perform(runs: Sequence[Run]) -> None:
    """Runs the commands one after the other. Skips commands that have been run before.

    Raises:
        UserError: If a command fails, or its folder contains the results of another command.
    """
    for run in runs:
        print(f"$ {run.line()}", flush=True)
        done_file, output = (os.path.join(run.folder, name) for name in ("done.json", "output.txt"))
        if files.exists(done_file):
            if files.read_json_object(done_file)["command"] != run.line():
                raise UserError(f"{run.folder} holds the results of another command; pass another --output_dir")
            print("  done before", flush=True)
            continue
        files.make_folder(run.folder)
        code, seconds, processor_seconds = _call(run, output)
        if code:
            raise UserError(f"{run.line()} failed with exit code {code}; its output is in {output}")
        print(f"  done in {seconds:,} s, {processor_seconds:,} s of processor time: {run.folder}", flush=True)
        done = {"command": run.line(), "seconds": seconds, "processor_seconds": processor_seconds}
        files.write_text(done_file, json.dumps(done) + "\n")


def _call(run: Run, output: str) -> tuple[int, int, int]:
    """Runs a command and appends its output to a file. Returns its exit code, elapsed and processor seconds."""
    command = [sys.executable, "-c", _program(), run.command, *map(_format_flag, run.flags.items())]
    before = os.times()
    with open(output, "ab") as target:
        code = subprocess.call(command, stdout=target, stderr=subprocess.STDOUT)
    after = os.times()
    return code, round(after[4] - before[4]), round(sum(after[2:4]) - sum(before[2:4]))


def _program() -> str:
    """Returns the Python code that the process of a command executes.

    It makes the command end together with this process. Otherwise, the command would still lock its folder when the
    experiment is started again.
    """
    # The model card of a run shows argv[0].
    return (
        f"{end_with_parent_statement()}; import sys; sys.argv[0] = 'official-bert'; "
        "from official_bert_cli import main; main()"
    )
