"""What a fine-tuning run leaves for its reader: report.json and a page, with scores, curves, confusions and errors."""

import base64
import io
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import official_bert
from official_bert import files, html_page, task_models
from official_bert.tasks.task import Outcome, Task
from official_bert.training_log import EVAL, TRAIN, read_log

JSON_FILE, PAGE_FILE = "report.json", "report.html"

_MOST_CLASSES = 30  # of a table of confusions
_MOST_ERRORS = 30
_MOST_MARKERS = 50  # of a curve's points
_MOST_CHARACTERS = 400  # of an error's text


def write_report(
    folder: str,
    task: Task,
    settings: Mapping[str, Any],
    scores: Mapping[str, Mapping[str, float]],
    outcomes: Mapping[str, Sequence[Outcome]],
) -> list[str]:
    """Writes the report of a run into its folder, from its log and from what is given.

    Args:
        folder: the run's.
        task: what was learned.
        settings: the run's options, by name.
        scores: by split and name.
        outcomes: of each split's examples.

    Returns:
        The paths written.
    """
    curves = {name: read_log(folder, name) for name in (TRAIN, EVAL)}
    report = {
        "task": task.name,
        "scores": scores,
        "counts": {split: {"examples": len(each), "errors": len(_errors(each))} for split, each in outcomes.items()},
        "confusions": {split: confusions(task, each) for split, each in outcomes.items()},
        "errors": {
            split: [
                {"text": outcome.text, "expected": outcome.expected, "predicted": outcome.predicted}
                for outcome in _errors(each)[:_MOST_ERRORS]
            ]
            for split, each in outcomes.items()
        },
        "curves": curves,
        "settings": settings,
        "version": official_bert.__version__,
    }
    contents = {
        JSON_FILE: json.dumps(report, indent=1, ensure_ascii=False) + "\n",
        PAGE_FILE: _page(task, settings, scores, outcomes, curves),
    }
    paths = [os.path.join(folder, name) for name in contents]
    for path, content in zip(paths, contents.values(), strict=True):
        files.write_text(path, content)
    return paths


def confusions(task: Task, outcomes: Sequence[Outcome]) -> dict[str, dict[str, int]] | None:
    """Returns how often each class was predicted for each expected one; None where there are no such classes."""
    if task.kind != task_models.CLASSIFICATION or task.labels is None:
        return None
    counts = {expected: dict.fromkeys(task.labels, 0) for expected in task.labels}
    for outcome in outcomes:
        counts[outcome.expected][outcome.predicted] += 1
    return counts


def _errors(outcomes: Sequence[Outcome]) -> list[Outcome]:
    return [outcome for outcome in outcomes if not outcome.correct]


def _page(
    task: Task,
    settings: Mapping[str, Any],
    scores: Mapping[str, Mapping[str, float]],
    outcomes: Mapping[str, Sequence[Outcome]],
    curves: Mapping[str, list[dict[str, Any]]],
) -> str:
    rows = [["split", "score", "value"]]
    rows += [[split, name, f"{value:.4f}"] for split, each in scores.items() for name, value in each.items()]
    body = [
        f"<h1>{html_page.text(task.name)}</h1>",
        f"<p>Fine-tuning of BERT: {html_page.text(task.kind.replace('_', ' '))}.</p>",
        html_page.section("Scores", rows),
        _curves(curves, [f"{split}/{task.best_metric}" for split in task.eval_splits]),
    ]
    for split, each in outcomes.items():
        counts = confusions(task, each)
        if counts and len(counts) <= _MOST_CLASSES:
            head = ["expected \\ predicted", *counts]
            table = [head, *([name, *map(str, row.values())] for name, row in counts.items())]
            body.append(html_page.section(f"Confusions, {split}", table))
        errors = _errors(each)
        shown = [["text", "expected", "predicted"]]
        shown += [[_short(error.text), error.expected, error.predicted] for error in errors[:_MOST_ERRORS]]
        title = "Differences" if task.kind == task_models.REGRESSION else "Errors"
        body.append(html_page.section(f"{title}, {split}: {len(errors):,} of {len(each):,}", shown))
    set_ = [["option", "value"], *([name, json.dumps(value)] for name, value in settings.items())]
    body.append(html_page.folded("Settings", html_page.table(set_)))
    return html_page.page(f"{task.name}: fine-tuning of BERT", [part for part in body if part])


def _short(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]} ..."


def _curves(curves: Mapping[str, list[dict[str, Any]]], names: Sequence[str]) -> str:
    """A picture of the loss and of the deciding scores; nothing without a log or without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return ""
    panels = [(TRAIN, "loss"), *((EVAL, name) for name in names)]
    panels = [(kind, name) for kind, name in panels if any(name in line for line in curves[kind])]
    if not panels:
        return ""
    figure = Figure(figsize=(5 * len(panels), 3.4), layout="constrained")
    for axes, (kind, name) in zip(figure.subplots(1, len(panels), squeeze=False).flat, panels, strict=True):
        lines = [line for line in curves[kind] if name in line]
        marker = "o" if len(lines) <= _MOST_MARKERS else ""
        axes.plot([line["step"] for line in lines], [line[name] for line in lines], marker=marker, markersize=4)
        axes.set_title(name)
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
    picture = io.BytesIO()
    figure.savefig(picture, format="svg", metadata={"Date": None})
    encoded = base64.b64encode(picture.getvalue()).decode()
    return f'<h2>Curves</h2>\n<img alt="loss and scores, by step" src="data:image/svg+xml;base64,{encoded}">'
