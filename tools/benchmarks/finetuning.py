"""Batches of like length against padding to 128: `python -m tools.benchmarks.finetuning --data_dir=glue/SST-2 ...`.

Both train the same model on SST-2 for some steps, in turn, so that what else the machine does reaches both alike. With
--epochs both then learn to the end, from several seeds, the padded one in an order that knows no lengths, and their
accuracies are compared.
"""

import dataclasses
import statistics
import time
from typing import Any

import numpy as np

from official_bert.finetuning.trainer import Trainer
from official_bert.finetuning.training_config import TrainingConfig
from official_bert.learning import batches
from official_bert.learning.initial_model import InitialModel, read_initial_model
from official_bert.tasks.glue import GlueTask
from official_bert.tasks.heads.features import Features
from official_bert.tasks.options import GlueOptions
from official_bert.utils.bad_rows import BadRows
from official_bert.utils.command_line import Command
from official_bert.utils.flags import option

_BATCH, _LENGTH = 32, 128
_PADDED, _LIKE = "padded to 128", "of like length"


@dataclasses.dataclass(frozen=True)
class Options:
    """The flags of the benchmark."""

    data_dir: str = option(dataclasses.MISSING, "SST-2's folder.")
    init: str = option("configs/models/uncased_L-4_H-256_A-4.json", "What to train: a configuration, or a model.")
    vocab_file: str | None = option(None, "A vocab.txt, where --init has none.")
    steps: int = option(40, "Steps of each in a round.")
    rounds: int = option(5, "Rounds; the median counts.")
    epochs: int = option(0, "Epochs in which both learn, for their accuracy.")
    rows: int = option(20_000, "Examples of an epoch, the first ones.")
    seeds: int = option(3, "How often both learn.")
    learning_rate: float = option(5e-4, "Theirs, when they learn.")


def main(options: Options) -> None:
    task = GlueTask("sst-2", GlueOptions(data_dir=options.data_dir))
    start = read_initial_model(options.init, options.vocab_file)
    train = task.read("train", BadRows())
    tokenizer = start.tokenizer()
    began = time.perf_counter()
    features = task.head.featurize(train, tokenizer, _LENGTH)
    print(f"features: {len(train) / (time.perf_counter() - began):,.0f} examples/s")
    _compare_speed(options, task, start, features)
    if not options.epochs:
        return
    dev = task.read("dev", BadRows())
    some, held_out = (task.head.featurize(each, tokenizer, _LENGTH) for each in (train[: options.rows], dev))
    for name in (_PADDED, _LIKE):
        found = [_accuracy(options, task, name, start, some, held_out, dev, seed) for seed in range(options.seeds)]
        shown = ", ".join(f"{100 * each:.1f}" for each in found)
        print(f"{name}: accuracy {100 * statistics.fmean(found):.1f} % ({shown})")


def _compare_speed(options: Options, task: GlueTask, start: InitialModel, features: Features) -> None:
    trainer = Trainer(task.head, start, _config(5e-5, num_steps=10_000, steps_per_epoch=10_000, seed=1))
    plan = batches.training_batch_indices(batches.row_lengths(features), _BATCH, seed=1, epoch=0)
    multiples = {_PADDED: _LENGTH, _LIKE: batches.MULTIPLE}
    rates: dict[str, list[float]] = {name: [] for name in multiples}
    for number in range(-1, options.rounds):  # the first round, which builds the graph, does not count
        first = max(number, 0) * options.steps
        rows = plan[first : first + options.steps]
        for name, multiple in multiples.items():
            padded = [batches.padded_batch(features, each, _LENGTH, multiple=multiple) for each in rows]
            began = time.perf_counter()
            trainer.take_steps(padded, 0, lambda done, loss: False)
            if number >= 0:
                rates[name].append(rows.size / (time.perf_counter() - began))
    medians = {name: statistics.median(each) for name, each in rates.items()}
    for name, median in medians.items():
        print(f"{name}: {median:,.1f} examples/s, {median / medians[_PADDED]:.1f} times")


def _config(learning_rate: float, num_steps: int, steps_per_epoch: int, seed: int) -> TrainingConfig:
    return TrainingConfig(
        train_batch_size=_BATCH,
        learning_rate=learning_rate,
        num_steps=num_steps,
        steps_per_epoch=steps_per_epoch,
        warmup_proportion=0.1,
        eval_steps=steps_per_epoch,
        max_seq_length=_LENGTH,
        random_seed=seed,
    )


def _accuracy(
    options: Options,
    task: GlueTask,
    name: str,
    start: InitialModel,
    features: Features,
    held_out: Features,
    dev: list[Any],
    seed: int,
) -> float:
    lengths = batches.row_lengths(features)
    per_epoch = -(-len(features) // _BATCH)
    steps = options.epochs * per_epoch
    trainer = Trainer(
        task.head, start, _config(options.learning_rate, num_steps=steps, steps_per_epoch=per_epoch, seed=seed)
    )
    for epoch in range(options.epochs):
        # Rows that are all as long share batches as chance has it.
        like = lengths if name == _LIKE else np.ones_like(lengths)
        plan = batches.training_batch_indices(like, _BATCH, seed, epoch)
        multiple = batches.MULTIPLE if name == _LIKE else _LENGTH
        padded = [batches.padded_batch(features, each, _LENGTH, multiple=multiple) for each in plan]
        trainer.take_steps(padded, 0, lambda done, loss: False)
    predictions = task.head.decode(trainer.predict(held_out, 64), held_out, dev)
    return task.metrics(predictions, dev)["accuracy"]


if __name__ == "__main__":
    Command(
        program="python -m tools.benchmarks.finetuning",
        summary="Batches of like length against padding to 128",
        main=main,
        options=(Options,),
    ).run()
