import itertools
import threading
import types
from collections.abc import Iterator

import pytest

from official_bert.utils import counting, progress


def set_clock(monkeypatch: pytest.MonkeyPatch, times: Iterator[float]) -> None:
    """Replaces the clock of the module, but not of other threads of the process, such as Dask's."""
    monkeypatch.setattr(progress, "time", types.SimpleNamespace(monotonic=lambda: next(times)))


def test_elapsed_time_of_long_work_is_printed_until_it_ends(monkeypatch: pytest.MonkeyPatch, capsys):
    with progress.report_elapsed_time("compiling"):
        pass
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.01)
    set_clock(monkeypatch, itertools.chain([0.0], itertools.repeat(7.0)))
    lines = ""
    before = {*threading.enumerate()}
    with progress.report_elapsed_time("compiling"):
        while lines.count(" so far\n") < 3:
            lines += capsys.readouterr().err
    assert "compiling: 7s so far\n" in lines
    with pytest.raises(ValueError, match="stop"), progress.report_elapsed_time("compiling"):
        raise ValueError("stop")
    assert {*threading.enumerate()} <= before


@pytest.mark.parametrize(("total", "begin", "done", "line"), [
    (0.84, 0, 0.0521, "0.052 of 0.84 units (6 %), 0.0052 units/s, 2:31 left"),
    (100, 10, 20, "20 of 100 units (20 %), 1 units/s, 1:20 left; loss 0.5000"),
    (3805, 0, 10, "10 of 3,805 units (0 %), 1 units/s, 1:03:15 left"),
    (77, 0, 10, "10 of 77 units (13 %), 1 units/s, 1:07 left"),
    (1_234.5, 0, 99.6, "100 of 1,234 units (8 %), 10 units/s, 1:54 left"),
    (9, 0, 10, "10 of 9 units (111 %), 1 units/s, 0s left"),  # an estimate
    (0, 0, 0, "0 of 0 units (100 %), 0 units/s, unknown left"),
])  # fmt: skip
def test_progress_shows_amounts_and_the_rate_since_the_beginning(total, begin, done, line, monkeypatch, capsys):
    set_clock(monkeypatch, iter([0.0, 50.0, 60.0, 69.0]))  # 50 seconds pass before the beginning
    working = progress.Progress("working", total, "units")
    working.begin(begin)
    working.update(done, line.partition("; ")[2])
    working.update(done)  # less than ten seconds later
    assert capsys.readouterr().err == f"working: {line}\n"


def test_amounts_are_added_up(monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.0)
    working = progress.Progress("working", 100, "units")
    for amount in (10, 20):
        working.advance(amount)
    assert [line.partition(" of")[0] for line in capsys.readouterr().err.splitlines()] == ["working: 10", "working: 30"]


@pytest.mark.parametrize(("steps", "most", "interval"), [(1, 50, 1), (19, 50, 1), (60, 50, 3), (5_000, 50, 50)])
def test_short_runs_log_more_often(steps: int, most: int, interval: int):
    assert progress.get_log_interval(steps, most) == interval


def test_the_hidden_words_of_a_list_are_counted():
    texts = [counting.join_first(["a", "b", "c", "d"][:number], 2) for number in range(5)]
    assert texts == ["", "a", "a, b", "a, b and 1 more", "a, b and 2 more"]
    assert [counting.pluralize(number, "step") for number in (0, 1, 2_000)] == ["0 steps", "1 step", "2,000 steps"]
