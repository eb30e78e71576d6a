import json
import pathlib
import re

import pytest

from official_bert.comparison import page, runs
from official_bert.errors import UserError
from official_bert.utils.training_log import EVAL, TRAIN, line_of
from tests.conftest import ROOT

LINE = {"masked_lm_loss": 7.0, "steps_per_second": 5.0, "tokens_per_second": 100.0, "processor_seconds": 4.0}


def pretraining_run(folder: pathlib.Path, rate: float, losses: list[float]) -> str:
    folder.mkdir()
    lines = [{"step": 10 * (i + 1), **LINE, "masked_lm_loss": loss} for i, loss in enumerate(losses)]
    (folder / f"{TRAIN}.jsonl").write_text("".join(map(line_of, lines)))
    (folder / f"{EVAL}.jsonl").write_text(line_of({"step": 15, "masked_lm_loss": 5.5}))
    flags = {"learning_rate": rate, "train_batch_size": 32, "output_dir": str(folder)}
    (folder / "run.json").write_text(json.dumps({"flags": flags, "config": {"hidden_size": 128}}))
    return str(folder)


def finetuning_run(folder: pathlib.Path) -> str:
    folder.mkdir()
    rates = {name: LINE[name] for name in LINE if name != "masked_lm_loss"}
    (folder / f"{TRAIN}.jsonl").write_text(line_of({"step": 5, "loss": 0.7, "learning_rate": 1e-5, **rates}))
    (folder / f"{EVAL}.jsonl").write_text(line_of({"step": 5, "dev/accuracy": 0.75}))
    (folder / "finetuning_options.json").write_text(json.dumps({"task": "table", "learning_rate": 3e-5}))
    return str(folder)


def test_curves_are_over_what_was_spent(tmp_path: pathlib.Path):
    run = runs.read(pretraining_run(tmp_path / "a", 1e-4, [7.0, 6.0]))
    spent = {name: values.tolist() for name, values in run.amounts().items()}
    assert spent == {
        "steps": [10, 20], "tokens": [200, 400], "seconds": [2, 4], "processor seconds": [4, 8]
    }  # fmt: skip
    at, losses = run.curve(TRAIN, "masked_lm_loss", "processor seconds")
    assert (at.tolist(), losses.tolist()) == ([4, 8], [7, 6])
    # An evaluation after step 15 stands between the lines of training.
    assert [each.tolist() for each in run.curve(EVAL, "masked_lm_loss", "seconds")] == [[3], [5.5]]
    assert [run.last(kind, "masked_lm_loss") for kind in (TRAIN, EVAL)] == [6.0, 5.5]
    assert run.last(EVAL, "dev/accuracy") is None
    assert runs.read(pretraining_run(tmp_path / "b", 1e-4, [7.0, 0.0])).last(TRAIN, "masked_lm_loss") == 0.0


def test_the_page_has_a_picture_for_each_amount_and_the_settings_that_differ(tmp_path: pathlib.Path):
    paths = [pretraining_run(tmp_path / name, rate, [7.0, 6.0]) for name, rate in (("a", 1e-4), ("b", 3e-4))]
    target = tmp_path / "compare.html"
    assert page.compare(paths, str(target)).endswith("they differ in 1 setting")
    html = target.read_text()
    for amount in ("steps", "tokens", "seconds", "processor seconds"):
        assert f'alt="masked_lm_loss in training, by {amount}"' in html
        assert f'alt="masked_lm_loss in evaluation, by {amount}"' in html
    differing = html[html.index("Settings that differ") :]
    assert "<th>learning_rate</th>" in differing
    assert "0.0003" in differing
    assert "train_batch_size" not in html
    assert "output_dir" not in html


def test_runs_of_all_kinds_and_kept_curves_stand_on_one_page(tmp_path: pathlib.Path):
    kept = str(ROOT / "configs" / "curves" / "tiny.json")
    paths = [pretraining_run(tmp_path / "a", 1e-4, [7.0]), finetuning_run(tmp_path / "task"), kept]
    page.compare(paths, str(tmp_path / "all.html"))
    html = (tmp_path / "all.html").read_text()
    assert re.search(r"<th>kind of run</th>.*pre-training.*fine-tuning.*kept curves", html)
    assert "<th>task</th>" not in html  # which one run alone has
    assert 'alt="dev/accuracy in evaluation, by processor seconds"' in html
    # A file of curves has steps alone.
    assert not runs.read(kept).curve(TRAIN, "masked_lm_loss", "tokens")[0].size
    assert runs.read(kept).curve(TRAIN, "masked_lm_loss", "steps")[0].size > 5


def test_a_loss_that_is_no_number_at_the_end_is_shown_as_such(tmp_path: pathlib.Path):
    paths = [pretraining_run(tmp_path / name, 1e-4, losses) for name, losses in (("a", [7, 6.25]), ("b", [7.0, 0.5]))]
    with (tmp_path / "b" / f"{TRAIN}.jsonl").open("a") as log:
        log.write(line_of({"step": 30, **LINE, "masked_lm_loss": float("nan")}))
    page.compare(paths, str(tmp_path / "compare.html"))
    stands = (tmp_path / "compare.html").read_text().partition("Settings that differ")[0]
    assert ">6.25<" in stands
    assert ">nan<" in stands
    assert ">0.5<" not in stands


def test_what_is_no_run_is_one_line(tmp_path: pathlib.Path):
    good = pretraining_run(tmp_path / "good", 1e-4, [7.0])
    (tmp_path / "empty").mkdir()
    target = tmp_path / "compare.html"
    with pytest.raises(UserError, match=r"empty is no run: it has no train.jsonl; expected the --output_dir of"):
        page.compare([good, str(tmp_path / "empty")], str(target))
    (tmp_path / "empty" / "train.jsonl").write_text("")
    with pytest.raises(UserError, match=r"empty has no curve: its train.jsonl is empty"):
        page.compare([good, str(tmp_path / "empty")], str(target))
    (tmp_path / "empty" / "train.jsonl").write_text(line_of({"step": 10, **LINE}))
    for name in ("flags", "config", "versions", "records"):
        (tmp_path / "empty" / "run.json").write_text(f'{{"{name}": null}}')
        with pytest.raises(UserError, match=rf"run.json is damaged \(its {name} is None; expected an object\)"):
            page.compare([good, str(tmp_path / "empty")], str(target))
    for name in ("data", "evaluation_data", "devices"):
        (tmp_path / "empty" / "run.json").write_text(f'{{"{name}": 3}}')
        with pytest.raises(UserError, match=rf"run.json is damaged \(its {name} is 3; expected a list\)"):
            page.compare([good, str(tmp_path / "empty")], str(target))
    with pytest.raises(UserError, match=r"1 argument; expected at least two runs"):
        page.compare([good], str(target))
    with pytest.raises(UserError, match=r"good is given twice"):
        page.compare([good, good], str(target))
    with pytest.raises(UserError, match=r"good/../good is given twice"):
        page.compare([good, f"{good}/../good"], str(target))
    other = pretraining_run(tmp_path / "other", 1e-4, [7.0])
    for name in ("run.json", "train.jsonl"):
        before = (tmp_path / "other" / name).read_text()
        with pytest.raises(UserError, match=rf"--output_file would write {other}/{name}, which is an input"):
            page.compare([good, other], f"{other}/{name}")
        assert (tmp_path / "other" / name).read_text() == before
    assert not target.exists()
