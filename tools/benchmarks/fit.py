"""A step of Keras' fit on strings against one of the command: `python -m tools.benchmarks.fit`.

For a classifier, a tagger and questions, BERT-Mini on Python's own documentation. Both take steps on the same batches,
a round of each in turn in one process, so that what else the machine does reaches both alike; the ratios are those of
the rounds' medians. What is counted is the time between the ends of steps: tokens are made before.
"""

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import keras

import official_bert
from official_bert.finetuning.trainer import Trainer
from official_bert.finetuning.training_config import TrainingConfig
from official_bert.keras_models.text_model import TextModel
from official_bert.learning.initial_model import read_initial_model
from official_bert.utils.command_line import Command
from official_bert.utils.flags import option
from tools.benchmarks.corpus import write_text

_LENGTH = 64


@dataclasses.dataclass(frozen=True)
class Options:
    """The flags of the benchmark."""

    init: str = option("configs/models/uncased_L-4_H-256_A-4.json", "The model's configuration.")
    batch_size: int = option(32, "Texts in a step.")
    steps: int = option(20, "Steps of each in a round.")
    rounds: int = option(5, "Rounds; the first, which traces, does not count.")


class _Clock:
    """Processor and wall time from the end of a round's first step on."""

    def __init__(self) -> None:
        self.steps = -1
        self.first = self.times = (0.0, 0.0)

    def tick(self) -> None:
        """To be called after each step."""
        self.steps += 1
        now = (time.process_time(), time.perf_counter())
        self.first = now if not self.steps else self.first
        self.times = (now[0] - self.first[0], now[1] - self.first[1])

    def per_step(self) -> tuple[float, float]:
        """Returns the milliseconds of a step, of the processor and by the wall."""
        cpu, wall = self.times
        return 1000 * cpu / self.steps, 1000 * wall / self.steps


class _Callback(keras.callbacks.Callback):
    def __init__(self, clock: _Clock) -> None:
        super().__init__()
        self.clock = clock

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.clock.tick()


def _examples(name: str, sentences: list[str]) -> tuple[Any, Any]:
    """Texts, and labels that a rule gives: both are of no interest here."""
    if name == "classifier":
        return sentences, [len(text) % 2 for text in sentences]
    words = [text.split()[:40] for text in sentences]
    if name == "tagger":
        return words, [[len(word) % 5 for word in row] for row in words]
    return ([" ".join(row[:4]) for row in words], [" ".join(row) for row in words]), [row[-1] for row in words]


def _model(name: str, options: Options, vocab_file: str) -> TextModel:
    config = official_bert.BertConfig.from_json_file(options.init)
    with open(vocab_file, encoding="utf-8") as file:
        vocab = file.read()
    config = dataclasses.replace(config, vocab_size=len(vocab.splitlines()))
    settings: dict[str, Any] = {"max_seq_length": _LENGTH}
    if name == "classifier":
        return official_bert.TextClassifier(config, vocab, labels=range(2), **settings)
    if name == "tagger":
        return official_bert.TokenTagger(config, vocab, labels=range(5), **settings)
    return official_bert.QuestionAnswerer(config, vocab, max_query_length=16, doc_stride=32, **settings)


def _rounds(name: str, options: Options, sentences: list[str], vocab_file: str) -> dict[str, Callable[[], _Clock]]:
    model = _model(name, options, vocab_file)
    x, y = _examples(name, sentences[: options.batch_size * (options.steps + 1)])
    model.compile(learning_rate=1e-4)
    features = model.head.featurize(model.head.examples(x, y), model._tokenizer, _LENGTH)
    steps = -(-len(features) // options.batch_size)
    training = TrainingConfig(
        train_batch_size=options.batch_size, learning_rate=1e-4, num_steps=10 * steps, steps_per_epoch=steps,
        warmup_proportion=0.1, eval_steps=steps, max_seq_length=_LENGTH, random_seed=0,
    )  # fmt: skip
    start = dataclasses.replace(read_initial_model(options.init, vocab_file), config=model.bert_config)
    trainer = Trainer(model.head, start, training)

    def of_command() -> _Clock:
        clock = _Clock()

        def on_step(done: int, loss: float) -> bool:
            clock.tick()
            return False

        trainer.train(features, 0, steps, on_step)
        return clock

    def of_fit() -> _Clock:
        clock = _Clock()
        model.fit(x, y, batch_size=options.batch_size, epochs=1, verbose=0, callbacks=[_Callback(clock)])
        return clock

    return {"the command": of_command, "fit": of_fit}


def main(options: Options) -> None:
    with tempfile.TemporaryDirectory() as folder:
        sentences, _, vocab_file = write_text(folder)
        sentences = [text for text in sentences if len(text.split()) > 5]
        print("| head | milliseconds of a step | processor | wall | fit / the command, processor | wall |")
        print("|---|---|---|---|---|---|")
        for name in ("classifier", "tagger", "questions"):
            rounds = _rounds(name, options, sentences, vocab_file)
            times: dict[str, list[tuple[float, float]]] = {door: [] for door in rounds}
            for number in range(options.rounds + 1):
                for door, take in rounds.items():
                    clock = take()
                    if number:
                        times[door].append(clock.per_step())
            medians = {
                door: [statistics.median(column) for column in zip(*each, strict=True)] for door, each in times.items()
            }
            for door, (cpu, wall) in medians.items():
                ratios = [value / medians["the command"][column] for column, value in enumerate((cpu, wall))]
                print(f"| {name} | {door} | {cpu:.1f} | {wall:.1f} | {ratios[0]:.3f} | {ratios[1]:.3f} |", flush=True)


if __name__ == "__main__":
    Command(
        program="python -m tools.benchmarks.fit",
        summary="A step of Keras' fit against one of the command",
        main=main,
        options=(Options,),
    ).run()
