"""The fine-tuning loop: learning rates, seeds, losses and weights of its steps, when it logs, and when it stops."""

import dataclasses
import itertools
import types
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from official_bert.checkpoints.checkpoint import LoadedModel
from official_bert.finetuning import batches, training, training_step
from official_bert.finetuning.options import FinetuningOptions
from official_bert.finetuning.trainer import Trainer, count_steps
from official_bert.finetuning.training import _Run
from official_bert.kinds.classification.spec import ClassificationSpec
from official_bert.kinds.features import LABELS, TEXTS, row_lengths
from official_bert.kinds.vectors.spec import VectorSpec
from official_bert.modeling.dropout import Dropout
from official_bert.runs.training_log import EVAL, TrainingLog
from tests.finetuning.conftest import random_features
from tests.make import VOCAB, assert_rejected, list_weights, tiny_config

ROWS = 12  # three batches
OPTIONS = FinetuningOptions(
    task="sst-2", output_dir="unused", do_train=True, train_batch_size=4, learning_rate=1e-2, num_train_epochs=3.4,
    warmup_proportion=0.2, max_seq_length=16, random_seed=7,
)  # fmt: skip


def make_trainer(head=ClassificationSpec(labels=tuple("abcd")), **changes) -> Trainer:  # noqa: B008
    initial_model, options = LoadedModel(tiny_config(), {}, VOCAB), dataclasses.replace(OPTIONS, **changes)
    return Trainer(head, initial_model, options, ROWS)


def test_the_learning_rate_warms_up_decays_to_zero_and_is_logged_for_the_last_step():
    trainer, expected = make_trainer(), [0.0, 0.005, 0.008, 0.007, 0.006, 0.005, 0.004, 0.003, 0.002, 0.001, 0.0]
    np.testing.assert_allclose([float(trainer.schedule(step)) for step in range(11)], expected, 1e-5)
    for steps, rate in ((0, 0.0), (1, 0.0), (2, 0.005), (3, 0.008)):
        trainer.optimizer.iterations.assign(steps)
        assert trainer.learning_rate() == pytest.approx(rate, rel=1e-5)


def test_the_speed_is_that_of_the_real_tokens_by_the_clock(monkeypatch: pytest.MonkeyPatch):
    features, trainer = random_features("classification", ROWS, 9), make_trainer(train_batch_size=ROWS)
    trainer._step = lambda *batch: 3.0
    clocks = {"monotonic": iter([1.0, 3.0]).__next__, "process_time": iter([5.0, 5.25]).__next__}
    monkeypatch.setattr("official_bert.finetuning.trainer.time", types.SimpleNamespace(**clocks))
    trainer.train(features, 0, 1, lambda done, loss: False)
    speed = {"steps_per_second": 0.5, "tokens_per_second": len(features.input_ids) / 2, "processor_seconds": 0.25}
    assert trainer.take_figures() == {"loss": 3.0, "learning_rate": pytest.approx(0.01), **speed}


def test_each_log_line_has_the_mean_loss_since_the_previous_line():
    features, trainer, run = random_features("classification", ROWS, 9), make_trainer(), _Run.__new__(_Run)
    losses, written = [8.0, 4.0, 3.0, 1.0, 5.0, 7.0, 2.0], []
    remaining = iter(losses)
    trainer._step = lambda *batch: next(remaining)
    run._trainer = trainer
    run._log = types.SimpleNamespace(write=lambda part, step, values: written.append((step, values["loss"])))
    for first, last in ((0, 3), (3, 7)):
        trainer.train(features, first, last, lambda done, loss: done in (2, 4, 5) and bool(run._log_figures(done)))
        for _ in range(2):  # once at the last step, and once after it
            run._log_figures(last)
    ends = [2, 3, 4, 5, 7]
    expected = [sum(losses[start:end]) / (end - start) for start, end in itertools.pairwise([0, *ends])]
    assert written == [(end, pytest.approx(loss)) for end, loss in zip(ends, expected, strict=True)]


