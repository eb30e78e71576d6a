import dataclasses
import json
import math
import pathlib
import shutil
import signal

import numpy as np
import pytest

from official_bert.checkpoints.formats import finetuned, hugging_face
from official_bert.checkpoints.loading import open_model
from official_bert.finetuning import evaluation, runner, trainer
from official_bert.inference.keras_model import KerasRunner
from official_bert.kinds.classification.spec import ClassificationSpec
from official_bert.kinds.regression.spec import RegressionSpec
from official_bert.runs.training_log import read_log
from official_bert.tasks.options import GlueOptions, TableOptions
from official_bert.utils import progress
from tests.event_files import read_scalars
from tests.finetuning.conftest import change, write_table
from tests.make import WORDS, assert_mentions, assert_rejected, make_examples, run_python, write_text

SHORT = {"num_train_epochs": 1.0, "do_eval": False, "do_predict": False}


def assert_same_weights(one: str, other: str):
    for expected, found in zip(open_model(one).weights.values(), open_model(other).weights.values(), strict=True):
        np.testing.assert_array_equal(expected, found)


@pytest.mark.slow
def test_deterministic_runs_write_the_same_bytes(options, tmp_path):
    threads = {"TF_NUM_INTRAOP_THREADS": "4", "TF_NUM_INTEROP_THREADS": "4"}
    table = options.task_options
    contents = []
    for folder in (tmp_path / "one", tmp_path / "other"):
        done = run_python(
            "-m", "official_bert_cli", "finetune", "--task=table", f"--init={options.init}", "--do_train", "--do_eval",
            f"--vocab_file={options.vocab_file}", f"--train_file={table.train_file}", f"--eval_file={table.eval_file}",
            "--num_train_epochs=2", "--train_batch_size=16", "--max_seq_length=16", "--deterministic",
            f"--output_dir={folder}", environment=threads,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        states = sorted((folder / "checkpoints").glob("ckpt-*"))
        assert len(states) == 2
        names = ("finetuning_options.json", "model.weights.h5", "results.json", "predictions_dev.tsv")
        contents.append([path.read_bytes() for path in (*states, *(folder / name for name in names))])
    assert contents[1] == contents[0]
    assert json.loads(contents[0][2])["deterministic"] is True


def test_a_run_learns_and_writes_its_model_scores_predictions_and_logs(trained):
    folder = pathlib.Path(trained.options.output_dir)
    assert trained.predicted == 6 + 1  # six evaluations and the test part; the dev part is not predicted again
    assert trained.scores["dev"]["accuracy"] > 0.85
    for line in (
        f"loaded {trained.options.init}: 1 layer of 16, uncased vocabulary of {len(WORDS)} pieces; the head is new",
        "note: 2 classes: bad, good",
        f"model card, with scores and errors: {folder / 'MODEL_CARD.md'}",
        f"official-bert export --model_dir={folder} ",
    ):
        assert line in trained.printed
    assert json.loads((folder / "results.json").read_text()) == trained.scores
    predictions = (folder / "predictions_test.tsv").read_text().splitlines()
    assert predictions[0] == "id\tprediction\texpected\tprobability of bad\tprobability of good"
    assert len(predictions) == 11
    losses, scores = (read_log(str(folder), name) for name in ("train", "eval"))
    assert [line["step"] for line in scores] == [6, 12, 18, 24, 30, 36]
    assert [line["step"] for line in losses[:8]] == [4, 6, 8, 12, 16, 18, 20, 24]
    assert all(line[name] > 0 for line in losses for name in ("tokens_per_second", "processor_seconds"))
    events = {kind: read_scalars(folder / kind) for kind in ("train", "eval")}
    assert {"loss", "learning_rate", "tokens_per_second"} <= set(events["train"])
    assert list(events["train"]["loss"]) == [line["step"] for line in losses]
    assert events["eval"]["dev/accuracy"] == pytest.approx({line["step"]: line["dev/accuracy"] for line in scores})
    assert max(line["dev/accuracy"] for line in scores) == pytest.approx(trained.scores["dev"]["accuracy"])
    assert (open_model(str(folder)).task_spec or {})["labels"] == ["bad", "good"]


@pytest.mark.usefixtures("predict_eagerly")
def test_a_run_that_was_killed_ends_with_the_same_weights(trained, tmp_path, capsys):
    folder = shutil.copytree(pathlib.Path(trained.options.output_dir).with_name("killed"), tmp_path / "run")
    other, log, state = change(trained.options, output_dir=str(folder)), folder / "eval.jsonl", folder / "checkpoints"
    content = log.read_text()
    log.write_text(content[: content.index("\n") + 1])
    assert_rejected(("eval.jsonl", folder, "step 12"), runner.run, other)
    log.write_text(content)
    state.rename(tmp_path / "kept")
    assert_rejected((folder, "checkpoints/ckpt-*.index"), runner.run, other)
    assert log.read_text() == content
    (tmp_path / "kept").rename(state)
    eval_file = write_table(tmp_path / "eval.csv", 40, 5)
    assert_rejected(("--eval_file", eval_file, "evaluation"), runner.run, change(other, eval_file=eval_file))
    capsys.readouterr()
    assert runner.run(other) == trained.scores
    output = capsys.readouterr().out
    assert "resuming at step 12" in output
    assert f"--model_dir={folder} --export_dir=exports/run\n" in output
    assert_same_weights(trained.options.output_dir, other.output_dir)
    assert read_log(other.output_dir, "eval") == read_log(trained.options.output_dir, "eval")


@pytest.mark.slow
def test_sigterm_saves_and_the_same_command_resumes(options, tmp_path, monkeypatch, capsys):
    options = change(options, **SHORT | {"num_train_epochs": 2.0})
    runner.run(options)
    other, train = change(options, output_dir=str(tmp_path / "other")), trainer.Trainer.train

    def terminated(self, features, first, last, on_step, *rest):
        def interrupt_after_step_8(done: int, loss: float) -> bool:
            if done == 8:
                signal.raise_signal(signal.SIGTERM)
            return on_step(done, loss)

        return train(self, features, first, last, interrupt_after_step_8, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(trainer.Trainer, "train", terminated)
        with pytest.raises(SystemExit) as stopped:
            runner.run(other)
    assert stopped.value.code == 143
    assert "stopped at step 8" in capsys.readouterr().out
    runner.run(other)
    assert "resuming at step 8" in capsys.readouterr().out
    assert_same_weights(options.output_dir, other.output_dir)


def test_leftover_checkpoint_files_of_a_killed_process_are_removed(copied):
    state = pathlib.Path(copied.output_dir, "checkpoints")
    before = {path.name for path in state.iterdir()}
    (state / "checkpoint.writing-0123456789ab").mkdir()
    (state / "checkpoint.writing-0123456789ab" / "checkpoint").touch()
    (state / "ckpt-99.data-00000-of-00001").touch()
    runner.run(change(copied, do_eval=False, do_predict=False))
    assert {path.name for path in state.iterdir()} == before


def test_rows_of_padding_count_neither_in_the_loss_nor_in_the_progress(options, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", -1.0)
    monkeypatch.setattr("tensorflow.function", lambda function, **_: function)  # two steps are faster without a graph
    table = TableOptions(train_file=write_table(tmp_path / "few.csv", 4, 1))
    changes = {"learning_rate": 1e-9, "train_batch_size": 32, "num_train_epochs": 2.0}
    runner.run(dataclasses.replace(options, task_options=table, **SHORT | changes))
    out, err = capsys.readouterr()
    assert "2 steps of 4 rows" in out
    assert "4 of 8 rows (50 %)" in err
    assert "8 of 8 rows (100 %)" in err
    losses = [line["loss"] for line in read_log(options.output_dir, "train")]
    assert losses == pytest.approx([math.log(2)] * 2, abs=0.3)  # of two classes


@pytest.mark.parametrize("metric", ["roc_auc", "mean_absolute_error"])
@pytest.mark.usefixtures("skip_training")
def test_the_metric_for_the_best_model_selects_it_and_stops_the_run(metric, options, monkeypatch, capsys):
    areas = iter([0.5, 0.8, 0.7, 0.6])
    monkeypatch.setattr(ClassificationSpec, "scores", lambda *_: {"accuracy": 0.7, "roc_auc": next(areas)})
    errors = iter([0.7, 0.5, 0.5, 0.1])  # a lower error is better, but not an equal one
    monkeypatch.setattr(RegressionSpec, "scores", lambda *_: {"mean_absolute_error": next(errors)})
    if metric == "mean_absolute_error":
        options = change(options, label_kind="regression")
        for path in (options.task_options.train_file, options.task_options.eval_file):
            text = pathlib.Path(path).read_text()
            pathlib.Path(path).write_text(text.replace(",good", ",1").replace(",bad", ",2"))
    early = SHORT | {"num_train_epochs": 6.0, "early_stopping": 1}
    runner.run(change(options, metric_for_best_model=metric, **early))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step ")]
    assert [line.endswith("; saved") for line in lines] == [True, True, False]


@pytest.mark.usefixtures("skip_training")
def test_a_run_from_a_fine_tuned_model_weights_classes_and_evaluates_its_own_model(copied, tmp_path, monkeypatch):
    seen, train = [], trainer.Trainer.train
    monkeypatch.setattr(trainer.Trainer, "train", lambda *each: seen.append(each) or train(*each))
    monkeypatch.setattr(runner, "evaluate_and_predict", lambda options, data, folder, *_: folder)
    new = change(copied, init=copied.output_dir, output_dir=str(tmp_path / "new"), num_train_epochs=1.0)
    assert runner.run(change(new, class_weights=["2", "3"])) == new.output_dir
    ((_, features, *_, row_weights),) = seen
    np.testing.assert_array_equal(row_weights, 2.0 + features.targets["labels"])


def test_a_run_that_failed_before_training_can_be_started_with_other_options(options, skip_training):
    assert_rejected(("'typo'", "pooler"), runner.run, change(options, **SHORT, freeze=["typo"]))
    runner.run(change(options, **SHORT, on_bad_row="skip"))


def test_a_note_counts_the_evaluation_rows_that_are_also_training_rows(options, capsys, skip_training):
    train, dev = (pathlib.Path(path) for path in (options.task_options.train_file, options.task_options.eval_file))
    write_text(dev, dev.read_text() + "\n".join(train.read_text().splitlines()[1:4]))
    runner.run(change(options, **SHORT))
    assert "note: dev: 3 of 43 rows " in capsys.readouterr().out


@pytest.mark.usefixtures("skip_training")
def test_evaluating_a_finished_run_uses_its_settings_and_counts_bad_rows_once(copied, tmp_path, trained, capsys):
    table = pathlib.Path(copied.task_options.eval_file)
    eval_file = tmp_path / "eval.csv"
    eval_file.write_text(table.read_text() + ",good\n")
    later = change(copied, do_train=False, do_predict=False, on_bad_row="skip", eval_file=str(eval_file))
    later = change(later, max_seq_length=None, init=None, vocab_file=None, train_file=None)
    assert runner.run(change(later, init="elsewhere"))["dev"] == pytest.approx(trained.scores["dev"])
    printed = capsys.readouterr().out
    assert f"skipped 1 bad row of {eval_file}" in printed
    assert_mentions(printed, "--init=elsewhere", copied.output_dir)
    without_file = change(later, do_predict=True, predict_file=None)
    assert_rejected(("--do_predict", "table", "--predict_file"), runner.run, without_file)
    assert_rejected(("--doc_stride", None, 8), runner.run, change(later, doc_stride=8))
    pairs = write_text(tmp_path / "pairs.csv", "text,other,label\nthe cat,a dog,good\nthe mat,a sun,bad\n")
    of_pairs = change(later, eval_file=pairs, text_pair_column="other")
    assert_rejected((copied.output_dir, "table", "pair", False, True), runner.run, of_pairs)
    task_spec, other = finetuned.read_task_spec(copied.output_dir) or {}, str(tmp_path / "other")
    converted = {**task_spec, "task": None, "pair": True}
    evaluation._check_task(converted, task_spec, copied.output_dir, "table")
    for key, value in (("labels", ["good", "bad"]), ("num_choices", 4)):
        names = (key, task_spec.get(key), value)
        assert_rejected(names, evaluation._check_task, task_spec, {**task_spec, key: value}, copied.output_dir, "table")
    runner.run(change(later, min_confidence=0.6, init=copied.output_dir, output_dir=other))
    assert f"pass --output_dir={copied.output_dir}" in capsys.readouterr().out
    assert finetuned.read_task_spec(copied.output_dir) == task_spec


def test_a_head_of_another_format_is_reported_and_must_be_converted(copied, tmp_path, capsys):
    (tmp_path / "hf").mkdir()
    hugging_face.write(open_model(copied.output_dir), str(tmp_path / "hf"))
    options = change(copied, do_train=False, init=str(tmp_path / "hf"), output_dir=str(tmp_path / "new"))
    assert_rejected(("--init", "convert"), runner.run, options)
    assert_mentions(capsys.readouterr().out, "sequence classifier", "convert")
    assert_rejected(("--train_file", "convert"), runner.run, change(options, train_file=None))


def mark_one_row_with_both_labels(options):
    path = pathlib.Path(options.task_options.train_file)
    path.write_text(path.read_text().replace(",good\n", ",good;bad\n", 1))
    return change(options, label_kind="multi_label")


@pytest.mark.parametrize(("changes", "names"), [
    ({"max_seq_length": 64}, ("--max_seq_length", 64, 32)),
    ({"class_weights": ["1", "x"]}, ("--class_weights", "1,x", "balanced", 2, "bad, good")),
    ({"do_train": False}, ("--init", "--do_train")), ({"task": "sst-3"}, ("sst-3", "sst-2")),
    ({"task": "sst-2", "task_options": GlueOptions(data_dir="nowhere")}, ("--data_dir", "nowhere")),
    ({"metric_for_best_model": "f1"}, ("--metric_for_best_model", "f1", "accuracy, f1_macro")),
    ({"metric_for_best_model": "accuracy", "eval_file": None}, ("--metric_for_best_model", "--eval_file")),
    ({"early_stopping": 1, "eval_file": None, "do_eval": False}, ("--early_stopping", "--eval_file")),
    ({"min_confidence": 0.5, "label_kind": "multi_label"}, ("--min_confidence", "--thresholds")),
    ({"eval_file": None}, ("--do_eval", "table", "--eval_file")),
    ({"balanced_sampling": True, "class_weights": ["1", "5"]}, ("--class_weights", "1,5", "--balanced_sampling")),
    ({"temperature": 2.0}, ("--temperature", 2, "--teacher")), ({"teacher_weight": 0.5}, ("--teacher_weight", 0.5)),
    ({"random_seeds": ["1", "01"]}, ("--random_seeds", "1,01")),
    ({"grid_learning_rates": ["1e-3", "0.001"]}, ("--grid_learning_rates", "1e-3,0.001")),
    ({"balanced_sampling": True, "label_kind": "multi_label"}, ("--balanced_sampling", "multi_label")),
])  # fmt: skip
def test_invalid_options_are_rejected_before_training(options, changes, names):
    options = mark_one_row_with_both_labels(options) if "label_kind" in changes else options
    function = dataclasses.replace if "task_options" in changes else change
    assert_rejected(names, lambda: runner.run(function(options, **{"num_train_epochs": 0.2, **changes})))
    assert not pathlib.Path(options.output_dir, "train.jsonl").exists()  # the run stopped before training


def test_multi_label_results_contain_the_scores_of_each_label(options, tmp_path, skip_training):
    several = mark_one_row_with_both_labels(options)
    scores = runner.run(change(several, do_predict=False, num_train_epochs=1.0))
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    labels = results["dev"].pop("labels")
    assert results["dev"] == scores["dev"]
    assert {"f1_micro", "f1_macro"} <= set(results["dev"])
    assert set(labels) == {"bad", "good"}
    good = labels["good"]
    shown = " | ".join(f"{good[name]:.4f}" for name in ("precision", "recall", "f1"))
    assert f"| good | {shown} | {good['examples']} |" in (tmp_path / "run" / "MODEL_CARD.md").read_text()


@pytest.mark.slow
def test_temperature_and_thresholds_are_chosen_on_the_evaluation_data_and_stored(copied, trained, tmp_path, capsys):
    decided = change(copied, do_train=False, do_predict=False, calibrate=True, min_confidence=0.6)
    scores = runner.run(decided)
    spec = open_model(copied.output_dir).task_spec or {}  # also verifies the checksums
    assert spec["min_confidence"] == 0.6
    assert spec["temperature"] != 1.0
    assert "existing exports do not include them" in capsys.readouterr().out
    assert scores["dev"]["accuracy"] == trained.scores["dev"]["accuracy"]  # the most likely class does not change
    assert 0 < scores["dev"]["coverage"] < 1
    coverage, accuracy = (f"{100 * scores['dev'][name]:.1f} %" for name in ("coverage", "accuracy_of_answered"))
    card = (tmp_path / "run" / "MODEL_CARD.md").read_text()
    assert_mentions(card, f"with temperature {spec['temperature']:.3f}", f"0.6 | {coverage} | {accuracy}")
    runner.run(change(decided, learning_rate=None, init=None))  # the options omit how the model was trained
    card = (tmp_path / "run" / "MODEL_CARD.md").read_text()
    assert f"| --learning_rate | {copied.learning_rate} |" in card
    assert f"| --init | {copied.init} |" in card
    # Evaluating again uses the stored settings. Choosing them again gives the same values.
    for again in (change(decided, calibrate=False, min_confidence=None), decided):
        assert runner.run(again)["dev"] == pytest.approx(scores["dev"])
        temperature = (finetuned.read_task_spec(copied.output_dir) or {})["temperature"]
        assert temperature == pytest.approx(spec["temperature"], rel=0.01)


def test_constant_predictions_cause_a_warning(copied, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(KerasRunner, "compute_outputs", lambda _, features, size: np.tile([9, 0.0], (len(features), 1)))
    task_spec = finetuned.read_task_spec(copied.output_dir) or {}
    finetuned.replace_task_spec(copied.output_dir, task_spec | {"temperature": 3.0})
    runner.run(change(copied, do_train=False))
    first = (tmp_path / "run" / "predictions_test.tsv").read_text().splitlines()[1].split("\t")
    assert float(first[3]) == pytest.approx(1 / (1 + np.exp(-9 / 3)), abs=1e-3)
    (warning,) = json.loads((tmp_path / "run" / "results.json").read_text())["warnings"]
    assert warning.startswith("dev: all 40 answers are bad: ")
    assert f"warning: {warning}" in (output := capsys.readouterr().out)
    assert "warning: test: all 10 answers are bad: " in output
    header, *rows = pathlib.Path(copied.task_options.eval_file).read_text().splitlines()
    for label, has_warning in (("good", True), ("bad", False)):
        one_class = tmp_path / f"{label}.csv"
        one_class.write_text("\n".join([header, *(row for row in rows if row.endswith(label))]) + "\n")
        runner.run(change(copied, do_train=False, do_predict=False, eval_file=str(one_class)))
        results = json.loads((tmp_path / "run" / "results.json").read_text())
        assert ("warnings" in results) == has_warning
        assert set(results["dev"]) == {"accuracy", "f1_macro", "matthews_correlation"}
        assert "note: dev: roc_auc, average_precision, f1_rare_class " in capsys.readouterr().out
    copied = change(copied, metric_for_best_model="roc_auc", eval_file=str(one_class))
    assert_rejected(("metric_for_best_model", "roc_auc", "accuracy"), runner.run, copied)


def test_predicted_numbers_are_compared_with_the_known_labels():
    predictions = np.array([0.366, 0.37] * 20)
    for high, numbers in ((15_000.0, ["0.366", "0.37", "0", "15000"]), (1.0, []), (None, [])):
        examples = make_examples(*(0.0, high) * 20)
        warnings = evaluation._warn_if_constant("dev", RegressionSpec(), predictions, examples)
        assert_mentions(" ".join(warnings), *numbers)
        assert bool(warnings) == bool(numbers)


def test_temperature_and_thresholds_are_printed_on_one_line_each():
    settings = {"temperature": 1.5, "thresholds": [0.4, 0.6], "min_confidence": 0.7}
    text = evaluation._describe_decision_settings(ClassificationSpec(labels=("bad", "good")), settings)
    assert [line.partition(": ")[2] for line in text.splitlines()[:4]] == ["1.5000", "0.4000", "0.6000", "0.7"]
