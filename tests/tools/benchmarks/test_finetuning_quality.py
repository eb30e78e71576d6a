import json
import pathlib

import pytest

from tools.benchmarks import finetuning_quality, measuring


def test_finished_runs_are_not_repeated_and_all_are_in_the_table(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "RTE").mkdir()
    for part in ("train", "dev"):
        rows = [f"{number}\tfirst {number}\tsecond\t{'not_' * (number % 2)}entailment" for number in range(6)]
        (tmp_path / "RTE" / f"{part}.tsv").write_text("\n".join(["index\tsentence1\tsentence2\tlabel", *rows]) + "\n")
    runs = []

    def run(command: list[str]) -> measuring.Usage:
        program, options = command[-2], json.loads(command[-1])
        lines = {
            part: pathlib.Path(options["folder"], f"{part}.tsv").read_text().splitlines() for part in ("train", "dev")
        }
        runs.append((program, options["seed"], lines))
        return measuring.Usage(9.0, 4.0 + options["seed"], 1.0, 1.0, json.dumps({"score": 0.5 + options["seed"] / 10}))

    monkeypatch.setattr(measuring, "run", run)
    monkeypatch.setattr(finetuning_quality, "CELLS", [("RTE", 5e-5)])
    options = finetuning_quality.Options(
        glue_dir=str(tmp_path), model="m", results_file=str(tmp_path / "results"), seeds=["0", "1"], rows=4, dev_rows=9
    )
    finetuning_quality.main(options)
    first, *others = runs
    assert [each[:2] for each in runs] == [("fit", 0), ("hugging_face", 0), ("fit", 1), ("hugging_face", 1)]
    assert all(each[2] == first[2] for each in others)
    assert {part: len(lines) for part, lines in first[2].items()} == {"train": 5, "dev": 7}
    for line in first[2]["dev"][1:]:
        text, second, label = line.split("\t")
        assert (second, int(label)) == ("second", int(text.split()[1]) % 2)
    table = capsys.readouterr().out
    for name in ("official_bert `fit`", "Hugging Face's Trainer"):
        assert f"| RTE, accuracy | 5e-05 | {name} | 0.550 | 0.500 | 0.500 0.600 | 4 |\n" in table
    results = pathlib.Path(options.results_file).read_text().splitlines(keepends=True)
    pathlib.Path(options.results_file).write_text("".join(results[:3]))
    finetuning_quality.main(options)
    assert [each[:2] for each in runs[4:]] == [("hugging_face", 1)]
    assert capsys.readouterr().out == table
