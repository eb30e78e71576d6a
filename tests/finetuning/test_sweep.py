import pytest

from official_bert.finetuning import sweep
from tests.finetuning.conftest import change
from tests.make import assert_rejected


@pytest.fixture
def done(monkeypatch):
    """Records the options of each run, whose scores depend on the learning rate and the seed, instead of running it."""
    done = []

    def run(options):
        done.append(options)
        # The setting with the higher mean has the lower maximum.
        value = {2e-3: {1: 0.21, 3: 0.23}, 1e-3: {1: 0.11, 3: 0.31}}[options.learning_rate][options.random_seed]
        return {"dev": {"accuracy": value, "mean_absolute_error": value}}

    monkeypatch.setattr(sweep, "run", run)
    monkeypatch.setattr("keras.utils.clear_session", lambda: None)  # slow in a process with many objects
    return done


def test_a_sweep_makes_one_table_of_means_and_deviations(options, done, tmp_path, capsys):
    swept = change(options, grid_learning_rates=["1e-3", "2e-3"], random_seeds=["1", "3"])
    assert sweep.is_sweep(swept)
    assert not sweep.is_sweep(options)
    rows = sweep.run_sweep(swept)
    assert [row["setting"]["learning_rate"] for row in rows] == [2e-3, 1e-3]
    assert len({each.output_dir for each in done[:4]}) == 4
    assert "| rate 0.002 | 2 | 0.2200 ± 0.0141 |" in (tmp_path / "run" / "sweep.md").read_text()
    folder = tmp_path / "run" / "rate_0.002" / "seed_3"
    assert capsys.readouterr().out.endswith(f"with dev/accuracy 0.2300, in {folder}\n")
    assert [each.do_predict for each in done] == [False] * 4 + [True]
    assert (done[4].do_train, done[4].learning_rate, done[4].random_seed) == (False, 2e-3, 3)
    swept = change(options, grid_batch_sizes=["8", "4"], grid_learning_rates=["1e-3", "2e-3"], random_seed=3)
    rows = sweep.run_sweep(swept)  # without --random_seeds
    found = [(*row["setting"].values(), *row["seeds"]) for row in rows]
    assert found == [(8, 1e-3, 3), (4, 1e-3, 3), (8, 2e-3, 3), (4, 2e-3, 3)]


def test_a_score_that_a_run_lacks_has_no_mean_and_one_seed_has_no_deviation():
    setting, seeds = {"train_batch_size": 16, "num_train_epochs": 2.5}, [1, 2]
    both = {"setting": setting, "seeds": seeds, "scores": {"dev/f1": [0.5, 0.75], "dev/X_f1": [0.25]}}
    lines = sweep._format_table([both, {"setting": {}, "seeds": [1], "scores": {"dev/f1": [0.125]}}]).splitlines()
    assert [line.strip("| ") for line in lines if "---" not in line] == [
        "setting | seeds | dev/f1 | dev/X_f1",
        "batch 16 epochs 2.5 | 2 | 0.6250 ± 0.1768 | -",
        "defaults | 1 | 0.1250 | -",
    ]


def test_a_sweep_prefers_the_smallest_value_of_an_error_metric(options, capsys, done):
    options = change(
        options, label_kind="regression", metric_for_best_model="mean_absolute_error", do_predict=False,
        grid_learning_rates=["2e-3", "1e-3"], random_seeds=["1", "3"],
    )  # fmt: skip
    rows = sweep.run_sweep(options)
    assert [row["setting"]["learning_rate"] for row in rows] == [1e-3, 2e-3]
    assert "best run: rate 0.001, seed 1, with dev/mean_absolute_error 0.1100" in capsys.readouterr().out


def test_a_sweep_checks_its_task_before_it_creates_a_strategy(options, monkeypatch):
    monkeypatch.setattr(sweep, "make_strategy", lambda _: pytest.fail("a strategy was made"))
    options = change(options, random_seeds=["1", "2"], eval_file=None)
    assert_rejected(("sweep", "table", "--eval_file"), sweep.run_sweep, options)
