import dataclasses
import pathlib

import numpy as np
import pytest

from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.pretraining import scaling_law
from official_bert.pretraining.cost import parameter_count
from official_bert.pretraining.scaling_law import (
    FINAL,
    FROM_RANDOM,
    FROM_RECORDS,
    Reached,
    ScalingLaw,
    block_parameters,
)
from official_bert.utils import files
from tests.conftest import ROOT
from tools.reproduce import scaling_law as fitting

LAW = ScalingLaw(floor=0.3, slope=1.0, growth=0.2, repeats=10.0, spread=0.25, deviations=(0.05, 0.03))
MILLION, ENDLESS = 1e6, 1e12


def later(loss: float, tokens: float, parameters: float = MILLION) -> float:
    """The loss that is expected after some tokens, of a loss after two million of them."""
    return LAW.loss_later(Reached(loss, 2e6, MILLION), tokens, parameters, 6.0, ENDLESS)


def test_a_loss_falls_from_what_was_reached_to_the_floor():
    half = 6.0 * 0.65  # of the way from the unigram entropy to the floor
    assert [later(half, tokens) for tokens in (1.0, 2e6, 6e6, 1e12)] == pytest.approx(
        [6.0, half, 6.0 * (0.3 + 0.7 / 4), 6.0 * 0.3], abs=1e-4
    )
    assert later(half, 2e6, 1e7) == pytest.approx(6.0 * (0.3 * 10**-0.2 + (1 - 0.3 * 10**-0.2) / 2))
    low, high = LAW.interval(4.0)
    assert (low, high) == pytest.approx((4.0 * np.exp(-0.098), 4.0 * np.exp(0.098)))


def test_a_loss_below_the_floor_or_above_the_unigram_entropy_still_says_something():
    assert 6.0 * 0.25 * 0.9 < later(6.0 * 0.25, 1e8) < 6.0 * 0.25
    assert later(7.0, 2e6) < 6.0
    assert later(0.0, 1e8) == 0.0
    assert LAW.loss_later(Reached(0.1, 2e6, MILLION), 1e8, MILLION, 0.0, ENDLESS) == 0.1  # of one word alone


def test_two_losses_tell_the_floor_of_a_text():
    def floor(later_share: float, spread: float = 0.25) -> float:
        reached = [Reached(6.0 * 0.8, 6e5, MILLION), Reached(6.0 * later_share, 24e5, MILLION)]
        law = dataclasses.replace(LAW, spread=spread)
        found = law.of_text(reached, 6.0, ENDLESS)
        assert dataclasses.replace(found, floor=LAW.floor, deviations=LAW.deviations) == law
        assert found.deviations == (LAW.deviations[1:] if spread else LAW.deviations)
        return found.floor

    expected = LAW.loss_later(Reached(6.0 * 0.8, 6e5, MILLION), 24e5, MILLION, 6.0, ENDLESS) / 6.0
    assert floor(expected) == pytest.approx(LAW.floor, rel=0.03)
    # It lies between the law's and the one that the second loss says alone.
    alone = dataclasses.replace(LAW, floor=0.4)
    of_alone = alone.loss_later(Reached(6.0 * 0.8, 6e5, MILLION), 24e5, MILLION, 6.0, ENDLESS) / 6.0
    assert 0.35 < floor(of_alone) < 0.4
    assert floor(of_alone - 0.05) < floor(of_alone) < floor(of_alone + 0.02)
    assert floor(of_alone, spread=0.0) == LAW.floor


def test_losses_that_say_nothing_of_the_floor_leave_the_law_as_it_is():
    reached = Reached(4.0, 6e5, MILLION)
    assert LAW.of_text([reached], 6.0, ENDLESS) is LAW
    for loss in (5.95, 7.0, 0.0):  # nothing was learned of the context, or there was nothing to learn
        assert LAW.of_text([Reached(loss, 1e5, MILLION), reached], 6.0, ENDLESS) is LAW


def test_only_losses_that_tell_the_floor_make_the_bounds_narrower():
    law = dataclasses.replace(LAW, deviations=(0.05, 0.03, 0.02))
    nothing, *telling = (Reached(loss, tokens, MILLION) for loss, tokens in ((5.99, 1e5), (4.8, 6e5), (4.0, 24e5)))
    assert law.of_text([nothing, *telling], 6.0, ENDLESS).deviations == (0.03, 0.02)
    more_than_measured = [telling[0], *telling, telling[1]]
    assert law.of_text(more_than_measured, 6.0, ENDLESS).deviations == (0.02,)


