"""The paper's tables as commands, and the page with their results."""

import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time

import pytest

from official_bert_cli import load
from tests.make import ROOT, assert_rejected, write_text, write_vocab
from tests.processes import wait_for_exit
from tools.reproduce import __main__, runs
from tools.reproduce.experiment import Experiment, Options
from tools.reproduce.page import compare_orders, find_difference
from tools.reproduce.runs import Run, perform
from tools.reproduce.tables import COLUMNS, PERPLEXITY, SCALES, TABLES


@pytest.fixture
def data_dir(tmp_path: pathlib.Path) -> pathlib.Path:
    for _, folder, _, _ in COLUMNS.values():
        write_text(tmp_path / "data" / folder / "train.tsv", "")
    return tmp_path / "data"


def make_options(data_dir: pathlib.Path, table: str, scale: str = "tiny", **changes: object) -> Options:
    values = {
        "table": table, "scale": scale, "input_file": ["a.txt", "b.txt"], "heldout_file": ["c.txt"],
        "data_dir": str(data_dir), "output_dir": str(data_dir.parent / "out"), "random_seeds": ["1", "2"], **changes,
    }  # fmt: skip
    return Options(**values)  # type: ignore[arg-type]


def list_runs(data_dir: pathlib.Path, table: str, command: str, scale: str = "base", **changes) -> list[Run]:
    found = Experiment(make_options(data_dir, table, scale, **changes)).runs()
    return [run for run in found if run.command == command]


def parse(run: Run):
    return load(run.command).parse(shlex.split(run.line())[2:])


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("table", TABLES)
def test_every_run_is_a_command_with_its_own_folder_and_questions_leave_room_for_context(table, scale, data_dir):
    all_runs = Experiment(make_options(data_dir, table, scale)).runs()
    assert len({run.folder for run in all_runs}) == len({run.line() for run in all_runs}) == len(all_runs)
    made: set[str] = set()
    for run in all_runs:
        if "seed_2" not in run.folder:  # its flags are the same as for seed_1, except for the seed
            parse(run)
        inputs = ("vocab_file", "input_file") if run.command == "pretrain" else ()
        needed = {os.path.dirname(str(run.flags[name])) for name in inputs}
        needed |= {str(run.flags[name]).split("/ckpt-")[0] for name in ("init_checkpoint", "init") if name in run.flags}
        assert made >= needed, f"{run.line()} comes before what it needs"
        made.add(run.folder)
        if run.command == "finetune" and table in ("2", "3"):
            assert run.flags.get("max_query_length", 64) + 3 < run.flags.get("max_seq_length", 384)


# Rate, batch size and epochs (sections 4.1 to 4.4), longest sequence and doc_stride (the released run_squad.py).
_GLUE, _GLUE_RATES = "mnli qqp qnli sst-2 cola sts-b mrpc rte".split(), ["5e-5", "4e-5", "3e-5", "2e-5"]
_PAPER_SETTINGS = dict.fromkeys(_GLUE, (_GLUE_RATES, 32, 3, 128)) | {
    "squad": (5e-5, 32, 3, 384, 128), "squad_v2": (5e-5, 48, 2, 384, 128), "swag": (2e-5, 16, 3, 128),
}  # fmt: skip


def test_the_base_scale_fine_tunes_as_the_paper_does(data_dir: pathlib.Path):
    settings = {}
    for table in ("1", "2", "3", "4", "5", "6"):
        for run in list_runs(data_dir, table, "finetune", random_seeds=["1"]):
            options, task_options = parse(run)
            found = (options.grid_learning_rates or options.learning_rate, options.train_batch_size)
            found += (options.num_train_epochs, options.max_seq_length)
            found += (task_options.doc_stride,) if options.task.startswith("squad") else ()
            assert settings.setdefault(options.task, found) == found
    del settings["tagging"]
    assert settings == _PAPER_SETTINGS


def test_the_base_scale_pretrains_as_the_paper_does(data_dir: pathlib.Path):
    models = {str(run.flags["bert_config_file"]): parse(run)[0] for run in list_runs(data_dir, "6", "pretrain")}
    assert len(models) == 6
    names = ("last_step", "max_seq_length", "max_predictions_per_seq", "train_batch_size")
    for options in models.values():
        phases = [tuple(getattr(phase, name) for name in names) for phase in options.phases]
        assert phases == [(900_000, 128, 20, 256), (1_000_000, 512, 77, 256)]
        assert (options.learning_rate, options.num_warmup_steps, options.warmup_jump) == (1e-4, 10_000, True)
        assert (options.phase2_learning_rate, options.end_learning_rate) == (None, 0.0)  # one line for both phases


