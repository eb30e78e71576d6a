"""Fixtures for sharded prediction."""

import pathlib

import pytest

from official_bert.checkpoints import loading
from official_bert.checkpoints.loading import ModelAndTokenizer
from official_bert.inference import batch_prediction, feature_extraction, feature_extractor
from official_bert.inference.feature_extractor import FeatureExtractor
from official_bert.inference.options import FeatureOptions
from official_bert.modeling.config import BertConfig
from official_bert.modeling.encoder import build_encoder
from official_bert.tokenization.exact import FullTokenizer
from tests.inference.inference_samples import TEXTS, export_batches, write_texts


@pytest.fixture(scope="session")
def export_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An export whose answers identify the batch that a text was in."""
    return export_batches(tmp_path_factory.mktemp("export"))


@pytest.fixture
def texts(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A folder with the texts in all.jsonl, in three files part0.jsonl to part2.jsonl, and in all.txt, a.txt, b.txt.

    Reduces groups to four rows, so that a few texts fill several.
    """
    monkeypatch.setattr(batch_prediction, "BATCHES_AT_ONCE", 2)
    monkeypatch.setattr(batch_prediction, "_ROWS_A_DIGEST", 4)
    monkeypatch.setattr(feature_extractor, "_BATCHES_AT_A_TIME", 2)
    write_texts(tmp_path)
    for name, some in (("all", TEXTS), ("a", TEXTS[:5]), ("b", TEXTS[5:])):
        (tmp_path / f"{name}.txt").write_text("".join(f"{text}\n" for text in some))
    return tmp_path


@pytest.fixture
def tiny_encoder(tiny_config: BertConfig, vocab_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loads a tiny encoder from any folder. It is compiled once, since that takes longer than everything else."""
    loaded = ModelAndTokenizer(build_encoder(tiny_config, seed=0), tiny_config, FullTokenizer(vocab_file))
    monkeypatch.setattr(loading, "load", lambda *_, **__: loaded)
    load, extractors = feature_extraction.load_extractor, list[FeatureExtractor]()

    def load_once(options: FeatureOptions) -> FeatureExtractor:
        if not extractors:
            extractors.append(load(options))
        return extractors[0]

    monkeypatch.setattr(feature_extraction, "load_extractor", load_once)
