import re
import types

import pytest

from official_bert.finetuning import model_card
from official_bert.finetuning.model_card import Evaluation
from official_bert.kinds.classification.spec import ClassificationSpec
from official_bert.kinds.regression.spec import RegressionSpec
from official_bert.kinds.spec import Outcome
from official_bert.tasks.glue import GlueTask
from official_bert.tasks.options import GlueOptions

TASK = GlueTask("sst-2", GlueOptions())
OUTCOMES = [Outcome("good film", "1", "1", True, 0.9), Outcome("fine film", "1", "0", False, 0.6)]
OUTCOMES += [Outcome("bad <b>film</b>", "0", "1", False, 0.99), Outcome("nice film", "1", "1", True, 0.8)]
OUTCOMES += [Outcome("dull film", "0", "0", True, 0.7), Outcome("kind film", "1", "1", True, 0.7)]


def format_card(settings=None, **evaluation) -> list[str]:
    """Returns the lines of the card of a run that was evaluated on the dev part."""
    evaluations = {"dev": Evaluation(scores={"accuracy": 4 / 6}, outcomes=OUTCOMES, **evaluation)}
    return model_card.format_model_card(TASK, settings or {}, evaluations).splitlines()


def test_a_class_that_is_never_predicted_has_scores_of_zero():
    scores = model_card.compute_class_scores({"0": {"0": 0, "1": 2}, "1": {"0": 0, "1": 0}})
    assert scores["0"] == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "examples": 2}
    assert model_card.compute_class_scores({}) == {}


def test_a_card_has_scores_classes_baseline_settings_and_the_most_confident_errors_first():
    settings = {"init": "model", "learning_rate": 5e-5, "freeze": [], "random_seed": 0}
    lines = format_card(settings, num_truncated=2)
    expected = """# sst-2
Classes: 0, 1.
| dev | 6 | accuracy | 0.6667 |
| dev | 6 | accuracy of always answering 1 | 0.6667 |
2 of 6 examples of dev were truncated.
| 0 | 0.5000 | 0.5000 | 0.5000 | 2 |
| 1 | 0.7500 | 0.7500 | 0.7500 | 4 |
| expected | 0 | 1 |
| 0 | 1 | 1 |
| 1 | 1 | 3 |
## Errors, dev: 2 of 6
| bad &lt;b&gt;film&lt;/b&gt; | 0 | 1 | 0.990 |
| fine film | 1 | 0 | 0.600 |
| --learning_rate | 5e-05 |
| --random_seed | 0 |"""
    assert [line for line in lines if line in expected.splitlines()] == expected.splitlines()
    # There is no minimum confidence, so that "answers every text" would be false.
    absent = ("good film", "freeze", "answers every text", "Calibration")
    assert [each for each in absent if each in "\n".join(lines)] == []
    assert "| --learning_rate | 5e-05 |" in model_card.format_model_card(TASK, settings, {}).splitlines()


def test_a_card_shows_ten_errors_and_two_hundred_characters_of_a_text():
    surest = Outcome("b" * 201, "1", "0", False, 0.999)
    errors = [*OUTCOMES, *[Outcome("a" * 200, "1", "0", False, 0.9 - number / 100) for number in range(10)], surest]
    evaluation = {"dev": Evaluation(scores={}, outcomes=errors)}
    card = model_card.format_model_card(TASK, {}, evaluation)
    assert "## Errors, dev: 13 of 17" in card
    certainties = re.findall(r" (0\.\d{3}) \|$", card[card.index("## Errors") :], re.MULTILINE)
    assert certainties == ["0.999", "0.990", *(f"{0.9 - number / 100:.3f}" for number in range(8))]
    assert f"| {'b' * 200} ... |" in card
    assert f"| {'a' * 200} |" in card


@pytest.mark.parametrize(("count", "is_shown"), [(30, True), (31, False)])
def test_a_matrix_of_many_classes_is_left_out(count: int, is_shown: bool):
    labels = tuple(f"class {number}" for number in range(count))
    task = types.SimpleNamespace(spec=ClassificationSpec(labels=labels), title="t")
    outcomes = [Outcome("a text", label, labels[0], label == labels[0], None) for label in labels]
    card = model_card.format_model_card(task, {}, {"dev": Evaluation(scores={}, outcomes=outcomes)})
    assert ("## Confusion matrix, dev" in card) == is_shown
    assert f"| accuracy of always answering class 0 | {1 / count:.4f} |" in card  # the first of equally frequent ones
    assert "| a text | class 1 | class 0 |  |" in card  # without a certainty


def test_a_card_has_the_calibration_error_and_the_coverage_of_each_limit():
    figures = {"temperature": 2.0, "before": 0.25, "after": 0.125, "coverage": [(0.0, 1.0, 0.75), (0.9, 0.5, 1.0)]}
    expected = """## Calibration, dev
| as trained | 0.2500 |
| with temperature 2.000 | 0.1250 |
| 0 | 100.0 % | 75.0 % |
| 0.9 | 50.0 % | 100.0 % |"""
    assert {*expected.splitlines()} <= {*format_card(calibration=figures)}
    plain = "\n".join(format_card(calibration={**figures, "temperature": 1.0}))
    assert "truncated" not in plain
    assert "with temperature" not in plain
    assert "as trained" in plain


def test_numbers_differ_instead_of_being_wrong():
    task = types.SimpleNamespace(spec=RegressionSpec(), title="t")
    evaluation = Evaluation(scores={}, outcomes=[Outcome("a text", "1", "0.9", False)])
    assert "## Differences, dev: 1 of 1" in model_card.format_model_card(task, {}, {"dev": evaluation})
