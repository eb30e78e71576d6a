"""The table of predictions for whole texts: the scored numbers, and the answers that exports give."""

import csv
import pathlib

import numpy as np
import pytest

from official_bert.kinds import scores
from official_bert.kinds.classification.spec import ClassificationSpec
from official_bert.kinds.regression.spec import RegressionSpec
from official_bert.kinds.text_spec import TextExample, TextSpec
from official_bert.tasks.glue import GlueTask
from official_bert.tasks.options import GlueOptions
from official_bert.tasks.task import DEV


def write(folder: pathlib.Path, head: TextSpec, predictions, examples) -> list[dict[str, str]]:
    task = GlueTask("sst-2", GlueOptions())
    task.spec = head
    (path,) = task.write_predictions(str(folder), DEV, predictions, examples)
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


@pytest.mark.parametrize("scale", [1e-5, 1.0, 1e6])
def test_scores_computed_from_the_file_are_those_reported(tmp_path, scale):
    expected, predictions = scale * np.random.default_rng(0).normal(size=(2, 50))
    head, examples = RegressionSpec(), [TextExample(str(i), "a", label=float(y)) for i, y in enumerate(expected)]
    rows = write(tmp_path, head, predictions, examples)
    columns = [np.array([float(row[name]) for row in rows]) for name in ("prediction", "expected")]
    assert columns[0] == pytest.approx(predictions, rel=1e-6)
    assert scores.pearson(*columns) == pytest.approx(head.scores(predictions, examples)["pearson"], abs=1e-6)


def test_small_probabilities_are_not_rounded_to_nothing(tmp_path):
    head, predictions = ClassificationSpec(labels=("a", "b")), np.array([[1.2345678e-9, 1 - 1.2345678e-9]])
    (row,) = write(tmp_path, head, predictions, [TextExample("0", "a", label=1)])
    assert row["probability of a"] == "1.234568e-09"


def test_white_space_in_a_cell_becomes_a_space(tmp_path):
    head, examples = ClassificationSpec(labels=("a\tb", "c\n d")), [TextExample("q\t 1", "a", label=1)]
    (row,) = write(tmp_path, head, np.array([[0.75, 0.25]]), examples)
    assert (row["id"], row["prediction"], row["expected"], row["probability of a b"]) == ("q 1", "a b", "c d", "0.75")


@pytest.mark.parametrize(("min_confidence", "expected"), [(0.0, ["a", "b", "b"]), (0.9, ["a", "", "b"])])
@pytest.mark.parametrize("label", [None, 0])  # a test part without labels, and a dev part
def test_a_prediction_below_min_confidence_is_empty_as_in_exports(tmp_path, label, min_confidence, expected):
    head = ClassificationSpec(labels=("a", "b"), min_confidence=min_confidence)
    predictions = np.array([[0.95, 0.05], [0.2, 0.8], [0.1, 0.9]])
    examples = [TextExample(str(number), "text", label=label) for number in range(3)]
    predicted = [row["prediction"] for row in write(tmp_path, head, predictions, examples)]
    assert predicted == expected == head.named_answers(predictions, examples)["label"]
    if min_confidence and label is not None:
        assert head.scores(predictions, examples)["coverage"] == 2 / 3
