"""What a run leaves for its reader."""

import html.parser
import json
import math
import pathlib
import re
import sys
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from official_bert.pretraining import curves, report, summary
from official_bert.pretraining.model_card import model_card
from official_bert.pretraining.run_metadata import command_line, read_run_metadata
from official_bert.utils.training_log import EVAL, TRAIN, TrainingLog, read_log

pytestmark = pytest.mark.usefixtures("whole_runs")

MANIFEST = {
    "made_by": "official_bert 0.1.0",
    "source": {
        "format": 1,
        "flags": {"max_seq_length": 128, "dupe_factor": 5},
        "vocabulary": "ab" * 32,
        "inputs": [{"file": "wiki.txt", "sha256": "cd" * 32}],
    },
    "shards": [{"file": "train.tfrecord", "records": 6566, "bytes": 1, "sha256": "12" * 32}],
    "statistics": {"text_documents": 131, "text_tokens": 644_926, "text_unknown": 129, "instances": 6566},
}
HELD_OUT = {**MANIFEST, "shards": [{"file": "heldout.tfrecord", "records": 99, "bytes": 1, "sha256": "34" * 32}]}
METADATA: dict[str, Any] = {
    "command": "python -m run_pretraining --do_train",
    "flags": {"train_batch_size": 32, "learning_rate": 1e-4, "init_checkpoint": None, "input_file": ["a", "b"]},
    "config": {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 512},
    "parameters": 4_433_468,
    "data": [MANIFEST],
    "evaluation_data": [HELD_OUT],
    "versions": {"tensorflow": "2.21.0"},
    "devices": ["TPU:0", "TPU:1"],
}


def line(step: int, loss: float = 2.0, **others: object) -> dict[str, Any]:
    return {
        "step": step, "loss": loss + 0.5, "masked_lm_loss": loss, "masked_lm_accuracy": 0.25,
        "next_sentence_loss": 0.5, "next_sentence_accuracy": 0.75, **others,
    }  # fmt: skip


def train_line(step: int, loss: float = 2.0, **others: object) -> dict[str, Any]:
    rates = {"steps_per_second": 4.0, "examples_per_second": 128.0, "tokens_per_second": 8000.0}
    return line(step, loss, learning_rate=1e-4, gradient_norm=1.0, **rates, **others)


