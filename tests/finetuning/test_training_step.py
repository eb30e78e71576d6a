"""The fine-tuning step and loop: gradients, rates, seeds and settings, when the loop logs, and when it stops."""

import dataclasses
import itertools
import types
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

import official_bert
from official_bert.checkpoints.checkpoint import LoadedModel
from official_bert.finetuning import batches, training, training_step
from official_bert.finetuning.loss_share import LossShare, make_loss_share
from official_bert.finetuning.options import FinetuningOptions
from official_bert.finetuning.trainer import Trainer, count_steps
from official_bert.finetuning.training import _Run
from official_bert.finetuning.training_step import TrainingStep
from official_bert.kinds.all_kinds import SPECS
from official_bert.kinds.classification.spec import ClassificationSpec
from official_bert.kinds.features import LABELS, TEXTS, row_lengths
from official_bert.kinds.model import create_kind_model
from official_bert.kinds.names import KINDS, VECTORS
from official_bert.kinds.vectors.spec import VectorSpec
from official_bert.modeling.dropout import Dropout, dropout_seed, step_seed
from official_bert.modeling.encoder import build_encoder
from official_bert.optimization.finetuning_optimizer import create_bert_optimizer
from official_bert.optimization.optimizers import BertAdamW, KerasAdamW, Lamb, LayerwiseAdamW
from official_bert.runs.training_log import EVAL, TrainingLog
from official_bert.training.forward_pass import make_forward_pass
from tests.finetuning.conftest import random_features
from tests.make import VOCAB, assert_rejected, list_weights, slow_after, tiny_config

OPTIMIZER = {"num_steps": 10, "learning_rate": 1e-4, "warmup_proportion": 0.0, "layer_decay": 1.0}
ROWS, LENGTH = 7, 12


def make_encoder(dropout: float, dtype: str = "float32") -> keras.Model:
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    return build_encoder(tiny_config(num_hidden_layers=1, initializer_range=0.2, **rates), seed=1, dtype=dtype)


def make_batch(kind: str, texts: int = 1) -> tuple:
    """Returns the inputs and targets of seven rows. Rows of vectors have several texts."""
    features = random_features(kind, ROWS, LENGTH, texts)
    return tf.nest.map_structure(tf.constant, batches.pad_batch(features, np.arange(ROWS), LENGTH))


def make_step(
    kind: str, dropout: float = 0.0, dtype: str = "float32", optimizer=None, traced: bool = False, **settings
):
    """Returns a training step, and a function that runs it on seven rows with targets times its argument."""
    head = SPECS[kind](labels=tuple("abcd"))
    model = create_kind_model(head).build(make_encoder(dropout, dtype), seed=1)
    for layer in model._flatten_layers():
        if layer.name == "head_dropout":
            layer.rate = dropout
    if optimizer is None:
        # The gradient of the multiple-choice bias is only rounding, which the bias correction would turn into a large
        # step.
        scaling = {"scales_loss": dtype == "mixed_float16", "adam_bias_correction": False}
        optimizer, _ = create_bert_optimizer(model, 1, **OPTIMIZER, **scaling)
    share = LossShare(create_kind_model(head).loss(), loss_weights=head.loss_weights())
    step = TrainingStep(model, optimizer, share, seed=3, **settings)
    inputs, targets = make_batch(kind)

    def run(factor):
        scaled = tf.nest.map_structure(lambda each: each * tf.cast(factor, each.dtype), targets)
        return tf.distribute.get_strategy().run(step, args=(inputs, scaled))[0]

    if traced:  # a few steps are faster without a graph
        run = tf.function(run, autograph=False)
    return step, lambda factor=1.0: float(run(tf.constant(factor)))


def stepped(kind: str, **settings):
    """Returns the losses of three steps, and the weights."""
    step, run = make_step(kind, **settings)
    return [run() for _ in range(3)], step.model.get_weights()


def assert_same(one, other, **tolerances):
    np.testing.assert_allclose(one[0], other[0], rtol=1e-5)
    for left, right in zip(one[1], other[1], strict=True):
        np.testing.assert_allclose(left, tf.convert_to_tensor(right), **{"rtol": 1e-7, "atol": 2e-6, **tolerances})


@pytest.mark.parametrize("kind", slow_after(1, sorted(KINDS, key="tagging".__eq__, reverse=True)))
def test_micro_batches_and_rematerialization_take_the_same_steps(kind: str):
    """Seven rows in two micro-batches of four. The last row is padding."""
    assert_same(stepped(kind), stepped(kind, traced=True, micro_batches=2, rematerialize=True))


@pytest.mark.slow
def test_rematerialized_blocks_have_the_same_dropout():
    plain = stepped("classification", dropout=0.3)
    assert_same(plain, stepped("classification", dropout=0.3, rematerialize=True))
    # Micro-batches have different dropout masks: rows at the same place in the first and second have different masks.
    assert not np.allclose(plain[0], stepped("classification", dropout=0.3, micro_batches=2)[0], rtol=1e-3)


