"""The commands of the quickstart from text to answers, on a small scale."""

import dataclasses
import pathlib
import re
import subprocess

import numpy as np
import pytest
import tensorflow as tf

import official_bert
from official_bert.checkpoints.loading import open_model
from official_bert.checkpoints.options import WRITABLE
from official_bert.finetuning import runner
from official_bert.finetuning.options import FinetuningOptions
from official_bert.kinds.names import QUESTION_ANSWERING
from official_bert.pretraining.run import pretrain
from official_bert.runs.training_log import EVAL, read_log
from official_bert.tasks.options import SquadOptions
from official_bert.tasks.task import DEV, TRAIN
from tests.export.exported_models import write_examples
from tests.make import ROOT, WORDS, tiny_config, write_text
from tests.pretraining.conftest import record_files, shared_record_files  # noqa: F401
from tests.pretraining.pretraining_runs import make_run_options


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


ROWS = 100


@pytest.mark.slow
def test_all_commands_accept_a_model_with_more_rows_than_tokens(record_files, run, vocab_file, tmp_path, capsys):  # noqa: F811
    note = f"the vocabulary has {len(WORDS)} tokens, the word table {ROWS} rows"
    config = write_text(tmp_path / "config.json", tiny_config(vocab_size=ROWS, num_hidden_layers=1).to_json())
    pretrain(make_run_options(record_files, config, tmp_path / "run", vocab_file=vocab_file, num_train_steps=2))
    assert f"warning: {note}" in capsys.readouterr().out

    ids = {"input_ids": np.array([[2, 57, 58, 3]]), "input_mask": np.ones((1, 4)), "segment_ids": np.zeros((1, 4))}
    expected = np.asarray(official_bert.load("run").model(ids)["sequence_output"])
    for name in WRITABLE:
        assert note in run("convert", "--from=run", f"--to={name}", f"--to_format={name}"), name
        checkpoint, again = open_model(name), official_bert.load(name)
        assert (checkpoint.config.vocab_size, (checkpoint.vocab or "").split()) == (ROWS, WORDS), name
        assert again.model.get_layer("word_embeddings").embeddings.shape[0] == ROWS
        np.testing.assert_allclose(np.asarray(again.model(ids)["sequence_output"]), expected, atol=1e-5)

    write_text(tmp_path / "data.csv", "text,label\n" + "the cat sat,cat\nthe dog sat,dog\n" * 8)
    data = "--task=table --train_file=data.csv --eval_file=data.csv --train_batch_size=8"
    tune = "--init=run --output_dir=tuned --do_train --do_eval --num_train_epochs=1 --max_seq_length=16"
    assert f"note: {note}" in run("finetune", *data.split(), *tune.split())
    assert open_model("tuned").config.vocab_size == ROWS

    for source, export_dir, *flags in (("tuned", "a"), ("run", "b"), ("run", "c", "--encoder")):
        run("export", f"--model_dir={source}", f"--export_dir={export_dir}", "--max_seq_length=16", *flags)
        outputs = tf.saved_model.load(f"{export_dir}/1").signatures["serving_default"](text=tf.constant(["the [MASK]"]))
        assert ("tokens" in outputs) == (export_dir == "b")
        if "tokens" in outputs:  # rows without a token are never an answer
            assert {each.decode() for each in outputs["tokens"].numpy().ravel()} <= {*WORDS, ""}


@pytest.mark.slow
def test_questions_are_memorized_saved_and_answered_again(tmp_path: pathlib.Path, vocab_file: str):
    train_file, eval_file = (write_examples(tmp_path / part, QUESTION_ANSWERING) for part in (TRAIN, DEV))
    without_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = tiny_config(hidden_size=32, intermediate_size=64, initializer_range=0.1, **without_dropout)
    task_options = SquadOptions(train_file=train_file, eval_file=eval_file, doc_stride=8, max_query_length=4)
    options = FinetuningOptions(
        task="squad", task_options=task_options, init=write_text(tmp_path / "bert_config.json", config.to_json()),
        vocab_file=vocab_file, do_train=True, output_dir=str(tmp_path / "run"), do_eval=True, max_seq_length=18,
        train_batch_size=8, learning_rate=2e-3, num_train_epochs=250, eval_steps=1000, random_seed=1,
    )  # fmt: skip
    results = runner.run(options)
    assert results[DEV]["f1"] == 100.0, results
    # The folder is enough to predict again, even if the training data has been deleted.
    pathlib.Path(train_file).unlink()
    assert runner.run(dataclasses.replace(options, do_train=False)) == results
