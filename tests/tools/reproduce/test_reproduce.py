"""The paper's tables as commands, and the page that they end in."""

import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

import pytest

from official_bert.errors import UserError
from official_bert.tasks.heads.questions import Limits
from official_bert.utils.training_log import line_of
from official_bert_cli import load
from tests.conftest import ROOT
from tests.processes import wait_for_the_end_of
from tools.reproduce import __main__, runs
from tools.reproduce.page import difference, orders, page
from tools.reproduce.runs import Experiment, Options, Run, perform
from tools.reproduce.tables import COLUMNS, PERPLEXITY, SCALES, TABLES


@pytest.fixture
def data_dir(tmp_path: pathlib.Path) -> pathlib.Path:
    for _, folder, _, _ in COLUMNS.values():
        (tmp_path / "data" / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / folder / "train.tsv").touch()
    return tmp_path / "data"


def options_for(data_dir: pathlib.Path, table: str, scale: str = "tiny", **changes: object) -> Options:
    values = {
        "table": table, "scale": scale, "input_file": ["a.txt", "b.txt"], "heldout_file": ["c.txt"],
        "data_dir": str(data_dir), "output_dir": str(data_dir.parent / "out"), "random_seeds": ["1", "2"], **changes,
    }  # fmt: skip
    return Options(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("table", TABLES)
def test_every_run_is_a_command_and_has_a_folder_of_its_own(table: str, scale: str, data_dir: pathlib.Path):
    all_runs = Experiment(options_for(data_dir, table, scale)).runs()
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
        assert {each for each in needs if not each.endswith("/vocabulary")} <= set(run.after) <= made
        made.add(run.folder)


@pytest.mark.parametrize("scale", SCALES)
def test_a_question_leaves_room_for_its_context(scale: str, data_dir: pathlib.Path):
    for table in ("2", "3"):
        for run in Experiment(options_for(data_dir, table, scale)).runs():
            if run.command == "finetune":
                flags = {"max_seq_length": 128, "max_query_length": 64, **run.flags}
                Limits(flags["max_seq_length"], flags["doc_stride"], flags["max_query_length"])


def test_tables_share_what_is_equal(data_dir: pathlib.Path):
    folders = {
        table: {run.folder for run in Experiment(options_for(data_dir, table)).runs() if run.command == "pretrain"}
        for table in ("5", "7", "C.2")
    }
    assert folders["7"] < folders["5"]
    assert folders["7"] < folders["C.2"]
    lines = [run.line() for run in Experiment(options_for(data_dir, "5")).runs()]
    assert (
        sum(" pretrain " in line for line in lines) == 2 * 3 + 2 * 2
    )  # BiLSTM on the same model, NSP on the same short
    figure = [run for run in Experiment(options_for(data_dir, "figure5")).runs() if run.command == "pretrain"]
    assert {run.folder for run in figure} < folders["5"]


def test_a_share_of_the_steps_is_a_checkpoint_that_is_kept(data_dir: pathlib.Path):
    runs = {run.folder: run for run in Experiment(options_for(data_dir, "figure5", columns=["mrpc"])).runs()}
    taken = []
    for run in runs.values():
        if run.command == "finetune" and run.folder.endswith("seed_1") and "left_to_right" not in run.folder:
            folder, _, step = str(run.flags["init"]).partition("/ckpt-")
            flags = runs[folder].flags
            assert run.after == (folder,)
            taken.append((flags["max_seq_length"], int(step or flags["num_train_steps"])))
            assert taken[-1][1] % flags["save_checkpoints_steps"] == 0
            assert flags["keep_checkpoint_max"] * flags["save_checkpoints_steps"] >= flags["num_train_steps"]
    assert taken == [(16, 400), (16, 800), (16, 1200), (16, 1600), (64, 400)]


def test_what_there_is_no_data_for_is_left_out(data_dir: pathlib.Path):
    (data_dir / "glue" / "MNLI" / "train.tsv").unlink()
    experiment = Experiment(options_for(data_dir, "6", heldout_file=[]))
    assert experiment.columns == ["mrpc", "sst-2", "tagging"]
    assert experiment.missing == [
        f"{PERPLEXITY}: there is no --heldout_file", f"mnli: there is no training part in {data_dir}/glue/MNLI"
    ]  # fmt: skip
    with pytest.raises(UserError, match="there is nothing to measure: mnli"):
        Experiment(options_for(data_dir, "6", columns=["mnli"]))
    with pytest.raises(UserError, match="--columns names rte; Table 6"):
        Experiment(options_for(data_dir, "6", columns=["rte"]))


@pytest.mark.parametrize(("changes", "message"), [
    ({"random_seeds": []}, "--random_seeds=: expected different whole numbers"),
    ({"random_seeds": ["1", "x"]}, "--random_seeds=1,x: expected different whole numbers"),
    ({"random_seeds": ["1", "01"]}, "--random_seeds=1,01: expected different"),  # one run would count as two
    ({"num_train_steps": 12}, "--num_train_steps is 12; expected a multiple of 10"),  # after 0.8 of it is no checkpoint
    ({"num_train_steps": -10}, "--num_train_steps is -10"),
    ({"num_train_epochs": -1.0}, "--num_train_epochs is -1.0"),
    ({"processes": 0}, "--processes is 0; expected at least 1"),
])  # fmt: skip
def test_numbers_that_no_experiment_has_are_refused(changes: dict[str, object], message: str, data_dir: pathlib.Path):
    with pytest.raises(UserError, match=message):
        options_for(data_dir, "figure5", **changes)


@pytest.mark.parametrize("scale", SCALES)
def test_the_parts_of_pretraining_are_the_steps_that_are_asked_for(scale: str, data_dir: pathlib.Path):
    runs = Experiment(options_for(data_dir, "figure5", scale, num_train_steps=10, random_seeds=["1"])).runs()
    models = [run for run in runs if run.command == "pretrain"]
    steps = [run.flags["num_train_steps"] + run.flags.get("phase2_num_train_steps", 0) for run in models]
    assert all(number > 0 for number in steps)
    assert sum(steps) == 2 * 10  # masked LM, and left to right
    assert {run.flags["save_checkpoints_steps"] for run in models} == {2}


def test_a_run_that_is_done_is_skipped_and_one_that_fails_ends_it(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    commands: list[Sequence[str]] = []
    code = 0

    def call(command: Sequence[str], output: str) -> tuple[int, float]:
        commands.append(command[3:])
        return code, 1.5

    monkeypatch.setattr(runs, "_call", call)
    run = Run(str(tmp_path / "a"), "pretrain", {"do_train": True, "jit_compile": False, "input_file": ["a", "b"]})
    perform([run])
    perform([run])
    assert commands == [["pretrain", "--do_train", "--nojit_compile", "--input_file=a,b"]]
    with pytest.raises(UserError, match="holds the results of another command"):
        perform([Run(run.folder, "pretrain", {"do_train": False})])
    code = 3
    with pytest.raises(UserError, match=r"exit code 3; what it printed is in .*output.txt"):
        perform([Run(str(tmp_path / "b"), "pretrain", {}), Run(str(tmp_path / "c"), "x", {}, (str(tmp_path / "b"),))])
    assert not (tmp_path / "b" / "done.json").exists()
    assert not (tmp_path / "c").exists()


def test_commands_at_once_each_have_their_processors_and_what_they_need(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    lock, both = threading.Lock(), threading.Barrier(2, timeout=60)
    ended: list[str] = []
    programs: list[str] = []

    def call(command: Sequence[str], output: str) -> tuple[int, float]:
        name = pathlib.Path(output).parent.name
        if name in "bc":
            both.wait()  # passes only when both run
        with lock:
            ended.append(name)
            programs.append(command[2])
        return 0, 0.0

    monkeypatch.setattr(runs, "_call", call)
    needs = {"a": "", "b": "a", "c": "a", "d": "bc"}
    perform([Run(str(tmp_path / n), n, {}, tuple(str(tmp_path / m) for m in ms)) for n, ms in needs.items()], 2)
    assert (ended[0], sorted(ended[1:3]), ended[3:]) == ("a", ["b", "c"], ["d"])
    if hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) > 1:
        assert "os.sched_setaffinity" in programs[1]
        assert programs[1] != programs[2]


def test_what_a_command_prints_is_kept(tmp_path: pathlib.Path):
    output = tmp_path / "output.txt"
    processors = {min(os.sched_getaffinity(0))} if hasattr(os, "sched_getaffinity") else set()
    program = runs._program(processors).replace("main()", "print(len(os.sched_getaffinity(0))); raise SystemExit(4)")
    code, seconds = runs._call([sys.executable, "-c", program if processors else "raise SystemExit(4)"], str(output))
    assert code == 4
    assert output.read_text() == "1\n" * bool(processors)
    assert 0 < seconds < 60


_PARENT = """
import sys
from tools.reproduce import runs
sleeping = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
runs._call([sys.executable, "-c", runs._program(set()).replace("main()", sleeping)], sys.argv[1])
"""


def test_a_command_ends_with_what_runs_it(tmp_path: pathlib.Path):
    output = tmp_path / "output.txt"
    parent = subprocess.Popen([sys.executable, "-c", _PARENT, str(output)], cwd=ROOT)
    while not (output.exists() and output.read_text().endswith("\n")):
        assert parent.poll() is None
        time.sleep(0.01)
    parent.kill()
    parent.wait()
    wait_for_the_end_of(int(output.read_text()))


def fake_results(all_runs: Sequence[Run], processes: int = 1) -> None:
    for run in all_runs:
        fake_result(run)


def fake_result(run: Run) -> None:
    folder = pathlib.Path(run.folder)
    folder.mkdir(parents=True, exist_ok=True)
    if run.command == "learn-vocabulary":
        (folder / "vocab.txt").write_text("a\nb\n")
    if run.command == "pretrain":
        (folder / "eval_results.txt").write_text("loss = 3.0\nmasked_lm_loss = 2.0\n")
        (folder / "train.jsonl").write_text(
            "".join(line_of({"step": step, "masked_lm_loss": 3.0}) for step in (50, 100))
        )
    if run.command == "finetune":
        score = (0.9 if "next_sentence" not in str(run.flags["init"]) else 0.5) + 0.001 * int(folder.name[-1])
        f1 = {"f1": 100 * score} if run.flags["task"] == "squad" else {"accuracy": score}
        (folder / "results.json").write_text(json.dumps({"dev": f1}))


def test_the_page_has_both_figures_and_is_the_same_again(
    data_dir: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(__main__, "perform", fake_results)
    options = options_for(data_dir, "5")
    path = data_dir.parent / "out" / "table_5_tiny.html"
    __main__.main(options)
    html = path.read_text()
    assert '84.4</td><td class="number">90.2 ± 0.1</td>' in html  # MNLI of BERT: the paper's, ours
    assert '77.8</td><td class="number">50.2 ± 0.1</td>' in html  # SQuAD from left to right
    assert "mnli: of 6 pairs 3 are in the paper&#x27;s order, 0 in the other; 3 cannot be told apart" in html
    assert "official-bert finetune" in html
    assert (
        "tagging, which the paper&#x27;s table does not have: 3 of 6 pairs of rows can be told apart: BERT before"
        in html
    )
    assert 'alt="losses of pre-training"' in html
    config = json.loads((data_dir.parent / "out" / "models" / "L-2_H-128_A-4.json").read_text())
    assert config["vocab_size"] == 2
    __main__.main(options)
    assert path.read_text() == html
    capsys.readouterr()
    __main__.main(options_for(data_dir, "figure5"))
    html = (data_dir.parent / "out" / "figure_5_tiny.html").read_text()
    assert 'alt="scores by the share of the steps"' in html
    assert " of 5 pairs of rows can be told apart" in html  # of equal steps
    assert {variant.line for variant in TABLES["figure5"].variants} == {"masked LM", "left to right"}
    assert all(variant.line == variant.name for variant in TABLES["6"].variants)
    __main__.main(options_for(data_dir, "figure5", dry_run=True))
    assert "-short/seed_1/ckpt-400 " in capsys.readouterr().out


def test_models_of_three_sizes_are_scored_on_one_text(data_dir: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(__main__, "perform", fake_results)
    __main__.main(options_for(data_dir, "curves"))
    out = data_dir.parent / "out"
    html = (out / "table_curves_tiny.html").read_text()
    assert '<th>BERT-Small</th><td>–</td><td class="number">7.4 ± 0.0</td>' in html
    config = json.loads((out / "models" / "L-4_H-512_A-8-initializer_range-0.02.json").read_text())
    assert config["initializer_range"] == 0.02


def test_a_rate_of_a_model_s_own_stays_through_its_short_sequences(data_dir: pathlib.Path, capsys):
    __main__.main(options_for(data_dir, "curves", dry_run=True))
    lines = [
        line for line in capsys.readouterr().out.splitlines() if "/records/short/" in line and " pretrain " in line
    ]
    rates = {tuple(re.findall(r"learning_rate=(\S+)", line)) for line in lines}  # --learning_rate, --end_learning_rate
    assert rates == {(rate, rate) for rate in ("0.0006", "0.0003", "0.00015")}


def test_less_perplexity_is_better_where_the_paper_has_none():
    table = TABLES["curves"]
    scores = {(variant.name, PERPLEXITY): [9.0 - number, 9.1 - number] for number, variant in enumerate(table.variants)}
    (line,) = orders(table, [PERPLEXITY], scores)
    assert "BERT-Small before BERT-Tiny" in line
    assert "BERT-Tiny before" not in line


def test_differences_count_only_beyond_chance():
    assert difference([80.0], [90.0]) is None
    assert difference([80.0, 81.0, 82.0], [80.5, 81.5, 82.5]) is None
    assert difference([80.0, 81.0, 82.0], [90.0, 91.0, 92.0]) == pytest.approx(-10)
    table = TABLES["6"]
    scores = {
        (variant.name, PERPLEXITY): [10.0 - number, 10.1 - number] for number, variant in enumerate(table.variants)
    }
    assert orders(table, [PERPLEXITY], scores) == [
        "perplexity: of 15 pairs 15 are in the paper's order, 0 in the other; 0 cannot be told apart"
    ]
    first, *_, last = table.variants
    scores[first.name, PERPLEXITY], scores[last.name, PERPLEXITY] = (
        scores[last.name, PERPLEXITY],
        scores[first.name, PERPLEXITY],
    )
    (line,) = orders(table, [PERPLEXITY], scores)
    assert f"{last.name} before {first.name}" in line  # by the paper, not by us
    assert " 6 are in the paper's order, 9 in the other (the paper has " in line
    alone = {key: values[:1] for key, values in scores.items()}
    html = page(table, [PERPLEXITY], alone, "tiny", [], [], [], {})
    assert "With one seed no difference can be told from chance" in html
