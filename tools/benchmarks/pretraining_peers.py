"""A process that runs pre-training steps of one program on request, for tools/benchmarks/pretraining.py.

Its argument is a JSON object with `program`, `config`, `records`, `batch` and `steps`. For each line on standard input
it runs the steps, and prints the seconds that they took as a JSON list: wall time, user time and system time.
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
    """Waits for requests on standard input, and reports the time that each took."""

    def wait(self) -> bool:
        """Waits for the next request and starts the clock. Returns False if standard input has ended."""
        has_round = bool(sys.stdin.readline())
        self._start = self._now()
        return has_round

    def report(self) -> None:
        """Prints the seconds since the request as a JSON list: wall time, user time and system time."""
        print(json.dumps([end - start for start, end in zip(self._start, self._now(), strict=True)]), flush=True)

    def _now(self) -> tuple[float, float, float]:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return time.perf_counter(), usage.ru_utime, usage.ru_stime


def batches(arguments: dict[str, Any]) -> Any:
    """Returns the endless dataset of batches that `official-bert pretrain` reads."""
    from official_bert.data.input_pipeline import RecordSource
    from official_bert.data.record_schema import pretraining_schema

    schema = pretraining_schema(LENGTH, PREDICTIONS)
    return RecordSource([arguments["records"]], schema).training_batches(arguments["batch"], seed=1)


def official_bert(arguments: dict[str, Any], meter: Meter) -> None:
    """Runs training steps like `official-bert pretrain`."""
    from official_bert.utils.allocator import retune_allocator, tune_allocator

    tune_allocator()
    from official_bert.modeling.config import BertConfig
    from official_bert.optimization import distribution
    from official_bert.optimization.choices import ONE_DEVICE
    from official_bert.optimization.schedules import WarmupPolynomialDecay
    from official_bert.pretraining.train_step import Pretrainer

    strategy = distribution.get_strategy(ONE_DEVICE)
    pretrainer = Pretrainer(
        config=BertConfig.from_json_file(arguments["config"]), strategy=strategy,
        schedule=WarmupPolynomialDecay(1e-4, 1000), seed=1, compile_parts=distribution.compiles_parts(strategy),
    )  # fmt: skip
    data = iter(strategy.experimental_distribute_dataset(batches(arguments)))
    retune_allocator()
    pretrainer.train(data, _WARM_UP)
    while meter.wait():
        pretrainer.train(data, arguments["steps"])
        meter.report()


def keras_hub(arguments: dict[str, Any], meter: Meter) -> None:
    """Trains keras-hub's BERT with its masked-LM head in one call of Keras' fit. It has no next-sentence prediction."""
    import keras
    import keras_hub

    from official_bert.modeling.config import BertConfig

    config = BertConfig.from_json_file(arguments["config"])
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=config.vocab_size, num_layers=config.num_hidden_layers, num_heads=config.num_attention_heads,
        hidden_dim=config.hidden_size, intermediate_dim=config.intermediate_size, dropout=config.hidden_dropout_prob,
        max_sequence_length=LENGTH,
    )  # fmt: skip
    model = keras_hub.models.BertMaskedLM(backbone)
    model.compile(
        optimizer=keras.optimizers.AdamW(1e-4, global_clipnorm=1.0),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
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
    """Trains Hugging Face's BertForPreTraining on PyTorch, in a loop such as its users write."""
    equal_work = arguments.get("equal_work", False)
    if equal_work:
        from official_bert.utils.allocator import tune_allocator

        tune_allocator()
    import numpy as np
    import torch
    import transformers

    sizes = json.loads(pathlib.Path(arguments["config"]).read_text())
    model = transformers.BertForPreTraining(transformers.BertConfig(**{**sizes, "hidden_act": "gelu"}))
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=equal_work or None)
    prepared = []
    for batch in itertools.islice(batches(arguments), 32):
        each = {name: values.numpy() for name, values in batch.items()}
        positions, real = each["masked_lm_positions"], each["masked_lm_weights"] > 0
        targets = {"labels": np.where(real, each["masked_lm_ids"], -100), "positions": positions}
        if not equal_work:
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

    def loss_of_predictions(labels: Any, positions: Any, next_sentence_label: Any, **inputs: Any) -> Any:
        vectors, pooled = model.bert(**inputs)[:2]
        predicted = vectors.gather(1, positions[:, :, None].expand(-1, -1, vectors.shape[-1]))
        scores, related = model.cls(predicted, pooled)
        masked_lm = torch.nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())
        return masked_lm + torch.nn.functional.cross_entropy(related, next_sentence_label)

    def run(steps: int) -> None:
        for _ in range(steps):
            loss = loss_of_predictions(**next(data)) if equal_work else model(**next(data)).loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    run(_WARM_UP)
    while meter.wait():
        run(arguments["steps"])
        meter.report()


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    {each.__name__: each for each in (official_bert, keras_hub, hugging_face)}[given["program"]](given, Meter())
