"""After a change to the encoder block, fast forms that would still compute the unchanged block are not used."""

from collections.abc import Callable, Iterator
from typing import Any

import keras
import pytest
import tensorflow as tf
from keras import ops

from official_bert.modeling import encoder, encoder_block
from official_bert.modeling.config import BertConfig
from official_bert.modeling.encoder import build_encoder
from official_bert.modeling.encoder_block import MASKED_SCORE, AttentionProbabilities, split_heads
from official_bert.modeling.fast import verification
from official_bert.modeling.fast.compiled_blocks import compile_blocks
from official_bert.modeling.fast.flat_blocks import _flatten_blocks
from official_bert.modeling.fast.last_block import _read_first, skip_unread_positions
from official_bert.modeling.pretraining_model import build_pretraining_model
from official_bert.pretraining.train_step import Pretrainer


@pytest.fixture(autouse=True)
def forget_verified_forms() -> Iterator[None]:
    verification.is_faithful.cache_clear()
    yield
    verification.is_faithful.cache_clear()


def is_compiled(config: BertConfig) -> bool:
    return compile_blocks(build_pretraining_model(config)) is not None


def is_flat() -> bool:
    return verification.is_faithful(_flatten_blocks, training=False)


def is_last_block_short() -> bool:
    return verification.is_faithful(_read_first, first_position_only=True)


def change_scores(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any, Any], Any]) -> None:
    """Patches `AttentionProbabilities.call`: `change` receives the layer and the products of queries and keys."""

    def call(self: Any, inputs: Any) -> Any:
        query, key, attention_ids = inputs
        query, key = split_heads(query, self.num_heads), split_heads(key, self.num_heads)
        products = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2)))
        return self.compute_from_products(change(self, products), attention_ids, query.shape[-1])

    monkeypatch.setattr(AttentionProbabilities, "call", call)


def test_forms_compute_the_unchanged_block(tiny_config: BertConfig, capsys: pytest.CaptureFixture[str]):
    assert is_compiled(tiny_config)
    assert is_flat()
    assert is_last_block_short()
    assert "note" not in capsys.readouterr().out


def test_changed_scores_are_not_missed(
    tiny_config: BertConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    change_scores(monkeypatch, lambda layer, products: products * 1.01)
    assert not is_compiled(tiny_config)
    assert not is_flat()
    assert is_last_block_short()  # it calls the layer itself
    told = capsys.readouterr().out
    assert "modeling/fast/compiled_blocks.py" in told
    assert "modeling/fast/flat_blocks.py" in told


def test_attention_within_a_long_window_is_not_missed(tiny_config: BertConfig, monkeypatch: pytest.MonkeyPatch):
    def far(layer: Any, products: Any) -> Any:
        position = ops.arange(ops.shape(products)[-1])
        is_far = ops.abs(position[None, :] - position[: ops.shape(products)[-2], None]) > 256
        return products + ops.cast(is_far, "float32") * MASKED_SCORE

    change_scores(monkeypatch, far)
    assert not is_compiled(tiny_config)
    assert not is_flat()


def test_a_new_weight_that_starts_at_zero_is_not_missed(tiny_config: BertConfig, monkeypatch: pytest.MonkeyPatch):
    def build(self: Any, shapes: Any) -> None:
        self.bias = self.add_weight(shape=(), initializer="zeros", name="bias")

    monkeypatch.setattr(AttentionProbabilities, "build", build)
    change_scores(monkeypatch, lambda layer, products: ops.where(products > 0, products + layer.bias, products))
    assert not is_compiled(tiny_config)
    assert not is_flat()


def test_a_weight_in_a_function_that_a_form_calls_does_not_stop_the_run(
    tiny_config: BertConfig, monkeypatch: pytest.MonkeyPatch
):
    compute_from_products = AttentionProbabilities.compute_from_products

    def build(self: Any, shapes: Any) -> None:
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

    monkeypatch.setattr(AttentionProbabilities, "build", build)
    monkeypatch.setattr(
        AttentionProbabilities,
        "compute_from_products",
        lambda self, products, ids, size: compute_from_products(self, products * self.scale, ids, size),
    )
    assert not is_compiled(tiny_config)
    assert is_flat()  # it calls this function outside of XLA


def test_a_changed_function_that_a_form_calls_is_followed(tiny_config: BertConfig, monkeypatch: pytest.MonkeyPatch):
    compute_from_products = AttentionProbabilities.compute_from_products
    changed: Any = lambda self, products, ids, size: compute_from_products(self, products * 2, ids, size)  # noqa: E731
    monkeypatch.setattr(AttentionProbabilities, "compute_from_products", changed)
    assert is_compiled(tiny_config)
    assert is_flat()


def test_forms_are_compared_while_a_function_is_traced_and_within_a_strategy():
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        traced = tf.function(lambda: tf.constant(is_last_block_short()), autograph=False)
        assert bool(traced())


def test_another_layer_in_the_block_is_not_missed(tiny_config: BertConfig, monkeypatch: pytest.MonkeyPatch):
    def block(x: Any, *arguments: Any) -> Any:
        return encoder_block.encoder_block(keras.layers.Activation("tanh")(x), *arguments)

    monkeypatch.setattr(encoder, "encoder_block", block)
    assert not is_compiled(tiny_config)
    assert not is_flat()
    assert not is_last_block_short()
    model = keras.Model(*(lambda each: (each.input, each.output["pooled_output"]))(build_encoder(tiny_config)))
    assert skip_unread_positions(model) is model


def test_pretraining_computes_the_changed_block(tiny_config: BertConfig, monkeypatch: pytest.MonkeyPatch):
    from official_bert.optimization import distribution

    def pretrainer() -> Pretrainer:
        strategy = distribution.get_strategy("one_device")
        return Pretrainer(config=tiny_config, strategy=strategy, schedule=1e-4, seed=1, compile_parts=True)

    unchanged = pretrainer()
    assert unchanged._call is not unchanged.model
    verification.is_faithful.cache_clear()
    change_scores(monkeypatch, lambda layer, products: products * 1.01)
    changed = pretrainer()
    assert changed._call is changed.model
