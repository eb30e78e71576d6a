"""The script with the original's name."""

import concurrent.futures
import signal

import pytest

from official_bert.data import record_reader
from official_bert.utils.signals import print_if_stopped
from tests.make import ROOT, run_python

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

    def count_changes(before):
        monkeypatch.setattr(signal, "getsignal", lambda _: before)
        with print_if_stopped("a hint"):
            return len(changes)

    with concurrent.futures.ThreadPoolExecutor() as threads:
        assert threads.submit(count_changes, signal.SIG_DFL).result() == 0
    assert [count_changes(before) for before in (None, signal.SIG_IGN, signal.SIG_DFL)] == [0, 0, 1]
    assert len(changes) == 2


def test_script_writes_records_and_prints_a_summary(short_texts, vocab_file, tmp_path):
    """It runs as a file from another folder, as for users of the original."""
    flags = f"--input_file=text*.txt --output_file=out.tfrecord --vocab_file={vocab_file} --max_seq_length=24"
    command = [ROOT / "data_gen" / "create_pretraining_data.py", *flags.split(), "--max_predictions_per_seq=2"]
    done = run_python(*command, folder=tmp_path, environment={"PYTHONPATH": None}, check=True)
    for line in ("documents", "instances", "random segments", "predictions", "padding", "[UNK]"):
        assert line in done.stdout
    assert "--max_predictions_per_seq=4" in done.stderr
    assert record_reader.count_records(f"{tmp_path}/out.tfrecord") > 0
