"""The script with the original's name."""

import signal

import pytest

from official_bert.data import record_reader
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
    assert "pass --max_predictions_per_seq=4" in done.stderr
    assert record_reader.count_records(f"{tmp_path}/out.tfrecord") > 0
