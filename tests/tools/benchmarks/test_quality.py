"""The contest of programs: what ours runs, and the table; a whole contest at the smallest size is slow."""

import dataclasses
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from official_bert.errors import UserError
from official_bert.utils import allocator, files
from tests.conftest import ROOT
from tools.benchmarks import quality, quality_peers, quality_recipe
from tools.benchmarks.quality_recipe import INGREDIENTS, Recipe


def options(**flags: Any) -> quality.Options:
    return quality.Options(input_file=["a"], heldout_file=["b"], output_dir="c", **flags)


def lines(recipe: Recipe, steps: list[int]) -> list[dict[str, Any]]:
    """The flags of our commands."""
    folders = {"shared": pathlib.Path("shared"), "run": pathlib.Path("run")}
    records, trainings = quality.our_lines(recipe, quality_recipe.SIZES["tiny"], 64, steps, 2, 1, folders)
    return [flags for _, flags in records + trainings]


def test_the_folder_of_a_run_can_stand_in_a_list_of_files():
    names = [run.name for run in quality.runs_of(options(thirds=True))]
    assert len(names) == len(set(names)) == 12
    assert not any(mark in name for name in names for mark in ", ")


def test_the_recipe_is_one_phase_that_begins_from_counts():
    records, training = lines(Recipe(), [800])
    assert (records["masked_lm_prob"], records["max_predictions_per_seq"], records["dupe_factor"]) == (0.2, 13, 2)
    assert training["init_from_records"] is True
    assert (training["num_train_steps"], training["num_warmup_steps"]) == (800, 100)
    assert training["next_sentence_prediction"] is True
    assert (training["dtype"], training["jit_compile"]) == ("float32", True)


def test_a_second_phase_goes_on_from_the_first():
    _, _, first, last = lines(
        Recipe(init_from_records=False, short_share=0.5, next_sentence=False, dtype="bfloat16"), [900, 100]
    )
    assert (first["max_seq_length"], last["max_seq_length"]) == (16, 64)
    assert (first["dtype"], last["dtype"]) == ("bfloat16", "bfloat16")
    assert (first["jit_compile"], last["jit_compile"]) == (False, False)
    assert first["learning_rate"] == first["end_learning_rate"]
    assert last["init_checkpoint"] == first["output_dir"]
    assert not any("init_from_records" in each or each["next_sentence_prediction"] for each in (first, last))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_run_is_measured_and_trained_in_its_precision(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, dtype: str
):
    asked, lines = [], []

    def peer(function: str, _: object, arguments: dict[str, Any]) -> tuple[float, Any]:
        asked.append((function, arguments["dtype"], arguments["next_sentence"]))
        return 40.0, {"imports": 5.0, "starts": [9.0], "steps": [0.5]}

    def run(command: str, _: object, **flags: Any) -> float:
        lines.append((command, flags))
        return 1.0

    monkeypatch.setattr(quality, "_peer", peer)
    monkeypatch.setattr(quality, "_run", run)
    for name, content in {"vocab.txt": "[PAD]\n[UNK]\n", "text.txt": "a text.\n"}.items():
        (tmp_path / name).write_text(content)
    recipe = dataclasses.asdict(Recipe(dtype=dtype, next_sentence=False))
    quality.official_bert(quality.Run("official_bert", 1, 5.0, "tiny", 64, recipe, "ours"), tmp_path, tmp_path)
    assert asked == [("speed", dtype, False)]
    command, flags = lines[-1]
    assert (command, flags["dtype"]) == ("pretrain", dtype)
    assert flags["num_train_steps"] == int((300 * 0.98 - 41 - 14) / 0.5)


