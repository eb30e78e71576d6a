"""run_classifier and run_squad accept the commands from the original's documentation."""

import json
import types

import pytest

from official_bert.commands import RUN_CLASSIFIER, RUN_SQUAD
from official_bert.finetuning import original_scripts
from official_bert.tasks.options import TaskOptions
from tests.make import assert_rejected, slow_after, tiny_config, write_text, write_vocab

pytestmark = pytest.mark.usefixtures("skip_training")


def run(command, folder, flags: str):
    """Runs a command with a new model in a folder, and returns its output folder."""
    config = write_text(folder / "bert_config.json", tiny_config(num_hidden_layers=1).to_json())
    flags += f" --bert_config_file={config} --vocab_file={write_vocab(folder / 'vocab.txt')} --max_seq_length=16"
    flags += f" --output_dir={folder / 'out'} --num_train_epochs=1.0"
    flags += " --save_checkpoints_steps=500 --iterations_per_loop=200 --num_tpu_cores=8"  # without effect
    command.main(*command.parse([*command.script_flags, *flags.split()]))
    return folder / "out"


def write_mrpc(folder, *splits: str) -> None:
    for split in splits:
        header = f"{'index' if split == 'test' else 'Quality'}\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
        write_text(folder / f"{split}.tsv", header + "1\t1\t2\tthe cat\ta dog\n0\t3\t4\tthe sun\ta mat\n")


def test_run_classifier_writes_the_originals_files(tmp_path):
    write_mrpc(tmp_path, "train", "dev", "test")
    flags = f"--task_name=MRPC --data_dir={tmp_path} --do_train=true --do_eval=true --do_predict=true"
    output = run(RUN_CLASSIFIER, tmp_path, flags)
    scores = json.loads((output / "results.json").read_text())["dev"]
    assert {"accuracy", "f1", "roc_auc"} <= set(scores)
    expected = "".join(f"eval_{name} = {scores[name]}\n" for name in sorted(scores))
    assert (output / "eval_results.txt").read_text() == expected
    results = (output / "test_results.tsv").read_text().splitlines()
    table = (output / "predictions_test.tsv").read_text().splitlines()[1:]
    assert results == [row.split("\t", 3)[3] for row in table]
    assert [sum(map(float, row.split("\t"))) for row in results] == pytest.approx([1.0, 1.0], abs=1e-6)
    # The original's command for predictions names the configuration together with the trained classifier.
    (output / "test_results.tsv").unlink()
    flags = f"--task_name=MRPC --data_dir={tmp_path} --do_predict=true --init_checkpoint={output}"
    assert (run(RUN_CLASSIFIER, tmp_path, flags) / "test_results.tsv").read_text().splitlines() == results


def test_the_matched_part_of_mnli_gives_the_originals_files(tmp_path, monkeypatch):
    folder, scores = tmp_path / "[1]", {"dev_matched": {"accuracy": 0.5}, "dev_mismatched": {"accuracy": 0.25}}
    for name, probability in (("matched", 0.75), ("mismatched", 0.125)):
        write_text(folder / f"predictions_test_{name}.tsv", f"id\tprediction\texpected\ta\n0\ta\t\t{probability}\n")
    monkeypatch.setattr(original_scripts, "_finetune", lambda *_: scores)
    options = types.SimpleNamespace(output_dir=str(folder), do_predict=True)
    original_scripts.run_classifier(options, original_scripts.OriginalOptions(), TaskOptions())
    assert (folder / "eval_results.txt").read_text() == "eval_accuracy = 0.5\n"
    assert (folder / "test_results.tsv").read_text() == "0.75\n"


def test_a_sweep_and_a_missing_test_file_are_rejected_before_training(tmp_path):
    write_mrpc(tmp_path, "train", "dev")
    flags = f"--task_name=MRPC --data_dir={tmp_path} --do_train --do_predict"
    assert_rejected((tmp_path, "test.tsv"), run, RUN_CLASSIFIER, tmp_path, flags)
    sweep = f"{flags} --random_seeds=1,2"
    assert_rejected(("--random_seeds", "official-bert finetune"), run, RUN_CLASSIFIER, tmp_path, sweep)
    assert not (tmp_path / "out" / "task.json").exists()


@pytest.mark.parametrize("version_2", slow_after(1, [True, False]))
def test_run_squad_writes_the_originals_files(tmp_path, version_2: bool):
    questions = [{"id": "a", "question": "who", "answers": [{"text": "the cat", "answer_start": 0}]}]
    questions += [{"id": "b", "question": "dog", "answers": [], "is_impossible": True}] * version_2
    paragraphs = [{"context": "the cat sat", "qas": questions}]
    path = write_text(tmp_path / "q.json", json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}))
    flags = f"--train_file={path} --predict_file={path} --do_train=True --do_predict=True --max_query_length=4"
    flags += " --doc_stride=4" + " --version_2_with_negative=True --null_score_diff_threshold=-1.5" * version_2
    output = run(RUN_SQUAD, tmp_path, flags)
    for name in ["predictions.json", "nbest_predictions.json"] + ["null_odds.json"] * version_2:
        assert list(json.loads((output / name).read_text())) == [question["id"] for question in questions]
    assert json.loads((output / "task.json").read_text())["null_score_diff_threshold"] == version_2 * -1.5
    flags = flags.replace("--do_train=True", "--do_train=False").replace("_threshold=-1.5", "_threshold=0")
    run(RUN_SQUAD, tmp_path, flags)  # without training, the new threshold is stored too
    assert json.loads((output / "task.json").read_text())["null_score_diff_threshold"] == 0
    assert_rejected(("--doc_stride", 4, 128), run, RUN_SQUAD, tmp_path, f"{flags} --doc_stride=128")
    flags = flags.replace("negative=True", "negative=False") + " --version_2_with_negative" * (not version_2)
    assert_rejected(("version_2", version_2, not version_2), run, RUN_SQUAD, tmp_path, flags)