def test_scores_use_the_best_learning_rate_and_threshold(data_dir: pathlib.Path):
    runs = [*list_runs(data_dir, "1", "finetune"), *list_runs(data_dir, "3", "finetune")]
    folders = {run.flags["task"]: pathlib.Path(run.folder) for run in reversed(runs)}
    folder = folders["mnli"]
    best = folder / "rate_2e-05" / "seed_1"
    write_text(folder / "sweep.json", json.dumps([{"folders": [str(best)]}, {"folders": [str(folder / "worse")]}]))
    write_text(best / "results.json", '{"matched": {"accuracy": 0.84}, "mismatched": {"accuracy": 0.83}}')
    write_text(folders["squad_v2"] / "results.json", '{"dev": {"f1": 80.5, "best_f1": 81.9}}')
    for table, column, score in (("1", "mnli", 84.0), ("3", "squad_v2", 81.9)):
        experiment = Experiment(make_options(data_dir, table, "base"))
        assert experiment.score(experiment.table.variants[0], column, "1") == score


def test_tables_share_equal_runs(data_dir: pathlib.Path):
    tables = ("5", "7", "C.2", "figure5")
    runs = {table: list_runs(data_dir, table, "pretrain", "tiny") for table in tables}
    folders = {table: {run.folder for run in runs[table]} for table in tables}
    assert folders["7"] < folders["5"]
    assert folders["7"] < folders["C.2"]
    assert folders["figure5"] < folders["5"]
    assert len(runs["5"]) == 2 * 3 + 2 * 2  # BiLSTM on the same model, NSP on the same short


def test_the_checkpoints_that_figure_5_needs_are_saved_and_kept(data_dir: pathlib.Path):
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


def test_tasks_without_data_are_omitted(data_dir: pathlib.Path):
    (data_dir / "glue" / "MNLI" / "train.tsv").unlink()
    experiment, folder = Experiment(make_options(data_dir, "6", heldout_file=[])), f"{data_dir}/glue/MNLI"
    assert experiment.columns == ["mrpc", "sst-2", "tagging"]
    missing = [f"{PERPLEXITY}: there is no --heldout_file", f"mnli: {folder} has no training part"]
    assert experiment.missing == missing
    for column, names in (("mnli", ("mnli", folder)), ("rte", ("--columns", "rte", "Table 6", "mrpc"))):
        assert_rejected(names, Experiment, make_options(data_dir, "6", columns=[column]))


@pytest.mark.parametrize(("changes", "names"), [
    ({"random_seeds": []}, "--random_seeds="), ({"random_seeds": ["1", "x"]}, "--random_seeds=1,x"),
    ({"random_seeds": ["1", "01"]}, "--random_seeds=1,01"),  # would be the same run twice
    ({"num_train_steps": 12}, ("--num_train_steps", 12, 10)),  # no checkpoint after 0.8 of 12 steps
])  # fmt: skip
def test_invalid_experiment_options_are_rejected(changes: dict[str, object], names, data_dir: pathlib.Path):
    assert_rejected(names, make_options, data_dir, "figure5", **changes)


@pytest.mark.parametrize("scale", SCALES)
def test_pretraining_phases_have_the_requested_steps(scale: str, data_dir: pathlib.Path):
    models = list_runs(data_dir, "figure5", "pretrain", scale, num_train_steps=10, random_seeds=["1"])
    steps = [run.flags["num_train_steps"] + run.flags.get("phase2_num_train_steps", 0) for run in models]
    assert all(number > 0 for number in steps)
    assert sum(steps) == 2 * 10  # masked LM, and left to right
    assert {run.flags["save_checkpoints_steps"] for run in models} == {2}


def test_finished_runs_are_skipped_and_a_failure_stops_the_experiment(tmp_path, monkeypatch):
    lines: list[str] = []
    code = 0

    def call(run: Run, output: str) -> tuple[int, int, int]:
        lines.append(run.line())
        return code, 2, 1

    monkeypatch.setattr(runs, "_call", call)
    run = Run(str(tmp_path / "a"), "pretrain", {"do_train": True, "jit_compile": False, "input_file": ["a", "b"]})
    perform([run, run])
    assert lines == ["official-bert pretrain --do_train --nojit_compile --input_file=a,b"]
    assert_rejected((run.folder, "--output_dir"), perform, [Run(run.folder, "pretrain", {"do_train": False})])
    code = 3
    failing = [Run(str(tmp_path / "b"), "pretrain", {}), Run(str(tmp_path / "c"), "x", {})]
    assert_rejected(("pretrain", 3, tmp_path / "b" / "output.txt"), perform, failing)
    assert not (tmp_path / "b" / "done.json").exists()
    assert not (tmp_path / "c").exists()


