"""Output of inspect-records."""

import pathlib
import re
import subprocess
import sys

import pytest

from data_gen.inspection.overview import inspect
from data_gen.options import InspectionOptions
from official_bert.errors import UserError
from tests.conftest import ROOT, WORDS
from tests.data_gen.inspection.record_samples import CAT, DOG, THE, UNMASKED, good, keep_tokens, write
from tests.make import flip_bits, refusal


def test_records_are_printed_as_text(vocab_file: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]):
    path = write(tmp_path / "x", [good(), keep_tokens(), good()])
    inspect(InspectionOptions([path], vocab_file, num_records=2))
    assert capsys.readouterr().out.split("\n\n")[:2] == [
        (
            f"{path}, record 0 (from 0)\n"
            "  next sentence: b comes from elsewhere (1)\n"
            "  7 tokens, 3 positions of padding\n"
            "  2 predictions: 1 [MASK], 0 kept, 1 random\n"
            "  a: [CLS] the [MASK]{cat} [SEP]\n"
            "  b: dog{sat} sat [SEP]"
        ),
        (
            f"{path}, record 1 (from 0)\n"
            "  next sentence: b follows a in the text (0)\n"
            "  7 tokens, 3 positions of padding\n"
            "  2 predictions: 1 [MASK], 1 kept, 0 random\n"
            "  a: [CLS] the [MASK]{cat} [SEP]\n"
            "  b: sat{sat} sat [SEP]"
        ),
    ]


def test_statistics_cover_all_records(vocab_file: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]):
    write(tmp_path / "0.tfrecord", [good()] * 1999)  # more than are read in one batch
    write(tmp_path / "1.tfrecord", [keep_tokens()])
    inspect(InspectionOptions([str(tmp_path / "*.tfrecord")], vocab_file, num_records=0))
    told = capsys.readouterr().out
    for line in (
        "records           2,000 of 10 positions",
        "tokens            14,000, 7.0 per record, including [CLS] and [SEP]",
        "padding           30.0 % of all positions",
        "unknown           0.00 % of the tokens of text are [UNK]",
        "random segments   100.0 % of the records",
        "predictions       4,000, 2.0 per record",
        "50.0 % of the tokens of text",
        "[MASK]          50.0 % of these",
        "random          50.0 % of these",
        "          7         2,000 100.0 %  " + 40 * "#",
        "          2 100.0 %  " + 40 * "#",
        "          5   0.0 %",
        "          2,000  50.0 %  cat",
    ):
        assert re.search(f"^ *{re.escape(line.strip())}$", told, re.MULTILINE), line


def test_unmasked_records_are_printed(vocab_file: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]):
    path = write(tmp_path / "x", [{**good(), "input_ids": [2, THE, CAT, 3, DOG, DOG, 3, 0, 0, 0]}], UNMASKED)
    inspect(InspectionOptions([path], vocab_file, report=str(tmp_path / "report.html")))
    told = capsys.readouterr().out
    assert "  a: [CLS] the cat [SEP]\n  b: dog dog [SEP]" in told
    assert "predictions       chosen during training: the records are not masked" in told
    assert "Most predicted" not in told
    assert "chosen during training" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_damaged_records_and_a_different_vocabulary_are_reported(tmp_path: pathlib.Path, vocab_file: str):
    (tmp_path / "small.txt").write_text("\n".join(WORDS[:DOG]), encoding="utf-8")
    path = write(tmp_path / "x", [good()])
    with pytest.raises(UserError, match=rf"x: record 0 \(from 0\): input_ids contains {DOG}.*another --vocab_file"):
        inspect(InspectionOptions([path], str(tmp_path / "small.txt")))
    flip_bits(path, 100)
    assert "x: record 0 (from 0), near byte 12, is corrupted" in refusal(inspect, InspectionOptions([path], vocab_file))


def test_a_report_over_an_input_is_refused(vocab_file: str, tmp_path: pathlib.Path):
    path = write(tmp_path / "x", [good()])
    before = pathlib.Path(path).read_bytes()
    (tmp_path / "link").symlink_to(path)
    for report in (path, str(tmp_path / "link"), vocab_file):
        assert "which is an input" in refusal(inspect, InspectionOptions([path], vocab_file, report=report))
    assert pathlib.Path(path).read_bytes() == before
    assert "--num_records is -1" in refusal(InspectionOptions, [path], vocab_file, num_records=-1)


@pytest.mark.slow
def test_closed_output_pipe_ends_the_command_silently(vocab_file: str, tmp_path: pathlib.Path):
    path, report = write(tmp_path / "x", [good()] * 2000), tmp_path / "report.html"
    flags = f"--input_file={path} --vocab_file={vocab_file} --num_records=2000 --report={report}"
    command = f"{sys.executable} -m official_bert_cli inspect-records {flags} | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == f"{path}, record 0 (from 0)\n"
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr
