"""Runs on a small table of texts whose labels depend on their words, and random training rows of every kind."""

import contextlib
import dataclasses
import io
import shutil
import types

import numpy as np
import pytest

from official_bert.finetuning import runner, trainer
from official_bert.finetuning.options import FinetuningOptions
from official_bert.inference.keras_model import KerasRunner
from official_bert.kinds.all_kinds import SPECS
from official_bert.kinds.features import NO_LABEL, Features, concatenate_rows
from official_bert.kinds.names import VECTORS
from official_bert.tasks.options import TableOptions
from tests.make import WORDS, tiny_config, write_text, write_vocab


def write_table(path, count: int, seed: int) -> str:
    rng, words = np.random.default_rng(seed), {"good": "cat dog sun play".split(), "bad": "mat sat ran walk".split()}
    rows = []
    for label in rng.choice([*words], count):
        text = [*rng.choice("a b c the".split(), 2), *rng.choice(words[label], rng.integers(2, 9))]
        rows.append(f"{' '.join(rng.permutation(text))},{label}\n")
    return write_text(path, "text,label\n" + "".join(rows))


def make_options(folder) -> FinetuningOptions:
    config = tiny_config(hidden_size=16, num_hidden_layers=1, intermediate_size=32, initializer_range=0.2)
    sizes = [("train", 90, 1), ("eval", 40, 2), ("predict", 10, 3)]
    tables = {f"{name}_file": write_table(folder / f"{name}.csv", count, seed) for name, count, seed in sizes}
    return FinetuningOptions(
        task="table", task_options=TableOptions(**tables), init=write_text(folder / "config.json", config.to_json()),
        vocab_file=write_vocab(folder / "vocab.txt"), output_dir=str(folder / "run"),
        do_train=True, do_eval=True, do_predict=True, learning_rate=0.005, num_train_epochs=6.0, train_batch_size=16,
        max_seq_length=16, log_steps=4,
    )  # fmt: skip


def change(options: FinetuningOptions, **changes) -> FinetuningOptions:
    """Returns a copy of the options with some values changed, including options of the table."""
    names = {field.name for field in dataclasses.fields(TableOptions)}
    of_table = {name: changes.pop(name) for name in names & changes.keys()}
    return dataclasses.replace(options, task_options=dataclasses.replace(options.task_options, **of_table), **changes)


@pytest.fixture
def options(tmp_path) -> FinetuningOptions:
    return make_options(tmp_path)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> types.SimpleNamespace:
    """A finished run that no test changes: its options, scores, printed lines and number of predicted parts.

    The folder "killed" next to it is a copy from the third epoch, after the scores were logged and before the
    checkpoint.
    """
    folder = tmp_path_factory.mktemp("trained")
    options, printed, predicted = make_options(folder), io.StringIO(), []
    compute, original = KerasRunner.compute_outputs, trainer.Trainer.train

    def train(self, features, first, *rest):
        if first == 12:
            shutil.copytree(options.output_dir, folder / "killed")
        return original(self, features, first, *rest)

    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(trainer.Trainer, "train", train)
        patch.setattr(KerasRunner, "_traced_forward", KerasRunner._forward_on_all_replicas)
        patch.setattr(KerasRunner, "compute_outputs", lambda *arguments: predicted.append(1) or compute(*arguments))
        scores = runner.run(options)
    return types.SimpleNamespace(options=options, scores=scores, printed=printed.getvalue(), predicted=len(predicted))


@pytest.fixture
def copied(trained: types.SimpleNamespace, tmp_path) -> FinetuningOptions:
    """The options of a copy of the finished run."""
    shutil.copytree(trained.options.output_dir, tmp_path / "run")
    return change(trained.options, output_dir=str(tmp_path / "run"))


@pytest.fixture
def predict_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs predict without a graph, which is faster for a few rows."""
    monkeypatch.setattr(KerasRunner, "_traced_forward", KerasRunner._forward_on_all_replicas)


@pytest.fixture
def skip_training(predict_eagerly: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs skip their training steps, and predict without a graph."""

    def train(self, features, first, last, *rest):
        self._sums += 1.0
        return last, 0.5

    monkeypatch.setattr(trainer.Trainer, "train", train)


CLASSES = 4


def random_features(kind: str, rows: int, longest: int, texts: int = 2, classes: int = CLASSES) -> Features:
    """Returns rows of at least 3 and fewer than `longest` tokens, with random targets. Rows of vectors have `texts`."""
    rng = np.random.default_rng(0)
    choices = texts if kind == VECTORS else SPECS[kind](labels=tuple("abcd")).num_choices or 1
    ids = [rng.integers(5, len(WORDS), rng.integers(3, longest)) for _ in range(rows * choices)]
    lengths = np.array([len(each) for each in ids])
    targets = {"labels": rng.integers(0, classes, rows).astype(np.int32)}
    if kind == "multi_label":
        targets = {"labels": rng.integers(0, 2, (rows, classes)).astype(np.float32)}
    elif kind in ("regression", VECTORS):
        targets = {"labels": rng.normal(size=rows).astype(np.float32)}
    elif kind == "tagging":
        targets = {"labels": rng.integers(NO_LABEL, classes, lengths.sum()).astype(np.int32)}
    elif kind == "question_answering":
        targets = {name: (rng.random(rows) * lengths).astype(np.int32) for name in ("start_logits", "end_logits")}
    has_token_outputs = kind in ("tagging", "question_answering")
    segment_ids = [np.zeros(len(each)) for each in ids]
    return concatenate_rows(ids, segment_ids, targets, {}, choices, has_token_outputs=has_token_outputs)
