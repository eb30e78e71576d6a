"""A process that takes pre-training steps in one program's way on request: see tools/benchmarks/pretraining.py.

Its argument is a JSON object of a Way's fields and of `config`, `records`, `batch` and `steps`. For each line on
standard input it takes so many steps, and prints a line of JSON: seconds of the clock, of user and of system time.
"""

import itertools
import json
import pathlib
import resource
import sys
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

LENGTH, PREDICTIONS = 128, 20
_WARM_UP = 3  # steps


class Meter:
    """Waits for the next line on standard input, and reports what happened since."""

    def wait(self) -> bool:
        """Returns whether there is another round; false when standard input ends."""
        there = bool(sys.stdin.readline())
        self._start = self._now()
        return there

    def report(self, done: float = 1.0) -> None:
        """Prints what the steps of this round took, by what was done of them: 2 if twice as much as asked."""
        names = ("wall", "user", "system")
        values = [(end - start) / done for start, end in zip(self._start, self._now(), strict=True)]
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
    from official_bert.optimization.choices import ONE_DEVICE
    from official_bert.optimization.schedules import WarmupPolynomialDecay
    from official_bert.pretraining.train_step import Pretrainer
    from official_bert.utils.allocator import retune_allocator

    strategy = distribution.get_strategy(ONE_DEVICE)
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
        positions, real = each["masked_lm_positions"], each["masked_lm_weights"] > 0
        targets = {"labels": np.where(real, each["masked_lm_ids"], -100), "positions": positions}
        if not arguments["gathered"]:
            labels = np.full(each["input_ids"].shape, -100, np.int64)
            rows = np.broadcast_to(np.arange(len(labels))[:, None], real.shape)
            labels[rows[real], positions[real]] = each["masked_lm_ids"][real]
            targets = {"labels": labels}
        tensors = {
            "input_ids": each["input_ids"], "attention_mask": each["input_mask"],
            "token_type_ids": each["segment_ids"], "next_sentence_label": each["next_sentence_labels"][:, 0], **targets,
        }  # fmt: skip
        prepared.append({name: torch.tensor(values.astype(np.int64)) for name, values in tensors.items()})
    data = itertools.cycle(prepared)

    def loss_of_all(**batch: Any) -> Any:
        return model(**batch).loss

    def loss_of_predicted(labels: Any, positions: Any, next_sentence_label: Any, **inputs: Any) -> Any:
        vectors, pooled = model.bert(**inputs)[:2]
        predicted = vectors.gather(1, positions[:, :, None].expand(-1, -1, vectors.shape[-1]))
        scores, related = model.cls(predicted, pooled)
        masked_lm = torch.nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())
        return masked_lm + torch.nn.functional.cross_entropy(related, next_sentence_label)

    loss_of = loss_of_predicted if arguments["gathered"] else loss_of_all
    call = torch.compile(loss_of) if arguments["xla"] else loss_of
    half = arguments["dtype"] == "mixed_bfloat16"

    def run(steps: int) -> None:
        for _ in range(steps):
            with torch.autocast("cpu", torch.bfloat16) if half else contextlib.nullcontext():
                loss = call(**next(data))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    run(_WARM_UP)
    while meter.wait():
        run(arguments["steps"])
        meter.report()