def test_a_run_can_be_resumed_in_the_middle_of_an_epoch(monkeypatch: pytest.MonkeyPatch):
    """Three batches of an epoch of ten rows. The last batch has two."""
    features, trainer = random_features("classification", 10, 9), make_trainer()
    seen: list[list[int]] = []
    monkeypatch.setattr(trainer, "_step", lambda inputs: 0.0)

    def pad_rows(features, rows, *_, **__):
        seen.append(rows.tolist())
        return ({"input_mask": rows},)

    monkeypatch.setattr(batches, "pad_batch", pad_rows)

    def take(first: int, last: int) -> list[list[int]]:
        seen.clear()
        trainer.train(features, first, last, lambda done, loss: False)
        return seen.copy()

    whole = take(0, 7)
    expected = [batches.draw_batches(row_lengths(features), 4, 7, epoch).tolist() for epoch in range(3)]
    assert whole == [*expected[0], *expected[1], expected[2][0]]
    assert take(0, 2) + take(2, 3) + take(3, 5) + take(5, 7) == whole


def test_batches_are_drawn_with_the_options_of_the_run(monkeypatch: pytest.MonkeyPatch):
    features, drawn = random_features("classification", ROWS, 9), []
    features.details[TEXTS] = np.arange(ROWS)
    trainer = make_trainer(balanced_sampling=True, group_by_length=True)
    monkeypatch.setattr(batches, "draw_batches", lambda *each: drawn.append(each) or np.zeros((3, 4), int))
    trainer._step = lambda *batch: 0.0
    trainer.train(features, 0, 1, lambda done, loss: False)
    (_, *numbers, classes, texts, group_by_length), *_ = drawn
    assert (numbers, group_by_length) == ([4, 7, 0], True)
    assert classes is features.targets[LABELS]
    assert texts is features.details[TEXTS]


def test_the_training_step_has_the_options_that_save_memory(monkeypatch: pytest.MonkeyPatch):
    given: dict = {}
    monkeypatch.setattr("official_bert.finetuning.trainer.TrainingStep", lambda *_, **settings: given.update(settings))
    make_trainer(gradient_accumulation_steps=2, rematerialize=True)
    assert given == {"seed": 7, "micro_batches": 2, "rematerialize": True, "is_compiled": False}


def test_training_starts_from_the_head_of_a_fine_tuned_model():
    spec, trained = ClassificationSpec(labels=tuple("abcd")), list_weights(make_trainer(random_seed=8).model)
    model = LoadedModel(tiny_config(), trained, VOCAB, task_spec=spec.task_spec("t", 16))
    for path, value in list_weights(Trainer(spec, model, OPTIONS, ROWS).model).items():
        np.testing.assert_array_equal(value, trained[path])


def test_the_optimizer_and_the_layers_have_the_settings_of_their_flags():
    settings = {"weight_decay": 0.0, "adam_beta2": 0.98, "max_grad_norm": 0.5, "layer_decay": 0.5, "dtype": "bfloat16"}
    trainer = make_trainer(freeze=["layer_0_.*"], **settings)
    config = trainer.optimizer.get_config()
    expected = {"weight_decay_rate": 0.0, "beta_2": 0.98, "clip_norm": 0.5, "adam_bias_correction": True}
    assert expected == {name: config[name] for name in expected}
    assert {*config["factors"].values()} == {0.5, 0.125}  # of the second block, and of the embeddings
    assert {each.path.startswith("layer_0_") for each in trainer.model.trainable_variables} == {False}
    assert trainer.model.get_layer("pooler").compute_dtype == "bfloat16"


def test_a_frozen_encoder_trains_only_the_head_and_is_refused_without_one():
    trained = {variable.path for variable in make_trainer(freeze=[".*"]).model.trainable_variables}
    assert trained == {"sequence_classifier/kernel", "sequence_classifier/bias"}
    assert_rejected("freeze", make_trainer, VectorSpec(), freeze=["all"])


def test_keras_dropout_has_different_masks_in_each_step_under_a_strategy():
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope() as strategy:
        layer = Dropout(0.5)
    run = tf.function(lambda: tf.distribute.get_strategy().run(layer, (tf.ones([4, 16]),), {"training": True}))
    with strategy.scope():
        masks = [np.array(run()) for _ in range(2)]
    assert set(masks[0].flat) == {0.0, 2.0}
    assert not np.array_equal(*masks)


