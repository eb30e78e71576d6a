"""Compiling a model: the settings that a loaded model keeps, precisions, and the optimizer of the command."""

from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

import official_bert
from official_bert.checkpoints.checkpoint import LoadedModel
from official_bert.finetuning.options import FinetuningOptions
from official_bert.finetuning.trainer import Trainer
from official_bert.keras_models import compiling, fitting_model
from official_bert.kinds.model import create_kind_model
from official_bert.modeling.fast import verification
from official_bert.optimization import distribution
from official_bert.optimization.loss_scale import DynamicLossScale
from official_bert.tasks.glue import GlueTask
from official_bert.tasks.options import GlueOptions
from official_bert.tokenization.casing import UNCASED
from tests.make import VOCAB, assert_equal_weights, assert_rejected, compile_eagerly, skip_steps, tiny_config
from tests.make import build_text_model as build

TEXTS = ["the cat sat", "a dog ran in the sun", "walking", "unaffable mat , and the sun ."] * 2
LABELS = [0, 1, 0, 1] * 2


def test_the_training_step_has_the_settings_of_the_model(monkeypatch):
    monkeypatch.setattr(fitting_model, "TrainingStep", lambda *_, **settings: settings)
    model = build(seed=np.int64(3), rematerialize=True, gradient_accumulation_steps=2)
    model.compile(jit_compile=True)
    model.make_train_function()
    assert model._training_step == {"seed": 3, "micro_batches": 2, "rematerialize": True, "is_compiled": True}


@pytest.mark.parametrize("optimizer", [keras.optimizers.SGD(momentum=0.9), None])
def test_the_compiled_optimizer_survives_saving_and_loading_twice(optimizer, tmp_path):
    model = compile_eagerly(build(), optimizer, metrics=[], **({} if optimizer else {"learning_rate": 1e-3}))
    model.fit(TEXTS[:2], LABELS[:2], verbose=0)
    for name in ("first.keras", "second.keras"):
        model.save(tmp_path / name)
        model = official_bert.TextClassifier.load(str(tmp_path / name))
    assert model.evaluate(TEXTS, LABELS, verbose=0, return_dict=True).keys() == {"loss"}
    assert isinstance(model.optimizer, keras.optimizers.SGD if optimizer else official_bert.BertAdamW)
    state = (int(model.optimizer.iterations), float(model.optimizer.learning_rate))
    assert state == pytest.approx((1, 1e-2) if optimizer else (0, 1e-3))


def test_arguments_that_compile_rejected_are_not_used_later(capsys):
    model, loss = build(), keras.losses.BinaryCrossentropy()
    expected = "keras.losses.BinaryCrossentropy(from_logits=True)"
    assert_rejected(expected, model.compile, loss=loss)
    model._compile_if_needed()
    assert not isinstance(model.loss, keras.losses.BinaryCrossentropy)
    model.compile("sgd")
    for optimizer in (None, "adam"):
        assert_rejected(expected, model.compile, optimizer, loss=loss)
        assert model._bert_optimizer is None  # the earlier optimizer is still used
    for name, value in (("learning_rate", 1e-3), ("layer_decay", 0.5)):
        assert_rejected((name, "optimizer"), model.compile, "adam", **{name: value})
    loaded = build()
    loaded.compile_from_config(model.get_compile_config() | {"loss": keras.saving.serialize_keras_object(loss)})
    told = capsys.readouterr().out
    assert "loaded the model without its compile settings" in told
    assert "from_logits=True" in told
    loaded._compile_if_needed()
    assert isinstance(loaded.optimizer, official_bert.BertAdamW)


