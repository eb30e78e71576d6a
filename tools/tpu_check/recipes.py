"""Compiles the training steps of the TPU recipes in configs/: `make tpu-check-recipes`.

Each phase of a recipe has its own step. The comments in the recipes quote the table that is printed at the end.
"""

import dataclasses
import os
import re
import shlex
import time
from typing import Any

from official_bert.errors import UserError
from official_bert.pretraining.options import PretrainingOptions
from official_bert.utils import files, markdown, progress
from official_bert.utils.flags import ValidatedOptions, option
from tools.tpu_check import compiler, steps
from tools.tpu_check.answers import Compiled, Refused, format_cells
from tools.tpu_check.command import OUT_OF_TIME, StepCompiler, get_replica_batch_size
from tools.tpu_check.options import REFUSED, PretrainingStepOptions

# Layout of the chips by the name of the TPU. The number in the name of a v3 counts cores, two per chip.
_LAYOUTS = {
    "v3": {8: "2x2", 32: "4x4", 128: "8x8"},
    "v5e": {1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"},
}
_NAME = re.compile(r"tpu_(v\w+?)-(\d+)\.flagfile$")


@dataclasses.dataclass(frozen=True)
class Options(ValidatedOptions):
    """The flags of the check of recipes."""

    recipes: list[str] = option([], "Flagfiles with names such as tpu_v5e-8.flagfile. Defaults to all in configs/.")
    time_limit: int = option(1200, "Time limit of the compiler per step, in seconds.", min=1)


def get_topology(recipe: str) -> str:
    """Returns the TPU topology that a recipe's name states, such as v5e:2x4 for tpu_v5e-8.flagfile.

    Raises:
        UserError: If the name contains no known TPU.
    """
    match = _NAME.search(recipe)
    kind, number = (match[1], int(match[2])) if match else ("", 0)
    layout = _LAYOUTS.get(kind, {}).get(number)
    if layout is None:
        known = ", ".join(f"{kind}-{number}" for kind, layouts in _LAYOUTS.items() for number in layouts)
        raise UserError(
            f"{recipe} is not named after a known TPU; expected tpu_NAME.flagfile, with NAME one of {known}"
        )
    return f"{kind}:{layout}"


def read_phases(recipe: str) -> list[PretrainingStepOptions]:
    """Returns the step options of each phase of a recipe.

    Raises:
        UserError: If the file is missing, or contains a flag that is unknown or not supported by the check.
    """
    flags: dict[str, str] = {}
    for number, line in enumerate(files.read_text(recipe).splitlines(), start=1):
        if line.strip() and not line.startswith("#"):
            name, _, value = shlex.split(line)[0].removeprefix("--").partition("=")
            if name not in {field.name for field in dataclasses.fields(PretrainingOptions)}:
                raise UserError(f"{recipe}, line {number}: run_pretraining has no flag --{name}")
            if name in REFUSED:
                raise UserError(f"{recipe}, line {number}: --{name} is not a flag of the check: {REFUSED[name]}")
            flags[name] = value
    kinds = {field.name: field.type for field in dataclasses.fields(PretrainingStepOptions)}
    phases = [{name: value for name, value in flags.items() if name in kinds}]
    if "phase2_num_train_steps" in flags:
        second = {name.removeprefix("phase2_"): value for name, value in flags.items() if name.startswith("phase2_")}
        phases.append(phases[0] | {name: value for name, value in second.items() if name in kinds})
    return [
        PretrainingStepOptions(**{name: _parse_value(value, kinds[name]) for name, value in phase.items()})
        for phase in phases
    ]


def _parse_value(value: str, kind: object) -> Any:
    if kind is bool:
        return value.lower() in ("", "true", "1")
    return int(value) if kind is int else value


def run(options: Options) -> int:
    """Compiles the step of every phase and prints a table.

    Returns:
        The number of phases that do not fit or could not be compiled.
    """
    rows: list[tuple[str, ...]] = []
    head = ("recipe", "TPU", "length", "records per replica", "TFLOP", "memory, GiB", "exchanged", "fits", "took")
    failures = 0
    for recipe in options.recipes or files.glob("configs/tpu_*.flagfile"):
        topology = get_topology(recipe)
        for phase in read_phases(recipe):
            since = time.monotonic()
            cells, fits = _compile_phase(phase, StepCompiler(topology, options.time_limit))
            failures += not fits
            took = progress.format_duration(time.monotonic() - since)
            rows.append((os.path.basename(recipe), topology, str(phase.max_seq_length), *cells, took))
            print(markdown.table([head, rows[-1]]), flush=True)
    print("\n" + markdown.table([head, *rows]))
    return failures


def _compile_phase(options: PretrainingStepOptions, step_compiler: StepCompiler) -> tuple[tuple[str, ...], bool]:
    """Returns the table cells of a phase, and whether its step fits."""
    batch = get_replica_batch_size(options, step_compiler.replicas, step_compiler.topology)
    step, _ = steps.pretraining_step(steps.read_config(options), options, step_compiler.replicas)
    try:
        answer: Compiled | Refused | str = step_compiler.compile(step, batch)
    except compiler.OutOfTimeError:
        answer = OUT_OF_TIME
    except UserError as error:
        answer = f"not known: {error}"
    return format_cells(answer, batch), isinstance(answer, Compiled)
