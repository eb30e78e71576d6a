"""The measurements of a run over its steps: read from its log and reduced to what a picture can show."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from official_bert.utils.training_log import EVAL, GENERAL, TRAIN, read_log

LENGTH = "max_seq_length"


@dataclasses.dataclass(frozen=True)
class Curves:
    """What was measured in a run, by step; lines are ascending, each step once."""

    name: str
    train: list[dict[str, Any]]  # a line for each interval of the log, the means over its steps; `step` is its last one
    eval: list[dict[str, Any]]  # the same for evaluations, which are of one step
    general: list[dict[str, Any]] = dataclasses.field(default_factory=list)  # evaluations on general text

    @property
    def last_step(self) -> int:
        """The last step measured; 0 where there is none."""
        return max((int(lines[-1]["step"]) for lines in (self.train, self.eval) if lines), default=0)


def run_curves(folder: str) -> Curves:
    """Returns the curves of the run in a folder, which may have no log yet."""
    name = os.path.basename(os.path.normpath(folder))
    train, evaluations, general = (_in_order(read_log(folder, kind)) for kind in (TRAIN, EVAL, GENERAL))
    return Curves(name, train, evaluations, general)


def values_of(lines: Sequence[Mapping[str, Any]], name: str) -> np.ndarray:
    """Returns a measurement of each line, NaN where it is missing."""
    values = [line.get(name) for line in lines]
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def thinned(lines: Sequence[Mapping[str, Any]], name: str, most: int) -> tuple[np.ndarray, ...]:
    """Returns one measurement over the steps with at most `most` points.

    Returns:
        The steps, and the mean, least and greatest value of the lines that each point stands for, each [points]. The
        mean is by steps, the step is the last of them. Values that are not finite are left out; NaN where none is left.
    """
    steps, values = values_of(lines, "step"), values_of(lines, name)
    widths = np.diff(steps, prepend=0)
    points = []
    for group in np.array_split(np.arange(len(lines)), min(most, len(lines))) if len(lines) else []:
        kept, seen = group[np.isfinite(values[group])], (np.nan, np.nan, np.nan)
        if len(kept):
            seen = np.average(values[kept], weights=widths[kept]), values[kept].min(), values[kept].max()
        points.append((steps[group[-1]], *seen))
    return tuple(np.array(points).reshape(-1, 4).T)


def spread(lines: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """Returns at most `most` of the lines, evenly chosen, the first and the last among them."""
    return [lines[i] for i in np.unique(np.linspace(0, len(lines) - 1, min(most, len(lines))).round().astype(int))]


def phases(lines: Sequence[dict[str, Any]]) -> list[tuple[int | None, list[dict[str, Any]]]]:
    """Returns the lines by phase, a phase being of records of one length: (length or None if unknown, lines)."""
    length = next((line[LENGTH] for line in lines if LENGTH in line), None)
    by_phase: list[tuple[int | None, list[dict[str, Any]]]] = []
    for line in lines:
        before, length = length, line.get(LENGTH, length)
        if not by_phase or length != before:
            by_phase.append((length, []))
        by_phase[-1][1].append(line)
    return by_phase


def _in_order(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    # A run that was killed after its last checkpoint has logged some steps twice; the later line counts.
    by_step = {line["step"]: line for line in lines}
    return [by_step[step] for step in sorted(by_step)]