def test_float16_scales_the_loss_and_an_overflow_only_halves_the_scale():
    step, run = make_step("regression", dtype="mixed_float16")
    np.testing.assert_allclose([run() for _ in range(3)], stepped("regression")[0], rtol=2e-2)
    before, optimizer = step.model.get_weights(), step.optimizer
    assert len(optimizer.variables) == 1 + 2 * len(before) + 2  # the number of steps, the moments, the loss scale
    optimizer.loss_scale._factor.assign(2.0**20)
    run(1e4)
    assert float(optimizer.loss_scale.factor) == 2.0**19
    assert int(optimizer.iterations) == 4
    for one, other in zip(before, step.model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    optimizer.loss_scale._factor.assign(1.0)
    run()
    assert any(not np.array_equal(one, other) for one, other in zip(before, step.model.get_weights(), strict=True))


def test_custom_optimizers_get_dense_gradients():
    """Keras' Adam would square the gradient rows of repeated word pieces before adding them up."""
    received = []

    class Seen(keras.optimizers.SGD):
        def apply(self, grads, trainable_variables=None):
            received.extend(map(type, grads))
            super().apply(grads, trainable_variables)

    make_step("classification", optimizer=Seen(0.1))[1]()
    assert received
    assert tf.IndexedSlices not in received


class PlainDescent(BertAdamW):
    def update_step(self, gradient, variable, learning_rate):
        self.assign_sub(variable, learning_rate * gradient)


@pytest.mark.parametrize("create", [BertAdamW, LayerwiseAdamW, Lamb, KerasAdamW, PlainDescent])
def test_every_optimizer_takes_its_usual_steps_and_keeps_weights_without_a_gradient(create):
    """TensorFlow's kernel must not replace the steps. A zero gradient would still let a weight decay."""
    batch, results = ({"input_mask": tf.constant([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])}, tf.constant([1.0, -1.0])), []
    settings = {"factors": {"read/kernel": 0.25}} if create is LayerwiseAdamW else {"use_ema": True}
    loss = LossShare(None, lambda _, y, outputs, __: tf.reduce_mean(tf.square(outputs["read"][:, 0] - y)))
    for uses_kernel in (True, False):
        symbol = keras.Input([3], name="input_mask")
        layers = [keras.layers.Dense(1, name=name, kernel_constraint="unit_norm") for name in ("read", "unread")]
        model = keras.Model({"input_mask": symbol}, {layer.name: layer(symbol) for layer in layers})
        model.set_weights([np.full(each.shape, 0.5) for each in model.weights])
        optimizer = create(0.1, **settings)
        step = TrainingStep(model, optimizer, loss, seed=0)
        optimizer.uses_kernel &= uses_kernel
        for _ in range(2):
            tf.distribute.get_strategy().run(step, batch)
        np.testing.assert_array_equal(layers[1].kernel, np.full((3, 1), 0.5))
        results.append(list(map(np.asarray, (*model.weights, *optimizer.variables))))
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"gradient_accumulation_steps": 3}, {"dtype": "mixed_float16"}], ids=str)
def test_memory_settings_work_in_fit_and_are_saved(settings: dict, tmp_path):
    config = tiny_config(num_hidden_layers=1, max_position_embeddings=16)
    model = official_bert.TextClassifier(config, VOCAB, labels=["0", "1"], **settings)
    model.compile(official_bert.BertAdamW(1e-2))
    texts, labels = ["the cat sat", "a dog ran in the sun", "walking", "mat"] * 2, [0, 1, 0, 1] * 2
    assert np.isfinite(model.fit(texts, labels, batch_size=7, epochs=3, verbose=0).history["loss"]).all()
    model.save(tmp_path / "model.keras")
    loaded = official_bert.TextClassifier.load(str(tmp_path / "model.keras"))
    assert loaded.get_config() == model.get_config()
    for one, other in zip(model.optimizer.variables, loaded.optimizer.variables, strict=True):
        np.testing.assert_array_equal(one, other)


def gradients_of_step(head: VectorSpec, micro_batches: int, dropout: float = 0.0):
    """Returns the loss of a step, the gradients (what gradient descent with rate 1 subtracts), and the model."""
    learner = create_kind_model(head).answering_model(make_encoder(dropout))
    share = make_loss_share(create_kind_model(head).loss())
    step = TrainingStep(learner, keras.optimizers.SGD(1.0), share, seed=3, micro_batches=micro_batches)
    before = learner.get_weights()
    run = tf.distribute.get_strategy().run
    if micro_batches > 1:  # otherwise tracing a graph takes longer than the step
        run = tf.function(run, autograph=False)
    loss = float(run(step, make_batch(VECTORS, 2 if head.objective == "cosine" else 3))[0])
    gradients = [one - other for one, other in zip(before, learner.get_weights(), strict=True)]
    learner.set_weights(before)
    return loss, gradients, learner


