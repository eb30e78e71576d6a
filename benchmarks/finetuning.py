"""Batches of like length against padding to 128: `python -m benchmarks.finetuning --data_dir=glue/SST-2 ...`.

Both train the same model on SST-2 for some steps, in turn, so that what else the machine does reaches both alike.
"""

import dataclasses
import statistics
import time

from official_bert import command_line

# isort: split
import numpy as np

from official_bert.command_line import option
from official_bert.tasks import batches, glue
from official_bert.tasks.bad_rows import BadRows
from official_bert.tasks.starting import read_start
from official_bert.tasks.trainer import Plan, Trainer

_BATCH, _LENGTH = 32, 128


@dataclasses.dataclass(frozen=True)
class Options:
    """What the benchmark is told."""

    data_dir: str = option(dataclasses.MISSING, "SST-2's folder.")
    vocab_file: str = option(dataclasses.MISSING, "A vocab.txt that fits the configuration.")
    bert_config_file: str = option("configs/models/uncased_L-4_H-256_A-4.json", "The model's size.")
    steps: int = option(8, "Steps of each in a round.")
    rounds: int = option(3, "Rounds; the median counts.")


def main(_: list[str]) -> None:
    options = command_line.read(Options)
    task = glue.TASKS["sst-2"]
    examples = task.read(options.data_dir, "train", BadRows())
    start = read_start(options.bert_config_file, options.vocab_file)
    with start.tokenizer() as tokenizer:
        began = time.perf_counter()
        features = task.featurize(examples, tokenizer, _LENGTH)
        print(f"features: {len(examples) / (time.perf_counter() - began):,.0f} examples/s")
    trainer = Trainer(task, start, Plan(_BATCH, 5e-5, 10_000, 10_000, 0.1, 1000, _LENGTH, random_seed=1))
    plan = batches.training_plan(batches.row_lengths(features), _BATCH, seed=1, epoch=0)

    def rate(multiple: int, rows: np.ndarray) -> float:
        data = batches.training_data(features, rows, _LENGTH, multiple=multiple)
        began = time.perf_counter()
        trainer.model.fit(data, verbose=0, shuffle=False)
        return rows.size / (time.perf_counter() - began)

    ways = {"padded to 128": _LENGTH, "of like length": batches.MULTIPLE}
    for multiple in ways.values():
        rate(multiple, plan[:2])  # builds the graph
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(options.rounds):
        rows = plan[number * options.steps : (number + 1) * options.steps]
        for name, multiple in ways.items():
            rates[name].append(rate(multiple, rows))
    medians = {name: statistics.median(each) for name, each in rates.items()}
    for name, median in medians.items():
        print(f"{name}: {median:,.1f} examples/s, {median / medians['padded to 128']:.1f} times")


if __name__ == "__main__":
    command_line.define(Options)
    command_line.run(main)