def test_the_output_of_a_command_is_stored(tmp_path: pathlib.Path):
    path = write_text(tmp_path / "output.txt", "before\n")
    code, seconds, _ = runs._call(Run(str(tmp_path), "inspect-records", {"help": True}), path)
    assert (code, 0 <= seconds < 60) == (0, True)
    output = pathlib.Path(path).read_text()
    assert re.match("before\n(.*\n)+usage: official-bert inspect-records", output)


_PARENT = """
import sys
from tools.reproduce import runs
program = runs._program().replace("main()", "import os, time; print(os.getpid(), flush=True); time.sleep(60)")
runs._program = lambda: program
runs._call(runs.Run("", "", {}), sys.argv[1])
"""


def test_a_command_ends_with_its_parent_process(tmp_path: pathlib.Path):
    output = tmp_path / "output.txt"
    parent = subprocess.Popen([sys.executable, "-c", _PARENT, str(output)], cwd=ROOT)
    while not (output.exists() and output.read_text().endswith("\n")):
        assert parent.poll() is None
        time.sleep(0.01)
    parent.kill()
    parent.wait()
    wait_for_exit(int(output.read_text()))


def fake_results(all_runs) -> None:
    for run in all_runs:
        folder = pathlib.Path(run.folder)
        if run.command == "learn-vocabulary":
            write_vocab(folder / "vocab.txt", "ab")
        if run.command == "pretrain":
            write_text(folder / "eval_results.txt", "loss = 3.0\nmasked_lm_loss = 2.0\n")
        if run.command == "finetune":
            score = (0.5 if "next_sentence" in str(run.flags["init"]) else 0.9) + 0.001 * int(folder.name[-1])
            dev = {"f1": 100 * score} if run.flags["task"] == "squad" else {"accuracy": score}
            write_text(folder / "results.json", json.dumps({"dev": dev}))


def test_the_page_has_the_scores_of_the_paper_and_is_reproducible(data_dir: pathlib.Path, monkeypatch, capsys):
    def make_page(table: str) -> str:
        __main__.main(make_options(data_dir, table))
        return (data_dir.parent / "out" / f"table_{table}_tiny.md").read_text()

    monkeypatch.setattr(__main__, "perform", fake_results)
    page = make_page("5")
    assert "| BERT | L-2_H-128_A-4 | 84.4 | 90.2 ± 0.1 |" in page  # MNLI: the paper's score, ours
    assert "| 77.8 | 50.2 ± 0.1 |" in page  # SQuAD from left to right
    assert "mnli: 3 of 6 pairs in the paper's order, 0 reversed, others not significant" in page
    assert "\nofficial-bert finetune" in page
    assert '"vocab_size": 2,' in (data_dir.parent / "out" / "models" / "L-2_H-128_A-4.json").read_text()
    assert make_page("5") == page
    assert "| masked LM, 100% of the steps | L-2_H-128_A-4 | - | 90.2 ± 0.1 |" in make_page("figure5")
    capsys.readouterr()
    __main__.main(make_options(data_dir, "figure5", dry_run=True))
    assert "-short/seed_1/ckpt-400 " in capsys.readouterr().out


def test_only_significant_differences_count():
    assert find_difference([80.0], [90.0]) == 0
    assert find_difference([80.0, 81.0, 82.0], [80.5, 81.5, 82.5]) == 0
    assert find_difference([80.0, 81.0, 82.0], [90.0, 91.0, 92.0]) == pytest.approx(-10)
    table = TABLES["6"]
    rows = [(variant.name, PERPLEXITY) for variant in table.variants]
    scores = {row: [10.0 - number, 10.1 - number] for number, row in enumerate(rows)}
    assert "15 of 15 pairs in the paper's order" in compare_orders(table, PERPLEXITY, scores)
    scores[rows[0]], scores[rows[-1]] = scores[rows[-1]], scores[rows[0]]
    assert "6 of 15 pairs in the paper's order, 9 reversed" in compare_orders(table, PERPLEXITY, scores)
    alone = {key: values[:1] for key, values in scores.items()}
    assert "0 of 15 pairs in the paper's order, 0 reversed" in compare_orders(table, PERPLEXITY, alone)
