"""What a step takes at least, from counts and published rates."""

import pytest

from official_bert.errors import UserError
from tests.conftest import ROOT
from tools.tpu_check import command, scaling
from tools.tpu_check.answers import Compiled, Refused
from tools.tpu_check.compiler import OutOfTimeError

STEP = Compiled("TPU v5 lite", 197e9, 1638e6, 2**30, 2**20, [("all-reduce", 2, 400_000_000)])


def test_seconds_are_counts_by_published_rates():
    seconds = scaling.seconds_of_step(STEP, chips=8)
    assert (seconds.operations, seconds.traffic) == pytest.approx((1e-3, 2e-3))
    assert seconds.variables == pytest.approx(2 * 2**20 / 819e9)
    assert seconds.exchange == pytest.approx(2 * 0.4e9 * 7 / 8 / 200e9)
    assert (seconds.least, seconds.accounted) == pytest.approx((3.5e-3, 5.5e-3))
    assert scaling.seconds_of_step(STEP, chips=1).exchange == 0.0


def test_a_run_is_the_steps_of_both_phases():
    short, long = scaling.rows_of("base", 8, [(1, STEP), (4, STEP)])
    assert short == (
        "base", "8", "128", "32", "0.197", "1.6", "400", "1.00", "1.00", "2.00", "3.50", "3.50 - 5.50", ""
    )  # fmt: skip
    assert long[2:4] == ("512", "4 x 8")
    assert long[-1] == "3,500 - 5,500"  # a million of them
    assert len(short) == len(long) == len(scaling.HEAD)


def test_what_is_not_known_is_said():
    rows = scaling.rows_of("large", 64, [(4, Refused(2**34, 2**33)), (1, STEP)])
    assert rows[0][-2:] == ("does not fit: needs 16.00 GiB of 8.00", "")
    assert rows[1][-1] == "-"
    assert {len(row) for row in rows} == {len(scaling.HEAD)}


def test_every_model_number_of_chips_and_phase_is_compiled(monkeypatch, capsys):
    asked = []

    class FakeTpu:
        def __init__(self, topology, time_limit):
            self.topology = topology

        def compiled(self, step, batch, quickly):
            asked.append((self.topology, batch))
            if len(asked) == 5:
                raise OutOfTimeError
            return STEP if len(asked) != 2 else Refused(2**34, 2**33)

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(command, "StepCompiler", FakeTpu)
    monkeypatch.setattr("tools.tpu_check.steps.pretraining_step", lambda *_: (None, 0))
    assert scaling.run(scaling.Options(["configs/models/uncased_L-2_H-128_A-2.json"], ["8", "256"])) == 1
    assert asked == [("v5e:2x4", 32)] * 3 + [("v5e:16x16", 1)] * 2
    printed = capsys.readouterr().out
    assert "| uncased_L-2_H-128_A-2 | 8 | 512 | 2 x 16 |" in printed  # in one piece it does not fit
    assert "| uncased_L-2_H-128_A-2 | 256 | 512 | 1 |" in printed
    assert "not known: out of time" in printed
    assert printed.endswith(f"{scaling.ASSUMPTIONS}\n")


def test_chips_must_share_the_sequences_of_a_step():
    with pytest.raises(UserError, match="--chips names 100; expected divisors of 256"):
        scaling.Options(chips=["100"])
