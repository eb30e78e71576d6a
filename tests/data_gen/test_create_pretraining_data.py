"""The script with the original's name."""

import pathlib
import subprocess

import tensorflow as tf

from tests.conftest import ROOT
from tests.make import run_python


def run_script(*flags: str, folder: pathlib.Path) -> subprocess.CompletedProcess[str]:
    """Runs the script as a file from another folder, as users of the original do."""
    script = ROOT / "data_gen" / "create_pretraining_data.py"
    return run_python(script, *flags, folder=folder, environment={"PYTHONPATH": None})


def test_script_writes_records_and_prints_a_summary(short_texts: list[str], vocab_file: str, tmp_path: pathlib.Path):
    files = [f"--input_file={tmp_path}/text*.txt", f"--output_file={tmp_path}/out.tfrecord"]
    sizes = ["--max_seq_length=24", "--max_predictions_per_seq=2", "--dupe_factor=2"]
    done = run_script(*files, f"--vocab_file={vocab_file}", *sizes, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for line in ("documents", "instances", "random segments", "predictions", "padding", "[UNK]"):
        assert line in done.stdout
    assert "pass --max_predictions_per_seq=4" in done.stderr
    assert sum(1 for _ in tf.data.TFRecordDataset(f"{tmp_path}/out.tfrecord")) > 0


def test_script_reports_errors_and_writes_nothing(short_texts: list[str], vocab_file: str, tmp_path: pathlib.Path):
    flags = ["--input_file=none*.txt", f"--output_file={tmp_path}/out", f"--vocab_file={vocab_file}"]
    done = run_script(*flags, folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: --input_file: no file matches 'none*.txt'")
    assert not (tmp_path / "out").exists()
