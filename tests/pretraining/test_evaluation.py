"""Evaluation during and after training, and the best weights that are kept."""

from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_bert.optimization.distribution import get_strategy
from official_bert.pretraining.evaluation import HeldOutEvaluation, evaluate, save_if_best
from official_bert.pretraining.run import pretrain
from official_bert.pretraining.train_step import SUMS
from tests.pretraining.pretraining_runs import log_values


def test_best_weights_are_compared_with_the_loss_saved_with_them(tmp_path):
    model = mock.Mock(variables=[keras.Variable(1.0, name="weight")])

    def keep(data: int, step: int, loss: float) -> bool:
        return save_if_best(str(tmp_path / "best"), step, loss, model, {"vocab.txt": f"{step}\n"}, data)

    assert keep(1, 5, 1.0)
    assert not keep(1, 10, 2.0)
    assert not keep(1, 10, 1.0), "the earlier one of equal losses is kept"
    assert not keep(1, 10, float("nan"))
    assert keep(2, 10, 2.0), "losses on other records say nothing"
    assert keep(2, 8, 3.0), "step 10 was taken by a run that went on from before"
    assert not keep(2, 8, 4.0)
    assert [path.name for path in (tmp_path / "best").glob("*.index")] == ["ckpt-8.index"]
    assert (tmp_path / "best" / "vocab.txt").read_text() == "8\n"
    (tmp_path / "best" / "ckpt-8.data-00000-of-00001").write_bytes(b"")
    assert keep(2, 12, 4.0), "the best weights are damaged"


def test_an_evaluation_can_be_stopped_between_batches():
    records = mock.Mock(evaluation_batches=tf.data.Dataset.range(100).batch)
    pretrainer = mock.Mock(strategy=get_strategy("one_device"), evaluate=lambda batch: dict.fromkeys(SUMS, 1.0))
    asked = iter([False, False, True])
    assert evaluate(pretrainer, records, 8, 100, lambda: next(asked)) is None
    assert next(asked, None) is None
    for most_batches, expected in ((2, 2), (100, 13)):
        _, totals = evaluate(pretrainer, records, 8, most_batches, lambda: False)
        assert totals == dict.fromkeys(SUMS, expected)


def test_the_report_says_whether_records_were_left_out():
    options, records = mock.Mock(max_eval_steps=3, eval_batch_size=4), mock.Mock()
    evaluation = HeldOutEvaluation(options, mock.Mock(), mock.Mock(), records, {}, mock.Mock(), True)
    part = "evaluated the first 12 of 13 records (--max_eval_steps=3 x --eval_batch_size=4), 30 predictions"
    for available, pairs, expected in (
        (12, 12.0, "evaluated 12 records, 30 predictions"),
        (13, 12.0, part),
        (None, 0.0, "evaluated 30 predictions"),  # without next-sentence prediction
    ):
        records.held_out.num_records = available
        assert evaluation._describe_evaluated({"masked_lm_count": 30.0, "next_sentence_count": pairs}) == expected


@pytest.fixture
def pretrainer() -> mock.Mock:
    """A pre-trainer at step 7 whose sums grow with the number of records."""
    per_record = dict(zip(SUMS, (6.0, 1.0, 2.0, 0.5, 0.75, 1.0, 9.0), strict=True))
    evaluate = mock.Mock(side_effect=lambda batch: {name: len(batch) * value for name, value in per_record.items()})
    return mock.Mock(strategy=get_strategy("one_device"), step=7, evaluate=evaluate)


def test_the_baseline_counts_the_evaluated_records(pretrainer, make_options, monkeypatch, capsys, tmp_path):
    baseline = mock.Mock(return_value=0.25)
    monkeypatch.setattr("official_bert.pretraining.evaluation.compute_unigram_accuracy", baseline)
    options, records = make_options(eval_batch_size=4, max_eval_steps=3), mock.Mock()
    records.held_out = mock.MagicMock(evaluation_batches=tf.data.Dataset.range(100).batch, num_records=None)
    records.general = records.held_out
    HeldOutEvaluation(options, mock.Mock(), pretrainer, records, {}, mock.Mock(), False).evaluate_final_weights()
    assert baseline.call_args.args == (records.held_out, 4, 3)
    output = capsys.readouterr().out
    assert output.startswith("evaluated 12 records, 24 predictions\n")
    assert output.endswith(" masked_lm_accuracy = 0.25\n")
    assert output.count("masked_lm_loss = 3.0\n") == 1 + output.count("\ngeneral_masked_lm_loss = 3.0\n") == 2
    assert not (tmp_path / "run").exists(), "only the chief writes files"


@pytest.mark.parametrize("is_chief", [True, False])
def test_a_complete_evaluation_is_logged_and_saved_if_best(is_chief, pretrainer, make_options, monkeypatch, capsys):
    save, log, records, stops = mock.Mock(), mock.Mock(), mock.Mock(), iter([False, True, False, False])
    monkeypatch.setattr("official_bert.pretraining.evaluation.save_if_best", save)
    for number, each in enumerate((records.general, records.held_out), start=1):
        each.configure_mock(explain_damage=mock.MagicMock(), evaluation_batches=tf.data.Dataset.range(number).batch)
    evaluation = HeldOutEvaluation(make_options(), mock.Mock(), pretrainer, records, {}, log, is_chief)
    assert not evaluation.evaluate_checkpoint(lambda: next(stops))
    assert not log.write.called
    assert evaluation.evaluate_checkpoint(lambda: next(stops))
    logged = [(*each.args[:2], each.args[2]["predictions"]) for each in log.write.mock_calls]
    assert logged == [("general", 7, 2), ("eval", 7, 4)]
    printed = capsys.readouterr().out.splitlines()
    assert ["general text" in line for line in printed if "evaluation at step 7" in line] == [True, False]
    assert [each.args[1:3] for each in save.mock_calls if each.args] == [(7, 3.5)] * is_chief


@pytest.mark.slow
def test_held_out_and_general_text_are_evaluated_and_the_best_weights_kept(
    make_options, record_files, shared_run, tmp_path, capsys
):
    files = {"eval_input_file": record_files[:1], "general_eval_file": record_files[1:]}
    changes = {"init_checkpoint": str(shared_run), "eval_steps": 5, "do_eval": True, "learning_rate": 0.3}
    options, folder = make_options(**files, **changes), tmp_path / "run"
    pretrain(options)
    steps, losses = log_values(folder, "step", "eval"), log_values(folder, kind="eval")
    assert steps == log_values(folder, "step", "general") == [0, 5, 10, 15, 20, 20]
    assert losses[0] != log_values(folder, kind="general")[0]
    assert "evaluation at step 0 on general text: masked LM loss" in capsys.readouterr().out
    assert "general text, step 20" in (folder / "MODEL_CARD.md").read_text()
    kept = tf.train.latest_checkpoint(str(folder / "best"))
    assert kept == f"{folder}/best/ckpt-{steps[np.argmin(losses)]}"
    pretrain(options)  # evaluates once more at the end, but not again before the first step
    assert log_values(folder, "step", "general") == [0, 5, 10, 15, 20, 20, 20]
    pretrain(make_options("again", input_file=record_files[:1], do_train=False, do_eval=True, init_checkpoint=kept))
    assert log_values(tmp_path / "again", kind="eval")[0] == pytest.approx(min(losses), rel=1e-5)
