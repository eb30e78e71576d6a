"""A process that takes pre-training steps in one program's way when it is asked to: see benchmarks/pretraining.py.

Its argument is a JSON object of a Way's fields and of `config`, `records`, `batch` and `steps`. For each line on
standard input it takes so many steps, and prints a line of JSON: seconds of the clock, of user and of system time.
"""

import itertools
import json
import pathlib
import resource
import sys
import time
from typing import Any

LENGTH, PREDICTIONS = 128, 20
_WARM_UP = 3  # steps


class Meter:
    """Waits for the next line on standard input, and reports what happened since."""

    def wait(self) -> bool:
        """Returns whether there is another round; false when standard input ends."""
        there = bool(sys.stdin.readline())
        self._start = self._now()
        return there

    def report(self) -> None:
        """Prints what the steps of this round took."""
        names = ("wall", "user", "system")
        values = [end - start for start, end in zip(self._start, self._now(), strict=True)]
        print(json.dumps(dict(zip(names, values, strict=True))), flush=True)

    def _now(self) -> tuple[float, float, float]:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return time.perf_counter(), usage.ru_utime, usage.ru_stime


def batches(arguments: dict[str, Any]) -> Any:
    """Returns the endless batches of run_pretraining."""
    from official_bert.data.input_pipeline import training_batches
    from official_bert.data.record_schema import pretraining_schema

    schema = pretraining_schema(LENGTH, PREDICTIONS)
    return training_batches([arguments["records"]], arguments["batch"], schema, seed=1)


def official_bert(arguments: dict[str, Any], meter: Meter) -> None:
    """The step of run_pretraining."""
    from official_bert.modeling.config import BertConfig
    from official_bert.optimization import distribution
    from official_bert.optimization.schedules import WarmupPolynomialDecay
    from official_bert.pretraining.train_step import Pretrainer
    from official_bert.utils.allocator import retune_allocator

    strategy = distribution.get_strategy(distribution.ONE_DEVICE)
    pretrainer = Pretrainer(
        config=BertConfig.from_json_file(arguments["config"]), strategy=strategy,
        schedule=WarmupPolynomialDecay(1e-4, 1000), seed=1, dtype=arguments["dtype"],
        jit_compile=bool(arguments["xla"]), compile_parts=distribution.compiles_parts(strategy),
    )  # fmt: skip
    data = iter(strategy.experimental_distribute_dataset(batches(arguments)))
    retune_allocator()
    pretrainer.train(data, _WARM_UP)
    while meter.wait():
        pretrainer.train(data, arguments["steps"])
        meter.report()


def keras_hub(arguments: dict[str, Any], meter: Meter) -> None:
    """keras-hub's BERT with its masked-LM head in one call of Keras' fit: no next-sentence prediction."""
    import keras
    import keras_hub

    from official_bert.modeling.config import BertConfig

    config = BertConfig.from_json_file(arguments["config"])
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=config.vocab_size, num_layers=config.num_hidden_layers, num_heads=config.num_attention_heads,
        hidden_dim=config.hidden_size, intermediate_dim=config.intermediate_size, dropout=config.hidden_dropout_prob,
        max_sequence_length=LENGTH, dtype=arguments["dtype"],
    )  # fmt: skip
    model = keras_hub.models.BertMaskedLM(backbone)
    jit_compile = "auto" if arguments["xla"] is None else arguments["xla"]
    model.compile(
        optimizer=keras.optimizers.AdamW(1e-4, global_clipnorm=1.0),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=jit_compile,
    )

    def rename(batch: dict[str, Any]) -> tuple[Any, ...]:
        inputs = {
            "token_ids": batch["input_ids"],
            "padding_mask": batch["input_mask"],
            "segment_ids": batch["segment_ids"],
            "mask_positions": batch["masked_lm_positions"],
        }
        return inputs, batch["masked_lm_ids"], batch["masked_lm_weights"]

    class Rounds(keras.callbacks.Callback):
        # An epoch is a round; the first one warms up.
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch and not meter.wait():
                raise SystemExit(0)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if epoch:
                meter.report()

    data = batches(arguments).map(rename).prefetch(2)
    model.fit(data, steps_per_epoch=arguments["steps"], epochs=2**31, verbose=0, callbacks=[Rounds()])


