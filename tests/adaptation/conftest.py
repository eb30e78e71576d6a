"""Weights to adapt, and a finished adaptation."""

import dataclasses
import pathlib

import pytest

from official_bert.adaptation import adapting
from official_bert.checkpoints.checkpoint import ENCODER, MASKED_LM
from official_bert.checkpoints.formats import hugging_face
from official_bert.modeling.config import BertConfig
from official_bert.optimization import distribution
from tests.adaptation.adapted_models import make_options, write_text
from tests.checkpoints.checkpoint_samples import sample
from tests.conftest import WORDS


def make_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skips XLA compilation, so that runs are quick."""
    monkeypatch.setattr(distribution, "compiles_parts", lambda _: False)


@pytest.fixture(autouse=True)
def quick_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    make_quick(monkeypatch)


@pytest.fixture(scope="session")
def source(tiny_config: BertConfig, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A Hugging Face masked LM without a pooler and next-sentence head, and with one unused vocabulary entry."""
    folder = tmp_path_factory.mktemp("source")
    words = [*WORDS[:-1], "[unused0]"]  # in place of ##able
    config = dataclasses.replace(tiny_config, num_hidden_layers=1)
    checkpoint = dataclasses.replace(
        sample(config, frozenset({ENCODER, MASKED_LM})), vocab="".join(f"{word}\n" for word in words)
    )
    hugging_face.write(checkpoint, str(folder))
    return folder


@pytest.fixture(scope="session")
def adapted(source: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A finished adaptation with two new words that was also evaluated on general text. Tests must not change it."""
    folder = tmp_path_factory.mktemp("adapted")
    text = write_text(folder / "text.txt")
    general = write_text(folder / "general.txt", seed=1)
    with pytest.MonkeyPatch.context() as monkeypatch:
        make_quick(monkeypatch)
        options = make_options(source, text, folder / "model", new_words=2, general_file=[general], general_share=0.2)
        assert adapting.run(options) == 0
    return folder / "model"
