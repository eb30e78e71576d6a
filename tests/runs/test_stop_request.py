"""A signal requests a stop."""

import io
import os
import signal
import sys

from official_bert.optimization.distribution import get_strategy
from official_bert.runs.stop_request import StopRequest


class InterruptedFile(io.BytesIO):
    """A file whose first write is interrupted by SIGTERM."""

    def write(self, data):
        if not self.getvalue():
            os.kill(os.getpid(), signal.SIGTERM)
        return super().write(data)


def test_a_stop_may_be_requested_while_a_line_is_printed(monkeypatch, capsys):
    file, numbers = InterruptedFile(), (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(file), encoding="utf-8"))
    with StopRequest(get_strategy("one_device")) as stop:
        assert not stop.is_pending()
        print("step 1", flush=True)
        assert stop.is_pending()
        assert signal.getsignal(signal.SIGINT) is before[1], "the next Ctrl-C ends the process"
    assert [signal.getsignal(number) for number in numbers] == before
    assert stop.exit_code == 128 + signal.SIGTERM
    stop.signal = signal.SIGINT
    assert stop.exit_code == 128 + signal.SIGINT
    stop.signal = None
    assert stop.exit_code == 128 + signal.SIGTERM, "another worker received a signal"
    assert file.getvalue() == b"step 1\n"
    assert capsys.readouterr().err == "received SIGTERM: saving after the current steps\n"
