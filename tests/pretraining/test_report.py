"""What a run leaves for its reader, and how runs are compared."""

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

from official_bert.errors import UserError
from official_bert.pretraining import curves, report, summary
from official_bert.pretraining.model_card import model_card
from official_bert.pretraining.options import Options
from official_bert.pretraining.run_metadata import RUN_FILE, command_line, read_run_metadata
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


def of(name: str, losses: dict[int, float], **settings: object) -> curves.Curves:
    return curves.Curves(name, [line(step, loss) for step, loss in losses.items()], [], settings)


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
    table = summary.score_table(curves.Curves("run", [train_line(35), train_line(40, 1.0)], evaluations, {}))
    assert table[0] == ["score", "training, step 40", "evaluation, step 40", "best evaluation"]
    assert table[2] == ["masked LM loss (nats)", "1.0000", "2.0000", "1.5000 (step 20)"]
    assert table[3] == ["masked LM accuracy", "25.0 %", "25.0 %", "25.0 % (step 10)"]


def test_rates_are_told_by_phase_and_those_not_logged_are_left_out():
    first = [train_line(step, max_seq_length=128, flops_utilization=0.412) for step in (10, 20)]
    second = [{**train_line(30), "max_seq_length": 512, "tokens_per_second": 4000.0}]
    table = summary.rate_table(curves.Curves("run", first + second, [], {}))
    assert table[0] == ["rate", "length 128", "length 512"]
    assert ["tokens/s, without padding", "8,000", "4,000"] in table
    assert ["their share of the matrix-product rate", "41.2 %", summary.MISSING] in table
    assert "waiting" not in str(table)
    assert summary.rate_table(curves.Curves("run", [train_line(10)], [], {}))[0] == ["rate", "median"]


def test_no_step_has_more_than_the_whole_rate_of_the_machine():
    lines = [train_line(step, flops_utilization=1.022) for step in (10, 20)]
    table = summary.rate_table(curves.Curves("run", lines, [], {}))
    assert ["their share of the matrix-product rate", summary.MISSING] in table