def products(arguments: dict[str, Any], meter: Meter) -> None:
    """The products of matrices of our step, forward and backward, by TensorFlow alone.

    A kernel is stored as [in, out] or as [out, in], as the word table is. Each product with it is computed in the form
    that is faster here.
    """
    import tensorflow as tf

    from official_bert.modeling.config import BertConfig

    config, batch = BertConfig.from_json_file(arguments["config"]), arguments["batch"]
    width, inner, heads = config.hidden_size, config.intermediate_size, config.num_attention_heads

    def matrix(*shape: int) -> Any:
        return tf.Variable(tf.random.normal(shape))  # each its own, or TensorFlow would compute equal products once

    tokens, predicted = batch * LENGTH, batch * PREDICTIONS
    # Rows, columns in and columns out; queries, keys and values at once.
    layer = ((width, 3 * width), (width, width), (width, inner), (inner, width))
    layers = [(tokens, *size) for size in layer] * config.num_hidden_layers
    layers += [(predicted, width, width), (predicted, width, config.vocab_size)]
    forms = {sizes: [_faster(each, *sizes) for each in _FORMS] for sizes in dict.fromkeys(layers)}
    dense = [(form, *(matrix(*shape) for shape in form.shapes(*sizes))) for sizes in layers for form in forms[sizes]]
    split = (batch, heads, LENGTH, width // heads)
    attention = [
        ([matrix(*split) for _ in range(4)], matrix(*split[:3], LENGTH)) for _ in range(config.num_hidden_layers)
    ]

    @tf.function(autograph=False)
    def step() -> Any:
        found = [form.product(left, right) for form, left, right in dense]
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


class Form(NamedTuple):
    """Two matrices that are multiplied, each by the letters of its axes: r rows, i columns in, o columns out.

    The sum is over the axis that both have; a matrix in which it stands elsewhere is transposed.
    """

    left: str
    right: str

    def product(self, left: Any, right: Any) -> Any:
        import tensorflow as tf

        (common,) = set(self.left) & set(self.right)
        return tf.matmul(left, right, transpose_a=self.left[0] == common, transpose_b=self.right[1] == common)

    def shapes(self, rows: int, columns_in: int, columns_out: int) -> list[tuple[int, int]]:
        sizes = {"r": rows, "i": columns_in, "o": columns_out}
        return [(sizes[matrix[0]], sizes[matrix[1]]) for matrix in self]


# Of a layer's output, of the gradient of its input and of that of its kernel, with the kernel or its transpose.
_FORMS = (
    (Form("ri", "io"), Form("ri", "oi")),
    (Form("ro", "oi"), Form("ro", "io")),
    (Form("ri", "ro"), Form("ro", "ri")),
)


def _faster(forms: Iterable[Form], *sizes: int) -> Form:
    """Returns the form that takes less time, the best of some tries of each."""
    import tensorflow as tf

    def seconds(form: Form) -> float:
        matrices = [tf.random.normal(shape) for shape in form.shapes(*sizes)]
        call = tf.function(lambda left, right: form.product(left, right)[0, 0], autograph=False)
        tries = []
        for _ in range(8):
            start = time.perf_counter()
            call(*matrices).numpy()
            tries.append(time.perf_counter() - start)
        return min(tries)

    return min(forms, key=seconds)


def peak(arguments: dict[str, Any], meter: Meter) -> None:
    """As many operations as a step's, in the square products that TensorFlow computes fastest."""
    import tensorflow as tf

    from official_bert.modeling.config import BertConfig
    from official_bert.pretraining.cost import training_flop

    config = BertConfig.from_json_file(arguments["config"])
    operations = arguments["steps"] * training_flop(config, arguments["batch"], LENGTH, PREDICTIONS)
    call = tf.function(lambda matrix: (matrix @ matrix)[0, 0], autograph=False)

    def rate(size: int) -> float:
        matrix = tf.random.normal((size, size))
        call(matrix)
        start = time.perf_counter()
        call(matrix).numpy()
        return 2 * size**3 / (time.perf_counter() - start)

    size = max((512, 1024, 2048, 4096), key=rate)
    matrix, times = tf.random.normal((size, size)), max(1, round(operations / (2 * size**3)))
    while meter.wait():
        for _ in range(times):
            call(matrix).numpy()
        meter.report(done=2 * size**3 * times / operations)


def main() -> None:
    arguments = json.loads(sys.argv[1])
    if arguments["tuned_malloc"]:
        from official_bert.utils.allocator import tune_allocator

        tune_allocator()
    programs = {each.__name__: each for each in (official_bert, keras_hub, hugging_face, products, peak)}
    programs[arguments["program"]](arguments, Meter())


if __name__ == "__main__":
    main()