@pytest.mark.slow
@pytest.mark.core
def test_the_command_and_fit_take_the_same_steps():
    options = FinetuningOptions(
        task="sst-2", output_dir="unused", do_train=True, train_batch_size=4, learning_rate=1e-2, num_train_epochs=2.0,
        warmup_proportion=0.25, max_seq_length=16, random_seed=7, layer_decay=0.5,
    )  # fmt: skip
    model, head = build(seed=7), GlueTask("sst-2", GlueOptions()).spec
    command = Trainer(head, LoadedModel(model.bert_config, {}, VOCAB, UNCASED), options, len(TEXTS))
    model.compile(learning_rate=1e-2, warmup_proportion=0.25, layer_decay=0.5)
    means: list[float] = []
    features = model.spec.featurize(model.spec.make_examples(TEXTS, LABELS), model._tokenizer, 16)
    command.train(features, 0, 4, lambda done, mean: bool(means.append(mean)))
    losses = np.diff(np.arange(5) * [0.0, *means])
    seen = model.fit(TEXTS, LABELS, batch_size=4, epochs=2, verbose=0).history["loss"]
    np.testing.assert_allclose(seen, losses.reshape(2, 2).mean(axis=1), rtol=1e-5)
    assert_equal_weights(model, command.model, atol=1e-6)


def test_untrained_models_can_be_evaluated_also_with_lora():
    verification._verify.cache_clear()  # a form is verified when a step that uses it is first traced
    model = build()
    before, pooler = model.evaluate(TEXTS, LABELS, verbose=0), model.get_layer("pooler")
    pooler.enable_lora(2)
    pooler.lora_kernel_b.assign(np.ones(pooler.lora_kernel_b.shape))
    after = model.evaluate(TEXTS, LABELS, verbose=0)
    assert np.isfinite([before, after]).all()
    assert after[0] != before[0]


def test_the_validation_split_is_evaluated_and_not_trained_on(capsys):
    model = compile_eagerly(build(max_seq_length=4), "sgd")
    settings = {"validation_split": 0.25, "class_weight": {0: 5.0}, "metric_for_best_model": "roc_auc", "verbose": 0}
    history = model.fit(TEXTS, LABELS, 3, **settings).history
    assert ("val_roc_auc" in history, int(model.optimizer.iterations)) == (True, 2)
    assert history["val_loss"] == pytest.approx([model.evaluate(TEXTS[6:], LABELS[6:], verbose=0)[0]])
    assert capsys.readouterr().out == ""


def test_fit_keeps_the_optimizer_with_initial_epoch_and_replaces_it_for_other_trainable_variables(monkeypatch):
    model, optimizers = compile_eagerly(build()), []
    skip_steps(model, monkeypatch)
    monkeypatch.setattr(model, "train_step", lambda data: {"steps": model.optimizer.iterations.assign_add(1)})
    model.fit(TEXTS, LABELS, epochs=2, initial_epoch=1, verbose=0)  # the first fit has nothing to continue
    assert float(model.optimizer.learning_rate) == pytest.approx(2.5e-5)
    for settings, steps in (({}, 1), ({"epochs": 2, "initial_epoch": 1}, 2), ({}, 1)):
        model.fit(TEXTS, LABELS, verbose=0, **settings)
        assert int(model.optimizer.iterations) == steps
    for layer in ("position_embeddings", "position_embeddings", "word_embeddings"):
        model.freeze(layer)
        model.fit(TEXTS[:2], LABELS[:2], verbose=0)
        optimizers.append(model.optimizer)
    assert optimizers[0] is optimizers[1] is not optimizers[2]


def test_layers_that_are_frozen_after_a_fit_with_another_optimizer_do_not_change():
    model = build()
    model.compile("sgd", metrics=[])
    for is_frozen in (False, True):
        before = model.get_layer("word_embeddings").get_weights()
        model.fit(TEXTS[:2], LABELS[:2], verbose=0)
        assert np.array_equal(model.get_layer("word_embeddings").get_weights(), before) == is_frozen
        model.freeze("word_embeddings")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [None, "mixed_float16", "mixed_bfloat16"])
