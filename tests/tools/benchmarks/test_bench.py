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
    from tools.benchmarks import bench

    text = tmp_path / "text.txt"
    sentence = " ".join(word for word in WORDS if word.isalpha() and len(word) > 1)
    text.write_text(f"{sentence} .\n{sentence} ?\n\n" * 200)
    made = bench.bench_records([str(text)], vocab_file, str(tmp_path), 2, bench.ALGORITHMS)
    assert made["fast, 1 worker"] == made["fast, 2 workers"] > 100
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][1:]
    assert [row[0].removeprefix("| ") for row in rows] == list(bench.ALGORITHMS)
    assert all(float(value.replace(",", "").rstrip(" |")) > 0 for row in rows for value in row[1:4])


# matplotlib's dependencies warn when they are imported.
@pytest.mark.filterwarnings("ignore")
def test_the_pictures_of_growth_show_every_point(tmp_path: pathlib.Path):
    from tools.benchmarks import growth

    results = {
        title: {point: growth.Cost(rate=10.0 * point.batch, cpu=2.5, memory=1000.0) for point in points}
        for title, points in growth.TABLES.items()
    }
    picture = tmp_path / "growth.svg"
    growth.draw(results, str(picture))
    markers = picture.read_text().count("<use ")
    assert markers > sum(map(len, (growth.LENGTHS, growth.BATCHES, growth.MEMORY)))
    lines = growth.table("Size", results["Size, length 128, batch 16"]).splitlines()
    assert lines[-1] == "| base | 128 | 16 | no | 160.0 | 20,480 | 2.50 | 1,000 |"


def test_chips_take_as_many_records_as_their_operations_allow():
    from tools.benchmarks import feeding

    # BERT-Base's step over 256 records has 17.9 TFLOP at length 128, 77.1 at 512 (configs/eight_gpus.flagfile).
    assert feeding.taken_a_second(128, 256, 256) == pytest.approx(256 * 8 * 197e12 / 2 / 17.9e12, rel=0.01)
    assert feeding.taken_a_second(512, 256, 64) == pytest.approx(256 * 8 * 197e12 / 2 / (77.1e12 / 4), rel=0.01)
    shown = feeding.table({(128, "parsed"): feeding.Rate(wall=2000.0, cpu=1500.0, taken=3000.0)})
    assert shown.splitlines()[-1] == "| 128 | parsed | 2,000 | 1,500 | 3,000 | 2.0 |"


@pytest.mark.slow
def test_the_benchmark_of_formats_makes_the_same_records_from_each(capsys: pytest.CaptureFixture[str]):
    from tools.benchmarks import generation_formats

    names = list(generation_formats.WRITERS)
    generation_formats.main(generation_formats.Options(megabytes=1, formats=names))
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][1:]
    assert [row[0] for row in rows] == names
    assert len({row[-1] for row in rows}) == 1  # the hash of the records
    assert all(float(value) > 10 for row in rows for value in row[3:7])
