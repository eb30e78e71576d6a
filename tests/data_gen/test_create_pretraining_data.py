"""The script of the original's name."""

import pathlib
import subprocess
import sys

import tensorflow as tf

from tests.conftest import ROOT


def run_script(*flags: str, folder: pathlib.Path) -> subprocess.CompletedProcess[str]:
    """Runs the script as a file, from another folder, as users of the original do."""
    command = [sys.executable, str(ROOT / "data_gen" / "create_pretraining_data.py"), *flags]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_script_writes_records_and_prints_a_summary(short_texts: list[str], vocab_file: str, tmp_path: pathlib.Path):
    done = run_script(
        f"--input_file={tmp_path}/text*.txt",
        f"--output_file={tmp_path}/out.tfrecord",
        f"--vocab_file={vocab_file}",
        "--max_seq_length=24",
        "--max_predictions_per_seq=2",
        "--dupe_factor=2",
        folder=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    for line in ("documents", "instances", "random segments", "to be predicted", "padding", "[UNK]"):
        assert line in done.stdout
    assert "pass --max_predictions_per_seq=4" in done.stderr
    assert sum(1 for _ in tf.data.TFRecordDataset(f"{tmp_path}/out.tfrecord")) > 0


def test_script_says_what_is_wrong_and_writes_nothing(short_texts: list[str], vocab_file: str, tmp_path: pathlib.Path):
    flags = ["--input_file=none*.txt", f"--output_file={tmp_path}/out", f"--vocab_file={vocab_file}"]
    done = run_script(*flags, folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: --input_file: no file matches 'none*.txt'")
    assert not (tmp_path / "out").exists()
