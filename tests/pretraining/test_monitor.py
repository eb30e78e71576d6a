"""What a run logs about its steps, and where it looks for the cause of values that are not finite."""

import math
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from official_bert.pretraining import monitor, unigram_level
from official_bert.pretraining.monitor import Monitor, Profile
from official_bert.pretraining.options import Phase
from official_bert.pretraining.train_step import SUMS
from official_bert.runs.training_log import TRAIN, format_line
from tests.make import assert_rejected, write_text


def make_monitor(step=0, is_chief=False, training=None, **options):
    """Returns a monitor after `step` steps, and its log."""
    options = {"on_nonfinite": "stop", "dtype": "float32", "random_seed": 7, "output_dir": "none", **options}
    pretrainer = mock.Mock(step=step, schedule=lambda step: 0.001 * step)
    config, log, records = mock.Mock(token_objective="masked LM"), mock.Mock(), mock.Mock(training=training)
    return Monitor(mock.Mock(**{"total_steps": 100, **options}), config, pretrainer, records, log, is_chief), log


PHASE = mock.Mock(spec=Phase, number=2, train_batch_size=16, max_seq_length=64)


def make_sums(**changes):
    names = (*SUMS, "gradient_norm", "input_wait", "nonfinite_steps", "nonfinite_losses", "nonfinite_at_end")
    return {**dict.fromkeys(names, 0.0), **changes}


def test_a_log_line_has_the_means_of_its_own_steps(capsys):
    watched, log = make_monitor(step=10)
    losses = {"masked_lm_loss": 12.0, "masked_lm_correct": 2.0, "masked_lm_count": 4.0, "tokens": 300.0}
    losses |= {"next_sentence_loss": 1.0, "next_sentence_correct": 3.0, "next_sentence_count": 4.0}
    watched.add(make_sums(**losses, gradient_norm=3.0, input_wait=0.5, nonfinite_steps=1.0), 3, 1.5, 2.0)
    watched.add(make_sums(**losses, gradient_norm=6.0, input_wait=0.5), 1, 0.5, 1.0)
    watched.write(14, PHASE)  # four steps, one of them skipped
    expected = {"masked_lm_loss": 3.0, "loss": 3.25, "masked_lm_accuracy": 0.5, "learning_rate": 0.013}
    expected |= {"next_sentence_loss": 0.25, "next_sentence_accuracy": 0.75}
    expected |= {"gradient_norm": 3.0, "steps_per_second": 2.0, "examples_per_second": 32.0}
    expected |= {"tokens_per_second": 300.0, "processor_seconds": 3.0, "input_wait_share": 0.5, "max_seq_length": 64}
    log.write.assert_called_once_with("train", 14, pytest.approx(expected))
    assert capsys.readouterr().out == (
        "step 14 of 100  loss 3.2500  masked LM 3.0000 (accuracy 50.0 %)  next sentence 0.2500 (accuracy 75.0 %)"
        "  learning rate 1.30e-02  gradient norm 3.00  32 examples/s 300 tokens/s  43s left\n"
    )
    watched.add(make_sums(nonfinite_steps=2.0), 2, 1.0, 1.0)
    watched.write(16, PHASE)  # both steps were skipped
    watched.add(make_sums(gradient_norm=5.0), 1, 4.0, 1.0)
    watched.write(17, PHASE)
    kind, step, values = log.write.call_args.args
    assert log.write.call_count == 2
    assert (kind, step, values["gradient_norm"], values["steps_per_second"]) == ("train", 17, 5.0, 0.25)


def test_compilation_is_left_out_of_the_rates_and_of_the_time_left(capsys):
    watched, log = make_monitor(step=10)
    watched.add(make_sums(tokens=50.0), 1, 9.0, 9.0, is_compiled=False)
    watched.write(11, PHASE)
    printed = capsys.readouterr().out
    assert "9s" in printed
    assert "examples/s" not in printed
    watched.add(make_sums(tokens=50.0), 1, 9.0, 9.0, is_compiled=False)
    watched.add(make_sums(tokens=150.0), 8, 2.0, 2.0)
    watched.write(20, PHASE)
    rates = {"steps_per_second": 4.0, "examples_per_second": 64.0, "tokens_per_second": 4.0 * 200 / 9}
    assert rates.items() <= log.write.call_args.args[2].items()
    assert " 20s left" in capsys.readouterr().out


BAD = {"nonfinite_step": 103.0, "nonfinite_loss": 1.0, "nonfinite_norm": float("inf")}


def test_the_records_of_a_nonfinite_step_are_named():
    records = mock.Mock(describe_locations=lambda *arguments: f"at {arguments}")
    sums = make_sums(**BAD, nonfinite_steps=2.0, nonfinite_at_end=1.0)
    # Steps 101 to 104. The phase's first 320 records were read before, and 2 * 16 by steps 101 and 102.
    names = ("step 103", 1.0, "inf", "(7, 352, 16)")
    assert_rejected(names, make_monitor()[0].check_finite, sums, 100, 104, 320, PHASE, records)


def test_float16_skips_overflowing_gradients_but_not_nonfinite_losses():
    sums = make_sums(**BAD, nonfinite_steps=2.0, nonfinite_at_end=1.0)
    bad_loss, arguments = {**sums, "nonfinite_losses": 1.0}, (100, 104, 320, PHASE, mock.Mock())
    assert_rejected(("step 103", "inf"), make_monitor(dtype="float16")[0].check_finite, bad_loss, *arguments)
    for options, each in (({"on_nonfinite": "skip"}, bad_loss), ({"dtype": "float16"}, sums)):
        watched, log = make_monitor(**options)
        watched.check_finite(each, *arguments)
        step, notice = log.note.call_args.args
        assert (step, notice.partition(" as ")[0]) == (103, "2 steps skipped")
        assert watched.skipped_in_a_row == 1
        again = make_sums(**BAD, nonfinite_steps=2.0, nonfinite_at_end=2.0)
        for later, expected in ((again, 3), (make_sums(), 0)):
            watched.check_finite(later, 104, 106, 0, PHASE, mock.Mock())
            assert watched.skipped_in_a_row == expected


