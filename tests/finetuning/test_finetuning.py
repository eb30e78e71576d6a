import dataclasses
import json
import math
import pathlib
import re
import signal

import numpy as np
import pytest

from official_bert.checkpoints import finetuned
from official_bert.checkpoints.loading import open_model
from official_bert.errors import UserError
from official_bert.finetuning import evaluation, runner, trainer
from official_bert.finetuning.initial_model import build_initial_encoder, read_initial_model
from official_bert.finetuning.options import Options
from official_bert.inference import keras_model
from official_bert.kinds.classification.spec import ClassificationSpec
from official_bert.kinds.regression.spec import RegressionSpec
from official_bert.tasks.options import GlueOptions, TableOptions
from official_bert.utils import files, progress
from tests.conftest import WORDS, slow_after
from tests.event_files import read_scalars
from tests.make import refusal, run_python, tiny_config

GOOD, BAD = "cat dog sun play".split(), "mat sat ran walk".split()


def write_table(path: pathlib.Path, count: int, seed: int) -> str:
    """Writes a CSV file whose labels depend on the words of the texts."""
    rng = np.random.default_rng(seed)
    lines = ["text,label"]
    for _ in range(count):
        good = rng.random() < 0.5
        words = [*rng.choice("a b c the".split(), 2), *rng.choice(GOOD if good else BAD, rng.integers(2, 9))]
        lines.append(f"{' '.join(rng.permutation(words))},{'good' if good else 'bad'}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


@pytest.fixture
def options(tmp_path, vocab_file) -> Options:
    config = tiny_config(hidden_size=16, num_hidden_layers=1, intermediate_size=32, initializer_range=0.2)
    (tmp_path / "config.json").write_text(config.to_json())
    sizes = {"train": 90, "eval": 40, "predict": 10}
    tables = {
        f"{name}_file": write_table(tmp_path / f"{name}.csv", count, seed)
        for seed, (name, count) in enumerate(sizes.items(), start=1)
    }
    return Options(
        task="table",
        task_options=TableOptions(**tables),
        init=str(tmp_path / "config.json"),
        vocab_file=vocab_file,
        output_dir=str(tmp_path / "run"),
        do_train=True,
        do_eval=True,
        do_predict=True,
        learning_rate=0.005,
        num_train_epochs=6.0,
        train_batch_size=16,
        max_seq_length=16,
        log_steps=4,
        cache_dir=str(tmp_path / "cache"),
    )


def add_task_options(options: Options, **changes) -> Options:
    return dataclasses.replace(options, task_options=dataclasses.replace(options.task_options, **changes))


def enable_multi_label(options: Options) -> Options:
    """Returns options for a table in which one row has two labels."""
    path = pathlib.Path(options.output_dir).parent / "train.csv"
    path.write_text(path.read_text().replace(",good\n", ",good;bad\n", 1))
    return add_task_options(options, label_kind="multi_label")


class KilledError(Exception):
    pass


@pytest.mark.slow
def test_deterministic_runs_write_the_same_bytes(options, tmp_path):
    threads = {"TF_NUM_INTRAOP_THREADS": "4", "TF_NUM_INTEROP_THREADS": "4"}
    names = ("finetuning_options.json", "model.weights.h5", "results.json", "predictions_dev.tsv")
    contents = []
    for name in ("one", "other"):
        done = run_python(
            "-m", "official_bert_cli", "finetune", "--task=table", f"--init={options.init}",
            f"--vocab_file={options.vocab_file}", f"--train_file={options.task_options.train_file}",
            f"--eval_file={options.task_options.eval_file}", f"--output_dir={tmp_path / name}", "--do_train",
            "--do_eval", "--num_train_epochs=2", "--train_batch_size=16", "--max_seq_length=16", "--deterministic",
            environment=threads,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        states = sorted((tmp_path / name / "checkpoints").glob("ckpt-*"))
        assert len(states) == 2
        contents.append([path.read_bytes() for path in (*states, *(tmp_path / name / each for each in names))])
    assert contents[1] == contents[0]
    assert json.loads((tmp_path / "one" / "finetuning_options.json").read_text())["deterministic"] is True


def test_a_run_learns_and_one_that_was_killed_ends_with_the_same_weights(options, tmp_path, monkeypatch, capsys):
    predicted_again = []

    class Runner(keras_model.KerasRunner):
        def compute_outputs(self, *arguments):
            predicted_again.append(arguments)
            return super().compute_outputs(*arguments)

    monkeypatch.setattr(evaluation, "KerasRunner", Runner)
    scores = runner.run(options)
    assert len(predicted_again) == 1  # only the test part; training already scored the dev part
    assert scores["dev"]["accuracy"] > 0.85
    shown = capsys.readouterr().out
    for line in (
        f"loaded {options.init}: 1 layer of 16, uncased vocabulary of {len(WORDS)} pieces; the head is new",
        "note: 2 classes: bad, good",
        f"model card, with scores and errors: {tmp_path / 'run' / 'MODEL_CARD.md'}",
        f"official-bert export --model_dir={tmp_path / 'run'} ",
    ):
        assert line in shown
    assert json.loads((tmp_path / "run" / "results.json").read_text()) == scores
    predictions = (tmp_path / "run" / "predictions_test.tsv").read_text().splitlines()
    assert predictions[0] == "id\tprediction\texpected\tprobability of bad\tprobability of good"
    assert len(predictions) == 11
    logged = [json.loads(line) for line in (tmp_path / "run" / "eval.jsonl").read_text().splitlines()]
    assert [line["step"] for line in logged] == [6, 12, 18, 24, 30, 36]
    losses = [json.loads(line) for line in (tmp_path / "run" / "train.jsonl").read_text().splitlines()]
    assert [line["step"] for line in losses[:8]] == [4, 6, 8, 12, 16, 18, 20, 24]
    assert all(line[name] > 0 for line in losses for name in ("tokens_per_second", "processor_seconds"))
    events = {kind: read_scalars(tmp_path / "run" / kind) for kind in ("train", "eval")}
    assert {"loss", "learning_rate", "tokens_per_second"} <= set(events["train"])
    assert list(events["train"]["loss"]) == [line["step"] for line in losses]
    assert events["eval"]["dev/accuracy"] == pytest.approx({line["step"]: line["dev/accuracy"] for line in logged})
    assert max(line["dev/accuracy"] for line in logged) == pytest.approx(scores["dev"]["accuracy"])
    whole = open_model(str(tmp_path / "run"))
    assert (whole.task or {})["labels"] == ["bad", "good"]

    # Killed in the third epoch, after its scores were logged but before its checkpoint was saved.
    other = dataclasses.replace(options, output_dir=str(tmp_path / "other"))
    train = trainer.Trainer.train

    def killed(self, features, first, last, *rest):
        if first == 12:
            raise KilledError
        return train(self, features, first, last, *rest)

    monkeypatch.setattr(trainer.Trainer, "train", killed)
    with pytest.raises(KilledError):
        runner.run(other)
    monkeypatch.setattr(trainer.Trainer, "train", train)
    log = tmp_path / "other" / "eval.jsonl"
    content = log.read_text()
    log.write_text(content[: content.index("\n") + 1])
    with pytest.raises(UserError, match=r"eval.jsonl in .* lacks the scores of step 12"):
        runner.run(other)
    log.write_text(content)
    state = tmp_path / "other" / "checkpoints"
    (index,) = state.glob("*.index")
    index.rename(tmp_path / "kept")
    named = state / "checkpoint"
    named.rename(tmp_path / "named")
    assert re.search(r"saved state .*ckpt-\*.index.* is missing", refusal(runner.run, other))
    assert log.read_text() == content
    (tmp_path / "kept").rename(index)
    (tmp_path / "named").rename(named)
    capsys.readouterr()
    assert runner.run(other) == scores
    assert "resuming at step 12" in capsys.readouterr().out
    again = open_model(str(tmp_path / "other"))
    for expected, found in zip(whole.weights.values(), again.weights.values(), strict=True):
        np.testing.assert_array_equal(expected, found)
    lines = [json.loads(line) for line in (tmp_path / "other" / "eval.jsonl").read_text().splitlines()]
    assert lines == logged

    write_table(tmp_path / "eval.csv", 40, 5)
    assert "the evaluation data" in refusal(runner.run, other)
    write_table(tmp_path / "eval.csv", 40, 2)
    with pytest.raises(UserError, match="--learning_rate was 0.005 and is 0.02"):
        runner.run(dataclasses.replace(options, learning_rate=0.02))


@pytest.mark.slow
def test_sigterm_saves_and_the_same_command_goes_on(options, tmp_path, monkeypatch, capsys):
    options = dataclasses.replace(options, num_train_epochs=2.0, do_eval=False, do_predict=False)
    runner.run(options)
    other = dataclasses.replace(options, output_dir=str(tmp_path / "other"))
    train = trainer.Trainer.train

    def terminated(self, features, first, last, on_step, *rest):
        def interrupt_after_step_8(done: int, loss: float) -> bool:
            if done == 8:
                signal.raise_signal(signal.SIGTERM)
            return on_step(done, loss)

        return train(self, features, first, last, interrupt_after_step_8, *rest)

    monkeypatch.setattr(trainer.Trainer, "train", terminated)
    with pytest.raises(SystemExit) as stopped:
        runner.run(other)
    assert stopped.value.code == 143
    assert "stopped at step 8" in capsys.readouterr().out
    monkeypatch.setattr(trainer.Trainer, "train", train)
    runner.run(other)
    assert "resuming at step 8" in capsys.readouterr().out
    weights = [[*open_model(each.output_dir).weights.values()] for each in (options, other)]
    for expected, found in zip(*weights, strict=True):
        np.testing.assert_array_equal(expected, found)


@pytest.mark.slow
def test_what_a_killed_process_left_among_the_checkpoints_of_a_finished_run_is_removed(options, tmp_path):
    options = dataclasses.replace(options, num_train_epochs=1.0, do_eval=False, do_predict=False)
    runner.run(options)
    state = tmp_path / "run" / "checkpoints"
    before = {path.name for path in state.iterdir()}
    (state / "checkpoint.writing-0123456789ab").mkdir()
    (state / "checkpoint.writing-0123456789ab" / "checkpoint").touch()
    (state / "ckpt-99.data-00000-of-00001").touch()
    files._list_temporary_names.cache_clear()  # as in another process
    runner.run(options)
    assert {path.name for path in state.iterdir()} == before


def test_rows_that_are_not_there_count_neither_in_the_loss_nor_in_the_progress(options, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", -1.0)
    changes = {"learning_rate": 1e-9, "train_batch_size": 32, "num_train_epochs": 2.0, "do_eval": False}
    table = TableOptions(train_file=write_table(tmp_path / "few.csv", 4, 1))
    runner.run(dataclasses.replace(options, task_options=table, do_predict=False, **changes))
    out, err = capsys.readouterr()
    assert "2 steps of 4 rows" in out
    assert "4 of 8 rows (50 %)" in err
    assert "8 of 8 rows (100 %)" in err
    lines = [json.loads(line) for line in (tmp_path / "run" / "train.jsonl").read_text().splitlines()]
    assert [line["loss"] for line in lines] == pytest.approx([math.log(2)] * 2, abs=0.1)  # two classes


@pytest.mark.slow
def test_a_run_stops_early_and_weighs_decays_and_freezes(options, tmp_path, capsys):
    short = {"learning_rate": 1e-9, "early_stopping": 1, "eval_steps": 4, "do_eval": False, "do_predict": False}
    changes = {"class_weights": ["balanced"], "freeze": [".*embeddings"], "layer_decay": 0.5, "dtype": "bfloat16"}
    runner.run(dataclasses.replace(options, **short, **changes))
    assert "stopped early" in capsys.readouterr().out
    initial = read_initial_model(options.init, options.vocab_file)
    weights = open_model(str(tmp_path / "run")).weights
    start = {each.path: each for each in build_initial_encoder(initial, options.random_seed, "float32").variables}
    np.testing.assert_array_equal(weights["word_embeddings/embeddings"], start["word_embeddings/embeddings"])
    assert any(not np.array_equal(value, start[path]) for path, value in weights.items() if path in start)


@pytest.mark.parametrize(("metric", "best"), slow_after(1, [("roc_auc", 2), ("accuracy", 1)]))
def test_the_metric_for_the_best_model_selects_it_and_stops_the_run(metric, best, options, monkeypatch, capsys):
    evaluations = iter([(0.7, 0.5), (0.6, 0.8), (0.6, 0.7), (0.6, 0.6)])
    names = ("accuracy", "roc_auc")
    monkeypatch.setattr(ClassificationSpec, "scores", lambda *_: dict(zip(names, next(evaluations), strict=True)))
    short = {"metric_for_best_model": metric, "early_stopping": 1, "do_eval": False, "do_predict": False}
    runner.run(dataclasses.replace(options, **short))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step ")]
    assert len(lines) == best + 1
    assert [line.endswith("; saved") for line in lines] == [True] * best + [False]


def test_a_lower_error_is_better(options, monkeypatch, capsys):
    path = pathlib.Path(options.task_options.train_file)
    for file in path.parent.glob("*.csv"):
        file.write_text(file.read_text().replace(",good", ",1").replace(",bad", ",2"))
    errors = iter([0.7, 0.5, 0.6])
    monkeypatch.setattr(RegressionSpec, "scores", lambda *_: {"mean_absolute_error": next(errors)})
    short = {"metric_for_best_model": "mean_absolute_error", "early_stopping": 1, "do_eval": False, "do_predict": False}
    runner.run(add_task_options(dataclasses.replace(options, **short), label_kind="regression"))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step ")]
    assert [line.endswith("; saved") for line in lines] == [True, True, False]


@pytest.mark.slow
def test_a_run_that_failed_at_its_start_may_be_given_again_mended(options):
    short = dataclasses.replace(options, num_train_epochs=1.0, do_eval=False, do_predict=False)
    assert "matches no whole layer name" in refusal(runner.run, dataclasses.replace(short, freeze=["typo"]))
    runner.run(dataclasses.replace(short, on_bad_row="skip"))


def test_evaluation_later_takes_lengths_from_the_model_and_counts_bad_rows_once(options, tmp_path, capsys):
    with open(options.task_options.eval_file, "a") as file:
        file.write(",good\n")
    options = dataclasses.replace(options, num_train_epochs=1.0, do_predict=False, on_bad_row="skip")
    given = add_task_options(options, doc_stride=6)
    scores = runner.run(given)
    assert f"skipped 1 bad row of {options.task_options.eval_file}" in capsys.readouterr().out
    later = dataclasses.replace(given, do_train=False, max_seq_length=None, init=None, vocab_file=None)
    later = add_task_options(later, train_file=None, doc_stride=None)
    assert runner.run(later) == scores
    with pytest.raises(UserError, match="--do_predict: table has no test data; pass --predict_file"):
        runner.run(add_task_options(dataclasses.replace(later, do_predict=True), predict_file=None))


@pytest.mark.parametrize(("changes", "message"), [
    ({"max_seq_length": 64}, "--max_seq_length is 64; the model accepts at most 32 tokens"),
    ({"class_weights": ["1", "x"]}, "expected balanced, or 2 numbers"),
    ({"do_train": False}, "contains a fine-tuned model; pass --do_train"),
    ({"task": "sst-2", "task_options": GlueOptions(data_dir="nowhere")}, "nowhere, which is not a folder"),
    ({"metric_for_best_model": "f1"}, "table has the scores accuracy, f1_macro, matthews_correlation, roc_auc"),
    ({"metric_for_best_model": "accuracy", "eval_file": None}, "needs evaluation data"),
    ({"freeze": ["nothing"]}, "'nothing' matches no whole layer name"),
    ({"min_confidence": 0.5, "label_kind": "multi_label"}, "--min_confidence requires a task with one label per text"),
    ({"calibrate": True, "eval_file": None}, "need evaluation data, and table has none; a table needs --eval_file"),
    ({"balanced_sampling": True, "label_kind": "multi_label"}, "--balanced_sampling needs a classification task"),
])  # fmt: skip
def test_what_cannot_be_is_said(options, changes, message):
    of_task = {name: changes.pop(name) for name in ("eval_file", "label_kind") if name in changes}
    options = enable_multi_label(options) if "label_kind" in of_task else options
    options = add_task_options(options, **of_task)
    changes = {"num_train_epochs": 0.2, **changes}
    assert message in refusal(lambda: runner.run(dataclasses.replace(options, **changes)))
    assert not pathlib.Path(options.output_dir, "train.jsonl").exists()  # the run stopped before training


def test_of_several_labels_the_results_have_the_figures_of_each(options, tmp_path):
    several = enable_multi_label(options)
    scores = runner.run(dataclasses.replace(several, do_predict=False, num_train_epochs=1.0))
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    labels = results["dev"].pop("labels")
    assert results["dev"] == scores["dev"]
    assert set(labels) == {"bad", "good"}
    assert {"f1_micro", "f1_macro"} <= set(results["dev"])
    good = labels["good"]
    shown = " | ".join(f"{good[name]:.4f}" for name in ("precision", "recall", "f1"))
    assert f"| good | {shown} | {good['examples']} |" in (tmp_path / "run" / "MODEL_CARD.md").read_text()


@pytest.mark.slow
def test_decisions_are_chosen_on_the_evaluation_data_and_stay_with_the_model(options, tmp_path, capsys):
    options = dataclasses.replace(options, do_predict=False, num_train_epochs=4.0)
    before = runner.run(options)
    decided = dataclasses.replace(options, do_train=False, calibrate=True, min_confidence=0.6)
    scores = runner.run(decided)
    spec = open_model(options.output_dir).task or {}  # also verifies the checksums
    assert spec["min_confidence"] == 0.6
    assert spec["temperature"] != 1.0
    assert "existing exports do not include them" in capsys.readouterr().out
    assert scores["dev"]["accuracy"] == before["dev"]["accuracy"]  # the most likely class does not change
    assert 0 < scores["dev"]["coverage"] < 1
    card = (tmp_path / "run" / "MODEL_CARD.md").read_text()
    errors = re.search(rf"as trained \| (0\.\d+) \|\n\| with temperature {spec['temperature']:.3f} \| (0\.\d+) ", card)
    assert errors
    assert errors[1] != errors[2]
    coverage, accuracy = (f"{100 * scores['dev'][name]:.1f} %" for name in ("coverage", "accuracy_of_answered"))
    assert f"| 0.6 | {coverage} | {accuracy} |" in card
    default = dataclasses.replace(decided, learning_rate=None, init=None)
    runner.run(default)  # the options omit how the model was trained
    card = (tmp_path / "run" / "MODEL_CARD.md").read_text()
    assert f"| --learning_rate | {options.learning_rate} |" in card
    assert f"| --init | {options.init} |" in card
    # Evaluating again uses the stored settings. Choosing them again gives the same values.
    for again in (dataclasses.replace(decided, calibrate=False, min_confidence=None), decided):
        assert runner.run(again)["dev"] == pytest.approx(scores["dev"])
        temperature = (finetuned.read_task(options.output_dir) or {})["temperature"]
        assert temperature == pytest.approx(spec["temperature"], rel=0.01)


def test_a_model_that_predicts_one_class_for_every_row_is_named(options, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        ClassificationSpec, "apply_activation", lambda self, logits: np.tile([0.9, 0.1], (len(logits), 1))
    )
    runner.run(dataclasses.replace(options, num_train_epochs=0.2))
    label = json.loads((tmp_path / "run" / "task.json").read_text())["labels"][0]
    warnings = json.loads((tmp_path / "run" / "results.json").read_text())["warnings"]
    assert [each.partition(":")[0] for each in warnings] == ["dev"]
    assert f"all 40 answers are {label}: " in warnings[0]
    assert f"warning: {warnings[0]}" in (output := capsys.readouterr().out)
    assert f"warning: test: all 10 answers are {label}: " in output


def test_decisions_are_printed_on_a_line_each():
    decisions = {"temperature": 1.5, "thresholds": [0.4, 0.6], "min_confidence": 0.7}
    lines = evaluation._describe_decisions(ClassificationSpec(labels=("bad", "good")), decisions).splitlines()
    assert lines == [
        "temperature of the probabilities: 1.5000",
        "threshold of bad: 0.4000",
        "threshold of good: 0.6000",
        "minimum confidence: 0.7",
        "existing exports do not include them; export the model again",
    ]
