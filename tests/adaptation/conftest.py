"""Text, weights and options of small adaptations, and a finished adaptation."""

import dataclasses
import pathlib
import random
from typing import Any

import pytest
import tensorflow as tf

from data_gen.pipelines import one_machine
from official_bert.adaptation import adapting, words
from official_bert.adaptation.options import AdaptationOptions
from official_bert.checkpoints.checkpoint import ENCODER, MASKED_LM
from official_bert.checkpoints.formats import hugging_face
from official_bert.optimization import distribution
from tests import make
from tests.checkpoints.checkpoint_samples import sample
from tests.data_gen.samples import create_records
from tests.make import WORDS

# The last three words are not in the vocabulary.
_WORDS = "the cat dog sat ran on mat in sun play walk and running catdog sunny".split()
LENGTH, PREDICTIONS = 16, 3
STEPS = {"train_batch_size": 8, "learning_rate": 1e-2, "num_train_steps": 4, "eval_steps": 2, "log_steps": 2}


def write_text(path: pathlib.Path, documents: int = 40, sentences: int = 4, seed: int = 0) -> str:
    """Writes documents whose sentences are drawn from these words, and returns the path."""
    rng = random.Random(seed)
    lines = ["".join(" ".join(rng.choices(_WORDS, k=7)) + " .\n" for _ in range(sentences)) for _ in range(documents)]
    return make.write_text(path, "\n".join(lines))


def make_options(source: pathlib.Path, text: str, folder: pathlib.Path, **changes: Any) -> AdaptationOptions:
    values: dict[str, Any] = {"max_seq_length": LENGTH, "max_predictions_per_seq": PREDICTIONS, "heldout_share": 0.2}
    paths: dict[str, Any] = {"init": str(source), "input_file": [text], "output_dir": str(folder)}
    return AdaptationOptions(**values | STEPS | paths | changes)


@pytest.fixture(scope="module", autouse=True)
def run_quickly():
    """Skips XLA compilation, and makes records without worker processes."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(distribution, "compiles_parts", lambda _: False)
        monkeypatch.setattr(one_machine, "create_pretraining_data", create_records)
        yield


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A Hugging Face masked LM without a pooler and next-sentence head, and with one unused vocabulary entry."""
    folder = tmp_path_factory.mktemp("source")
    vocab = "".join(f"{word}\n" for word in [*WORDS[:-1], "[unused0]"])  # in place of ##able
    checkpoint = sample(make.tiny_config(num_hidden_layers=1), frozenset({ENCODER, MASKED_LM}))
    hugging_face.write(dataclasses.replace(checkpoint, vocab=vocab), str(folder))
    return folder


@pytest.fixture(scope="module")
def adapted(source: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A finished adaptation with two new words that was also evaluated on general text. Tests must not change it."""
    folder = tmp_path_factory.mktemp("adapted")
    text, general = write_text(folder / "text.txt"), write_text(folder / "general.txt", documents=12, seed=1)
    (folder / "dev.txt").write_text("nobody knew how long the cat would sit in the sun, and nobody asked .\n")
    settings = {"new_words": 2, "heldout_share": 0.1, "general_share": 0.2, "exclude_texts": [str(folder / "dev.txt")]}
    settings |= {"num_train_steps": 2, "eval_steps": 1}
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(words, "_MAX_PROPOSED", 1)  # More words may be added than are proposed by default.
        monkeypatch.setattr(tf, "function", lambda function, **_: function)  # A few steps are faster without a graph.
        assert adapting.run(make_options(source, text, folder / "model", general_file=[general], **settings)) == 0
    return folder / "model"
