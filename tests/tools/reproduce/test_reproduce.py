"""The paper's tables as commands, and the page with their results."""

import json
import pathlib
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence

import pytest

from official_bert.errors import UserError
from official_bert.kinds.question_answering.questions import Limits
from official_bert_cli import load
from tests.conftest import ROOT
from tests.make import assert_refused
from tests.processes import wait_for_exit
from tools.reproduce import __main__, runs
from tools.reproduce.experiment import Experiment, Options
from tools.reproduce.page import compare_orders, find_difference
from tools.reproduce.runs import Run, perform
from tools.reproduce.tables import COLUMNS, PERPLEXITY, SCALES, TABLES


@pytest.fixture
def data_dir(tmp_path: pathlib.Path) -> pathlib.Path:
    for _, folder, _, _ in COLUMNS.values():
        (tmp_path / "data" / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / folder / "train.tsv").touch()
    return tmp_path / "data"


def make_options(data_dir: pathlib.Path, table: str, scale: str = "tiny", **changes: object) -> Options:
    values = {
        "table": table, "scale": scale, "input_file": ["a.txt", "b.txt"], "heldout_file": ["c.txt"],
        "data_dir": str(data_dir), "output_dir": str(data_dir.parent / "out"), "random_seeds": ["1", "2"], **changes,
    }  # fmt: skip
    return Options(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("table", TABLES)
def test_every_run_is_a_command_and_has_a_folder_of_its_own(table: str, scale: str, data_dir: pathlib.Path):
    all_runs = Experiment(make_options(data_dir, table, scale)).runs()
    assert len({run.folder for run in all_runs}) == len({run.line() for run in all_runs}) == len(all_runs)
    made: set[str] = set()
    for run in all_runs:
        load(run.command).parse(shlex.split(run.line())[2:])
        needs = {
            "pretrain": [
                str(pathlib.Path(str(run.flags.get(name, ""))).parent) for name in ("input_file", "vocab_file")
            ]
            + [str(run.flags[name]) for name in ("init_checkpoint",) if name in run.flags],
            "finetune": [str(run.flags.get("init", "")).split("/ckpt-")[0]],
        }.get(run.command, [])
        assert made >= set(needs), f"{run.line()} comes before what it needs"
        made.add(run.folder)


@pytest.mark.parametrize("scale", SCALES)
def test_a_question_leaves_room_for_its_context(scale: str, data_dir: pathlib.Path):
    for table in ("2", "3"):
        runs = Experiment(make_options(data_dir, table, scale)).runs()
        flags = [run.flags for run in runs if run.command == "finetune"]
        assert flags
        for each in flags:
            limits = Limits(**{name: each.get(name, value) for name, value in _QUESTION_DEFAULTS.items()})
            assert limits.max_query_length + 3 < limits.max_seq_length


_QUESTION_DEFAULTS = {"max_seq_length": 384, "doc_stride": 128, "max_query_length": 64}

# Rate, batch size and epochs (sections 4.1 to 4.4), longest sequence and doc_stride (the released run_squad.py).
_GLUE_RATES = ["5e-5", "4e-5", "3e-5", "2e-5"]
_PAPER_SETTINGS = {
    **dict.fromkeys(("mnli", "qqp", "qnli", "sst-2", "cola", "sts-b", "mrpc", "rte"), (_GLUE_RATES, 32, 3, 128)),
    "squad": (5e-5, 32, 3, 384, 128),
    "squad_v2": (5e-5, 48, 2, 384, 128),
    "swag": (2e-5, 16, 3, 128),
}


def test_the_base_scale_fine_tunes_as_the_paper_does(data_dir: pathlib.Path):
    settings = {}
    for table in ("1", "2", "3", "4", "5", "6"):
        for run in Experiment(make_options(data_dir, table, "base")).runs():
            if run.command == "finetune" and run.flags["task"] != "tagging":
                options, task_options = load("finetune").parse(shlex.split(run.line())[2:])
                values = options.settings()
                found = (options.grid_learning_rates or values.learning_rate, values.train_batch_size)
                found += (values.num_train_epochs, values.max_seq_length)
                found += (task_options.doc_stride,) if options.task.startswith("squad") else ()
                assert settings.setdefault(options.task, found) == found
    assert settings == _PAPER_SETTINGS


def test_the_base_scale_pretrains_as_the_paper_does(data_dir: pathlib.Path):
    models = {
        str(run.flags["bert_config_file"]): load("pretrain").parse(shlex.split(run.line())[2:])[0]
        for run in Experiment(make_options(data_dir, "6", "base")).runs()
        if run.command == "pretrain"
    }
    assert len(models) == 6
    for options in models.values():
        first, second = options.phases
        assert (first.last_step, first.max_seq_length, first.max_predictions_per_seq) == (900_000, 128, 20)
        assert (second.last_step, second.max_seq_length, second.max_predictions_per_seq) == (1_000_000, 512, 77)
        assert {phase.train_batch_size for phase in options.phases} == {256}
        assert (options.learning_rate, options.num_warmup_steps, options.warmup_jump) == (1e-4, 10_000, True)
        assert (options.phase2_learning_rate, options.end_learning_rate) == (None, 0.0)  # one line for both phases


def test_scores_are_of_the_best_learning_rate_and_of_the_best_threshold(data_dir: pathlib.Path):
    experiment = Experiment(make_options(data_dir, "1", "base", random_seeds=["1"]))
    variant = experiment.table.variants[0]
    folder = pathlib.Path(next(run.folder for run in experiment.runs() if run.flags.get("task") == "mnli"))
    best = folder / "rate_2e-05" / "seed_1"
    best.mkdir(parents=True)
    (folder / "sweep.json").write_text(json.dumps([{"folders": [str(best)]}, {"folders": [str(folder / "worse")]}]))
    (best / "results.json").write_text('{"matched": {"accuracy": 0.84}, "mismatched": {"accuracy": 0.83}}')
    assert experiment.score(variant, "mnli", "1") == 84.0
    experiment = Experiment(make_options(data_dir, "3", "base", random_seeds=["1"]))
    folder = pathlib.Path(next(run.folder for run in experiment.runs() if run.command == "finetune"))
    folder.mkdir(parents=True)
    (folder / "results.json").write_text('{"dev": {"f1": 80.5, "best_f1": 81.9}}')
    assert experiment.score(experiment.table.variants[0], "squad_v2", "1") == 81.9


def test_tables_share_what_is_equal(data_dir: pathlib.Path):
    folders = {
        table: {run.folder for run in Experiment(make_options(data_dir, table)).runs() if run.command == "pretrain"}
        for table in ("5", "7", "C.2")
    }
    assert folders["7"] < folders["5"]
    assert folders["7"] < folders["C.2"]
    lines = [run.line() for run in Experiment(make_options(data_dir, "5")).runs()]
    assert (
        sum(" pretrain " in line for line in lines) == 2 * 3 + 2 * 2
    )  # BiLSTM on the same model, NSP on the same short
    figure = [run for run in Experiment(make_options(data_dir, "figure5")).runs() if run.command == "pretrain"]
    assert {run.folder for run in figure} < folders["5"]


def test_a_share_of_the_steps_is_a_checkpoint_that_is_kept(data_dir: pathlib.Path):
    runs = {run.folder: run for run in Experiment(make_options(data_dir, "figure5", columns=["mrpc"])).runs()}
    taken = []
    for run in runs.values():
        if run.command == "finetune" and run.folder.endswith("seed_1") and "left_to_right" not in run.folder:
            folder, _, step = str(run.flags["init"]).partition("/ckpt-")
            flags = runs[folder].flags
            taken.append((flags["max_seq_length"], int(step or flags["num_train_steps"])))
            assert taken[-1][1] % flags["save_checkpoints_steps"] == 0
            assert flags["keep_checkpoint_max"] * flags["save_checkpoints_steps"] >= flags["num_train_steps"]
    assert taken == [(16, 400), (16, 800), (16, 1200), (16, 1600), (64, 400)]


def test_what_there_is_no_data_for_is_left_out(data_dir: pathlib.Path):
    (data_dir / "glue" / "MNLI" / "train.tsv").unlink()
    experiment = Experiment(make_options(data_dir, "6", heldout_file=[]))
    assert experiment.columns == ["mrpc", "sst-2", "tagging"]
    assert experiment.missing == [
        f"{PERPLEXITY}: there is no --heldout_file", f"mnli: there is no training part in {data_dir}/glue/MNLI"
    ]  # fmt: skip
    assert_refused("there is nothing to measure: mnli", Experiment, make_options(data_dir, "6", columns=["mnli"]))
    assert_refused("--columns names rte; Table 6", Experiment, make_options(data_dir, "6", columns=["rte"]))


@pytest.mark.parametrize(("changes", "message"), [
    ({"random_seeds": []}, "--random_seeds=: expected different whole numbers"),
    ({"random_seeds": ["1", "x"]}, "--random_seeds=1,x: expected different whole numbers"),
    ({"random_seeds": ["1", "01"]}, "--random_seeds=1,01: expected different"),  # would be the same run twice
    ({"num_train_steps": 12}, "--num_train_steps is 12; .* multiple of 10"),  # no checkpoint after 0.8 of 12 steps
])  # fmt: skip
def test_numbers_that_no_experiment_has_are_refused(changes: dict[str, object], message: str, data_dir: pathlib.Path):
    assert_refused(message, make_options, data_dir, "figure5", **changes)


@pytest.mark.parametrize("scale", SCALES)
def test_the_parts_of_pretraining_are_the_steps_that_are_asked_for(scale: str, data_dir: pathlib.Path):
    runs = Experiment(make_options(data_dir, "figure5", scale, num_train_steps=10, random_seeds=["1"])).runs()
    models = [run for run in runs if run.command == "pretrain"]
    steps = [run.flags["num_train_steps"] + run.flags.get("phase2_num_train_steps", 0) for run in models]
    assert all(number > 0 for number in steps)
    assert sum(steps) == 2 * 10  # masked LM, and left to right
    assert {run.flags["save_checkpoints_steps"] for run in models} == {2}


def test_a_run_that_is_done_is_skipped_and_one_that_fails_ends_it(tmp_path, monkeypatch):
    lines: list[str] = []
    code = 0

    def call(run: Run, output: str) -> tuple[int, int, int]:
        lines.append(run.line())
        return code, 2, 1

    monkeypatch.setattr(runs, "_call", call)
    run = Run(str(tmp_path / "a"), "pretrain", {"do_train": True, "jit_compile": False, "input_file": ["a", "b"]})
    perform([run])
    perform([run])
    assert lines == ["official-bert pretrain --do_train --nojit_compile --input_file=a,b"]
    assert_refused("holds the results of another command", perform, [Run(run.folder, "pretrain", {"do_train": False})])
    code = 3
    with pytest.raises(UserError, match=r"exit code 3; its output is in .*output.txt"):
        perform([Run(str(tmp_path / "b"), "pretrain", {}), Run(str(tmp_path / "c"), "x", {})])
    assert not (tmp_path / "b" / "done.json").exists()
    assert not (tmp_path / "c").exists()


def test_what_a_command_prints_is_kept(tmp_path: pathlib.Path):
    output = tmp_path / "output.txt"
    output.write_text("before\n")
    code, seconds, _ = runs._call(Run(str(tmp_path), "inspect-records", {"help": True}), str(output))
    assert code == 0
    assert output.read_text().startswith("before\nShows the records of TFRecord files")
    assert "usage: official-bert inspect-records" in output.read_text()
    assert 0 <= seconds < 60


_PARENT = """
import sys
from tools.reproduce import runs
program = runs._program().replace("main()", "import os, time; print(os.getpid(), flush=True); time.sleep(60)")
runs._program = lambda: program
runs._call(runs.Run("", "", {}), sys.argv[1])
"""


def test_a_command_ends_with_the_process_that_runs_it(tmp_path: pathlib.Path):
    output = tmp_path / "output.txt"
    parent = subprocess.Popen([sys.executable, "-c", _PARENT, str(output)], cwd=ROOT)
    while not (output.exists() and output.read_text().endswith("\n")):
        assert parent.poll() is None
        time.sleep(0.01)
    parent.kill()
    parent.wait()
    wait_for_exit(int(output.read_text()))


def fake_results(all_runs: Sequence[Run]) -> None:
    for run in all_runs:
        fake_result(run)


def fake_result(run: Run) -> None:
    folder = pathlib.Path(run.folder)
    folder.mkdir(parents=True, exist_ok=True)
    if run.command == "learn-vocabulary":
        (folder / "vocab.txt").write_text("a\nb\n")
    if run.command == "pretrain":
        (folder / "eval_results.txt").write_text("loss = 3.0\nmasked_lm_loss = 2.0\n")
    if run.command == "finetune":
        score = (0.9 if "next_sentence" not in str(run.flags["init"]) else 0.5) + 0.001 * int(folder.name[-1])
        f1 = {"f1": 100 * score} if run.flags["task"] == "squad" else {"accuracy": score}
        (folder / "results.json").write_text(json.dumps({"dev": f1}))


def test_the_page_has_both_scores_and_is_the_same_again(data_dir: pathlib.Path, monkeypatch, capsys):
    monkeypatch.setattr(__main__, "perform", fake_results)
    options = make_options(data_dir, "5")
    path = data_dir.parent / "out" / "table_5_tiny.md"
    __main__.main(options)
    page = path.read_text()
    assert "| BERT | L-2_H-128_A-4 | 84.4 | 90.2 ± 0.1 |" in page  # MNLI: the paper's score, ours
    assert "| 77.8 | 50.2 ± 0.1 |" in page  # SQuAD from left to right
    assert "mnli: 3 of 6 pairs in the paper's order, 0 reversed, others not significant" in page
    assert "\nofficial-bert finetune" in page
    config = json.loads((data_dir.parent / "out" / "models" / "L-2_H-128_A-4.json").read_text())
    assert config["vocab_size"] == 2
    __main__.main(options)
    assert path.read_text() == page
    capsys.readouterr()
    __main__.main(make_options(data_dir, "figure5"))
    page = (data_dir.parent / "out" / "table_figure5_tiny.md").read_text()
    assert "| masked LM, 100% of the steps | L-2_H-128_A-4 | - | 90.2 ± 0.1 |" in page
    __main__.main(make_options(data_dir, "figure5", dry_run=True))
    assert "-short/seed_1/ckpt-400 " in capsys.readouterr().out


def test_differences_count_only_beyond_chance():
    assert find_difference([80.0], [90.0]) == 0
    assert find_difference([80.0, 81.0, 82.0], [80.5, 81.5, 82.5]) == 0
    assert find_difference([80.0, 81.0, 82.0], [90.0, 91.0, 92.0]) == pytest.approx(-10)
    table = TABLES["6"]
    scores = {
        (variant.name, PERPLEXITY): [10.0 - number, 10.1 - number] for number, variant in enumerate(table.variants)
    }
    assert "15 of 15 pairs in the paper's order" in compare_orders(table, PERPLEXITY, scores)
    first, *_, last = ((variant.name, PERPLEXITY) for variant in table.variants)
    scores[first], scores[last] = scores[last], scores[first]
    assert "6 of 15 pairs in the paper's order, 9 reversed" in compare_orders(table, PERPLEXITY, scores)
    alone = {key: values[:1] for key, values in scores.items()}
    assert "0 of 15 pairs in the paper's order, 0 reversed" in compare_orders(table, PERPLEXITY, alone)
