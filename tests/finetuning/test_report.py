import json
import pathlib
import time

import pytest

from official_bert.finetuning import report
from official_bert.tasks.glue import GlueTask
from official_bert.tasks.heads.head import Outcome
from official_bert.tasks.options import GlueOptions
from official_bert.utils.progress import Progress
from official_bert.utils.training_log import EVAL, TRAIN, TrainingLog

TASK = GlueTask("sst-2", GlueOptions())
OUTCOMES = [
    Outcome("good film", "1", "1", True, 0.9),
    Outcome("fine film", "1", "0", False, 0.6),
    Outcome("bad <b>film</b>", "0", "1", False, 0.99),
    Outcome("nice film", "1", "1", True, 0.8),
    Outcome("dull film", "0", "0", True, 0.7),
    Outcome("kind film", "1", "1", True, 0.7),
]


def test_each_class_has_precision_and_recall_and_the_commonest_is_the_baseline():
    counts = report.confusions(TASK, OUTCOMES)
    assert counts == {"0": {"0": 1, "1": 1}, "1": {"0": 1, "1": 3}}
    assert report.class_scores(counts) == {
        "0": {"precision": 0.5, "recall": 0.5, "f1": 0.5, "examples": 2},
        "1": {"precision": 0.75, "recall": 0.75, "f1": 0.75, "examples": 4},
    }
    assert report.commonest_class(counts) == {"label": "1", "accuracy": pytest.approx(4 / 6)}
    never = {"0": {"0": 0, "1": 2}, "1": {"0": 0, "1": 0}}
    assert report.class_scores(never)["0"] == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "examples": 2}
    assert report.class_scores(None) is report.commonest_class(None) is None


def test_a_report_has_classes_baseline_and_the_surest_errors_first(tmp_path: pathlib.Path):
    settings = {"init": "model", "learning_rate": 5e-5, "freeze": []}
    paths = report.write_report(
        str(tmp_path), TASK, settings, {"dev": {"accuracy": 4 / 6}}, {"dev": OUTCOMES}, {"dev": 2}
    )
    assert [pathlib.Path(path).name for path in paths] == ["report.json", "MODEL_CARD.md", "report.html"]
    contents = json.loads((tmp_path / "report.json").read_text())
    assert [error["text"] for error in contents["errors"]["dev"]] == ["bad <b>film</b>", "fine film"]
    assert contents["errors"]["dev"][0]["certainty"] == 0.99
    assert contents["counts"] == {"dev": {"examples": 6, "errors": 2, "cut": 2}}
    page = (tmp_path / "report.html").read_text()
    assert "<h1>sst-2</h1>" in page
    assert "Always answering the commonest class, 1, has accuracy 0.6667." in page
    assert page.index("bad &lt;b&gt;film&lt;/b&gt;") < page.index("fine film")
    assert '<meta name="viewport"' in page
    card = (tmp_path / "MODEL_CARD.md").read_text()
    assert "Classes: 0, 1." in card
    assert "| dev | 6 | accuracy | 0.6667 |" in card
    assert "- learning_rate: `5e-05`" in card
    assert "freeze" not in card


def test_a_page_can_be_read_on_a_phone(tmp_path: pathlib.Path):
    log = TrainingLog(str(tmp_path), 0)
    for step in (1, 2, 3):
        log.write(TRAIN, step, {"loss": 1.0 / step})
        log.write(EVAL, step, {"dev/accuracy": 0.5})
    report.write_report(str(tmp_path), TASK, {}, {"dev": {"accuracy": 4 / 6}}, {"dev": OUTCOMES}, {"dev": 0})
    page = (tmp_path / "report.html").read_text()
    assert page.count("<img ") == 2  # a picture for each curve, below each other where it is narrow
    assert page.index('class="curves"') < page.index('alt="loss, by step"') < page.index('alt="dev/accuracy, by step"')
    assert '<td class="number">0.6667</td>' in page  # which is not broken
    assert "<td>accuracy</td>" in page
    assert '<div class="table stacked">' in page
    assert '<td class="number" data-head="certainty">0.990</td>' in page


def test_time_left_does_not_count_what_came_before(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    shown = Progress("training", 100, "rows")
    now[0] = 50.0  # compiling
    shown.begin(10)
    now[0] = 60.0
    shown.update(20, "loss 0.5000, dev/f1 0.8000")
    assert capsys.readouterr().err == (
        "training: 20 of 100 rows (20 %), 1 rows/s, 1:20 left; loss 0.5000, dev/f1 0.8000\n"
    )
