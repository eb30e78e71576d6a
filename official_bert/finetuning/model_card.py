"""The model card of a fine-tuning run: scores, errors, settings and limits, in Markdown."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from official_bert.kinds import scores as class_metrics
from official_bert.kinds.spec import Outcome
from official_bert.tasks.task import Task
from official_bert.utils import markdown
from official_bert.utils.counting import pluralize
from official_bert.version import __version__

CARD_FILE = "MODEL_CARD.md"

_MAX_CLASSES = 30  # in a confusion matrix
_MAX_ERRORS = 10
_MAX_CHARACTERS = 200  # of a text in the table of errors
_LIMITS = (
    "The scores were measured on the data named above. On other kinds of text the model may be worse. It may give an "
    "answer even if none fits. It may repeat what the pre-trained model learned from its texts, including prejudices."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The results on one split.

    Attributes:
        scores: The scores by name.
        outcomes: For each example, its text and the expected and predicted label.
        num_truncated: Number of examples that were truncated because they were too long.
        label_scores: Scores by label if an example may have several labels. Otherwise None.
        calibration: Result of KindSpec.calibration_report, or None if the model has no probabilities.
    """

    scores: Mapping[str, float]
    outcomes: Sequence[Outcome]
    num_truncated: int = 0
    label_scores: Mapping[str, Mapping[str, float]] | None = None
    calibration: Mapping[str, Any] | None = None


def format_model_card(task: Task, settings: Mapping[str, Any], evaluations: Mapping[str, Evaluation]) -> str:
    """Returns the text of the model card of a run.

    Args:
        task: The task of the model.
        settings: Options of the run, by name.
        evaluations: Results by split.
    """
    kind = task.spec.kind.replace("_", " ")
    parts = [
        f"# {markdown.escape(task.title)}",
        f"A BERT model for {kind}, fine-tuned with official-bert {__version__}.",
    ]
    if task.spec.labels:
        parts.append(f"Classes: {markdown.escape(', '.join(task.spec.labels))}.")
    parts += ["## Scores", markdown.table(_make_score_table(task, evaluations))]
    for split, evaluation in evaluations.items():
        if evaluation.num_truncated:
            examples = pluralize(len(evaluation.outcomes), "example")
            parts.append(f"{evaluation.num_truncated:,} of {examples} of {split} were truncated.")
    for split, evaluation in evaluations.items():
        parts += _format_details(task, split, evaluation)
    parts += ["## Settings", markdown.table(markdown.flag_table(settings)), "## Limits", _LIMITS]
    return "\n\n".join(part for part in parts if part) + "\n"


def _make_score_table(task: Task, evaluations: Mapping[str, Evaluation]) -> markdown.Table:
    rows = [["split", "examples", "score", "value"]]
    for split, evaluation in evaluations.items():
        scores = dict(evaluation.scores)
        if counts := find_confusions(task, evaluation.outcomes):
            baseline = find_commonest_class(counts)
            scores[f"accuracy of always answering {baseline['label']}"] = baseline["accuracy"]
        number = f"{len(evaluation.outcomes):,}"
        rows += [[split, number, name, f"{value:.4f}"] for name, value in scores.items()]
    return rows


def _format_details(task: Task, split: str, evaluation: Evaluation) -> list[str]:
    """Returns the sections of the card about one split: classes, confusions, calibration and errors, if they apply."""
    parts = []
    counts = find_confusions(task, evaluation.outcomes)
    if by_class := evaluation.label_scores or compute_class_scores(counts):
        rows = [["class", "precision", "recall", "F1", "examples"]]
        for label, values in by_class.items():
            shown = [f"{values[key]:.4f}" for key in ("precision", "recall", "f1")]
            rows.append([label, *shown, f"{values['examples']:,}"])
        parts += [f"## Classes, {split}", markdown.table(rows)]
    if counts and len(counts) <= _MAX_CLASSES:
        rows = [["expected", *counts], *([name, *map(str, row.values())] for name, row in counts.items())]
        parts += [
            f"## Confusion matrix, {split}",
            "Rows are the expected classes, columns the predicted ones.",
            markdown.table(rows),
        ]
    if evaluation.calibration:
        parts += [f"## Calibration, {split}", *_format_calibration(evaluation.calibration)]
    if errors := _sort_errors(evaluation.outcomes):
        rows = [["text", "expected", "predicted", "certainty"]]
        for error in errors[:_MAX_ERRORS]:
            certainty = "" if error.certainty is None else f"{error.certainty:.3f}"
            rows.append([_shorten(error.text), error.expected, error.predicted, certainty])
        title = "Differences" if task.spec.is_value else "Errors"
        parts.append(f"## {title}, {split}: {len(errors):,} of {len(evaluation.outcomes):,}")
        parts.append(markdown.table(rows))
    return parts


def _format_calibration(figures: Mapping[str, Any]) -> list[str]:
    """Returns a table of calibration errors, and one of coverage and accuracy at several values of --min_confidence."""
    errors = [["", "calibration error"], ["as trained", f"{figures['before']:.4f}"]]
    if figures["temperature"] != 1.0:
        errors.append([f"with temperature {figures['temperature']:.3f}", f"{figures['after']:.4f}"])
    coverage = [["min_confidence", "answered texts", "accuracy on these"]]
    for limit, answered, accuracy in figures["coverage"]:
        coverage.append([f"{limit:g}", f"{100 * answered:.1f} %", f"{100 * accuracy:.1f} %"])
    return [markdown.table(errors), markdown.table(coverage)]


def find_confusions(task: Task, outcomes: Sequence[Outcome]) -> dict[str, dict[str, int]]:
    """Returns how often each class was predicted for each expected class, as counts[expected][predicted].

    The result is empty if examples of the task do not have exactly one class.
    """
    labels = task.spec.labels
    return class_metrics.confusions(labels, outcomes) if task.spec.is_single_label and labels else {}


def compute_class_scores(counts: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, float]]:
    """Returns precision, recall, F1 and number of examples of each class, from the result of `find_confusions`."""
    return {
        label: class_metrics.class_scores(row[label], sum(each[label] for each in counts.values()), sum(row.values()))
        for label, row in counts.items()
    }


def find_commonest_class(counts: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    """Returns the most frequent class and the accuracy of always predicting it, given `find_confusions`' result."""
    totals = {label: sum(row.values()) for label, row in counts.items()}
    label = max(totals, key=totals.__getitem__)
    return {"label": label, "accuracy": totals[label] / max(sum(totals.values()), 1)}


def _sort_errors(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Returns the outcomes with wrong answers, most certain answers first."""
    errors = [outcome for outcome in outcomes if not outcome.correct]
    return sorted(errors, key=lambda error: -(error.certainty or 0.0))


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]} ..."