def test_a_second_fit_restarts_the_optimizer_without_retracing_the_step(dtype, monkeypatch):
    model, other, traces = build(dtype=dtype), build(dtype=dtype), []
    weights = model.get_weights()
    model.compile(learning_rate=0.01)
    train = model.train_step
    monkeypatch.setattr(model, "train_step", lambda data: traces.append(None) or train(data))
    model.fit(TEXTS, LABELS, batch_size=4, verbose=0)
    first = len(traces)
    model.set_weights(weights)
    again = model.fit(TEXTS, LABELS, batch_size=4, epochs=5, verbose=0).history
    assert len(traces) == first > 0
    assert again["loss"][-1] < again["loss"][0]
    assert (model.optimizer.loss_scale is not None) == (dtype == "mixed_float16")
    other.set_weights(weights)
    other.compile(learning_rate=0.01)
    assert other.fit(TEXTS, LABELS, batch_size=4, epochs=5, verbose=0).history == again
    assert_equal_weights(model, other)


def test_each_fit_warms_up_for_a_proportion_of_its_steps():
    model = build()
    model.compile(learning_rate=np.float32(1), warmup_proportion=0.25)
    for num_steps, warmup in ((20, 5), (7, 1), (3, 0)):
        model._start_optimizer(num_steps, is_continued=False)
        assert int(model.optimizer.iterations) == 0
        model.optimizer.iterations.assign(3)
        for step in range(num_steps + 1):
            expected = step / warmup if step < warmup else 1 - step / num_steps
            assert float(model._schedule(step)) == pytest.approx(expected, abs=1e-6)
    for limits in ({"warmup_proportion": 0, "layer_decay": 1}, {"warmup_proportion": 1.0, "layer_decay": 1e-9}):
        model.compile(**limits)
    model.compile(keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.0, 9, warmup_target=1.0)))


def test_learning_rate_callbacks_need_an_optimizer_without_a_schedule():
    model, halve = build(), keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    callbacks = [halve, keras.callbacks.ReduceLROnPlateau("loss")]
    for callback in callbacks:
        names = (type(callback).__name__, "model.compile(official_bert.BertAdamW(5e-5))")
        assert_rejected(names, model.fit, TEXTS, LABELS, callbacks=[callback], verbose=0)
    compile_eagerly(model, official_bert.BertAdamW(5e-5)).fit(TEXTS, LABELS, callbacks=callbacks, verbose=0)


def test_multi_worker_strategies_are_rejected_with_the_command_to_use(monkeypatch):
    monkeypatch.setattr(distribution, "is_multi_worker", lambda strategy: True)
    assert_rejected(("fit", "finetune"), build().fit, TEXTS, LABELS)


def test_sample_weights_of_a_regressor_work_as_in_keras():
    model = compile_eagerly(build("TextRegressor"), "sgd", "mse", metrics=[], weighted_metrics=["mae"])
    values, weights = np.arange(8.0), np.arange(8.0) % 3
    errors = model.predict(TEXTS) - values
    figures = model.evaluate(TEXTS, values, sample_weight=weights, verbose=0, return_dict=True)
    assert figures["loss"] == pytest.approx(np.mean(weights * errors**2), rel=1e-5)
    assert figures["mae"] == pytest.approx(np.average(np.abs(errors), weights=weights), rel=1e-5)
    assert_rejected("regression", model.compile, weighted_metrics=["auc"])


def own_loss_of_tokens(tags, logits):
    return keras.losses.sparse_categorical_crossentropy(keras.ops.maximum(tags, 0), logits, from_logits=True)


IDS, Y = np.arange(5, 21, dtype=np.int32).reshape(4, 4), np.array([0, 1, 1, 1])


