import threading

import pytest

from official_bert.utils import progress


def test_elapsed_time_of_long_work_is_printed_until_it_ends(monkeypatch: pytest.MonkeyPatch, capsys):
    with progress.report_elapsed_time("compiling"):
        pass
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.01)
    lines = ""
    with progress.report_elapsed_time("compiling"):
        while lines.count("compiling: 0s so far\n") < 3:
            lines += capsys.readouterr().err
    with pytest.raises(ValueError, match="stop"), progress.report_elapsed_time("compiling"):
        raise ValueError("stop")
    assert not [thread for thread in threading.enumerate() if "report" in thread.name]


def test_progress_shows_small_amounts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr("official_bert.utils.progress._SECONDS_BETWEEN_LINES", -1.0)
    progress.Progress("tokenizing", 0.84, "MB").update(0.0521)
    progress.Progress("making instances", 12_345, "blocks").update(7)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("tokenizing: 0.052 of 0.84 MB (6 %), ")
    assert lines[1].startswith("making instances: 7 of 12,345 blocks (0 %), ")


@pytest.mark.parametrize(("steps", "most", "interval"), [(1, 50, 1), (19, 50, 1), (60, 50, 3), (5_000, 50, 50)])
def test_short_runs_log_more_often(steps: int, most: int, interval: int):
    assert progress.get_log_interval(steps, most) == interval
