"""The page of a comparison."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from official_bert.comparison import runs as comparison
from official_bert.comparison.runs import Run
from official_bert.errors import UserError
from official_bert.utils import files, html_pages
from official_bert.utils.counting import counted
from official_bert.utils.progress import duration
from official_bert.utils.training_log import EVAL, TRAIN

_AMOUNTS = ("steps", "tokens", "seconds", "processor seconds")
_KINDS = {TRAIN: "training", EVAL: "evaluation"}
_FEW = 30  # as many points are marked
_UNKNOWN = "–"
_NOTE = (
    "Seconds and processor time are those of the steps: without start, evaluation and saving. Processor time is of one "
    "process. What a log does not hold is left out."
)


def compare(paths: Sequence[str], output_file: str) -> str:
    """Writes a page that compares runs; returns a line that names it.

    Args:
        paths: folders of runs, or files of curves; at least two.
        output_file: where the page goes.

    Raises:
        UserError: there are too few, one is no run, one is named twice, or the page cannot be written.
    """
    if len(paths) < 2:
        given = counted(len(paths), "argument")
        raise UserError(f"{given}; expected at least two runs: official-bert compare RUN RUN ...")
    for first, second in itertools.combinations(paths, 2):
        if files.is_same_file(first, second):
            raise UserError(f"{second} is given twice; name each run once")
    of_runs = (f"{path}/{name}" for path in paths if files.is_folder(path) for name in files.list_folder(path))
    files.refuse_overwriting(output_file, "output_file", (*paths, *of_runs))
    runs = [comparison.read(path) for path in paths]
    files.write_text(output_file, _page(runs))
    differences = comparison.differing_settings(runs)
    return f"{len(runs)} runs compared in {output_file}; they differ in {counted(len(differences) - 1, 'setting')}"


def _page(runs: Sequence[Run]) -> str:
    differences = html_pages.section("Settings that differ", comparison.differing_settings(runs), stacked=True)
    body = [
        f"<h1>{len(runs)} runs compared</h1>",
        html_pages.section("Where they stand", _ends(runs), stacked=True),
        differences or "<h2>Settings that differ</h2>\n<p>None.</p>",
        *(_pictures(runs, kind, score) for kind in _KINDS for score in _scores(runs, kind)),
        f"<p>{_NOTE}</p>",
    ]
    return html_pages.page("Runs compared", [part for part in body if part])


def _scores(runs: Sequence[Run], kind: str) -> list[str]:
    return list(dict.fromkeys(score for run in runs for score in run.scores(kind)))


def _ends(runs: Sequence[Run]) -> html_pages.Table:
    """What each run has spent, and the scores of its last line."""
    heads = [(kind, score) for kind in _KINDS for score in _scores(runs, kind)]
    table = [["run", *_AMOUNTS, *(f"{score}, {_KINDS[kind]}" for kind, score in heads)]]
    for run in runs:
        row = [run.path]
        for amount, values in run.amounts().items():
            last = values[-1]
            if not np.isfinite(last):
                row.append(_UNKNOWN)
            else:
                row.append(f"{last:,.0f}" if amount in ("steps", "tokens") else duration(last))
        for kind, score in heads:
            last = run.last(kind, score)
            row.append(_UNKNOWN if last is None else f"{last:.4g}")
        table.append(row)
    return table


def _pictures(runs: Sequence[Run], kind: str, score: str) -> str:
    """A score of all runs over each amount that the logs hold; nothing without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return ""
    pictures = []
    for amount in _AMOUNTS:
        points = {run.path: run.curve(kind, score, amount) for run in runs}
        if not any(len(at) for at, _ in points.values()):
            continue
        figure = Figure(figsize=(5, 3.4), layout="constrained")
        axes = figure.subplots()
        for number, (path, (at, values)) in enumerate(points.items()):
            _plot(axes, at, values, color=f"C{number}", label=path)
        axes.set_title(score)
        axes.set_xlabel(amount)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
        pictures.append(html_pages.drawing(f"{score} in {_KINDS[kind]}, by {amount}", figure))
    title = html_pages.text(f"{score}, {_KINDS[kind]}")
    return f'<h2>{title}</h2>\n<div class="curves">\n' + "\n".join(pictures) + "\n</div>" if pictures else ""


def _plot(axes: Any, at: np.ndarray, values: np.ndarray, **style: Any) -> None:
    if len(at):
        axes.plot(at, values, marker="." if len(at) <= _FEW else None, **style)
