"""Compares the faster forms of the encoder block with the block's layers: `python -m tools.benchmarks.block_forms`."""

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from official_bert.data.record_schema import pretraining_schema
from official_bert.kinds.classification.model import build_classifier
from official_bert.modeling.config import BertConfig
from official_bert.modeling.dropout import dropout_seed
from official_bert.modeling.encoder import build_encoder
from official_bert.modeling.fast.flat_blocks import flatten_blocks
from official_bert.modeling.fast.last_block import skip_unread_positions
from official_bert.optimization import distribution
from official_bert.optimization.choices import DTYPES
from official_bert.pretraining.train_step import Pretrainer
from official_bert.utils.flags import ValidatedOptions, option
from tools.benchmarks import measuring

_SIZES = {"tiny": (128, 2), "mini": (256, 4), "base": (768, 12)}  # hidden size, blocks
_ROUNDS, _SECONDS, _BATCH, _LENGTH, _PREDICTIONS = 5, 0.5, 32, 64, 13


@dataclasses.dataclass(frozen=True)
class Options(ValidatedOptions):
    """The flags of the benchmark."""

    model: str = option("tiny", "Size of the model.", tuple(_SIZES))
    dtype: str = option("float32", "Precision of the training steps.", tuple(DTYPES))


def main(options: Options) -> None:
    """Prints the milliseconds of each form of the block and of its own layers."""
    width, blocks = _SIZES[options.model]
    config = BertConfig(
        vocab_size=8000,
        hidden_size=width,
        num_hidden_layers=blocks,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
        max_position_embeddings=128,
    )
    dtype = DTYPES[options.dtype]
    schema = pretraining_schema(_LENGTH, _PREDICTIONS, config.vocab_size, config.type_vocab_size)
    batch = measuring.make_random_batch(schema, _BATCH)
    features = {name: tf.constant(values) for name, values in batch.items()}
    classifier = build_classifier(build_encoder(config, dtype=dtype), 3)
    exported = build_classifier(build_encoder(config), 3)
    short = {name: values[:1, :16] for name, values in features.items() if name in exported.input}
    steps = {"layers": False, "compiled_blocks": True}
    _compare("pre-training step", {name: _pretraining_step(config, dtype, features, on) for name, on in steps.items()})
    forms = {"layers": classifier, "last_block": skip_unread_positions(classifier)}
    _compare("classifier's step", {name: _gradients(classifier, form, features) for name, form in forms.items()})
    forms = {"layers": exported, "flat_blocks": flatten_blocks(exported)}
    _compare("one text of 16 tokens, float32", {name: _answer(form, short) for name, form in forms.items()})


def _compare(title: str, functions: dict[str, Callable[[], Any]]) -> None:
    programs = {name: functools.partial(_time_calls, function) for name, function in functions.items()}
    measuring.compare(title, programs, _ROUNDS, "CPU-ms")


def _time_calls(function: Callable[[], Any]) -> measuring.Metrics:
    """Calls a function repeatedly, and returns the mean and the minimum of its processor time."""
    times: list[float] = []
    end = time.monotonic() + _SECONDS
    while time.monotonic() < end or not times:
        since = time.process_time()
        function()
        times.append(1000 * (time.process_time() - since))
    return {"CPU-ms": statistics.fmean(times), "CPU-ms, least": min(times)}


def _pretraining_step(
    config: BertConfig, dtype: str, features: dict[str, Any], compile_parts: bool
) -> Callable[[], Any]:
    strategy = distribution.get_strategy("one_device")
    pretrainer = Pretrainer(
        config=config, strategy=strategy, schedule=1e-4, seed=1, dtype=dtype, compile_parts=compile_parts
    )
    batches = iter(tf.data.Dataset.from_tensors(features).repeat())
    return lambda: pretrainer.train(batches, 1)


def _gradients(model: Any, form: Callable[..., Any], features: dict[str, Any]) -> Callable[[], Any]:
    inputs = {name: features[name] for name in model.input}

    @tf.function(autograph=False)
    def step() -> Any:
        with tf.GradientTape() as tape, dropout_seed([1, 2]):
            loss = tf.reduce_sum(form(inputs, training=True))
        return [tf.convert_to_tensor(each) for each in tape.gradient(loss, model.trainable_variables)]

    return step


def _answer(form: Callable[..., Any], features: dict[str, Any]) -> Callable[[], Any]:
    specs = {name: tf.TensorSpec((None, None), tf.int32) for name in features}
    function = tf.function(lambda inputs: form(inputs), autograph=False).get_concrete_function(specs)
    return lambda: function(features)


if __name__ == "__main__":
    measuring.run_benchmark(main, Options)
