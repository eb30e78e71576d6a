"""Running commands inside the test process."""

import pathlib
from collections.abc import Callable

import pytest

import official_bert_cli

Run = Callable[..., str]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)

    def run(command: str, *arguments: str, code: int = 0) -> str:
        """Runs a command in this process, where TensorFlow is already imported, and returns its output."""
        with pytest.raises(SystemExit) as ended:
            official_bert_cli.load(command).run(arguments)
        output = capsys.readouterr()
        assert ended.value.code == code, output.err
        return output.err if code else output.out

    return run
