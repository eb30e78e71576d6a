"""Compiles the steps of the TPU recipes in configs/: `make tpu-check-recipes`.

Each phase of a recipe is a step of its own. The table at the end is what the recipes' comments quote.
"""

import dataclasses
import os
import re
import shlex
import time
from typing import Any

from official_bert.errors import UserError
from official_bert.pretraining.options import Options as PretrainingOptions
from official_bert.utils import files, progress
from official_bert.utils.flags import ValidatedOptions, option
from tools.tpu_check import compiler, steps
from tools.tpu_check.answers import Compiled, Refused, as_table, cells_of
from tools.tpu_check.command import OUT_OF_TIME, StepCompiler, share_of_replica
from tools.tpu_check.options import REFUSED, PretrainingStepOptions

# The layout of a TPU's chips, by the name that it is rented by; a v3's number counts cores, two to a chip.
_LAYOUTS = {
    "v3": {8: "2x2", 32: "4x4", 128: "8x8"},
    "v5e": {1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"},
}
_NAME = re.compile(r"tpu_(v\w+?)-(\d+)\.flagfile$")


@dataclasses.dataclass(frozen=True)
class Options(ValidatedOptions):
    """Which recipes are compiled."""

    recipes: list[str] = option([], "Flagfiles named like tpu_v5e-8.flagfile; by default those in configs.")
    time_limit: int = option(1200, "Seconds that the compiler may take for a step.", min=1)


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


def phases_of(recipe: str) -> list[PretrainingStepOptions]:
    """Returns the options of the step of each phase of a recipe.

    Raises:
        UserError: the file is missing, a flag in it is unknown, or the check does not know what it makes of the step.
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
        PretrainingStepOptions(**{name: _parsed(value, kinds[name]) for name, value in phase.items()})
        for phase in phases
    ]


def _parsed(value: str, kind: object) -> Any:
    if kind is bool:
        return value.lower() in ("", "true", "1")
    return int(value) if kind is int else value


def run(options: Options) -> int:
    """Compiles every phase, prints a table, and returns how many phases do not fit or could not be compiled."""
    rows: list[tuple[str, ...]] = []
    head = ("recipe", "TPU", "length", "records per replica", "TFLOP", "memory, GiB", "exchanged", "fits", "took")
    failures = 0
    for recipe in options.recipes or files.glob("configs/tpu_*.flagfile"):
        topology = topology_of(recipe)
        for phase in phases_of(recipe):
            since = time.monotonic()
            cells, fits = _compiled(phase, StepCompiler(topology, options.time_limit))
            failures += not fits
            took = progress.format_duration(time.monotonic() - since)
            rows.append((os.path.basename(recipe), topology, str(phase.max_seq_length), *cells, took))
            print(as_table([head, rows[-1]]), flush=True)
    print("\n" + as_table([head, *rows]))
    return failures


def _compiled(options: PretrainingStepOptions, of_tpu: StepCompiler) -> tuple[tuple[str, ...], bool]:
    """The cells of a phase, and whether its step fits."""
    batch = share_of_replica(options, of_tpu.replicas, of_tpu.topology)
    step, _ = steps.pretraining_step(steps.read_config(options), options, of_tpu.replicas)
    try:
        answer: Compiled | Refused | str = of_tpu.compiled(step, batch)
    except compiler.OutOfTimeError:
        answer = OUT_OF_TIME
    except UserError as error:
        answer = f"not known: {error}"
    return cells_of(answer, batch), isinstance(answer, Compiled)