def test_a_run_that_skips_too_many_steps_in_a_row_is_stopped(tmp_path):
    def check(skipped, last, steps=1, at_end=1.0, total_steps=1000):
        """Returns the number of skipped steps in a row after a call of `steps` steps, whose last step was skipped."""
        watched, _ = make_monitor(total_steps=total_steps, on_nonfinite="skip", output_dir=str(tmp_path))
        watched.skipped_in_a_row = skipped - 1
        sums = make_sums(**BAD, nonfinite_steps=1.0, nonfinite_losses=1.0, nonfinite_at_end=at_end)
        sums["nonfinite_step"] = float(last)
        records = mock.Mock(describe_locations=lambda *_: "0.tfrecord: 1")
        watched.check_finite(sums, last - steps, last, 0, PHASE, records)
        return watched.skipped_in_a_row

    assert_rejected(("step 20", "--learning_rate"), check, 20, 20, total_steps=20)  # no step was finite
    assert (check(19, 20, total_steps=20), check(99, 99)) == (19, 99)
    assert check(100, 1000, steps=1000, at_end=0.0) == 0  # one of a thousand steps was skipped
    assert_rejected(("step 101", "0.tfrecord: 1", "checkpoint", 100), check, 100, 101)
    # As left by an older version, which saved while it skipped steps.
    for step in (1, 2, 6):
        write_text(tmp_path / f"ckpt-{step}.index", "")
    assert_rejected(("ckpt-6, ckpt-2", "ckpt-1", 100), check, 100, 101)


def test_the_profiler_runs_once_between_its_steps(monkeypatch):
    calls = []
    monkeypatch.setattr(tf.profiler.experimental, "start", calls.append)
    monkeypatch.setattr(tf.profiler.experimental, "stop", lambda: calls.append("stop"))
    profile = Profile(["3", "5"], "run")
    assert [profile.update(step) or len(calls) for step in (2, 3, 4, 5, 3, 6)] == [0, 1, 1, 2, 2, 2]
    profile.stop()
    assert calls == ["run/train", "stop"]


STALLED = {500: 7.3, 1000: 6.95, 1500: 6.9}


def make_records(ids):
    """Returns records with one prediction each, and padding of the predictions."""
    ids = np.stack([ids, np.arange(len(ids))], axis=1)
    batch = {"masked_lm_ids": ids, "masked_lm_weights": [[1.0, 0.0]] * len(ids)}
    return mock.Mock(evaluation_batches=lambda size: tf.data.Dataset.from_tensor_slices(batch).batch(size))


def run_monitor(folder, monkeypatch, losses, first_step=0, init_checkpoint=None, phase_number=1, is_chief=True):
    """Writes log lines with these losses and returns the warnings. Guessing by frequency has a loss of 7.0."""
    lines = [format_line({"step": step, "masked_lm_loss": loss}) for step, loss in losses.items()]
    write_text(folder / f"{TRAIN}.jsonl", "".join(lines))
    monkeypatch.setattr(Monitor, "_measure", lambda watched, step, phase: {"masked_lm_loss": losses[step]})
    monkeypatch.setattr(monitor, "format_progress", lambda *_: "")
    phase = mock.Mock(number=phase_number, learning_rate=2e-3, num_warmup_steps=100)
    changes = {"output_dir": str(folder), "init_checkpoint": init_checkpoint}
    watched, log = make_monitor(first_step, is_chief, lambda _: make_records(np.arange(1096).repeat(11)), **changes)
    for step in losses:
        watched.add({"nonfinite_steps": 0.0}, steps=1, seconds=1.0, processor_seconds=1.0)
        watched.write(step, phase)
    return [call.args for call in log.note.call_args_list]


def test_a_loss_at_the_unigram_level_causes_one_warning(tmp_path, monkeypatch, capsys):
    ((step, warning),) = run_monitor(tmp_path, monkeypatch, STALLED)
    assert step == 1000
    assert all(part in warning for part in ("6.950", "7.0", "--learning_rate (0.002)", "--num_warmup_steps (100)"))
    assert f"warning: {warning}" in capsys.readouterr().out


def test_other_runs_get_no_warning(tmp_path, monkeypatch):
    for losses, changes in (
        ({500: 7.0, 1000: 6.85}, {}),  # already learned
        ({500: 6.0, 1000: 7.0}, {}),  # had learned earlier
        ({500: 7.3}, {}),  # too short
        (STALLED, {"init_checkpoint": "model"}),
        (STALLED, {"first_step": 1000}),  # checked before the run was interrupted
        (STALLED, {"phase_number": 2}),  # longer records, after a first phase
        (STALLED, {"is_chief": False}),
    ):
        assert not run_monitor(tmp_path, monkeypatch, losses, **changes), changes


def test_unigram_figures_count_the_tokens_to_predict():
    records = make_records([1, 2, 1, 3] * 800)
    assert unigram_level.compute_unigram_entropy(records) == pytest.approx(1.5 * math.log(2), abs=0.01)
    few = unigram_level.compute_unigram_entropy(make_records([1, 2, 1, 3]))
    assert few == pytest.approx(1.5 * math.log(2) + (3 - 1) / (2 * 4))  # corrected for the size of the sample
    assert unigram_level.compute_unigram_accuracy(records, 64, 200) == pytest.approx(0.5)
    assert unigram_level.compute_unigram_accuracy(records, 1, 3) == pytest.approx(2 / 3)
