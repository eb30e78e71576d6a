"""A run's measurements over its steps: read, thinned out, kept as a reference for others, compared with one."""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from official_bert.data.masking_rates import BERT_RATES
from official_bert.data.sentence_objectives import NEXT_SENTENCE
from official_bert.errors import UserError
from official_bert.pretraining.run_metadata import read_run_metadata
from official_bert.utils import files
from official_bert.utils.training_log import EVAL, GENERAL, TRAIN, read_log

LENGTH = "max_seq_length"

# The options that must agree before two runs' losses can be expected to; beside them the model's configuration counts.
COMPARED_OPTIONS = (
    "max_seq_length max_predictions_per_seq train_batch_size learning_rate num_train_steps num_warmup_steps "
    "warmup_jump decay_power end_learning_rate optimizer freeze dtype"
).split()

# What the losses are of; the values of runs that do not say it.
_OBJECTIVES = {
    "left_to_right": False,
    "next_sentence_prediction": True,
    "masking_rates": str(BERT_RATES),
    "sentence_objective": NEXT_SENTENCE,
}

_COLUMNS = ("step", "masked_lm_loss", "masked_lm_accuracy", "next_sentence_loss", "next_sentence_accuracy", LENGTH)
_REFERENCE_LINES = 100
_TOLERANCE = 0.05  # two seeds of a run of BERT-Tiny differed by at most 3.3 % in its first 200 steps
_WINDOW = 0.1  # the share of the steps so far over which losses are averaged before they are compared


@dataclasses.dataclass(frozen=True)
class Curves:
    """What was measured in a run, by step; lines are ascending, each step once."""

    name: str
    train: list[dict[str, Any]]  # a line for each interval of the log, the means over its steps; `step` is its last one
    eval: list[dict[str, Any]]  # the same for evaluations, which are of one step
    settings: dict[str, Any]  # what decides the losses, as far as it is known
    general: list[dict[str, Any]] = dataclasses.field(default_factory=list)  # evaluations on general text

    @property
    def last_step(self) -> int:
        """The last step measured; 0 where there is none."""
        return max((int(lines[-1]["step"]) for lines in (self.train, self.eval) if lines), default=0)


def read_curves(path: str) -> Curves:
    """Reads the curves of a run's folder, or those that `save_curves` wrote to a file.

    Raises:
        UserError: there is neither a log nor a file of curves.
    """
    if path.endswith(".json"):
        return _read_reference(path)
    if not files.exists(os.path.join(path, f"{TRAIN}.jsonl")):
        raise UserError(
            f"{path} is neither the folder of a run (it has no {TRAIN}.jsonl) nor a file of curves (NAME.json)"
        )
    return run_curves(path, read_run_metadata(path))


def run_curves(folder: str, metadata: Mapping[str, Any]) -> Curves:
    """Returns the curves of a run's folder, which may have no log yet; `metadata` as in report.write_report."""
    name = os.path.basename(os.path.normpath(folder))
    train, evaluations, general = (_in_order(read_log(folder, kind)) for kind in (TRAIN, EVAL, GENERAL))
    return Curves(name, train, evaluations, _settings(metadata), general)


def save_curves(folder: str, path: str) -> None:
    """Writes a run's curves to a small JSON file, as a reference to compare other runs with.

    It holds at most a hundred intervals of training and as many evaluations, the run's command, versions and settings,
    and no path of the machine but those in the command. To be called after report.write_report.

    Raises:
        UserError: the run has logged nothing, or the name is of another form.
    """
    if not path.endswith(".json"):
        raise UserError(f"{path} cannot name a file of curves; expected NAME.json")
    curves, metadata = read_curves(folder), read_run_metadata(folder)
    if not curves.train:
        raise UserError(f"{folder} has no training logged: there are no curves to save")
    columns = [name for name in _COLUMNS if any(name in line for line in curves.train)]
    parts = {
        "command": metadata.get("command"),
        "made_with": metadata.get("versions", {}),
        "settings": curves.settings,
        "columns": columns,
    }
    lines = {TRAIN: _means(curves.train, columns, _REFERENCE_LINES), EVAL: spread(curves.eval, _REFERENCE_LINES)}
    text = "".join(f"{json.dumps(name)}: {json.dumps(value)},\n" for name, value in parts.items())
    for kind, kept in lines.items():  # a line of the file for each, so that differences can be read
        rows = ",\n".join(json.dumps([_rounded(line.get(name)) for name in columns]) for line in kept)
        text += f"{json.dumps(kind)}: [\n{rows}\n]{',' if kind == TRAIN else ''}\n"
    files.write_text(path, f"{{\n{text}}}\n")