def test_the_speed_is_measured_for_each_part(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(allocator, "tune_allocator", lambda: None)
    monkeypatch.setattr(quality_peers, "_SECONDS_OF_CALL", 0.01)
    config = dataclasses.replace(quality_recipe.SIZES["tiny"].config(50, 8), hidden_size=8, intermediate_size=16)
    (tmp_path / "bert_config.json").write_text(config.to_json())
    parts = [{"length": length, "predictions": 2, "masked_share": 0.2} for length in (4, 8)]
    speed = quality_peers.speed({
        "config": str(tmp_path / "bert_config.json"), "dtype": "float32", "next_sentence": True, "parts": parts,
    })  # fmt: skip
    assert len(speed["starts"]) == len(speed["steps"]) == 2
    assert all(0 < step < start for step, start in zip(speed["steps"], speed["starts"], strict=True))


def test_steps_fill_what_starts_leave_of_the_budget():
    speed = {"imports": 5.0, "starts": [5.0, 10.0], "steps": [0.01, 0.1]}
    assert quality.our_steps(125.0, Recipe(short_share=0.25), speed) == [2500, 750]


def test_ingredients_differ_from_the_recipe_in_what_they_name():
    runs = quality.runs_of(options(ingredients=True, seeds=["1"]))
    assert [run.title for run in runs] == list(INGREDIENTS)
    recipe = dataclasses.asdict(Recipe())
    assert runs[0].settings == recipe
    assert runs[-1].settings == {**recipe, "dtype": "bfloat16"}
    assert all(run.settings != recipe for run in runs[1:])


def test_unknown_programs_are_refused():
    with pytest.raises(UserError, match="--programs names fairseq; expected some of official_bert"):
        options(programs=["fairseq"])


def result(title: str, seed: int, seconds: float, loss: float) -> dict[str, Any]:
    scores = {"loss": loss, "accuracy": 0.25}
    return {
        "run": {"title": title, "seed": seed}, "processor_seconds": seconds, "steps": 100, "step_seconds": 0.1,
        "rate": 1e-3, "heldout": {"pairs": scores, "whole": scores},
    }  # fmt: skip


def test_the_table_has_means_and_says_what_reached_the_best_of_the_others():
    results = [
        result("official_bert", 1, 300, 4.0), result("official_bert", 2, 300, 4.2),
        result("official_bert, a third of the time", 1, 100, 4.8),
        result("hugging_face", 1, 300, 5.0), result("keras_hub", 1, 299, 5.5),
    ]  # fmt: skip
    row = quality.table(results).splitlines()[2]
    assert row.startswith("| official_bert | 2 | 300 | 100 | 100.0 ± 0.0 | 0.001 | 4.100 ± 0.141 | 25.0 ± 0.0 |")
    assert quality.summary(results) == (
        "the best of the others, hugging_face, came to 5.000 in 300 CPU-seconds; reached by official_bert, a third "
        "of the time in 100 CPU-seconds"
    )


def test_the_tasks_are_tags_and_a_part_of_sst_2(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    phrases, shared = tmp_path / "glue" / "SST-2", tmp_path / "shared"
    phrases.mkdir(parents=True)
    shared.mkdir()
    (phrases / "train.tsv").write_text("sentence\tlabel\n" + "good\t1\n" * 5000)
    (phrases / "dev.tsv").write_text("sentence\tlabel\nbad\t0\n")
    for name in ("train", "dev"):
        (tmp_path / f"{name}.conllu").write_text(f"of {name}\n")

    def run(command: str, folder: pathlib.Path, *, task: str, output_dir: pathlib.Path, **flags: Any) -> float:
        assert (command, flags["init"], flags["data_dir"]) == ("finetune", tmp_path / "model", shared / task)
        output_dir.mkdir()
        score = {"tagging": 0.8, "sst-2": 0.7}[task]
        files.write_text(str(output_dir / "results.json"), f'{{"dev": {{"accuracy": {score}}}}}')
        return 0.0

    monkeypatch.setattr(quality, "_run", run)
    given = options(
        tasks=True, tagged_train=str(tmp_path / "train.conllu"), tagged_eval=str(tmp_path / "dev.conllu"),
        glue_dir=str(tmp_path / "glue"),
    )  # fmt: skip
    assert quality._tasks(given, shared, tmp_path) == {"tagging": 0.8, "sst-2": 0.7}
    assert (shared / "sst-2" / "train.tsv").read_text().count("good\t1\n") == 4000
    assert (shared / "tagging" / "dev.conllu").read_text() == "of dev\n"


@pytest.mark.slow
def test_every_program_runs_to_its_end_and_the_converted_weights_score_as_their_own_do(tmp_path: pathlib.Path):
    text = "\n\n".join(
        "\n".join(f"the cat {n} sat on the mat {n * k} . a dog ran ." for n in range(9)) for k in range(40)
    )
    (tmp_path / "text.txt").write_text(text)
    command = [
        sys.executable, "-m", "tools.benchmarks.quality", f"--input_file={tmp_path}/text.txt", "--minutes=0.01",
        "--seeds=1", f"--heldout_file={tmp_path}/text.txt", f"--output_dir={tmp_path}/out", "--vocab_size=60",
        "--max_seq_length=16", "--learning_rates=1e-3", '--recipe={"init_from_records": false}',
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for program in ("hugging_face", "keras_hub"):
        held = files.read_json_object(str(tmp_path / "out" / f"{program}-tiny-0.01-1.json"))
        assert held["own_loss"] == pytest.approx(held["heldout"]["pairs_with_segments"], abs=1e-3)
    assert "| official_bert | 1 |" in done.stdout
