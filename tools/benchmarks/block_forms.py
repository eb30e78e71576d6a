"""Compares the processor time of the faster forms of the encoder block with the time of the block's own layers.

python -m tools.benchmarks.block_forms --model=mini --dtype=bfloat16
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from official_bert.kinds.classification.model import build_classifier
from official_bert.modeling.config import BertConfig
from official_bert.modeling.dropout import dropout_seed
from official_bert.modeling.encoder import build_encoder
from official_bert.modeling.fast.flat_blocks import flatten_blocks
from official_bert.modeling.fast.last_block import skip_unread_positions
from official_bert.optimization import distribution
from official_bert.optimization.choices import DTYPES
from official_bert.pretraining.train_step import Pretrainer

_SIZES = {"tiny": (128, 2), "mini": (256, 4), "base": (768, 12)}  # hidden size, blocks
_ROUNDS, _SECONDS, _BATCH, _LENGTH, _PREDICTIONS = 5, 0.5, 32, 64, 13


def main() -> None:
    """Prints the milliseconds of each form of the block and of its own layers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=_SIZES, default="tiny", help="Size of the model.")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="Precision of the training steps.")
    arguments = parser.parse_args()
    width, blocks = _SIZES[arguments.model]
    config = BertConfig(
        vocab_size=8000,
        hidden_size=width,
        num_hidden_layers=blocks,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
        max_position_embeddings=128,
    )
    dtype = DTYPES[arguments.dtype]
    features = _make_features(config)
    classifier = build_classifier(build_encoder(config, dtype=dtype), 3)
    exported = build_classifier(build_encoder(config), 3)
    short = {name: values[:1, :16] for name, values in features.items() if name in exported.input}
    steps = {"layers": False, "compiled_blocks": True}
    _compare("pre-training step", {name: _pretraining_step(config, dtype, on) for name, on in steps.items()})
    forms = {"layers": classifier, "last_block": skip_unread_positions(classifier)}
    _compare("classifier's step", {name: _gradients(classifier, form, features) for name, form in forms.items()})
    forms = {"layers": exported, "flat_blocks": flatten_blocks(exported)}
    _compare("one text of 16 tokens, float32", {name: _answer(form, short) for name, form in forms.items()})


def _make_features(config: BertConfig) -> dict[str, Any]:
    """Returns the features of a batch of random pre-training records."""
    shape, predictions = (_BATCH, _LENGTH), (_BATCH, _PREDICTIONS)

    def integers(shape: tuple[int, ...], limit: int) -> Any:
        return tf.random.uniform(shape, maxval=limit, dtype=tf.int32, seed=1)

    return {
        "input_ids": integers(shape, config.vocab_size),
        "input_mask": tf.ones(shape, tf.int32),
        "segment_ids": integers(shape, 2),
        "masked_lm_positions": integers(predictions, _LENGTH),
        "masked_lm_ids": integers(predictions, config.vocab_size),
        "masked_lm_weights": tf.ones(predictions),
        "next_sentence_labels": integers((_BATCH, 1), 2),
    }


def _pretraining_step(config: BertConfig, dtype: str, compile_parts: bool) -> Callable[[], Any]:
    strategy = distribution.get_strategy("one_device")
    pretrainer = Pretrainer(
        config=config, strategy=strategy, schedule=1e-4, seed=1, dtype=dtype, compile_parts=compile_parts
    )
    batches = iter(tf.data.Dataset.from_tensors(_make_features(config)).repeat())
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


def _compare(title: str, functions: dict[str, Callable[[], Any]]) -> None:
    """Calls functions in turn, and prints the median and the minimum of the processor time of each."""
    for function in functions.values():
        for _ in range(3):  # compiles
            function()
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(_ROUNDS):
        for name, function in functions.items():
            calls, since, end = 0, time.process_time(), time.monotonic() + _SECONDS
            while time.monotonic() < end:
                function()
                calls += 1
            times[name].append(1000 * (time.process_time() - since) / calls)
    print(title)
    for name, values in times.items():
        print(f"  {name:16} {statistics.median(values):8.2f} CPU-ms, at least {min(values):8.2f}")


if __name__ == "__main__":
    main()
