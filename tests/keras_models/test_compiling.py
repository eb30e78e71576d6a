"""How a model is compiled: what a clone and a loaded model have of it, precisions, and the optimizer of the command."""

import keras
import numpy as np
import pytest

import official_bert
from official_bert.finetuning.trainer import Trainer
from official_bert.finetuning.training_config import TrainingConfig
from official_bert.learning.initial_model import InitialModel
from official_bert.modeling.config import BertConfig
from official_bert.tasks.glue import GlueTask
from official_bert.tasks.options import GlueOptions
from tests.conftest import WORDS

TEXTS = ["the cat sat", "a dog ran in the sun", "walking", "unaffable mat , and the sun ."] * 2
LABELS = [0, 1, 0, 1] * 2
VOCAB = "\n".join(WORDS) + "\n"
CONFIG = BertConfig(
    vocab_size=len(WORDS), hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
    max_position_embeddings=16,
)  # fmt: skip


def classifier(**settings) -> official_bert.TextClassifier:
    return official_bert.TextClassifier(CONFIG, VOCAB, labels=["0", "1"], **settings)


def test_a_compiled_model_can_be_cloned():
    model = classifier()
    model.compile(learning_rate=1e-3)
    assert float(keras.models.clone_model(model).optimizer.learning_rate) == pytest.approx(1e-3)
    model._compile_for(num_steps=4, is_continued=False)  # as fit does
    clone = keras.models.clone_model(model)
    rates = [float(clone.optimizer._learning_rate(step)) for step in range(5)]
    np.testing.assert_allclose(rates, [1e-3, 7.5e-4, 5e-4, 2.5e-4, 0.0], rtol=1e-6)
    assert isinstance(clone.loss, keras.losses.SparseCategoricalCrossentropy)


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


@pytest.mark.parametrize("dtype", [pytest.param("mixed_bfloat16", marks=pytest.mark.slow), "mixed_float16"])
def test_a_model_of_mixed_precision_learns(dtype):
    model = classifier(dtype=dtype)
    model.compile(learning_rate=0.01)
    losses = model.fit(TEXTS, LABELS, epochs=4, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    assert (model.optimizer.loss_scale is not None) == (dtype == "mixed_float16")
    assert int(model.optimizer.iterations) == 4


@pytest.mark.slow
def test_the_command_and_fit_take_the_same_steps():
    config = TrainingConfig(
        train_batch_size=4, learning_rate=1e-2, num_steps=4, steps_per_epoch=2, warmup_proportion=0.25, eval_steps=2,
        max_seq_length=16, random_seed=7, layer_decay=0.5,
    )  # fmt: skip
    command = Trainer(GlueTask("sst-2", GlueOptions()).head, InitialModel(CONFIG, VOCAB, True, {}), config)
    model = classifier(seed=7)
    model.compile(learning_rate=1e-2, warmup_proportion=0.25, layer_decay=0.5)
    means = []
    features = model.head.featurize(model.head.examples(TEXTS, LABELS), model._tokenizer, 16)
    command.train(features, 0, 4, lambda done, mean: means.append(mean))
    losses = np.diff(np.arange(5) * [0.0, *means])
    seen = model.fit(TEXTS, LABELS, batch_size=4, epochs=2, verbose=0).history["loss"]
    np.testing.assert_allclose(seen, losses.reshape(2, 2).mean(axis=1), rtol=1e-5)
    for ours, expected in zip(model.variables, command.model.variables, strict=True):
        np.testing.assert_allclose(ours, expected, atol=1e-6, err_msg=ours.path)
