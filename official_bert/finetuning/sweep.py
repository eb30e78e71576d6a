"""Many runs of one task: a grid of settings, several seeds of each, and one table of means and deviations."""

import dataclasses
import itertools
import json
import os
import statistics
from collections.abc import Callable
from typing import Any

import keras

from official_bert.errors import UserError
from official_bert.finetuning.options import Options
from official_bert.finetuning.runner import run, task_of
from official_bert.finetuning.training import get_deciding_score
from official_bert.runs.training_run import make_strategy
from official_bert.utils import files

TABLE_FILE, JSON_FILE = "sweep.md", "sweep.json"

# The lists of Options, and the option that each is of.
_AXES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "grid_batch_sizes": ("train_batch_size", int),
    "grid_learning_rates": ("learning_rate", float),
    "grid_epochs": ("num_train_epochs", float),
}


def is_sweep(options: Options) -> bool:
    """Whether the options ask for more than one run."""
    return bool(options.random_seeds) or any(getattr(options, name) for name in _AXES)


def run_sweep(options: Options) -> list[dict[str, Any]]:
    """Does all runs, each in a folder of its own below --output_dir, and returns a row for each setting.

    A sweep that was stopped goes on where it was. With --do_predict the best run of the best setting predicts.

    Raises:
        UserError: If there is nothing to evaluate on, or as of finetuning.run.
    """
    is_chief = make_strategy(options).extended.should_checkpoint  # of several workers, one writes
    task = task_of(options)
    if not task.eval_splits:
        raise UserError(f"{task.name} has nothing to evaluate on, so that runs cannot be compared; see --eval_file")
    deciding = get_deciding_score(task)
    seeds = [int(text) for text in options.random_seeds] or [options.random_seed]
    rows: list[dict[str, Any]] = []
    for setting in _settings(options):
        scores: dict[str, list[float]] = {}
        folders = []
        for seed in seeds:
            single = _single(options, setting, seed)
            print(f"run {_name(setting)}, seed {seed}", flush=True)
            for split, values in run(single).items():
                for name, value in values.items():
                    scores.setdefault(f"{split}/{name}", []).append(value)
            folders.append(single.output_dir)
            keras.utils.clear_session()  # the graphs of the run, which nobody needs any more
        rows.append({"setting": setting, "seeds": seeds, "folders": folders, "scores": scores})
    rows.sort(key=lambda row: -statistics.fmean(row["scores"][deciding]))
    table = _table(rows)
    print(table)
    if is_chief:
        files.write_text(os.path.join(options.output_dir, TABLE_FILE), table)
        files.write_text(os.path.join(options.output_dir, JSON_FILE), json.dumps(rows, indent=1) + "\n")
    best = max(zip(rows[0]["scores"][deciding], rows[0]["seeds"], strict=True))
    print(f"the best: {_name(rows[0]['setting'])}, seed {best[1]}, with {deciding} {best[0]:.4f}")
    if options.do_predict:
        single = _single(options, rows[0]["setting"], best[1])
        run(dataclasses.replace(single, do_train=False, do_eval=False, do_predict=True))
    return rows


def _settings(options: Options) -> list[dict[str, Any]]:
    axes = [
        [(name, kind(text)) for text in getattr(options, flag)]
        for flag, (name, kind) in _AXES.items()
        if getattr(options, flag)
    ]
    return [dict(setting) for setting in itertools.product(*axes)]


def _single(options: Options, setting: dict[str, Any], seed: int) -> Options:
    """The options of one run."""
    changes: dict[str, Any] = {
        **setting,
        **{flag: [] for flag in ["random_seeds", *_AXES]},
        "random_seed": seed,
        "output_dir": os.path.join(options.output_dir, _name(setting).replace(" ", "_"), f"seed_{seed}"),
        "cache_dir": options.cache_dir or os.path.join(options.output_dir, "features"),
        "do_train": True,
        "do_eval": True,
        "do_predict": False,
    }
    return dataclasses.replace(options, **changes)


def _name(setting: dict[str, Any]) -> str:
    short = {"train_batch_size": "batch", "learning_rate": "rate", "num_train_epochs": "epochs"}
    return " ".join(f"{short[name]} {value:g}" for name, value in setting.items()) or "defaults"


def _table(rows: list[dict[str, Any]]) -> str:
    """Markdown: means, and after ± the standard deviation of the sample; none for one seed."""
    names = list(dict.fromkeys(name for row in rows for name in row["scores"]))
    lines = [f"| setting | seeds | {' | '.join(names)} |", f"|---|---|{'---|' * len(names)}"]
    for row in rows:
        cells = []
        for name in names:
            values = row["scores"].get(name, [])
            if len(values) < len(
                row["seeds"]
            ):  # a score that not every run has, such as that of a rare type of entities
                cells.append("-")
                continue
            deviation = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
            cells.append(f"{statistics.fmean(values):.4f}{deviation}")
        lines.append(f"| {_name(row['setting'])} | {len(row['seeds'])} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
