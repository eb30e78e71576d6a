"""Weights to adapt, and a finished adaptation."""

import dataclasses
import pathlib

import pytest

from official_bert.adaptation import adapting, words
from official_bert.checkpoints.checkpoint import ENCODER, MASKED_LM
from official_bert.checkpoints.formats import hugging_face
from official_bert.optimization import distribution
from tests.adaptation.adapted_models import make_options, write_text
from tests.checkpoints.checkpoint_samples import sample
from tests.conftest import WORDS
from tests.make import tiny_config


@pytest.fixture(scope="module", autouse=True)
def skip_compilation():
    """Skips XLA compilation, so that runs are quick."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(distribution, "compiles_parts", lambda _: False)
        yield


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A Hugging Face masked LM without a pooler and next-sentence head, and with one unused vocabulary entry."""
    folder = tmp_path_factory.mktemp("source")
    vocab = "".join(f"{word}\n" for word in [*WORDS[:-1], "[unused0]"])  # in place of ##able
    checkpoint = sample(tiny_config(num_hidden_layers=1), frozenset({ENCODER, MASKED_LM}))
    hugging_face.write(dataclasses.replace(checkpoint, vocab=vocab), str(folder))
    return folder


@pytest.fixture(scope="module")
def adapted(source: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A finished adaptation with two new words that was also evaluated on general text. Tests must not change it."""
    folder = tmp_path_factory.mktemp("adapted")
    text, general = (write_text(folder / f"{name}.txt", seed=seed) for seed, name in enumerate(("text", "general")))
    (folder / "dev.txt").write_text("nobody knew how long the cat would sit in the sun, and nobody asked .\n")
    settings = {"new_words": 2, "general_share": 0.2, "exclude_texts": [str(folder / "dev.txt")]}
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(words, "_MAX_PROPOSED", 1)  # More words may be added than are proposed by default.
        assert adapting.run(make_options(source, text, folder / "model", general_file=[general], **settings)) == 0
    return folder / "model"
