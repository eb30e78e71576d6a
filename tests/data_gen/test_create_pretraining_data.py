"""The script with the original's name."""

import concurrent.futures
import signal

import pytest

from official_bert.data import record_reader
from official_bert.utils.signals import print_if_stopped
from tests.conftest import ROOT
from tests.make import run_python

_STOP = """
import os
from data_gen import commands
from data_gen.pipelines import one_machine
from official_bert.utils import signals
one_machine.create_pretraining_data = lambda options: os.kill(os.getpid(), {})
with signals.exit_codes():
    commands.MAKE_RECORDS.main(commands.RecordOptions(["text"], ["records"], "vocab"), commands.DaskOptions())
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_a_stopped_command_tells_how_to_resume(number, code, tmp_path):
    done = run_python("-c", _STOP.format(int(number)))
    assert (done.returncode, "the same command again to resume\n" in done.stderr) == (code, True), done.stderr


def test_only_handlers_that_can_be_restored_are_replaced(monkeypatch):
    changes = []
    monkeypatch.setattr(signal, "signal", lambda *change: changes.append(change))

    def run(before):
        monkeypatch.setattr(signal, "getsignal", lambda _: before)
        with print_if_stopped("a hint"):
            pass

    for before in (None, signal.SIG_IGN):
        run(before)
    with concurrent.futures.ThreadPoolExecutor() as threads:
        threads.submit(run, signal.SIG_DFL).result()
    assert not changes
    run(signal.SIG_DFL)
    assert len(changes) == 2


def test_script_writes_records_and_prints_a_summary(short_texts, vocab_file, tmp_path):
    """It runs as a file from another folder, as for users of the original."""
    files = [
        f"--input_file={tmp_path}/text*.txt",
        f"--output_file={tmp_path}/out.tfrecord",
        f"--vocab_file={vocab_file}",
    ]
    sizes = ["--max_seq_length=24", "--max_predictions_per_seq=2", "--dupe_factor=2"]
    script = ROOT / "data_gen" / "create_pretraining_data.py"
    done = run_python(script, *files, *sizes, folder=tmp_path, environment={"PYTHONPATH": None})
    assert done.returncode == 0, done.stderr
    for line in ("documents", "instances", "random segments", "predictions", "padding", "[UNK]"):
        assert line in done.stdout
    assert "--max_predictions_per_seq=4" in done.stderr
    assert record_reader.count_records(f"{tmp_path}/out.tfrecord") > 0
