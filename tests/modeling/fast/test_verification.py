"""After a change to the encoder block, fast forms that would still compute the unchanged block are not used."""

import dataclasses
import functools

import keras
import pytest
import tensorflow as tf
from keras import ops

from official_bert.modeling import encoder, encoder_block
from official_bert.modeling.config import BertConfig
from official_bert.modeling.encoder import build_encoder
from official_bert.modeling.encoder_block import MASKED_SCORE, AttentionProbabilities, split_heads
from official_bert.modeling.fast import verification
from official_bert.modeling.fast.compiled_blocks import _compile_blocks, compile_blocks
from official_bert.modeling.fast.flat_blocks import _flatten_blocks, flatten_blocks
from official_bert.modeling.fast.last_block import _read_first, skip_unread_positions
from official_bert.modeling.fast.model_parts import split_model
from official_bert.modeling.pretraining_model import build_pretraining_model
from official_bert.optimization import distribution
from official_bert.pretraining.train_step import Pretrainer
from tests import make

FORMS = {
    "compiled": lambda parts: verification.is_faithful(_compile_blocks, parts),
    "flat": lambda parts: verification.is_faithful(_flatten_blocks, parts, training=False),
    "last": lambda parts: verification.is_faithful(_read_first, parts, first_position_only=True),
}


@dataclasses.dataclass(frozen=True)
class EditedConfig(BertConfig):
    adds_layer: bool = True  # see add_layer


def make_parts(**changes: bool):
    config = make.tiny_config(num_attention_heads=4, num_hidden_layers=1)
    return split_model(build_encoder(EditedConfig(**config.to_dict(), **changes)))


@pytest.fixture(autouse=True)
def forget_verified_forms():
    verification._verify.cache_clear()
    yield
    verification._verify.cache_clear()


def change_scores(patch: pytest.MonkeyPatch, change):
    """Patches `AttentionProbabilities.call`: `change` receives the layer and the products of queries and keys."""

    def call(self, inputs):
        query, key, attention_ids = inputs
        query, key = split_heads(query, self.num_heads), split_heads(key, self.num_heads)
        products = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2)))
        return self.compute_from_products(change(self, products), attention_ids, query.shape[-1])

    patch.setattr(AttentionProbabilities, "call", call)


def add_weight(patch: pytest.MonkeyPatch, initializer: str):
    def build(self, shapes):
        self.extra = self.add_weight(shape=(), initializer=initializer, name="extra")

    patch.setattr(AttentionProbabilities, "build", build)


def limit_window(patch: pytest.MonkeyPatch):
    def mask_far(layer, products):
        position = ops.arange(ops.shape(products)[-1])
        is_far = ops.abs(position[None, :] - position[: ops.shape(products)[-2], None]) > 256
        return products + ops.cast(is_far, "float32") * MASKED_SCORE

    change_scores(patch, mask_far)


def add_weight_that_starts_at_zero(patch: pytest.MonkeyPatch):
    add_weight(patch, "zeros")
    change_scores(patch, lambda layer, products: ops.where(products > 0, products + layer.extra, products))


def add_weight_in_function(patch: pytest.MonkeyPatch):
    """Patches `compute_from_products`, which the forms call."""
    add_weight(patch, "ones")
    original = AttentionProbabilities.compute_from_products

    def compute(self, products, *rest):
        return original(self, products * self.extra, *rest)

    patch.setattr(AttentionProbabilities, "compute_from_products", compute)


def require_heads(patch: pytest.MonkeyPatch):
    """Patches the block so that it cannot be built with the number of heads of the small model."""

    def build(self, shapes):
        if self.num_heads % 4:
            raise ValueError("the number of heads is not a multiple of 4")

    patch.setattr(AttentionProbabilities, "build", build)


def add_layer(patch: pytest.MonkeyPatch):
    original = encoder_block.encoder_block

    def changed(x, ids, config, *arguments):
        return original(keras.layers.Activation("tanh")(x) if config.adds_layer else x, ids, config, *arguments)

    patch.setattr(encoder, "encoder_block", changed)


@pytest.mark.parametrize(("edit", "expected"), [
    (functools.partial(change_scores, change=lambda _, products: products * 1.01),
     {"compiled": False, "flat": False, "last": True}),  # the last block calls the layer itself
    (limit_window, {"flat": False}), (add_weight_that_starts_at_zero, {"flat": False}),
    (add_weight_in_function, {"compiled": False, "flat": True}),  # the flat form calls the function outside of XLA
    (require_heads, {"flat": False}),
])  # fmt: skip
def test_faster_forms_are_not_used_after_an_edit_of_the_block(edit, expected, monkeypatch, capsys):
    edit(monkeypatch)
    parts = make_parts()
    assert {form: FORMS[form](parts) for form in expected} == expected
    assert not tf.config.functions_run_eagerly()
    notes = capsys.readouterr().out
    assert {form: f"{form}_block" not in notes for form in expected} == expected


def test_a_conditional_edit_is_detected_during_tracing_and_under_a_strategy(monkeypatch):
    add_layer(monkeypatch)
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        for is_edited in (False, True):
            compare = functools.partial(FORMS["last"], make_parts(adds_layer=is_edited))
            assert bool(tf.function(compare, autograph=False)()) != is_edited


@pytest.mark.parametrize(("packed", "factor"), [(False, 1.01), (True, 1.01), (True, 1.0)])
def test_compiled_blocks_equal_the_layers_unless_packed_attention_was_edited(packed: bool, factor: float, monkeypatch):
    change_scores(monkeypatch, lambda layer, products: products * factor if layer.packed else products)
    parts = split_model(
        build_encoder(make.tiny_config(num_hidden_layers=1, causal_attention=not packed), packed=packed)
    )
    assert FORMS["compiled"](parts) == (not packed or factor == 1.0)


def test_models_and_pretraining_use_only_verified_forms(monkeypatch):
    config, strategy = make.tiny_config(num_hidden_layers=1), distribution.get_strategy("one_device")
    encoder, pretraining = build_encoder(config), build_pretraining_model(config)
    model = keras.Model(encoder.input, encoder.output["pooled_output"])
    for is_faithful in (True, False):
        monkeypatch.setattr(verification, "is_faithful", lambda *_, is_faithful=is_faithful, **__: is_faithful)
        assert flatten_blocks(encoder).__name__ == ("call" if is_faithful else "<lambda>")
        assert (skip_unread_positions(model) is model) != is_faithful
        assert (compile_blocks(pretraining) is None) != is_faithful
        pretrainer = Pretrainer(config=config, strategy=strategy, schedule=1e-4, seed=1, compile_parts=True)
        assert (pretrainer._call is pretrainer.model) != is_faithful
