"""Evaluation during and after training, and the best weights that are kept."""

from unittest import mock

import keras
import pytest
import tensorflow as tf

from official_bert.optimization.distribution import get_strategy
from official_bert.pretraining.evaluation import HeldOutEvaluation, evaluate, save_if_best
from official_bert.pretraining.train_step import SUMS


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
