"""The table of predictions for whole texts: the scored numbers, and the answers that exports give."""

import csv
import dataclasses
import pathlib

import numpy as np
import pytest

from official_bert.kinds import scores
from official_bert.kinds.classification.spec import ClassificationSpec
from official_bert.kinds.regression.spec import RegressionSpec
from official_bert.kinds.text_spec import TextExample, TextSpec
from official_bert.tasks.task import DEV
from official_bert.tasks.text_task import TextTask


class AnyTask(TextTask):
    def read(self, split, bad_rows):
        return []


def written(folder: pathlib.Path, head: TextSpec, predictions, examples) -> list[dict[str, str]]:
    (path,) = AnyTask("any", head).write_predictions(str(folder), DEV, predictions, examples)
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


@pytest.mark.parametrize("scale", [1e-5, 1.0, 1e6])
def test_scores_computed_from_the_file_are_those_reported(tmp_path, scale):
    generator = np.random.default_rng(0)
    expected, predictions = scale * generator.normal(size=(2, 50))
    head, examples = RegressionSpec(), [TextExample(str(i), "a", label=float(y)) for i, y in enumerate(expected)]
    rows = written(tmp_path, head, predictions, examples)
    columns = [np.array([float(row[name]) for row in rows]) for name in ("prediction", "expected")]
    assert columns[0] == pytest.approx(predictions, rel=1e-6)
    assert scores.pearson(*columns) == pytest.approx(head.scores(predictions, examples)["pearson"], abs=1e-6)


def test_small_probabilities_are_not_rounded_to_nothing(tmp_path):
    head = ClassificationSpec(labels=("a", "b"))
    (row,) = written(tmp_path, head, np.array([[1.2345678e-9, 1 - 1.2345678e-9]]), [TextExample("0", "a", label=1)])
    assert row["probability of a"] == "1.234568e-09"


def test_a_prediction_below_min_confidence_is_empty_as_in_exports(tmp_path):
    head = ClassificationSpec(labels=("a", "b"), min_confidence=0.9)
    predictions = np.array([[0.95, 0.05], [0.2, 0.8], [0.1, 0.9]])
    for label in (None, 0):  # a test part without labels, and a dev part
        examples = [TextExample(str(number), "text", label=label) for number in range(3)]
        predicted = [row["prediction"] for row in written(tmp_path, head, predictions, examples)]
        assert predicted == ["a", "", "b"] == head.named_answers(predictions, examples)["label"]
    assert np.mean([name != "" for name in predicted]) == head.scores(predictions, examples)["coverage"]
    always = dataclasses.replace(head, min_confidence=0.0)
    assert [row["prediction"] for row in written(tmp_path, always, predictions, examples)] == ["a", "b", "b"]
