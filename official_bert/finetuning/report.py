"""What a fine-tuning run leaves for its reader: report.json, a page with scores, curves and errors, a model card."""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from official_bert.tasks.heads.head import Outcome
from official_bert.tasks.heads.scores import confusions as confusions_of_classes
from official_bert.tasks.heads.scores import of_class
from official_bert.tasks.task import Task
from official_bert.utils import files, html_pages
from official_bert.utils.training_log import EVAL, TRAIN, read_log
from official_bert.version import __version__

JSON_FILE, CARD_FILE, PAGE_FILE = "report.json", "MODEL_CARD.md", "report.html"

_MOST_CLASSES = 30  # of a table of confusions
_MOST_ERRORS = 30
_MOST_MARKERS = 50  # of a curve's points
_MOST_CHARACTERS = 400  # of an error's text
_LIMITS = (
    "The scores are those of the parts named above; texts of another kind may be answered worse. Every text is "
    "answered, also one to which no answer fits. What the pre-trained model learnt from its texts, prejudices "
    "included, this one has as well."
)


def write_report(
    folder: str,
    task: Task,
    settings: Mapping[str, Any],
    scores: Mapping[str, Mapping[str, float]],
    outcomes: Mapping[str, Sequence[Outcome]],
    cut: Mapping[str, int],
    classes: Mapping[str, Mapping[str, Mapping[str, float]]] | None = None,
    calibrations: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[str]:
    """Writes the report of a run into its folder, from its log, its scores and its outcomes.

    Args:
        folder: the run's.
        task: what was learned.
        settings: the run's options, by name.
        scores: by split and name.
        outcomes: of each split's examples.
        cut: of how many of them something was left out, as it did not fit.
        classes: of parts whose texts may have several labels, the scores of each label.
        calibrations: of parts with probabilities, what `calibration.figures` says of them.

    Returns:
        The paths written.
    """
    curves = {name: read_log(folder, name) for name in (TRAIN, EVAL)}
    by_class = {split: class_scores(confusions(task, each)) for split, each in outcomes.items()} | dict(classes or {})
    report = {
        "task": task.name,
        "scores": scores,
        "counts": {
            split: {"examples": len(each), "errors": len(_errors(each)), "cut": cut[split]}
            for split, each in outcomes.items()
        },
        "confusions": {split: confusions(task, each) for split, each in outcomes.items()},
        "classes": by_class,
        "calibration": calibrations or {},
        "commonest_class": {split: commonest_class(confusions(task, each)) for split, each in outcomes.items()},
        "errors": {
            split: [
                {
                    "text": outcome.text,
                    "expected": outcome.expected,
                    "predicted": outcome.predicted,
                    "certainty": outcome.certainty,
                }
                for outcome in _errors(each)[:_MOST_ERRORS]
            ]
            for split, each in outcomes.items()
        },
        "curves": curves,
        "settings": settings,
        "version": __version__,
    }
    contents = {
        JSON_FILE: json.dumps(report, indent=1, ensure_ascii=False) + "\n",
        CARD_FILE: model_card(task, settings, scores, outcomes),
        PAGE_FILE: _page(task, settings, scores, outcomes, curves, by_class, calibrations or {}),
    }
    paths = [os.path.join(folder, name) for name in contents]
    for path, content in zip(paths, contents.values(), strict=True):
        files.write_text(path, content)
    return paths


def model_card(
    task: Task,
    settings: Mapping[str, Any],
    scores: Mapping[str, Mapping[str, float]],
    outcomes: Mapping[str, Sequence[Outcome]],
) -> str:
    """Returns what a reader must know of a fine-tuned model, in Markdown; arguments as for `write_report`."""
    names = (
        "init",
        "train_file",
        "data_dir",
        "train_batch_size",
        "learning_rate",
        "num_train_epochs",
        "max_seq_length",
    )
    lines = [
        f"# {task.title}",
        "",
        f"A BERT model for {task.head.kind.replace('_', ' ')}, fine-tuned with official-bert.",
    ]
    if task.head.labels:
        lines += ["", f"Classes: {', '.join(task.head.labels)}."]
    lines += ["", "## Training", "", *(f"- {name}: `{settings[name]}`" for name in names if settings.get(name))]
    lines += ["", "## Scores", "", "| part | examples | score | value |", "|---|---|---|---|"]
    for split, each in scores.items():
        lines += [f"| {split} | {len(outcomes[split]):,} | {name} | {value:.4f} |" for name, value in each.items()]
        if baseline := commonest_class(confusions(task, outcomes[split])):
            lines.append(
                f"| {split} | {len(outcomes[split]):,} | accuracy of always answering {baseline['label']} | "
                f"{baseline['accuracy']:.4f} |"
            )
    lines += ["", "## Limits", "", _LIMITS]
    return "\n".join(lines) + "\n"


def confusions(task: Task, outcomes: Sequence[Outcome]) -> dict[str, dict[str, int]] | None:
    """Returns how often each class was predicted for each expected one; None where there are no such classes."""
    labels = task.head.labels
    if not task.head.has_one_class or labels is None:
        return None
    return confusions_of_classes(labels, outcomes)


def class_scores(counts: Mapping[str, Mapping[str, int]] | None) -> dict[str, dict[str, float]] | None:
    """Returns precision, recall, F1 and the number of examples of each class; a mean over nothing is 0.

    Args:
        counts: of `confusions`.
    """
    if counts is None:
        return None
    return {
        label: of_class(row[label], sum(each[label] for each in counts.values()), sum(row.values()))
        for label, row in counts.items()
    }


def commonest_class(counts: Mapping[str, Mapping[str, int]] | None) -> dict[str, Any] | None:
    """Returns the class that is expected most often, and the accuracy of always answering it: what a model must beat.

    Args:
        counts: of `confusions`.
    """
    if not counts:
        return None
    totals = {label: sum(row.values()) for label, row in counts.items()}
    label = max(totals, key=totals.__getitem__)
    return {"label": label, "accuracy": totals[label] / max(sum(totals.values()), 1)}


def _errors(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The wrong answers; those that the model was most certain of come first."""
    errors = [outcome for outcome in outcomes if not outcome.correct]
    return sorted(errors, key=lambda error: -(error.certainty or 0.0))


def _page(
    task: Task,
    settings: Mapping[str, Any],
    scores: Mapping[str, Mapping[str, float]],
    outcomes: Mapping[str, Sequence[Outcome]],
    curves: Mapping[str, list[dict[str, Any]]],
    by_class: Mapping[str, Mapping[str, Mapping[str, float]] | None],
    calibrations: Mapping[str, Mapping[str, Any]],
) -> str:
    rows = [["split", "score", "value"]]
    rows += [[split, name, f"{value:.4f}"] for split, each in scores.items() for name, value in each.items()]
    body = [
        f"<h1>{html_pages.text(task.title)}</h1>",
        f"<p>Fine-tuning of BERT: {html_pages.text(task.head.kind.replace('_', ' '))}.</p>",
        html_pages.section("Scores", rows),
        _curves(curves, [f"{split}/{task.best_metric}" for split in task.eval_splits]),
    ]
    for split, each in outcomes.items():
        counts = confusions(task, each)
        if of_classes := by_class[split]:
            rows = [["class", "precision", "recall", "F1", "examples"]]
            for label, values in of_classes.items():
                shown = [f"{values[key]:.4f}" for key in ("precision", "recall", "f1")]
                rows.append([label, *shown, f"{values['examples']:,}"])
            body.append(html_pages.section(f"Classes, {split}", rows))
        if baseline := commonest_class(counts):
            body.append(
                f"<p>Always answering the commonest class, {html_pages.text(baseline['label'])}, has accuracy "
                f"{baseline['accuracy']:.4f}.</p>"
            )
        if counts and len(counts) <= _MOST_CLASSES:
            matrix = [["expected", *counts], *([name, *map(str, row.values())] for name, row in counts.items())]
            body.append(html_pages.section(f"Confusions, {split}", matrix))
            body.append("<p>A row for each class that was expected, a column for each that was predicted.</p>")
        if split in calibrations:
            body.append(_calibration(split, calibrations[split]))
        errors = _errors(each)
        table = [["text", "expected", "predicted", "certainty"]]
        for error in errors[:_MOST_ERRORS]:
            certainty = "" if error.certainty is None else f"{error.certainty:.3f}"
            table.append([_short(error.text), error.expected, error.predicted, certainty])
        title = "Differences" if task.head.is_value else "Errors"
        body.append(html_pages.section(f"{title}, {split}: {len(errors):,} of {len(each):,}", table, stacked=True))
    options = [["option", "value"], *([name, json.dumps(value)] for name, value in settings.items())]
    body.append(html_pages.folded("Settings", html_pages.table(options)))
    return html_pages.page(f"{task.title}: fine-tuning of BERT", [part for part in body if part])


def _calibration(split: str, figures: Mapping[str, Any]) -> str:
    """How far probabilities can be believed, and what is right among the surest answers."""
    before, after = figures["before"], figures["after"]
    rows = [["", "calibration error"], ["as trained", f"{before['error']:.4f}"]]
    if figures["temperature"] != 1.0:
        rows.append([f"with temperature {figures['temperature']:.3f}", f"{after['error']:.4f}"])
    return html_pages.section(f"Calibration, {split}", rows) + _reliability_picture(figures)


def _reliability_picture(figures: Mapping[str, Any]) -> str:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return ""
    coverage = figures.get("coverage")
    figure = Figure(figsize=(10 if coverage else 5, 3.6), layout="constrained")
    panels = figure.subplots(1, 2 if coverage else 1, squeeze=False)[0]
    panels[0].plot([0, 1], [0, 1], color="0.7", linewidth=1)
    names = (
        {"before": "as trained", "after": "calibrated"} if figures["temperature"] != 1.0 else {"before": "as trained"}
    )
    for key, name in names.items():
        bins = figures[key]["bins"]
        panels[0].plot([each[0] for each in bins], [each[1] for each in bins], marker="o", markersize=4, label=name)
    panels[0].set(title="reliability", xlabel="mean probability", ylabel="share that is right")
    panels[0].legend()
    if coverage:
        panels[1].plot([each[0] for each in coverage], [each[1] for each in coverage])
        panels[1].set(title="coverage", xlabel="share that is answered, the surest first", ylabel="accuracy of these")
    for axes in panels:
        axes.grid(alpha=0.3)
    return html_pages.drawing("reliability and coverage", figure)


def _short(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]} ..."


def _curves(curves: Mapping[str, list[dict[str, Any]]], names: Sequence[str]) -> str:
    """Pictures of the loss and of the deciding scores; nothing without a log or without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return ""
    panels = [(TRAIN, "loss"), *((EVAL, name) for name in names)]
    panels = [(kind, name) for kind, name in panels if any(name in line for line in curves[kind])]
    if not panels:
        return ""
    pictures = []
    for kind, name in panels:
        figure = Figure(figsize=(5, 3.4), layout="constrained")
        axes = figure.subplots()
        lines = [line for line in curves[kind] if name in line]
        marker = "o" if len(lines) <= _MOST_MARKERS else ""
        axes.plot([line["step"] for line in lines], [line[name] for line in lines], marker=marker, markersize=4)
        axes.set_title(name)
        axes.set_xlabel("step")
        axes.locator_params("x", nbins=5, integer=True)
        axes.grid(alpha=0.3)
        pictures.append(html_pages.drawing(f"{name}, by step", figure))
    return '<h2>Curves</h2>\n<div class="curves">\n' + "\n".join(pictures) + "\n</div>"