def test_the_dropout_seed_depends_on_run_step_and_replica(monkeypatch):
    def step_seed(*arguments):
        raise RuntimeError(*map(int, arguments))

    trainer, replica = make_trainer(random_seed=8), types.SimpleNamespace(replica_id_in_sync_group=1)
    trainer.optimizer.iterations.assign(5)
    monkeypatch.setattr(training_step, "step_seed", step_seed)
    monkeypatch.setattr(training_step, "all_reduce_sum", lambda value: value)
    monkeypatch.setattr(tf.distribute, "get_replica_context", lambda: replica)
    with pytest.raises(RuntimeError) as caught:
        trainer.replica_step({"input_mask": tf.ones((1, 2), tf.int32)}, tf.zeros(1, tf.int32))
    assert caught.value.args == (8, 5, 1, 0)


@pytest.mark.parametrize(("num_rows", "changes", "expected"), [
    (12, {}, (10, 3, 3)), (10, {"num_train_epochs": 1.5}, (4, 3, 3)), (3, {"num_train_epochs": 2.0}, (2, 1, 1)),
    (10, {"num_train_epochs": 0.1}, (1, 3, 3)), (10, {"eval_steps": 2}, (10, 3, 2)),
])  # fmt: skip
def test_an_incomplete_last_batch_is_a_step(num_rows: int, changes: dict, expected: tuple[int, int, int]):
    assert count_steps(dataclasses.replace(OPTIONS, **changes), num_rows) == expected


@pytest.mark.parametrize(("scores", "patience", "has_stopped"), [
    ([], 1, False), ([0.5], 1, False), ([0.6, 0.5], 1, True), ([0.6, 0.5, 0.5], 2, True), ([0.6, 0.5, 0.7], 2, False),
    ([0.5, 0.6, 0.6], 1, True),  # an equal score is not an improvement
    ([0.5, 0.6, 0.6], 2, False), ([0.9, *[0.1] * 9], 0, False),
])  # fmt: skip
def test_early_stopping_counts_evaluations_since_the_best_score(scores, patience, has_stopped):
    assert training.has_stopped_improving(scores, patience) == has_stopped


@pytest.mark.parametrize(("log_steps", "eval_steps", "num_steps", "expected"), [
    (4, 6, 12, [4, 8, 12]), (None, 6, 12, [*range(1, 13)]),
    (None, 10, 80, [4, 7, 10, 14, 17, 20]),  # three lines in ten steps, the last one at the evaluation
    (None, 120, 10_000, [40, 80, 120]),
])  # fmt: skip
def test_log_lines_are_evenly_spaced_between_evaluations(log_steps, eval_steps, num_steps, expected):
    steps = range(1, max(expected) + 1)
    assert [step for step in steps if training._is_logged(step, log_steps, eval_steps, num_steps)] == expected


def test_a_resumed_run_evaluates_at_the_steps_of_an_uninterrupted_run():
    steps = {"num_steps": 11, "eval_steps": 4, "steps_per_epoch": 1}
    run = mock.MagicMock(_step=5, _scores=[], _trainer=mock.Mock(**steps), _options=mock.Mock(early_stopping=0))
    run._trainer.train = lambda _, first, last, *arguments: (last, 0.5)
    with mock.patch.object(training, "StopRequest") as request:
        request().__enter__().is_pending.return_value = False
        _Run.train(run)
    assert [call.args[0] for call in run._evaluate.call_args_list] == [8, 11]


def test_the_scores_of_a_resumed_run_are_higher_if_they_are_better(tmp_path):
    for step, error in ((1, 0.7), (2, 0.5)):
        TrainingLog(str(tmp_path), step).write(EVAL, step, {"dev/mean_absolute_error": error})
    run = _Run.__new__(_Run)
    run._options, run._trainer = types.SimpleNamespace(output_dir=str(tmp_path)), types.SimpleNamespace(eval_steps=1)
    run._step, run._sign, run._deciding_score = 2, -1.0, "dev/mean_absolute_error"
    assert run._read_scores() == [-0.7, -0.5]
