"""Sweeps: runs every combination of some settings with several seeds, and tabulates means and standard deviations."""

import dataclasses
import itertools
import json
import os
import statistics
from typing import Any

import keras

from official_bert.finetuning.options import SWEPT, FinetuningOptions
from official_bert.finetuning.runner import make_run_task, run
from official_bert.finetuning.training import get_deciding_score, get_sign
from official_bert.runs.training_run import make_strategy
from official_bert.utils import files, markdown

TABLE_FILE, JSON_FILE = "sweep.md", "sweep.json"


def is_sweep(options: FinetuningOptions) -> bool:
    """Returns whether the options request several runs instead of one."""
    return any(getattr(options, name) for name in SWEPT)


def run_sweep(options: FinetuningOptions) -> list[dict[str, Any]]:
    """Runs all combinations of settings with all seeds, each run in its own folder in --output_dir.

    A sweep that was stopped is resumed. With --do_predict, the best run of the best combination makes predictions.

    Returns:
        A dict for each combination, best first, with its setting, seeds, folders, and scores by name.

    Raises:
        UserError: If the task has no evaluation data, or a run fails (see `runner.run`).
    """
    task = make_run_task(options)
    task.require_evaluation_data("a sweep, which compares runs by their scores,")
    deciding, sign = get_deciding_score(task), get_sign(task)
    del task  # frees the rows of a table
    is_chief = make_strategy(options).extended.should_checkpoint  # the worker that writes files
    seeds = [int(text) for text in options.random_seeds] or [options.random_seed]
    rows: list[dict[str, Any]] = []
    for setting in _list_settings(options):
        scores: dict[str, list[float]] = {}
        folders = []
        for seed in seeds:
            single = _make_run_options(options, setting, seed)
            print(f"run {_format_setting(setting)}, seed {seed}", flush=True)
            for split, values in run(single).items():
                for name, value in values.items():
                    scores.setdefault(f"{split}/{name}", []).append(value)
            folders.append(single.output_dir)
            keras.utils.clear_session()  # free the graphs of the run
        rows.append({"setting": setting, "seeds": seeds, "folders": folders, "scores": scores})
    rows.sort(key=lambda row: -sign * statistics.fmean(row["scores"][deciding]))
    table = _format_table(rows)
    print(table)
    if is_chief:
        files.write_text(os.path.join(options.output_dir, TABLE_FILE), table)
        files.write_text(os.path.join(options.output_dir, JSON_FILE), json.dumps(rows, indent=1) + "\n")
    best = rows[0]
    score, seed, folder = max(
        zip([sign * score for score in best["scores"][deciding]], seeds, best["folders"], strict=True)
    )
    if options.do_predict:
        single = _make_run_options(options, best["setting"], seed)
        run(dataclasses.replace(single, do_train=False, do_eval=False, do_predict=True))
    print(f"best run: {_format_setting(best['setting'])}, seed {seed}, with {deciding} {sign * score:.4f}, in {folder}")
    return rows


def _list_settings(options: FinetuningOptions) -> list[dict[str, Any]]:
    axes = [
        [(name, kind(text)) for text in getattr(options, flag)]
        for flag, (name, kind) in SWEPT.items()
        if getattr(options, flag) and name != "random_seed"
    ]
    return [dict(setting) for setting in itertools.product(*axes)]


def _make_run_options(options: FinetuningOptions, setting: dict[str, Any], seed: int) -> FinetuningOptions:
    """Returns the options of one run, with its setting, seed and folder."""
    changes: dict[str, Any] = {
        **setting,
        **{flag: [] for flag in SWEPT},
        "random_seed": seed,
        "output_dir": os.path.join(options.output_dir, _format_setting(setting).replace(" ", "_"), f"seed_{seed}"),
        "do_train": True,
        "do_eval": True,
        "do_predict": False,
    }
    return dataclasses.replace(options, **changes)


def _format_setting(setting: dict[str, Any]) -> str:
    short = {"train_batch_size": "batch", "learning_rate": "rate", "num_train_epochs": "epochs"}
    return " ".join(f"{short[name]} {value:g}" for name, value in setting.items()) or "defaults"


def _format_table(rows: list[dict[str, Any]]) -> str:
    """Returns a Markdown table of scores: means ± sample standard deviations, or only means if there is one seed."""
    names = list(dict.fromkeys(name for row in rows for name in row["scores"]))
    table = [["setting", "seeds", *names]]
    for row in rows:
        cells = []
        for name in names:
            values = row["scores"].get(name, [])
            if len(values) < len(row["seeds"]):  # a run may lack the F1 of a rare type of entities
                cells.append("-")
                continue
            deviation = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
            cells.append(f"{statistics.fmean(values):.4f}{deviation}")
        table.append([_format_setting(row["setting"]), str(len(row["seeds"])), *cells])
    return markdown.table(table) + "\n"
