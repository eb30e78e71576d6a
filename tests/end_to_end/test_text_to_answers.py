"""The commands of the quickstart from text to answers, on a small scale."""

import pathlib
import re
import subprocess

import pytest

from official_bert.runs.training_log import EVAL, read_log
from tests.conftest import ROOT
from tests.end_to_end.conftest import Run
from tests.make import tiny_config, write_text


@pytest.mark.slow
def test_text_becomes_a_model_that_answers(tmp_path: pathlib.Path, run: Run):
    config = tiny_config(vocab_size=2000, hidden_size=32, num_hidden_layers=1, intermediate_size=64)
    write_text(tmp_path / "config.json", config.to_json())
    vocab = ("--vocab_file=vocab.txt", "--max_seq_length=32", "--max_predictions_per_seq=5")
    run("python-docs", "--output_file=text.txt", "--heldout_file=heldout.txt")
    assert "2,000 pieces" in run("learn-vocabulary", "--input_file=text.txt", vocab[0], "--vocab_size=2000")
    for source, records in (("text.txt", "train-0.tfrecord,train-1.tfrecord"), ("heldout.txt", "heldout.tfrecord")):
        files = (f"--input_file={source}", f"--output_file={records}")
        assert "instances" in run("make-records", *files, *vocab, "--dupe_factor=1")
    model = ("pretrain", "--bert_config_file=config.json", "--output_dir=model", *vocab)
    train = ("--input_file=train-*.tfrecord", "--do_train", "--learning_rate=1e-2", "--num_warmup_steps=10")
    first = run(*model, *train, "--num_train_steps=60", "--log_steps=20")
    assert "step 60 of 60" in first
    again = run(*model, *train, "--num_train_steps=120", "--allow_changes=num_train_steps", "--log_steps=20")
    assert "resuming from" in again
    losses = [float(loss) for loss in re.findall(r"masked LM ([\d.]+)", first + again)]
    assert len(losses) == 6
    assert losses[-1] < losses[0] - 0.5
    assert "unigram baseline" in run(*model, "--input_file=heldout.tfrecord", "--do_eval")
    answers = run("fill-mask", "--model_dir=model", "return the [MASK] of the list .")
    assert len(re.findall(r"^\s+\d+\.\d %  \S+$", answers, re.MULTILINE)) == 5


def test_makefile_targets_exist_and_the_quickstart_keeps_its_text(tmp_path: pathlib.Path):
    command = f"make --dry-run quickstart test test-all test-slow lint bench Q={tmp_path}".split()
    for has_text in (False, True):
        printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        assert ("python-docs" not in printed) == has_text
        assert "learn-vocabulary" in printed
        (tmp_path / "heldout.txt").touch()


@pytest.mark.slow
def test_quickstart_learns_to_its_end(tmp_path: pathlib.Path):
    command = ["make", "quickstart", f"Q={tmp_path}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "model" / "MODEL_CARD.md").exists()
    accuracy, baseline = (float(value) for value in re.findall(r"masked_lm_accuracy = ([\d.]+)", done.stdout))
    assert baseline < 0.08
    assert accuracy > 4.5 * baseline
    # The held-out loss falls from one evaluation to the next, so the last weights are the best.
    evaluations = read_log(str(tmp_path / "model"), EVAL)
    losses = [line["masked_lm_loss"] for line in evaluations]
    assert len(losses) >= 4
    assert losses == sorted(losses, reverse=True)
    assert evaluations[-1]["next_sentence_loss"] < 0.67
    answers = done.stdout.split("the method [MASK] called when the object is deleted .\n")[-1].splitlines()[:5]
    assert "is" in {line.split()[-1] for line in answers}
