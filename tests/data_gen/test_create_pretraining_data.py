"""The script with the original's name."""

from official_bert.data import record_reader
from tests.conftest import ROOT
from tests.make import run_python


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
