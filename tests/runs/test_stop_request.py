import io
import os
import signal
import sys

import pytest

from official_bert.optimization.distribution import get_strategy
from official_bert.runs.stop_request import StopRequest


class InterruptedFile(io.RawIOBase):
    """A file whose first write is interrupted by SIGTERM."""

    def __init__(self) -> None:
        super().__init__()
        self.content, self.is_interrupted = b"", False

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        if not self.is_interrupted:
            self.is_interrupted = True
            os.kill(os.getpid(), signal.SIGTERM)
        self.content += bytes(data)
        return len(data)


def test_a_stop_may_be_requested_while_a_line_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    file = InterruptedFile()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(file), encoding="utf-8"))
    with StopRequest(get_strategy("one_device")) as stop:
        assert not stop.is_pending()
        print("step 1", flush=True)
        assert stop.is_pending()
    assert stop.exit_code == 128 + signal.SIGTERM
    assert file.content == b"step 1\n"
    assert capsys.readouterr().err == "received SIGTERM: saving after the current steps\n"
