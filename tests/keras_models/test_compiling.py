"""Compiling a model: the settings that a loaded model keeps, precisions, and the optimizer of the command."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

import official_bert
from official_bert.checkpoints.checkpoint import LoadedModel
from official_bert.finetuning.trainer import Trainer
from official_bert.finetuning.training_config import TrainingConfig
from official_bert.kinds.model import create_model
from official_bert.modeling.fast import verification
from official_bert.optimization import distribution
from official_bert.tasks.glue import GlueTask
from official_bert.tasks.options import GlueOptions
from official_bert.tokenization.casing import UNCASED
from tests.make import VOCAB, refusal, tiny_config

TEXTS = ["the cat sat", "a dog ran in the sun", "walking", "unaffable mat , and the sun ."] * 2
LABELS = [0, 1, 0, 1] * 2
CONFIG = tiny_config(num_hidden_layers=1, max_position_embeddings=16)


def classifier(**settings) -> official_bert.TextClassifier:
    return official_bert.TextClassifier(CONFIG, VOCAB, labels=["0", "1"], **settings)


@pytest.mark.parametrize("optimizer", [None, "sgd"])
def test_a_loaded_model_has_the_optimizer_that_a_user_compiled(optimizer, tmp_path):
    model = classifier()
    model.compile(optimizer, learning_rate=1e-3)
    model.save(tmp_path / "model.keras")
    loaded = official_bert.TextClassifier.load(str(tmp_path / "model.keras"))
    if optimizer:
        assert isinstance(loaded.optimizer, keras.optimizers.SGD)
    else:
        assert np.isfinite(loaded.evaluate(TEXTS, LABELS, verbose=0)).all()
        assert isinstance(loaded.optimizer, official_bert.BertAdamW)
        assert float(loaded.optimizer.learning_rate) == pytest.approx(1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_a_model_of_mixed_precision_learns(dtype):
    model = classifier(dtype=dtype)
    model.compile(learning_rate=0.01)
    losses = model.fit(TEXTS, LABELS, epochs=4, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    assert (model.optimizer.loss_scale is not None) == (dtype == "mixed_float16")
    assert int(model.optimizer.iterations) == 4


@pytest.mark.slow
@pytest.mark.core
def test_the_command_and_fit_take_the_same_steps():
    config = TrainingConfig(
        train_batch_size=4, learning_rate=1e-2, num_steps=4, steps_per_epoch=2, warmup_proportion=0.25, eval_steps=2,
        max_seq_length=16, random_seed=7, layer_decay=0.5,
    )  # fmt: skip
    command = Trainer(GlueTask("sst-2", GlueOptions()).head, LoadedModel(CONFIG, {}, VOCAB, UNCASED), config)
    model = classifier(seed=7)
    model.compile(learning_rate=1e-2, warmup_proportion=0.25, layer_decay=0.5)
    means: list[float] = []
    features = model.head.featurize(model.head.examples(TEXTS, LABELS), model._tokenizer, 16)
    command.train(features, 0, 4, lambda done, mean: bool(means.append(mean)))
    losses = np.diff(np.arange(5) * [0.0, *means])
    seen = model.fit(TEXTS, LABELS, batch_size=4, epochs=2, verbose=0).history["loss"]
    np.testing.assert_allclose(seen, losses.reshape(2, 2).mean(axis=1), rtol=1e-5)
    for ours, expected in zip(model.variables, command.model.variables, strict=True):
        np.testing.assert_allclose(ours, expected, atol=1e-6, err_msg=ours.path)


def test_a_model_that_has_not_learned_can_be_evaluated():
    verification.is_faithful.cache_clear()  # a form is verified when a step that uses it is first traced
    assert np.isfinite(classifier().evaluate(TEXTS, LABELS, verbose=0)).all()


def test_what_is_split_off_is_evaluated_and_not_learned():
    model = classifier()
    model.compile("sgd", run_eagerly=True)
    history = model.fit(TEXTS, LABELS, batch_size=2, validation_split=0.25, verbose=0).history
    assert int(model.optimizer.iterations) == 3
    assert history["val_loss"] == pytest.approx([model.evaluate(TEXTS[6:], LABELS[6:], verbose=0)[0]])


def test_the_seed_decides_the_dropout():
    losses, weights = [], classifier().get_weights()
    for seed in (1, 1, 2):
        model = classifier(seed=seed)
        model.set_weights(weights)
        model.compile("sgd", run_eagerly=True)
        losses.append(model.fit(TEXTS, LABELS, shuffle=False, verbose=0).history["loss"][0])
    assert losses[0] == losses[1] != losses[2]


def test_training_that_goes_on_keeps_the_optimizer():
    model = classifier()
    model.compile(run_eagerly=True)
    model.fit(TEXTS, LABELS, batch_size=4, verbose=0)
    model.fit(TEXTS, LABELS, batch_size=4, epochs=2, initial_epoch=1, verbose=0)
    assert int(model.optimizer.iterations) == 4
    model.fit(TEXTS, LABELS, batch_size=4, verbose=0)
    assert int(model.optimizer.iterations) == 2


def count_traces(model, monkeypatch) -> list[None]:
    """Returns a list that grows by one element each time the training step is traced."""
    traces, train = [], model._steps.train
    monkeypatch.setattr(model._steps, "train", lambda data: traces.append(None) or train(data))
    return traces


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [None, "mixed_float16"])
def test_a_second_fit_trains_as_a_new_model_does_without_tracing_the_step_again(dtype, monkeypatch):
    model, other = classifier(dtype=dtype), classifier(dtype=dtype)
    weights = model.get_weights()
    model.compile(learning_rate=0.01)
    traces = count_traces(model, monkeypatch)
    model.fit(TEXTS, LABELS, batch_size=4, verbose=0)
    first = len(traces)
    model.set_weights(weights)
    again = model.fit(TEXTS, LABELS, batch_size=4, epochs=5, verbose=0).history
    assert len(traces) == first > 0
    other.set_weights(weights)
    other.compile(learning_rate=0.01)
    assert other.fit(TEXTS, LABELS, batch_size=4, epochs=5, verbose=0).history == again
    for ours, expected in zip(model.variables, other.variables, strict=True):
        np.testing.assert_array_equal(ours, expected, err_msg=ours.path)


@pytest.mark.slow
def test_a_fit_of_other_variables_traces_the_step_again(monkeypatch):
    model = classifier()
    model.compile()
    traces = count_traces(model, monkeypatch)
    model.fit(TEXTS, LABELS, verbose=0)
    first = len(traces)
    model.freeze(".*embeddings.*")
    before = model.get_layer("word_embeddings").get_weights()
    model.fit(TEXTS, LABELS, verbose=0)
    assert len(traces) > first
    np.testing.assert_array_equal(model.get_layer("word_embeddings").get_weights(), before)


@pytest.mark.parametrize("callback", [
    keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2), keras.callbacks.ReduceLROnPlateau("loss"),
])  # fmt: skip
def test_callbacks_that_change_the_rate_need_a_rate_without_a_schedule(callback):
    model = classifier()
    message = refusal(model.fit, TEXTS, LABELS, callbacks=[callback], verbose=0)
    assert message.startswith(f"{type(callback).__name__} changes the learning rate")
    assert "call model.compile(official_bert.BertAdamW(5e-5)) before fit" in message
    model.compile(official_bert.BertAdamW(5e-5), run_eagerly=True)
    model.fit(TEXTS, LABELS, callbacks=[callback], verbose=0)


def test_several_machines_are_refused_with_the_command_for_them(monkeypatch):
    model = classifier()
    monkeypatch.setattr(distribution, "is_multi_worker", lambda strategy: True)
    assert refusal(model.fit, TEXTS, LABELS).endswith("do not support several machines; use official-bert finetune")


def test_values_weigh_as_keras_losses_weigh_rows():
    model = official_bert.TextRegressor(CONFIG, VOCAB)
    model.compile("sgd", "mse", metrics=[], weighted_metrics=["mae"], run_eagerly=True)
    values, weights = np.arange(8.0), np.arange(8.0) % 3
    errors = model.predict(TEXTS) - values
    figures = model.evaluate(TEXTS, values, sample_weight=weights, verbose=0, return_dict=True)
    assert figures["loss"] == pytest.approx(np.mean(weights * errors**2), rel=1e-5)
    assert figures["mae"] == pytest.approx(np.average(np.abs(errors), weights=weights), rel=1e-5)


@pytest.mark.usefixtures("pause_collection")
@pytest.mark.parametrize("of_data_set", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_model_that_has_learned_can_be_quantized(of_data_set: bool):
    model = classifier()
    model.compile("sgd", run_eagerly=True)
    x, y = (tf.data.Dataset.from_tensor_slices((TEXTS, LABELS)), None) if of_data_set else (TEXTS, LABELS)
    model.fit(x, y, verbose=0)
    model.quantize("int8")
    assert model.get_layer("layer_0_intermediate").kernel.dtype == "int8"


def own_loss_of_tokens(tags, logits):
    return keras.losses.sparse_categorical_crossentropy(keras.ops.maximum(tags, 0), logits, from_logits=True)


def figures_of_a_step(name: str, micro_batches: int) -> dict[str, float]:
    """Returns the metrics of a step on four rows of four tokens each."""
    config = dataclasses.replace(CONFIG, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    ids = np.arange(5, 21, dtype=np.int32).reshape(4, 4)
    x = {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)}
    y, kind, weights, compiled = np.array([0, 1, 1, 1]), official_bert.TextClassifier, np.arange(4.0), {}
    settings = {"labels": ["0", "1"]}
    if name == "weighted metrics":
        compiled = {"metrics": [], "weighted_metrics": ["accuracy"]}
    elif name == "outputs":
        kind, settings, y = official_bert.QuestionAnswerer, {}, {"start_logits": y, "end_logits": y + 1}
        compiled = {"metrics": []}
    elif name == "tokens":
        kind, y, weights = official_bert.TokenTagger, ids % 2, None
        compiled = {"loss": own_loss_of_tokens, "metrics": ["accuracy"]}
    model = kind(config, VOCAB, gradient_accumulation_steps=micro_batches, **settings)
    for layer in model.layers:
        if layer.name == "head_dropout":
            layer.rate = 0.0
    if name == "weighted metrics":
        model.trainable_variables[0].regularizer = keras.regularizers.L2(0.5)
    model.compile("sgd", run_eagerly=True, **compiled)
    return model.train_on_batch(x, y, sample_weight=weights, return_dict=True)


@pytest.mark.parametrize("name", ["weighted metrics", "outputs", "tokens"])
def test_micro_batches_show_the_figures_of_the_whole_batch(name: str):
    whole = figures_of_a_step(name, 1)
    assert figures_of_a_step(name, 2) == pytest.approx(whole, rel=1e-5)
    assert len(whole) > 1
    if name == "weighted metrics":  # the weights are 0, 1, 2 and 3; all answers of the model are equal
        assert whole["accuracy"] in (0.0, 1.0)


def test_a_loss_that_parts_of_a_batch_do_not_add_up_to_is_named():
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    model = classifier(gradient_accumulation_steps=2)
    assert "reduction='sum'" in refusal(model.compile, "sgd", loss)
    model.compile("sgd", lambda y, logits: keras.ops.mean(loss(y, logits)))
    assert "returns a scalar" in refusal(model.fit, TEXTS, LABELS, verbose=0)
    model = official_bert.MaskedLM(CONFIG, VOCAB, gradient_accumulation_steps=2)
    assert "loss_weights" in refusal(model.compile, "sgd", loss_weights=[0.5])


def test_what_a_user_s_own_metrics_add_is_shown():
    class Counting(official_bert.TextClassifier):
        def compute_metrics(self, x, y, y_pred, sample_weight=None):
            return {**super().compute_metrics(x, y, y_pred, sample_weight), "largest": keras.ops.max(y_pred)}

    model = Counting(CONFIG, VOCAB, labels=["0", "1"])
    assert np.isfinite(model.fit(TEXTS, LABELS, verbose=0).history["largest"]).all()
    assert set(model.evaluate(TEXTS, LABELS, verbose=0, return_dict=True)) == {"loss", "accuracy", "largest"}


def test_a_weight_that_no_loss_reads_stays_as_it_is_in_micro_batches():
    model = official_bert.QuestionAnswerer(
        CONFIG, VOCAB, max_query_length=4, doc_stride=4, gradient_accumulation_steps=2
    )
    model.compile(keras.optimizers.SGD(0.1), loss={"start_logits": create_model(model.head).loss()["start_logits"]})
    before = model.get_layer("question_answering").get_weights()[0]
    model.fit((["who sat"] * 4, ["the cat sat"] * 4), ["cat"] * 4, verbose=0)
    after = model.get_layer("question_answering").get_weights()[0]
    assert not np.array_equal(before[:, 0], after[:, 0])
    np.testing.assert_array_equal(before[:, 1], after[:, 1])