def test_all_losses_of_a_text_tell_its_floor_whatever_the_size():
    first = Reached(4.8, 6e5, MILLION)
    reached = [
        first,
        *(
            Reached(LAW.loss_later(first, tokens, size, 6.0, ENDLESS), tokens, size)
            for tokens, size in ((24e5, 1e7), (1e8, 1e7))
        ),
    ]
    told = LAW.of_text(reached, 6.0, ENDLESS).floor
    assert told == pytest.approx(LAW.floor, rel=0.03)
    lower = dataclasses.replace(reached[2], loss=0.9 * reached[2].loss)
    assert LAW.of_text([*reached[:2], lower], 6.0, ENDLESS).floor < 0.98 * told


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
        {"text": str(text), "model": str(size), "kind": FINAL, "unigram_entropy": 6.0, "parameters": size,
         "text_tokens": text, "tokens": tokens, "loss": 5.0 - text / 1e7,
         "pilot": tokens < 2e6 and size < 1e6}
        for text in (2e5, 4e5, 1e7) for size in (4e5, 3e6) for tokens in (3e5, 1e6, 3e6, 1e7)
    ]  # fmt: skip
    groups = fitting.pairs(rows, FINAL)
    for share, of in zip((0.8, 1.0, 1.2), groups.values(), strict=True):  # of the law's floor that the text has
        # Each is expected from the pilots that are not longer.
        assert [(len(known), row["parameters"], row["tokens"]) for known, row in of] == [
            (1, 4e5, 1e6), (2, 4e5, 3e6), (2, 4e5, 1e7), (1, 3e6, 3e5), (2, 3e6, 1e6), (2, 3e6, 3e6), (2, 3e6, 1e7)
        ]  # fmt: skip
        ([first], second), (pilots, _), *_ = of
        assert pilots == [first, second]
        own = dataclasses.replace(LAW, floor=share * LAW.floor, spread=0.0)
        second["loss"] = fitting.expected(own, [first], second)
        for known, row in of[1:]:
            row["loss"] = fitting.expected(LAW, known, row)
    found = fitting.fit(groups, LAW.spread)
    expected_later = [pair for of in groups.values() for pair in of if len(pair[0]) == 2]
    assert np.abs(fitting.residuals(found, expected_later)).max() < 0.01
    of_one, of_two = found.deviations
    assert of_two < 0.02 < of_one


def test_a_loss_in_training_is_expected_from_each_earlier_one_of_its_run():
    rows = [
        {"text": "a", "model": model, "kind": FROM_RANDOM, "tokens": tokens}
        for model in ("BERT-Tiny", "BERT-Mini") for tokens in (1, 2, 3)
    ]  # fmt: skip
    of = fitting.pairs(rows, FROM_RANDOM)["a, BERT-Mini"]
    assert [(first["tokens"], row["tokens"]) for (first,), row in of] == [(1, 2), (1, 3), (2, 3)]
    assert {row["model"] for (first,), row in of for row in (first, row)} == {"BERT-Mini"}


@pytest.mark.parametrize("kind", [FROM_RANDOM, FROM_RECORDS, FINAL])
def test_the_laws_that_are_kept_are_the_fits_of_the_measurements(kind: str):
    rows = files.read_json_object(str(ROOT / scaling_law.LAW_FILE))["measured"]
    kept, again = (vars(law) for law in (ScalingLaw.read(kind), fitting.fit_kind(rows, kind)))
    assert kept.pop("deviations") == pytest.approx(again.pop("deviations"), rel=2e-3)
    assert kept == pytest.approx(again, rel=2e-3)


def test_a_damaged_law_is_named(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    for held, message in (
        ('{"laws": {}}', r"KeyError\('final'\)"), ('{"laws": {"final": {"floor": 1, "deviations": []}}}', "TypeError"),
    ):  # fmt: skip
        (tmp_path / "configs" / "scaling_law.json").write_text(held)
        with pytest.raises(UserError, match=rf"configs/scaling_law.json holds no law \({message}"):
            ScalingLaw.read(FINAL)
