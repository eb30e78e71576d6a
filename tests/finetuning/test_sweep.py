import dataclasses

import pytest

from official_bert.errors import UserError
from official_bert.finetuning import sweep
from tests.finetuning.test_finetuning import add_task_options, options  # noqa: F401


def test_a_sweep_makes_one_table_of_means_and_deviations(options, tmp_path, monkeypatch, capsys):  # noqa: F811
    done = []

    def run(each):
        done.append(each)
        value = each.learning_rate * 100 + each.random_seed / 100
        return {"dev": {"accuracy": value}}

    monkeypatch.setattr(sweep, "run", run)
    swept = dataclasses.replace(options, grid_learning_rates=["1e-3", "2e-3"], random_seeds=["1", "3"])
    assert sweep.is_sweep(swept)
    assert not sweep.is_sweep(options)
    rows = sweep.run_sweep(swept)
    assert [row["setting"]["learning_rate"] for row in rows] == [2e-3, 1e-3]
    assert len({each.output_dir for each in done[:4]}) == 4
    table = (tmp_path / "run" / "sweep.md").read_text()
    assert "| rate 0.002 | 2 | 0.2200 ± 0.0141 |" in table
    assert "with dev/accuracy 0.2300" in capsys.readouterr().out
    assert (done[4].do_predict, done[4].do_train, done[4].random_seed) == (True, False, 3)


def test_a_sweep_over_errors_prefers_the_smallest_one(options, monkeypatch, capsys):  # noqa: F811
    def run(each):
        return {"dev": {"mean_absolute_error": each.learning_rate + each.random_seed / 100}}

    monkeypatch.setattr(sweep, "run", run)
    options = dataclasses.replace(
        add_task_options(options, label_kind="regression"),
        metric_for_best_model="mean_absolute_error", grid_learning_rates=["2e-3", "1e-3"], random_seeds=["1", "3"],
    )  # fmt: skip
    rows = sweep.run_sweep(dataclasses.replace(options, do_predict=False))
    assert [row["setting"]["learning_rate"] for row in rows] == [1e-3, 2e-3]
    assert "best run: rate 0.001, seed 1, with dev/mean_absolute_error 0.0110" in capsys.readouterr().out


def test_a_sweep_checks_its_task_before_it_makes_a_strategy(options, monkeypatch):  # noqa: F811
    monkeypatch.setattr(sweep, "make_strategy", lambda _: pytest.fail("a strategy was made"))
    with pytest.raises(UserError, match="no evaluation data; pass --eval_file"):
        sweep.run_sweep(add_task_options(dataclasses.replace(options, random_seeds=["1", "2"]), eval_file=None))