def run_folder(
    path: pathlib.Path, train: list[dict[str, Any]], evaluations: list[dict[str, Any]] = (), metadata: Any = None
) -> str:
    path.mkdir()
    for kind, lines in ((TRAIN, train), (EVAL, evaluations)):
        (path / f"{kind}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    if metadata is not None:
        (path / "run.json").write_text(json.dumps(metadata))
    return str(path)


class Page(html.parser.HTMLParser):
    """What a page consists of: its tags, attributes, text; whether every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: dict[str, list[str]] = {}
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        assert not self._open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            self.attributes.setdefault(name, []).append(value or "")
        if tag not in ("meta", "img"):
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.text += data


def page_of(folder: str) -> Page:
    return Page((pathlib.Path(folder) / report.PAGE_FILE).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["/opt/run_pretraining.py", "--input_file=a b*"], "python -m run_pretraining '--input_file=a b*'"),
        (["/opt/bin/official-bert", "pretrain", "--do_eval"], "official-bert pretrain --do_eval"),
    ],
)
def test_the_command_is_kept_as_it_could_be_given_again(arguments: list[str], line: str, monkeypatch):
    monkeypatch.setattr(sys, "argv", arguments)
    assert command_line() == line


def test_a_report_is_a_picture_a_page_a_card_and_run_json(tmp_path: pathlib.Path):
    folder = run_folder(tmp_path / "run", [train_line(10), train_line(20, 1.5)], [line(20, 1.75)])
    paths = report.write_report(folder, METADATA)
    assert {pathlib.Path(path).name for path in paths} == {"run.json", "MODEL_CARD.md", "report.html", "curves.png"}
    assert (tmp_path / "run" / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert read_run_metadata(folder) == METADATA
    page = page_of(folder)
    assert page.tags.count("img") == 6
    for told in ("4,433,468", "6,566", "2 TPU", "1.7500", "--train_batch_size", "tensorflow"):
        assert told in page.text
        assert told in (tmp_path / "run" / "MODEL_CARD.md").read_text()
    assert "init_checkpoint" not in page.text


def test_sections_stand_at_the_beginning_of_page_and_card(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(report, "_draw", lambda *_, **__: None)
    folder = run_folder(tmp_path / "run", [train_line(10)], [])
    report.write_report(folder, METADATA, sections={"Kept <words>": [["word", "count"], ["cat | mat", "7"]]})
    text = page_of(folder).text
    assert text.index("Kept <words>") < text.index("cat | mat") < text.index("Curves")
    card = (tmp_path / "run" / "MODEL_CARD.md").read_text()
    assert card.index("## Kept <words>") < card.index("| cat \\| mat | 7 |") < card.index("## Model")


def test_without_matplotlib_the_page_tells_the_curves_in_a_table(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    folder = run_folder(tmp_path / "run", [train_line(step, 5 - step / 100) for step in range(1, 101)])
    paths = report.write_report(folder, METADATA)
    assert {pathlib.Path(path).name for path in paths} == {"run.json", "MODEL_CARD.md", "report.html"}
    page = page_of(folder)
    assert "img" not in page.tags
    assert "open" in page.attributes
    assert "4.02" in page.text  # the mean of the last five losses


def test_nothing_logged_and_nothing_known_is_told_as_that(tmp_path: pathlib.Path):
    folder = run_folder(tmp_path / "run", [])
    assert not any(path.endswith(".png") for path in report.write_report(folder, {}))
    assert "There are no pictures" in page_of(folder).text
    card = (tmp_path / "run" / "MODEL_CARD.md").read_text()
    assert "Nothing was measured." in card
    assert "not known" in card


def test_a_single_point_is_drawn(tmp_path: pathlib.Path):
    folder = run_folder(tmp_path / "run", [train_line(1)])
    assert str(tmp_path / "run" / "curves.png") in report.write_report(folder, {})


def test_the_page_needs_no_other_file_and_escapes_all_text(tmp_path: pathlib.Path):
    hostile = '<script>alert("&")</script>'
    metadata = {**METADATA, "command": hostile, "flags": {hostile: hostile}, "versions": {hostile: hostile}}
    folder = run_folder(tmp_path / "<b>run", [train_line(10)])
    TrainingLog(folder, None).note(5, hostile)
    report.write_report(folder, metadata)
    page = page_of(folder)
    assert not {"script", "b", "link", "iframe"} & set(page.tags)
    assert page.text.count(hostile) == 6
    assert all(source.startswith("data:image/svg+xml;base64,") for source in page.attributes["src"])
    assert "href" not in page.attributes
    assert "url(" not in (tmp_path / "<b>run" / report.PAGE_FILE).read_text().split("</style>")[0]
    card = (tmp_path / "<b>run" / report.CARD_FILE).read_text()
    assert "<script>" not in re.sub(r"`[^`]*`", "", card)


def test_text_in_the_card_is_no_markup(tmp_path: pathlib.Path):
    folder = run_folder(tmp_path / "run_1", [train_line(10)])
    report.write_report(folder, {"flags": {"a_b": "x|y*z* [_q_](r) `c`"}, "command": "echo `date`"})
    card = (tmp_path / "run_1" / report.CARD_FILE).read_text()
    assert r"| --a_b | x\|y\*z\* \[\_q\_\](r) \`c\` |" in card
    assert "`` echo `date` ``" in card
    assert card.startswith("# run_1\n")
    for row in re.findall(r"(?:^\|.*\n)+", card, re.MULTILINE):  # every table is even
        assert len({len(re.findall(r"(?<!\\)\|", each)) for each in row.splitlines()}) == 1


def test_the_last_and_the_best_scores_stand_in_a_table():
    evaluations = [line(10, 3.0), line(20, 1.5), line(30, math.nan), line(40, 2.0)]
    table = summary.score_table(curves.Curves("run", [train_line(35), train_line(40, 1.0)], evaluations))
    assert table[0] == ["score", "training, step 40", "evaluation, step 40", "best evaluation"]
    assert table[2] == ["masked LM loss (nats)", "1.0000", "2.0000", "1.5000 (step 20)"]
    assert table[3] == ["masked LM accuracy", "25.0 %", "25.0 %", "25.0 % (step 10)"]


def test_rates_are_told_by_phase_and_those_not_logged_are_left_out():
    first = [train_line(step, max_seq_length=128, flops_utilization=0.412) for step in (10, 20)]
    second = [{**train_line(30), "max_seq_length": 512, "tokens_per_second": 4000.0}]
    table = summary.rate_table(curves.Curves("run", first + second, []))
    assert table[0] == ["rate", "length 128", "length 512"]
    assert ["tokens/s, without padding", "8,000", "4,000"] in table
    assert ["their share of the matrix-product rate", "41.2 %", summary.MISSING] in table
    assert "waiting" not in str(table)
    assert summary.rate_table(curves.Curves("run", [train_line(10)], []))[0] == ["rate", "median"]


def test_no_step_has_more_than_the_whole_rate_of_the_machine():
    lines = [train_line(step, flops_utilization=1.022) for step in (10, 20)]
    table = summary.rate_table(curves.Curves("run", lines, []))
    assert ["their share of the matrix-product rate", summary.MISSING] in table


def test_amounts_count_every_step_once():
    lines = [train_line(10), train_line(15), {**train_line(20), "examples_per_second": 64.0}]
    assert summary.amounts(curves.Curves("run", lines, [])) == {
        "steps": 20, "seconds": 5.0, "examples": 15 / 4 * 128 + 5 / 4 * 64, "tokens": 40_000.0
    }  # fmt: skip


@pytest.mark.parametrize(
    ("evaluated", "expected"),
    [
        ([HELD_OUT], "Evaluated on these records:"),
        ([HELD_OUT, MANIFEST], "Evaluated on records that it was trained on (train.tfrecord)"),
        ([], "is not recorded"),
    ],
)
def test_the_card_says_when_scores_are_of_records_trained_on(evaluated: list[dict[str, Any]], expected: str):
    run = curves.Curves("run", [train_line(10)], [line(10)])
    assert expected in model_card(run, {**METADATA, "evaluation_data": evaluated}, [], {})


def test_the_card_says_which_positions_have_learnt_nothing():
    short, long = train_line(10, max_seq_length=128), train_line(20, max_seq_length=512)
    for train, expected in (([short], True), ([short, long], False)):
        card = model_card(curves.Curves("run", train, []), METADATA, [], {})
        assert ("positions from there to 512" in card) == expected


def test_many_lines_become_few_points_that_keep_mean_and_extremes():
    lines = [{"step": step, "x": 1.0} for step in range(1, 100_001)]
    lines[49_999]["x"] = 101.0
    lines[70_000]["x"] = math.nan
    steps, means, least, greatest = curves.thinned(lines, "x", 400)
    assert len(steps) == 400
    assert steps[-1] == 100_000
    assert greatest.max() == 101.0
    assert least.min() == 1.0
    assert means.max() == pytest.approx(1 + 100 / 250)
    assert np.isfinite(means).all()


def test_a_point_is_the_mean_over_steps_not_over_lines():
    lines = [{"step": 10, "x": 1.0}, {"step": 40, "x": 5.0}]
    assert [each.tolist() for each in curves.thinned(lines, "x", 1)] == [[40.0], [4.0], [1.0], [5.0]]


def test_values_that_are_missing_are_gaps():
    lines = [{"step": 1}, {"step": 2, "x": None}, {"step": 3, "x": 7.0}]
    assert np.isnan(curves.thinned(lines, "x", 2)[1]).tolist() == [True, False]
    assert curves.thinned([], "x", 2)[0].shape == (0,)


def test_a_step_logged_twice_counts_once_as_logged_last(tmp_path: pathlib.Path):
    folder = run_folder(
        tmp_path / "run", [train_line(20)], [line(10, 3.0), line(20, 9.0), line(15, 2.0), line(20, 1.0)]
    )
    found = curves.run_curves(folder)
    assert [(each["step"], each["masked_lm_loss"]) for each in found.eval] == [(10, 3.0), (15, 2.0), (20, 1.0)]


def test_phases_are_marked_in_the_picture():
    train = [train_line(step, max_seq_length=128 if step <= 50 else 512) for step in range(1, 101)]
    axes = Figure().subplots()
    report._draw_panel(axes, curves.Curves("run", train, [line(50), line(100)]), "masked_lm_loss")
    drawn = {each.get_label(): each.get_xdata() for each in axes.lines}
    assert list(drawn["evaluation"]) == [50, 100]
    assert [each.get_text() for each in axes.texts] == ["length 128 → 512"]
    assert [list(each.get_xdata()) for each in axes.lines if each.get_linestyle() == "--"] == [[50, 50]]


def test_lines_from_before_lengths_were_logged_are_no_phase():
    assert [length for length, _ in curves.phases([line(1), line(2, max_seq_length=128), line(3)])] == [128]
    assert [length for length, _ in curves.phases([line(1), line(2)])] == [None]


def test_of_many_notices_the_last_are_shown(tmp_path: pathlib.Path):
    folder = run_folder(tmp_path / "run", [train_line(100)])
    log = TrainingLog(folder, 100)
    for step in range(1, 61):
        log.note(step, f"skipped step no. {step};")
    report.write_report(folder, METADATA)
    page = page_of(folder)
    assert "10 earlier ones" in page.text
    assert "no. 60;" in page.text
    assert "no. 11;" in page.text
    assert "no. 10;" not in page.text


def test_a_log_cut_short_by_a_kill_goes_on_in_a_new_line(tmp_path: pathlib.Path):
    folder = run_folder(tmp_path / "run", [train_line(10), train_line(20)], [line(10), line(20)])
    for kind in (TRAIN, EVAL, "notices"):
        with open(tmp_path / "run" / f"{kind}.jsonl", "a") as writer:
            writer.write('{"step": 3')
    log = TrainingLog(folder, 10)
    log.note(10, "resumed")
    log.write(EVAL, 15, line(15))
    assert [each["step"] for each in read_log(folder, TRAIN)] == [10]
    assert [each["step"] for each in read_log(folder, EVAL)] == [10, 15]
    assert read_log(folder, "notices") == [{"step": 10, "notice": "resumed"}]
