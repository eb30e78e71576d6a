"""Compiles the steps of the TPU recipes in configs/: `make tpu-check-recipes`.

Each phase of a recipe is a step of its own. The table at the end is what the recipes' comments quote.
"""

import dataclasses
import os
import re
import shlex
import time
from collections.abc import Sequence
from typing import Any

from official_bert.errors import UserError
from official_bert.pretraining.options import Options as PretrainingOptions
from official_bert.utils import files, progress
from official_bert.utils.flags import option
from tpu_check import compiler
from tpu_check.answers import Compiled
from tpu_check.command import Options as CheckOptions
from tpu_check.command import StepCheck

# The layout of a TPU's chips, by the name that it is rented by; a v3's number counts cores, two to a chip.
_LAYOUTS = {
    "v3": {8: "2x2", 32: "4x4", 128: "8x8"},
    "v5e": {1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"},
}
_NAME = re.compile(r"tpu_(v\w+?)-(\d+)\.flagfile$")


@dataclasses.dataclass(frozen=True)
class Options:
    """Which recipes are compiled."""

    recipes: list[str] = option([], "Flagfiles named like tpu_v5e-8.flagfile; by default those in configs.")
    time_limit: int = option(1200, "Seconds that the compiler may take for a step.")


def topology_of(recipe: str) -> str:
    """Returns the topology that a recipe's name says: v5e:2x4 of tpu_v5e-8.flagfile.

    Raises:
        UserError: the name says none that is known.
    """
    match = _NAME.search(recipe)
    kind, number = (match[1], int(match[2])) if match else ("", 0)
    layout = _LAYOUTS.get(kind, {}).get(number)
    if layout is None:
        known = ", ".join(f"{kind}-{number}" for kind, layouts in _LAYOUTS.items() for number in layouts)
        raise UserError(f"{recipe}: no TPU is known by its name; expected tpu_NAME.flagfile, with NAME one of {known}")
    return f"{kind}:{layout}"


def phases_of(recipe: str) -> list[CheckOptions]:
    """Returns the options of the check for each phase of a recipe.

    Raises:
        UserError: the file is missing, or a flag in it is unknown.
    """
    flags: dict[str, str] = {}
    for number, line in enumerate(files.read_text(recipe).splitlines(), start=1):
        if line.strip() and not line.startswith("#"):
            name, _, value = shlex.split(line)[0].removeprefix("--").partition("=")
            if name not in {field.name for field in dataclasses.fields(PretrainingOptions)}:
                raise UserError(f"{recipe}, line {number}: run_pretraining has no flag --{name}")
            flags[name] = value
    first = {"topology": topology_of(recipe), "find_largest_batch": "false"}
    fields = {field.name: field for field in dataclasses.fields(CheckOptions)}
    first |= {name: value for name, value in flags.items() if name in fields}
    phases = [first]
    if "phase2_num_train_steps" in flags:
        second = {name.removeprefix("phase2_"): value for name, value in flags.items() if name.startswith("phase2_")}
        phases.append(first | {name: value for name, value in second.items() if name in fields})
    kinds = {name: field.type for name, field in fields.items()}
    return [CheckOptions(**{name: _parsed(value, kinds[name]) for name, value in phase.items()}) for phase in phases]


def _parsed(value: str, kind: object) -> Any:
    if kind is bool:
        return value.lower() in ("", "true", "1")
    return int(value) if kind is int else value


def run(options: Options) -> int:
    """Compiles every phase, prints a table, and returns how many phases do not fit or could not be compiled."""
    recipes = options.recipes or files.glob("configs/tpu_*.flagfile")
    rows = [("recipe", "TPU", "length", "records per replica", "TFLOP", "memory, GiB", "exchanged", "seconds")]
    failures = 0
    for recipe in recipes:
        for phase in phases_of(recipe):
            since = time.monotonic()
            phase = dataclasses.replace(phase, time_limit=options.time_limit)
            row, fits = _compiled(phase)
            failures += not fits
            seconds = progress.duration(time.monotonic() - since)
            rows.append((os.path.basename(recipe), phase.topology, str(phase.max_seq_length), *row, seconds))
            print(_table(rows[:1] + rows[-1:]), flush=True)
    print("\n" + _table(rows))
    return failures


def _compiled(options: CheckOptions) -> tuple[tuple[str, str, str, str], bool]:
    """The row of a phase, and whether its step fits."""
    check = StepCheck(options)
    try:
        answer = check.compiled(check.batch, quickly=False)
    except compiler.OutOfTimeError:
        return (f"{check.batch:,}", "-", "not known: out of time", "-"), False
    except UserError as error:
        return (f"{check.batch:,}", "-", f"not known: {error}", "-"), False
    if not isinstance(answer, Compiled):
        return (f"{check.batch:,}", "-", str(answer), "-"), False
    exchanged = ", ".join(f"{number} {kind}: {size / 1e6:,.0f} MB" for kind, number, size in answer.collectives)
    memory = f"{answer.peak_bytes / 2**30:.2f}"
    return (f"{check.batch:,}", f"{answer.flops / 1e12:.2f}", memory, exchanged or "nothing"), True


def _table(rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; the first row is its head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])