# The arguments of compile, and the labels and weights of four rows of four tokens each.
@pytest.mark.parametrize(("name", "compiled", "y", "weights"), [
    ("TextClassifier", {"metrics": [], "weighted_metrics": ["accuracy"]}, Y, np.arange(4.0)),
    ("QuestionAnswerer", {"metrics": []}, {"start_logits": Y, "end_logits": Y + 1}, np.arange(4.0)),
    ("TokenTagger", {"loss": own_loss_of_tokens, "metrics": ["accuracy"]}, IDS % 2, None),
])  # fmt: skip
def test_micro_batches_show_the_metrics_of_the_whole_batch(name: str, compiled, y, weights):
    config = tiny_config(num_hidden_layers=1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    x, figures = {"input_ids": IDS, "input_mask": np.ones_like(IDS), "segment_ids": np.zeros_like(IDS)}, []
    model = build(name, config)
    for layer in model.layers:
        if layer.name == "head_dropout":
            layer.rate = 0.0
    if name == "TextClassifier":
        model.trainable_variables[0].regularizer = keras.regularizers.L2(0.5)
    before = model.get_weights()
    for micro_batches in (1, 2):
        model._micro_batches = micro_batches
        model.set_weights(before)
        compile_eagerly(model, "sgd", **compiled)
        figures.append(model.train_on_batch(x, y, sample_weight=weights, return_dict=True))
    assert figures[1] == pytest.approx(figures[0], rel=1e-5)
    assert len(figures[0]) > 1
    if name == "TextClassifier":  # the weights are 0, 1, 2 and 3; all answers of the model are equal
        assert figures[0]["accuracy"] in (0.0, 1.0)


def test_losses_that_micro_batches_cannot_compute_are_rejected():
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    model = build(gradient_accumulation_steps=2)
    both = {"metrics": ["accuracy"], "weighted_metrics": ["accuracy"]}
    assert_rejected(("metrics", "weighted_metrics"), model.compile, "sgd", **both)
    assert_rejected(("reduction='sum'", "reduction='sum_over_batch_size'"), model.compile, "sgd", loss)
    model.compile("sgd", lambda y, logits: keras.ops.mean(loss(y, logits)), run_eagerly=True)
    assert_rejected(("<lambda>", "scalar"), model.fit, TEXTS, LABELS, verbose=0)
    model = build("MaskedLM", gradient_accumulation_steps=2)
    assert_rejected("loss_weights", model.compile, "sgd", loss_weights=[0.5])
    model.trainable_variables[0].regularizer = keras.regularizers.L2(0.5)
    assert_rejected("regularizers", model.compile, "sgd")


def test_mixed_float16_needs_loss_scaling_and_the_loss_of_answers_is_a_mean():
    strategy, bert = tf.distribute.get_strategy(), official_bert.BertAdamW(1e-3)
    optimizer = compiling.prepare_optimizer("sgd", "mixed_float16", strategy)
    assert isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    assert compiling.prepare_optimizer(optimizer, "mixed_float16", strategy) is optimizer
    bert.loss_scale = scale = DynamicLossScale()
    assert compiling.prepare_optimizer(bert, "mixed_float16", strategy).loss_scale is scale
    replicas = mock.Mock(num_replicas_in_sync=2)
    assert_rejected("mixed_float16", compiling.prepare_optimizer, "sgd", "mixed_float16", replicas)
    arguments = compiling.keras_arguments(build("QuestionAnswerer").spec, None, None, {}, False, False)
    assert arguments["loss_weights"] == {"start_logits": 0.5, "end_logits": 0.5}


def test_results_of_an_overridden_compute_metrics_are_shown():
    class Counting(official_bert.TextClassifier):
        def compute_metrics(self, x, y, y_pred, sample_weight=None):
            return {**super().compute_metrics(x, y, y_pred, sample_weight), "largest": keras.ops.max(y_pred)}

    model = compile_eagerly(Counting(tiny_config(num_hidden_layers=1), VOCAB, labels=["a", "b"]))
    assert np.isfinite(model.fit(TEXTS, LABELS, verbose=0).history["largest"]).all()
    assert set(model.evaluate(TEXTS, LABELS, verbose=0, return_dict=True)) == {"loss", "accuracy", "largest"}


def test_micro_batches_do_not_change_weights_without_a_gradient():
    model = build("QuestionAnswerer", max_query_length=4, doc_stride=4, gradient_accumulation_steps=2)
    compile_eagerly(model, "sgd", {"start_logits": create_kind_model(model.spec).loss()["start_logits"]})
    before = model.get_layer("question_answering").get_weights()[0]
    model.fit((["who sat"] * 4, ["the cat sat"] * 4), ["cat"] * 4, verbose=0)
    after = model.get_layer("question_answering").get_weights()[0]
    assert (before != after).any(axis=0).tolist() == [True, False]