def hugging_face(arguments: dict[str, Any], meter: Meter) -> None:
    """Hugging Face's BertForPreTraining on PyTorch, in the loop that its users write."""
    import contextlib

    import numpy as np
    import torch
    import transformers

    sizes = json.loads(pathlib.Path(arguments["config"]).read_text())
    model = transformers.BertForPreTraining(transformers.BertConfig(**{**sizes, "hidden_act": "gelu"}))
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=arguments["fused"] or None)
    prepared = []
    for batch in itertools.islice(batches(arguments), 32):
        each = {name: values.numpy() for name, values in batch.items()}
        labels = np.full(each["input_ids"].shape, -100, np.int64)
        rows = np.arange(len(labels))[:, None]
        real = each["masked_lm_weights"] > 0
        labels[np.broadcast_to(rows, real.shape)[real], each["masked_lm_positions"][real]] = each["masked_lm_ids"][real]
        tensors = {
            "input_ids": each["input_ids"], "attention_mask": each["input_mask"],
            "token_type_ids": each["segment_ids"], "labels": labels,
            "next_sentence_label": each["next_sentence_labels"][:, 0],
        }  # fmt: skip
        prepared.append({name: torch.tensor(values.astype(np.int64)) for name, values in tensors.items()})
    data = itertools.cycle(prepared)
    call = torch.compile(model) if arguments["xla"] else model
    half = arguments["dtype"] == "mixed_bfloat16"

    def run(steps: int) -> None:
        for _ in range(steps):
            with torch.autocast("cpu", torch.bfloat16) if half else contextlib.nullcontext():
                loss = call(**next(data)).loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    run(_WARM_UP)
    while meter.wait():
        run(arguments["steps"])
        meter.report()


def products(arguments: dict[str, Any], meter: Meter) -> None:
    """The products of matrices of a step, forward and backward, by TensorFlow alone: no program takes less time."""
    import tensorflow as tf

    from official_bert.modeling.config import BertConfig

    config, batch = BertConfig.from_json_file(arguments["config"]), arguments["batch"]
    width, inner, heads = config.hidden_size, config.intermediate_size, config.num_attention_heads

    def matrix(*shape: int) -> Any:
        return tf.Variable(tf.random.normal(shape))  # each its own, or TensorFlow would compute equal products once

    def of_layer(rows: int, columns_in: int, columns_out: int) -> tuple[Any, ...]:
        return matrix(rows, columns_in), matrix(columns_in, columns_out), matrix(rows, columns_out)

    tokens, predicted = batch * LENGTH, batch * PREDICTIONS
    blocks = range(config.num_hidden_layers)
    sizes = ((width, 3 * width), (width, width), (width, inner), (inner, width))  # queries, keys and values at once
    dense = [of_layer(tokens, *size) for _ in blocks for size in sizes]
    dense += [of_layer(predicted, width, width), of_layer(predicted, width, config.vocab_size)]
    split = (batch, heads, LENGTH, width // heads)
    attention = [([matrix(*split) for _ in range(4)], matrix(*split[:3], LENGTH)) for _ in blocks]

    @tf.function(autograph=False)
    def step() -> Any:
        found = []
        for x, kernel, upstream in dense:
            x, kernel, upstream = (tf.convert_to_tensor(each) for each in (x, kernel, upstream))
            found += [x @ kernel, tf.matmul(upstream, kernel, transpose_b=True)]
            found.append(tf.matmul(x, upstream, transpose_a=True))
        for of_heads, square in attention:
            query, key, value, upstream = (tf.convert_to_tensor(each) for each in of_heads)
            scores = tf.convert_to_tensor(square)  # stands for the probabilities and the scores' gradient too
            found += [tf.matmul(query, key, transpose_b=True), scores @ value]
            found += [tf.matmul(upstream, value, transpose_b=True), tf.matmul(scores, upstream, transpose_a=True)]
            found += [scores @ key, tf.matmul(scores, query, transpose_a=True)]
        return tf.stack([tf.reshape(each, [-1])[0] for each in found])

    for _ in range(_WARM_UP):
        step()
    while meter.wait():
        for _ in range(arguments["steps"]):
            step().numpy()
        meter.report()


def main() -> None:
    arguments = json.loads(sys.argv[1])
    if arguments["tuned_malloc"]:
        from official_bert.utils.allocator import tune_allocator

        tune_allocator()
    programs = {each.__name__: each for each in (official_bert, keras_hub, hugging_face, products)}
    programs[arguments["program"]](arguments, Meter())


if __name__ == "__main__":
    main()
