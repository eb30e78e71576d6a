"""The benchmarks start, and measure what they say."""

import pathlib

import pytest

from tests.conftest import WORDS


@pytest.mark.slow
# Libraries that the other benchmarks compare with warn when they are imported.
@pytest.mark.filterwarnings("ignore")
def test_the_benchmark_of_records_makes_the_same_records_with_any_number_of_workers(
    vocab_file: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
    from benchmarks import bench

    text = tmp_path / "text.txt"
    sentence = " ".join(word for word in WORDS if word.isalpha() and len(word) > 1)
    text.write_text(f"{sentence} .\n{sentence} ?\n\n" * 200)
    made = bench.bench_records([str(text)], vocab_file, str(tmp_path), 2, bench.ALGORITHMS)
    assert made["fast, 1 worker"] == made["fast, 2 workers"] > 100
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][1:]
    assert [row[0].removeprefix("| ") for row in rows] == list(bench.ALGORITHMS)
    assert all(float(value.replace(",", "").rstrip(" |")) > 0 for row in rows for value in row[1:4])
