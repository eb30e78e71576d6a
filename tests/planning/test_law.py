import dataclasses
import pathlib

import numpy as np
import pytest

from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.pretraining import law
from official_bert.pretraining.cost import parameter_count
from official_bert.pretraining.law import FINAL, FROM_RANDOM, FROM_RECORDS, Law, block_parameters
from official_bert.utils import files
from reproduce import law as fitting
from tests.conftest import ROOT

LAW = Law(floor=0.3, scale=2e6, slope=1.0, growth=0.2, repeats=10.0, deviation=0.05)


def test_a_loss_falls_from_the_unigram_entropy_to_the_floor():
    losses = [LAW.loss(6.0, 1e6, tokens, 1e12) for tokens in (1.0, 2e6, 1e12)]
    assert losses == pytest.approx([6.0, 6.0 * 0.65, 6.0 * 0.3], abs=1e-4)
    assert LAW.loss(6.0, 1e7, 2e6, 1e12) < losses[1]  # a larger model comes there sooner
    low, high = LAW.interval(4.0)
    assert (low, high) == pytest.approx((4.0 * np.exp(-0.098), 4.0 * np.exp(0.098)))


def test_repeated_text_is_worth_less_than_new_text():
    assert LAW.worth(5e5, 1e6) == 5e5  # a part of it is not repeated
    assert LAW.worth(2e6, 1e6) == pytest.approx(1e6 + 1e7 * (1 - np.exp(-0.1)))
    assert LAW.worth(1e12, 1e6) == pytest.approx(1.1e7)


def test_the_weights_of_blocks_are_those_of_the_model_without_embeddings_and_heads():
    configs = [BertConfig(vocab_size=100, num_hidden_layers=layers) for layers in (3, 5)]
    first, second = map(parameter_count, configs)
    assert block_parameters(configs[1]) * 2 == (second - first) * 5


def test_a_fit_finds_the_law_that_made_the_measurements():
    rows = [
        {"run": f"{text} {size}", "kind": FINAL, "unigram_entropy": 6.0, "parameters": size, "text_tokens": text,
         "tokens": tokens}
        for text in (2e5, 1e7) for size in (4e5, 3e6) for tokens in (3e5, 1e6, 3e6, 1e7)
    ]  # fmt: skip
    for row in rows:
        row["loss"] = fitting.expected(LAW, row)
    found = fitting.fit(rows)
    assert np.abs(fitting.residuals(found, rows)).max() < 0.01
    assert found.deviation < 0.02


@pytest.mark.parametrize("kind", [FROM_RANDOM, FROM_RECORDS, FINAL])
def test_the_laws_that_are_kept_are_the_fits_of_the_measurements(kind: str):
    rows = files.read_json_object(str(ROOT / law.LAW_FILE))["measured"]
    again = fitting.fit(fitting.measured(rows, kind))
    assert dataclasses.astuple(Law.read(kind)) == pytest.approx(dataclasses.astuple(again), rel=2e-3)


def test_a_damaged_law_is_named(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "law.json").write_text('{"laws": {}}')
    with pytest.raises(UserError, match=r"configs/law.json holds no law \(KeyError\('final'\)\)"):
        Law.read(FINAL)