def test_amounts_count_every_step_once():
    lines = [train_line(10), train_line(15), {**train_line(20), "examples_per_second": 64.0}]
    assert summary.amounts(curves.Curves("run", lines, [], {})) == {
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
    run = curves.Curves("run", [train_line(10)], [line(10)], {})
    assert expected in model_card(run, {**METADATA, "evaluation_data": evaluated}, [], "", {})


def test_the_card_says_which_positions_have_learnt_nothing():
    short, long = train_line(10, max_seq_length=128), train_line(20, max_seq_length=512)
    for train, expected in (([short], True), ([short, long], False)):
        card = model_card(curves.Curves("run", train, [], {}), METADATA, [], "", {})
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
    found = curves.read_curves(folder)
    assert [(each["step"], each["masked_lm_loss"]) for each in found.eval] == [(10, 3.0), (15, 2.0), (20, 1.0)]


def test_saved_curves_are_small_and_read_back(tmp_path: pathlib.Path):
    train = [train_line(step, 10 / step, max_seq_length=128 if step <= 600 else 512) for step in range(1, 1001)]
    folder = run_folder(tmp_path / "run", train, [line(step) for step in range(1, 1001)], METADATA)
    path = tmp_path / "curves" / "tiny.json"
    curves.save_curves(folder, str(path))
    saved = json.loads(path.read_text())
    assert saved["command"] == METADATA["command"]
    assert saved["made_with"] == {"tensorflow": "2.21.0"}
    assert path.stat().st_size < 20_000
    found = curves.read_curves(str(path))
    assert found.name == "tiny"
    assert len(found.train) == len(found.eval) == 100
    assert found.train[-1]["step"] == found.eval[-1]["step"] == 1000
    assert found.train[0]["masked_lm_loss"] == pytest.approx(np.mean([10 / step for step in range(1, 11)]), rel=1e-4)
    assert [found.train[index]["max_seq_length"] for index in (59, 60)] == [128, 512]
    assert found.settings == curves.read_curves(folder).settings
    assert found.settings["train_batch_size"] == 32
    assert found.settings["vocabulary"] == "ab" * 6
    assert "on track" in curves.comparison(curves.read_curves(folder), found)


def test_values_that_are_not_finite_are_saved_as_valid_json(tmp_path: pathlib.Path):
    folder = run_folder(tmp_path / "run", [train_line(1, math.nan), train_line(2, 3.0)])
    curves.save_curves(folder, str(tmp_path / "tiny.json"))

    def refuse(name: str) -> None:
        raise AssertionError(name)

    rows = json.loads((tmp_path / "tiny.json").read_text(), parse_constant=refuse)["train"]
    assert [row[1] for row in rows] == [None, 3.0]
    curves.read_curves(str(tmp_path / "tiny.json"))


@pytest.mark.parametrize(
    ("loss", "verdict"),
    [
        (6.2, r"on track \(within 5 %\)"),
        (5.0, r"ahead of it \(16.7 % lower\)"),
        (7.2, r"not on track \(20.0 % higher\)"),
    ],
)
def test_a_run_is_on_track_ahead_or_behind(loss: float, verdict: str):
    reference = of("mini", {1000: 6.0, 2000: 6.0, 9000: 1.0})
    run = of("run", {1000: 9.0, 1500: loss, 2000: loss, 2500: 1.0})
    sentence = curves.comparison(run, reference)
    expected = f"step 2,000: masked LM loss {loss:.2f}, reference mini 6.00: {verdict}"
    if loss == 6.2:  # the stretch of the reference reaches from step 1,000
        assert sentence.endswith("both are means of steps 1,001 to 2,000.")
    assert re.match(expected, sentence)


def test_how_often_was_logged_does_not_matter_to_the_comparison():
    losses = {step: 2 + 8 * math.exp(-step / 300) for step in range(1, 2001)}
    often = of("often", losses)
    seldom = of(
        "seldom",
        {end: float(np.mean([losses[s] for s in range(end - 99, end + 1)])) for end in (*range(100, 2001, 100),)},
    )
    for run, reference in ((often, seldom), (seldom, often)):
        ours, theirs = re.findall(r" (\d\.\d\d)[,:]", curves.comparison(run, reference))
        assert ours == theirs


def test_a_stretch_longer_than_the_run_of_the_other_is_compared_from_the_start():
    sentence = curves.comparison(of("run", {1000: 6.0}), of("mini", {500: 7.0, 980: 5.0, 3000: 1.0}))
    assert "6.00, reference mini 6.02" in sentence
    assert "steps 1 to 980" in sentence


def test_what_cannot_be_compared_is_said():
    assert "too early" in curves.comparison(of("run", {10: 6.0}), of("mini", {100: 6.0}))
    assert "too early" in curves.comparison(of("run", {}), of("mini", {100: 6.0}))
    assert "no training" in curves.comparison(of("run", {10: 6.0}), of("mini", {}))
    assert "no finite" in curves.comparison(of("run", {10: math.nan}), of("mini", {10: 6.0}))


def test_settings_that_differ_are_named_and_those_unknown_are_not():
    run = of("run", {10: 6.0}, train_batch_size=64, learning_rate=1e-4, dtype="bfloat16")
    reference = of("mini", {10: 6.0}, train_batch_size=32, learning_rate=1e-4)
    assert curves.comparison(run, reference).endswith("The runs differ in train_batch_size 64 (reference 32).")


def test_runs_of_other_objectives_are_told_from_references_that_do_not_name_theirs():
    run = of("run", {10: 6.0}, left_to_right=True, masking_rates="80/10/10")
    sentence = curves.comparison(run, of("mini", {10: 6.0}))
    assert sentence.endswith("The runs differ in left_to_right True (reference False).")


def test_flags_that_runs_are_compared_by_are_flags():
    assert set(curves.COMPARED_OPTIONS) <= set(Options.__dataclass_fields__)


@pytest.mark.parametrize(
    "content",
    [
        "{", "[]", "{}", '{"columns": ["step"], "train": [], "eval": []}',
        '{"columns": ["step", "loss"], "train": [[1]], "eval": []}',
        '{"columns": ["step"], "train": [["1"]], "eval": []}',
        '{"columns": ["loss"], "train": [[1]], "eval": []}',
        '{"columns": ["step"], "train": [[1]], "eval": [], "settings": 3}',
    ],
)  # fmt: skip
def test_a_damaged_file_of_curves_is_an_error_before_anything_is_written(content: str, tmp_path: pathlib.Path):
    path = tmp_path / "mini.json"
    path.write_text(content)
    folder = run_folder(tmp_path / "run", [train_line(10)])
    with pytest.raises(UserError, match=r"mini\.json"):
        report.write_report(folder, METADATA, str(path))
    assert not (tmp_path / "run" / RUN_FILE).exists()


def test_a_folder_without_a_log_and_a_missing_file_are_errors(tmp_path: pathlib.Path):
    with pytest.raises(UserError, match="neither the folder of a run"):
        curves.read_curves(str(tmp_path))
    with pytest.raises(UserError, match="there is no file"):
        curves.read_curves(str(tmp_path / "missing.json"))
    folder = run_folder(tmp_path / "run", [])
    with pytest.raises(UserError, match="no training logged"):
        curves.save_curves(folder, str(tmp_path / "x.json"))
    with pytest.raises(UserError, match=r"expected NAME\.json"):
        curves.save_curves(folder, str(tmp_path / "x.txt"))


def test_the_reference_is_drawn_as_far_as_the_run_has_come_and_phases_are_marked():
    train = [train_line(step, max_seq_length=128 if step <= 50 else 512) for step in range(1, 101)]
    reference = of("mini", dict.fromkeys(range(1, 1001), 3.0))
    axes = Figure().subplots()
    report._draw_panel(axes, curves.Curves("run", train, [line(50), line(100)], {}), reference, "masked_lm_loss")
    drawn = {each.get_label(): each.get_xdata() for each in axes.lines}
    assert max(drawn["reference mini"]) == 125
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