def gradients_at_once(head: VectorSpec, micro_batches: int, learner: keras.Model):
    """Returns the loss and its gradients if all forward passes are differentiated together."""
    inputs, targets = make_batch(VECTORS, 2 if head.objective == "cosine" else 3)
    rows = -(-ROWS // micro_batches)
    with tf.GradientTape() as tape:
        outputs = []
        for number in range(micro_batches):
            part = {name: each[number * rows : (number + 1) * rows] for name, each in inputs.items()}
            missing = rows - part["input_ids"].shape[0]
            part = {name: tf.pad(each, [[0, missing], [0, 0], [0, 0]]) for name, each in part.items()}
            with dropout_seed(step_seed(3, 0, 0, number)):
                outputs.append(make_forward_pass(learner)(part, training=True)[: rows - missing])
        loss = tf.reduce_mean(create_kind_model(head).loss().call(targets, tf.concat(outputs, 0)))
    return float(loss), tape.gradient(loss, learner.trainable_variables)


def test_rows_of_several_texts_have_dropout_in_training_only():
    learner = create_kind_model(VectorSpec()).answering_model(make_encoder(0.3))
    forward, (inputs, _) = make_forward_pass(learner), make_batch(VECTORS, 3)
    outputs = {training: np.asarray(forward(inputs, training=training)) for training in (False, True)}
    assert outputs[False].shape == outputs[True].shape
    assert not np.allclose(outputs[False], outputs[True])
    np.testing.assert_array_equal(forward(inputs), outputs[False])


HEADS = [
    *((VectorSpec(normalize=True), count) for count in (1, 3)),
    (VectorSpec(objective="cosine", dimensions=(4,)), 2),
    (VectorSpec(objective="triplet", pooling="max"), 2),
    (VectorSpec(pooling="cls", dimensions=(4, 2)), 2),
    (VectorSpec(pooling="pooled"), 2),
]


@pytest.mark.parametrize(("head", "micro_batches"), slow_after(2, HEADS))
def test_gradients_of_batchwise_losses_equal_those_of_the_whole_batch(head: VectorSpec, micro_batches: int):
    """With micro-batches, the vectors' gradients are kept between two forward passes with the same dropout."""
    found = gradients_of_step(head, micro_batches, dropout=0.3)
    assert_same(found, gradients_at_once(head, micro_batches, found[2]), rtol=1e-5, atol=5e-6)


OPTIONS = FinetuningOptions(
    task="sst-2", output_dir="unused", do_train=True, train_batch_size=4, learning_rate=1e-2, num_train_epochs=3.4,
    warmup_proportion=0.2, max_seq_length=16, random_seed=7,
)  # fmt: skip
NUM_ROWS = 12  # three batches


def make_trainer(head=ClassificationSpec(labels=tuple("abcd")), **changes) -> Trainer:  # noqa: B008
    initial_model, options = LoadedModel(tiny_config(), {}, VOCAB), dataclasses.replace(OPTIONS, **changes)
    return Trainer(head, initial_model, options, NUM_ROWS)


def test_the_learning_rate_warms_up_decays_to_zero_and_is_logged_for_the_last_step():
    trainer, expected = make_trainer(), [0.0, 0.005, 0.008, 0.007, 0.006, 0.005, 0.004, 0.003, 0.002, 0.001, 0.0]
    np.testing.assert_allclose([float(trainer.schedule(step)) for step in range(11)], expected, 1e-5)
    for steps, rate in ((0, 0.0), (1, 0.0), (2, 0.005), (3, 0.008)):
        trainer.optimizer.iterations.assign(steps)
        assert trainer.learning_rate() == pytest.approx(rate, rel=1e-5)


def test_the_speed_is_that_of_the_real_tokens_by_the_clock(monkeypatch: pytest.MonkeyPatch):
    features, trainer = random_features("classification", NUM_ROWS, 9), make_trainer(train_batch_size=NUM_ROWS)
    trainer._step = lambda *batch: 3.0
    clocks = {"monotonic": iter([1.0, 3.0]).__next__, "process_time": iter([5.0, 5.25]).__next__}
    monkeypatch.setattr("official_bert.finetuning.trainer.time", types.SimpleNamespace(**clocks))
    trainer.train(features, 0, 1, lambda done, loss: False)
    speed = {"steps_per_second": 0.5, "tokens_per_second": len(features.input_ids) / 2, "processor_seconds": 0.25}
    assert trainer.take_figures() == {"loss": 3.0, "learning_rate": pytest.approx(0.01), **speed}


def test_each_log_line_has_the_mean_loss_since_the_previous_line():
    features, trainer, run = random_features("classification", NUM_ROWS, 9), make_trainer(), _Run.__new__(_Run)
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
    features, drawn = random_features("classification", NUM_ROWS, 9), []
    features.details[TEXTS] = np.arange(NUM_ROWS)
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
    for path, value in list_weights(Trainer(spec, model, OPTIONS, NUM_ROWS).model).items():
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
