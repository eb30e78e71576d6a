"""The paper's tables as commands, and the page that they end in."""

import json
import pathlib
import shlex
import subprocess

import pytest

from official_bert.errors import UserError
from reproduce import __main__, runs
from reproduce.page import difference, orders, page
from reproduce.runs import Experiment, Options, Run, perform
from reproduce.tables import COLUMNS, PERPLEXITY, SCALES, TABLES
from tests.test_structure import COMMANDS_BY_SCRIPT

SCRIPTS = {
    "learn-vocabulary": "data_gen.learn_vocabulary", "make-records": "data_gen.create_pretraining_data",
    "pretrain": "run_pretraining", "finetune": "run_finetuning",
}  # fmt: skip


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
        COMMANDS_BY_SCRIPT[SCRIPTS[run.command]].parse(shlex.split(run.line())[2:])
        needs = {
            "pretrain": [
                str(pathlib.Path(str(run.flags.get(name, ""))).parent) for name in ("input_file", "vocab_file")
            ],
            "finetune": [str(run.flags.get("init", "")).split("/ckpt-")[0]],
        }.get(run.command, [])
        assert made >= set(needs), f"{run.line()} comes before what it needs"
        made.add(run.folder)


def test_tables_share_what_is_equal(data_dir: pathlib.Path):
    folders = {
        table: {run.folder for run in Experiment(options_for(data_dir, table)).runs() if run.command == "pretrain"}
        for table in ("5", "7", "C.2")
    }
    assert folders["7"] < folders["5"]
    assert folders["7"] < folders["C.2"]
    lines = [run.line() for run in Experiment(options_for(data_dir, "5")).runs()]
    assert sum(" pretrain " in line for line in lines) == 2 * 3  # a BiLSTM is put on the same model


def test_what_there_is_no_data_for_is_left_out(data_dir: pathlib.Path):
    (data_dir / "glue" / "MNLI" / "train.tsv").unlink()
    experiment = Experiment(options_for(data_dir, "6", heldout_file=[]))
    assert experiment.columns == ["mrpc", "sst-2"]
    assert experiment.missing == [
        f"{PERPLEXITY}: there is no --heldout_file", f"mnli: there is no training part in {data_dir}/glue/MNLI"
    ]  # fmt: skip
    with pytest.raises(UserError, match="there is nothing to measure: mnli"):
        Experiment(options_for(data_dir, "6", columns=["mnli"]))
    with pytest.raises(UserError, match="--columns names rte; Table 6"):
        Experiment(options_for(data_dir, "6", columns=["rte"]))


def test_a_run_that_is_done_is_skipped_and_one_that_fails_ends_it(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    commands: list[list[str]] = []
    code = 0

    def run_command(command: list[str]) -> subprocess.CompletedProcess[str]:
        commands.append(command[3:])
        return subprocess.CompletedProcess(command, code)

    monkeypatch.setattr(runs.subprocess, "run", run_command)
    run = Run(str(tmp_path / "a"), "pretrain", {"do_train": True, "jit_compile": False, "input_file": ["a", "b"]})
    perform(run)
    perform(run)
    assert commands == [["pretrain", "--do_train", "--nojit_compile", "--input_file=a,b"]]
    with pytest.raises(UserError, match="holds the results of another command"):
        perform(Run(run.folder, "pretrain", {"do_train": False}))
    code = 3
    with pytest.raises(UserError, match="exit code 3"):
        perform(Run(str(tmp_path / "b"), "pretrain", {}))
    assert not (tmp_path / "b" / "done.json").exists()


def fake_results(run: Run) -> None:
    folder = pathlib.Path(run.folder)
    folder.mkdir(parents=True, exist_ok=True)
    if run.command == "learn-vocabulary":
        (folder / "vocab.txt").write_text("a\nb\n")
    if run.command == "pretrain":
        (folder / "eval_results.txt").write_text("loss = 3.0\nmasked_lm_loss = 2.0\n")
    if run.command == "finetune":
        score = (0.9 if "next_sentence" not in run.folder else 0.5) + 0.001 * int(folder.name[-1])
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
    assert "<td>84.4</td><td>90.2 ± 0.1</td>" in html  # MNLI of BERT: the paper's, ours
    assert "<td>77.8</td><td>50.2 ± 0.1</td>" in html  # SQuAD from left to right
    assert "mnli: of 6 pairs 3 are in the paper&#x27;s order, 0 in the other; 3 cannot be told apart" in html
    assert "official-bert finetune" in html
    config = json.loads((data_dir.parent / "out" / "models" / "L-2_H-128_A-2.json").read_text())
    assert config["vocab_size"] == 2
    __main__.main(options)
    assert path.read_text() == html
    capsys.readouterr()
    __main__.main(options_for(data_dir, "figure5", dry_run=True))
    assert "ckpt-2000 " in capsys.readouterr().out


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
    html = page(table, [PERPLEXITY], alone, "tiny", [], [], [])
    assert "With one seed no difference can be told from chance" in html