def comparison(run: Curves, reference: Curves) -> str:
    """Says in a sentence or two whether a run is on track.

    The masked-LM losses of both are averaged over the same steps, up to the last line of the reference that the run has
    come to.
    """
    common = [line["step"] for line in reference.train if run.train and line["step"] <= run.train[-1]["step"]]
    if not common:
        return (
            f"too early to compare: the reference {reference.name} begins at step {reference.train[0]['step']:,}."
            if reference.train
            else f"the reference {reference.name} has no training to compare with."
        )
    step = common[-1]
    first = max(0, step - max(round(_WINDOW * step), *(_interval(curves, step) for curves in (run, reference))))
    ours, theirs = (_mean_loss(curves, first, step) for curves in (run, reference))
    if not (np.isfinite(ours) and theirs > 0):
        return f"step {step:,}: no finite masked LM loss to compare with the reference {reference.name}."
    ratio = ours / theirs - 1
    if abs(ratio) <= _TOLERANCE:
        verdict = f"on track (within {100 * _TOLERANCE:.0f} %)"
    elif ratio < 0:
        verdict = f"ahead of it ({-100 * ratio:.1f} % lower)"
    else:
        verdict = f"not on track ({100 * ratio:.1f} % higher)"
    sentence = (
        f"step {step:,}: masked LM loss {ours:.2f}, reference {reference.name} {theirs:.2f}: {verdict}; both are means "
        f"of steps {first + 1:,} to {step:,}."
    )
    theirs_of = {**_OBJECTIVES, **reference.settings}
    different = [
        f"{name} {value} (reference {theirs_of[name]})"
        for name, value in run.settings.items()
        if name in theirs_of and theirs_of[name] != value
    ]
    return sentence + (f" The runs differ in {', '.join(different)}." if different else "")


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


def _settings(metadata: Mapping[str, Any]) -> dict[str, Any]:
    flags = metadata.get("flags", {})
    settings = {name: flags[name] for name in COMPARED_OPTIONS if name in flags} | dict(metadata.get("config", {}))
    sources = [manifest.get("source", {}) for manifest in metadata.get("data", ())]
    given = {**(sources[0].get("flags", {}) if sources else {}), **flags}
    settings |= {name: given[name] for name in _OBJECTIVES if name in given}
    vocabularies = {source.get("vocabulary") for source in sources} - {None}
    if vocabularies:
        settings["vocabulary"] = " ".join(sorted(digest[:12] for digest in vocabularies))
    return settings


def _means(lines: list[dict[str, Any]], columns: list[str], most: int) -> list[dict[str, Any]]:
    steps = thinned(lines, "step", most)[0]
    kept: list[dict[str, Any]] = [{"step": int(step)} for step in steps]
    for name in columns[1:]:
        for line, value in zip(kept, thinned(lines, name, most)[1].tolist(), strict=True):
            line[name] = value
    by_step = {line["step"]: line.get(LENGTH) for line in lines}
    for line in kept:
        line[LENGTH] = by_step[line["step"]]  # not a mean, where a point lies over the boundary of two phases
    return kept


def _rounded(value: float | None) -> float | None:
    if value is None or not np.isfinite(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.5g}")


def _read_reference(path: str) -> Curves:
    held = files.read_json(path)
    try:
        lines = {kind: [dict(zip(held["columns"], row, strict=True)) for row in held[kind]] for kind in (TRAIN, EVAL)}
        for line in (*lines[TRAIN], *lines[EVAL]):
            if not isinstance(line["step"], int) or any(isinstance(value, str) for value in line.values()):
                raise ValueError(f"{line} are not numbers")
        if not lines[TRAIN]:
            raise ValueError("it holds no training")
        name = os.path.basename(path).removesuffix(".json")
        return Curves(name, _in_order(lines[TRAIN]), _in_order(lines[EVAL]), dict(held.get("settings", {})))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"{path} is not a file of curves, or is damaged ({error!r}); give one of configs/curves, one that a run "
            "has saved, or a run's folder"
        ) from error


def _interval(curves: Curves, step: int) -> int:
    """The number of steps that the line over `step` stands for."""
    steps = [0, *(int(line["step"]) for line in curves.train)]
    end = int(np.searchsorted(steps, step))
    return steps[end] - steps[end - 1]


def _mean_loss(curves: Curves, first: int, last: int) -> float:
    """The mean masked-LM loss of the steps after `first` up to `last`; a line counts for each of its steps."""
    ends, losses = values_of(curves.train, "step"), values_of(curves.train, "masked_lm_loss")
    starts = np.concatenate([[0], ends[:-1]])
    overlaps = np.clip(np.minimum(ends, last) - np.maximum(starts, first), 0, None)
    counted = (overlaps > 0) & np.isfinite(losses)
    return float(np.average(losses[counted], weights=overlaps[counted])) if counted.any() else float("nan")
