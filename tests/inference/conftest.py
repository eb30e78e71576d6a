"""Fixtures for sharded prediction."""

import pytest

from official_bert.checkpoints import loading
from official_bert.checkpoints.loading import Loaded
from official_bert.inference import batch_prediction, features
from official_bert.modeling.config import BertConfig
from official_bert.modeling.encoder import build_encoder
from official_bert.tokenization.exact import FullTokenizer
from tests.inference.batch_models import export_batches


@pytest.fixture(scope="session")
def export_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An export whose answers identify the batch that a text was in."""
    return export_batches(tmp_path_factory.mktemp("export"))


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduces groups to four rows, so that a few texts fill several."""
    monkeypatch.setattr(batch_prediction, "BATCHES_AT_ONCE", 2)
    monkeypatch.setattr(batch_prediction, "_ROWS_A_DIGEST", 4)
    monkeypatch.setattr(features, "_BATCHES_AT_A_TIME", 2)


@pytest.fixture
def tiny_encoder(tiny_config: BertConfig, vocab_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loads a tiny encoder from any folder."""
    loaded = Loaded(build_encoder(tiny_config, seed=0), tiny_config, FullTokenizer(vocab_file))
    monkeypatch.setattr(loading, "load", lambda *_, **__: loaded)
