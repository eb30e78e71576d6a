"""A run of any kind as its curves and settings: what a comparison needs of it."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from official_bert.errors import UserError
from official_bert.finetuning.report import JSON_FILE
from official_bert.finetuning.training import OPTIONS_FILE
from official_bert.pretraining import curves, run_metadata
from official_bert.utils import configs, files
from official_bert.utils.training_log import EVAL, TRAIN

_KIND = "kind of run"
_UNKNOWN = ""
_NO_SCORES = ("step", curves.LENGTH)
# In the log's lines of training, beside the scores.
_MEASUREMENTS = (
    "learning_rate gradient_norm steps_per_second examples_per_second tokens_per_second processor_seconds "
    "input_wait_share model_flops_per_second flops_utilization"
).split()
# Settings that name places or what is shown: they differ between any two runs.
_LEFT_OUT = frozenset(
    "output_dir save_checkpoints_steps keep_checkpoint_max log_steps compare_with save_curves tracker profile_steps "
    "begin_anew allow_changes iterations_per_loop data evaluation_data".split()
)


@dataclasses.dataclass(frozen=True)
class Run:
    """A run's measurements and settings.

    Attributes:
        path: as the user gave it.
        train: the log's lines, ascending in steps, each the means over the steps since the line before.
        eval: those of evaluations.
        settings: options and sizes, by name.
    """

    path: str
    train: list[dict[str, Any]]
    eval: list[dict[str, Any]]
    settings: dict[str, Any]

    def scores(self, kind: str) -> list[str]:
        """Returns the names of what was measured of the model, in training or in evaluations."""
        lines = self.train if kind == TRAIN else self.eval
        names = dict.fromkeys(name for line in lines for name in line)
        return [name for name in names if name not in (*_NO_SCORES, *_MEASUREMENTS)]

    def amounts(self) -> dict[str, np.ndarray]:
        """Returns what was spent up to each line of training, [lines]: steps, tokens, seconds, processor time.

        NaN where the log does not say it: logs of earlier versions have no processor time, files of curves only steps.
        """
        steps = curves.values_of(self.train, "step")
        seconds = np.diff(steps, prepend=0) / curves.values_of(self.train, "steps_per_second")
        return {
            "steps": steps,
            "tokens": np.cumsum(seconds * curves.values_of(self.train, "tokens_per_second")),
            "seconds": np.cumsum(seconds),
            "processor seconds": np.cumsum(curves.values_of(self.train, "processor_seconds")),
        }

    def last(self, kind: str, score: str) -> float | None:
        """Returns the value of the last line that has the score; None where no line has it.

        It is NaN where the run's was; files of curves keep no such values.
        """
        lines = self.train if kind == TRAIN else self.eval
        return next((line[score] for line in reversed(lines) if line.get(score) is not None), None)

    def curve(self, kind: str, score: str, amount: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns the points of a score over an amount, each [points]; none where the log lacks one of the two.

        An evaluation stands at what training had spent by its step.
        """
        spent = self.amounts()
        lines = self.train if kind == TRAIN else self.eval
        values = curves.values_of(lines, score)
        at = spent[amount]
        if kind == EVAL:
            at = np.interp(curves.values_of(lines, "step"), [0, *spent["steps"]], [0, *at])
        known = np.isfinite(at) & np.isfinite(values)
        return at[known], values[known]


def read(path: str) -> Run:
    """Reads a run's folder, of pre-training or of fine-tuning, or a file of curves.

    Raises:
        UserError: there is no run, or its log has no training.
    """
    if path.endswith(".json"):
        found = curves.read_curves(configs.find_config(path))
        return Run(path, found.train, found.eval, {_KIND: "kept curves", **found.settings})
    if not files.exists(os.path.join(path, f"{TRAIN}.jsonl")):
        raise UserError(
            f"{path} is no run: it has no {TRAIN}.jsonl; expected the --output_dir of pretrain, finetune or adapt, or "
            "a file of curves (NAME.json)"
        )
    metadata = run_metadata.read_run_metadata(path)
    found = curves.run_curves(path, metadata)
    if not found.train:
        raise UserError(f"{path} has no curve: its {TRAIN}.jsonl is empty; compare runs that have trained for a while")
    return Run(path, found.train, found.eval, {**_settings(path, metadata), **found.settings})


def _settings(folder: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The run's options with the sizes of its model, without those that say nothing of its results."""
    is_finetuning = files.exists(os.path.join(folder, OPTIONS_FILE))
    settings = {_KIND: "fine-tuning" if is_finetuning else "pre-training"}
    settings |= {**metadata.get("flags", {}), **metadata.get("config", {})}
    settings |= {name: metadata[name] for name in ("parameters", "devices") if name in metadata}
    for name in (OPTIONS_FILE, JSON_FILE):  # of fine-tuning; its report has all options, but only when it is done
        path = os.path.join(folder, name)
        if files.exists(path):
            held = files.read_json_object(path)
            settings |= held.get("settings", {}) if name == JSON_FILE else held
    return {name: value for name, value in settings.items() if name not in _LEFT_OUT}


def differing_settings(runs: Sequence[Run]) -> list[list[str]]:
    """Returns a table of the settings in which runs differ, a column for each run; only a head where none does.

    A setting that a run does not know, such as those that a file of curves has not kept, does not differ from others.
    """
    names = dict.fromkeys(name for run in runs for name in run.settings)
    table = [["setting", *(run.path for run in runs)]]
    for name in names:
        values = [_as_text(run.settings[name]) if name in run.settings else _UNKNOWN for run in runs]
        if len(set(values) - {_UNKNOWN}) > 1:
            table.append([name, *values])
    return table


def _as_text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
