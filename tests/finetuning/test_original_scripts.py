"""run_classifier and run_squad accept the commands from the original's documentation."""

import json
import pathlib

import pytest

from official_bert.commands import RUN_CLASSIFIER, RUN_SQUAD
from official_bert.utils.command_line import Command
from tests.make import refusal, tiny_config, write_text

_NO_EFFECT = ["--save_checkpoints_steps=500", "--iterations_per_loop=200", "--num_tpu_cores=8"]


def run(command: Command, *flags: str) -> None:
    command.main(*command.parse([*command.script_flags, *flags]))


@pytest.fixture
def model_flags(tmp_path: pathlib.Path, vocab_file: str) -> list[str]:
    config = write_text(tmp_path / "bert_config.json", tiny_config(num_hidden_layers=1).to_json())
    return [f"--bert_config_file={config}", f"--vocab_file={vocab_file}", "--max_seq_length=16", *_NO_EFFECT]


def write_mrpc(folder: pathlib.Path, splits: tuple[str, ...]) -> pathlib.Path:
    folder.mkdir(exist_ok=True)
    for split in splits:
        first = "index" if split == "test" else "Quality"
        lines = [f"{first}\t#1 ID\t#2 ID\t#1 String\t#2 String", "1\t1\t2\tthe cat\ta dog", "0\t3\t4\tthe sun\ta mat"]
        write_text(folder / f"{split}.tsv", "\n".join(lines) + "\n")
    return folder


def test_run_classifier_writes_the_originals_files(tmp_path: pathlib.Path, model_flags: list[str]):
    data, output = write_mrpc(tmp_path / "MRPC", ("train", "dev", "test")), tmp_path / "out"
    steps = ["--do_train=true", "--do_eval=true", "--do_predict=true", "--num_train_epochs=1.0"]
    run(RUN_CLASSIFIER, "--task_name=MRPC", f"--data_dir={data}", f"--output_dir={output}", *steps, *model_flags)
    scores = json.loads((output / "results.json").read_text())["dev"]
    assert {"accuracy", "f1", "roc_auc"} <= set(scores)
    assert (output / "eval_results.txt").read_text() == "".join(
        f"eval_{name} = {scores[name]}\n" for name in sorted(scores)
    )
    table = [line.split("\t") for line in (output / "predictions_test.tsv").read_text().splitlines()[1:]]
    results = [line.split("\t") for line in (output / "test_results.tsv").read_text().splitlines()]
    assert results == [row[3:] for row in table]
    assert [sum(map(float, row)) for row in results] == pytest.approx([1.0, 1.0], abs=1e-6)


def test_a_missing_test_file_is_found_before_the_training(tmp_path: pathlib.Path, model_flags: list[str]):
    data, output = write_mrpc(tmp_path / "MRPC", ("train", "dev")), tmp_path / "out"
    flags = ["--task_name=MRPC", f"--data_dir={data}", f"--output_dir={output}", "--do_train", "--do_predict"]
    assert "test.tsv" in refusal(run, RUN_CLASSIFIER, *flags, *model_flags)
    assert not (output / "task.json").exists()


@pytest.mark.parametrize("version_2", [pytest.param(False, marks=pytest.mark.slow), True])
def test_run_squad_writes_the_originals_files(tmp_path: pathlib.Path, model_flags: list[str], version_2: bool):
    questions = [{"id": "a", "question": "who", "answers": [{"text": "the cat", "answer_start": 0}]}]
    if version_2:
        questions.append({"id": "b", "question": "dog", "answers": [], "is_impossible": True})
    paragraphs = [{"context": "the cat sat", "qas": questions}]
    path = write_text(tmp_path / "q.json", json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}))
    flags = [f"--train_file={path}", f"--predict_file={path}", "--do_train=True", "--do_predict=True"]
    flags += ["--num_train_epochs=1.0", "--max_query_length=4", "--doc_stride=4", f"--output_dir={tmp_path / 'out'}"]
    flags += ["--version_2_with_negative=True", "--null_score_diff_threshold=-1.5"] if version_2 else []
    run(RUN_SQUAD, *flags, *model_flags)
    ids = [question["id"] for question in questions]
    names = ["predictions.json", "nbest_predictions.json"] + ["null_odds.json"] * version_2
    assert [list(json.loads((tmp_path / "out" / name).read_text())) for name in names] == [ids] * len(names)
    task = json.loads((tmp_path / "out" / "task.json").read_text())
    assert task.get("null_score_diff_threshold", 0.0) == (-1.5 if version_2 else 0.0)
