"""The model card of a run, and the training log that it is built from."""

import json
import math
import pathlib
import re
import sys
from typing import Any

import pytest

from official_bert.modeling.config import BertConfig
from official_bert.pretraining import summary
from official_bert.pretraining.model_card import CARD_FILE, model_card, write_model_card
from official_bert.pretraining.run_metadata import command_line, read_run_metadata, write_run_metadata
from official_bert.pretraining.summary import LoggedRun
from official_bert.runs.training_log import EVAL, TRAIN, TrainingLog, format_line, read_log

MANIFEST = {
    "made_by": "official_bert 0.1.0",
    "source": {
        "format": 1,
        "flags": {"max_seq_length": 128, "dupe_factor": 5},
        "vocabulary": "ab" * 32,
        "inputs": [{"file": "wiki.txt", "sha256": "cd" * 32}],
    },
    "shards": [{"file": "train.tfrecord", "records": 6566, "bytes": 1, "sha256": "12" * 32}],
    "statistics": {"text_documents": 131, "text_tokens": 644_926, "text_unknown": 129, "instances": 6566},
}
HELD_OUT = {**MANIFEST, "shards": [{"file": "heldout.tfrecord", "records": 99, "bytes": 1, "sha256": "34" * 32}]}
METADATA: dict[str, Any] = {
    "command": "python -m run_pretraining --do_train",
    "flags": {
        "train_batch_size": 32,
        "learning_rate": 1e-4,
        "init_checkpoint": None,
        "input_file": ["a", "b"],
        "max_seq_length": 512,
        "next_sentence_prediction": True,
        "do_lower_case": None,
        "vocab_file": None,
    },
    "config": BertConfig(30522, 128, 2, 2, 512).to_dict(),
    "parameters": 4_433_468,
    "data": [MANIFEST],
    "evaluation_data": [HELD_OUT],
    "versions": {"tensorflow": "2.21.0"},
    "devices": ["TPU:0", "TPU:1"],
    "changes": [],
}


def line(step: int, loss: float = 2.0, **others: object) -> dict[str, Any]:
    return {
        "step": step, "loss": loss + 0.5, "masked_lm_loss": loss, "masked_lm_accuracy": 0.25,
        "next_sentence_loss": 0.5, "next_sentence_accuracy": 0.75, **others,
    }  # fmt: skip


def train_line(step: int, loss: float = 2.0, **others: object) -> dict[str, Any]:
    rates = {"steps_per_second": 4.0, "examples_per_second": 128.0, "tokens_per_second": 8000.0}
    return line(step, loss, **{"learning_rate": 1e-4, "gradient_norm": 1.0, "max_seq_length": 128, **rates, **others})


def run_folder(
    path: pathlib.Path, train: list[dict[str, Any]], evaluations: list[dict[str, Any]] = (), metadata: Any = None
) -> str:
    path.mkdir()
    for kind, lines in ((TRAIN, train), (EVAL, evaluations)):
        (path / f"{kind}.jsonl").write_text("".join(map(format_line, lines)))
    if metadata is not None:
        (path / "run.json").write_text(json.dumps(metadata))
    return str(path)


def write_card(folder: str, metadata: dict[str, Any], **settings: Any) -> str:
    path = write_model_card(folder, metadata, **settings)
    assert path == f"{folder}/{CARD_FILE}"
    return pathlib.Path(path).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["/opt/run_pretraining.py", "--input_file=a b*"], "python -m run_pretraining '--input_file=a b*'"),
        (["/opt/bin/official-bert", "pretrain", "--do_eval"], "official-bert pretrain --do_eval"),
    ],
)
def test_the_command_is_kept_as_it_could_be_given_again(arguments: list[str], line: str, monkeypatch):
    monkeypatch.setattr(sys, "argv", arguments)
    assert command_line() == line


def test_run_json_is_read_back(tmp_path: pathlib.Path):
    write_run_metadata(str(tmp_path), METADATA)
    assert read_run_metadata(str(tmp_path)) == METADATA


def test_a_card_has_sizes_data_devices_scores_and_flags(tmp_path: pathlib.Path):
    folder = run_folder(tmp_path / "run", [train_line(10), train_line(20, 1.5)], [line(20, 1.75)])
    card = write_card(folder, METADATA)
    for expected in ("4,433,468", "6,566", "2 TPU", "1.7500", "--train_batch_size", "tensorflow"):
        assert expected in card
    assert "init_checkpoint" not in card


def test_sections_stand_at_the_beginning_of_the_card(tmp_path: pathlib.Path):
    folder = run_folder(tmp_path / "run", [train_line(10)], [])
    card = write_card(folder, METADATA, sections={"Words": [["word", "count"], ["cat | mat", "7"]]})
    assert card.index("## Words") < card.index("| cat \\| mat | 7 |") < card.index("## Model")


def test_a_card_of_an_empty_run_says_that_nothing_is_known(tmp_path: pathlib.Path):
    card = write_card(run_folder(tmp_path / "run", []), {**METADATA, "data": []})
    assert "Nothing was measured." in card
    assert "is unknown" in card


def test_no_text_in_the_card_is_html(tmp_path: pathlib.Path):
    hostile = '<script>alert("&")</script>'
    flags = {**METADATA["flags"], hostile: hostile}
    metadata = {**METADATA, "command": hostile, "flags": flags, "versions": {hostile: hostile}}
    folder = run_folder(tmp_path / "<b>run", [train_line(10)])
    TrainingLog(folder, None).note(5, hostile)
    card = write_card(folder, metadata)
    assert card.count("alert") == 6
    assert not re.search(r"<(script|b)>", re.sub(r"`[^`]*`", "", card))


def test_text_in_the_card_is_no_markup(tmp_path: pathlib.Path):
    folder = run_folder(tmp_path / "run_1", [train_line(10)])
    flags = {**METADATA["flags"], "a_b": "x|y*z* [_q_](r) `c`"}
    card = write_card(folder, {**METADATA, "flags": flags, "command": "echo `date`"})
    assert r"| --a_b | x\|y\*z\* \[\_q\_\](r) \`c\` |" in card
    assert "`` echo `date` ``" in card
    assert card.startswith("# run_1\n")
    for row in re.findall(r"(?:^\|.*\n)+", card, re.MULTILINE):  # all tables have equal column counts
        assert len({len(re.findall(r"(?<!\\)\|", each)) for each in row.splitlines()}) == 1


def test_the_last_and_the_best_scores_stand_in_a_table():
    evaluations = [line(10, 3.0), line(20, 1.5), line(30, math.nan), line(40, 2.0)]
    run = LoggedRun("run", [train_line(35), train_line(40, 1.0)], evaluations)
    table = summary.make_score_table(run, "masked LM")
    assert table[0] == ["score", "training, step 40", "evaluation, step 40", "best evaluation"]
    assert table[2] == ["masked LM loss (nats)", "1.0000", "2.0000", "1.5000 (step 20)"]
    assert table[3] == ["masked LM accuracy", "25.0 %", "25.0 %", "25.0 % (step 10)"]
    causal = {**METADATA, "config": {**METADATA["config"], "causal_attention": True}}
    card = model_card(run, causal, [], {})
    assert "| next token loss (nats) | 1.0000" in card
    assert "masked" not in card.lower()


def test_the_best_score_is_chosen_among_evaluations_of_the_same_records():
    evaluations = [{**line(10, 3.0), "predictions": 9}, {**line(20, 1.5), "predictions": 5}, line(30, 1.0)]
    run = LoggedRun("run", [], [*evaluations, {**line(40, 4.0), "predictions": 9}])
    table = summary.make_score_table(run, "masked LM")
    assert table[2] == ["masked LM loss (nats)", "4.0000", "3.0000 (step 10)"]


def test_amounts_count_every_step_once():
    lines = [train_line(10), train_line(15), {**train_line(20), "examples_per_second": 64.0}]
    assert summary.amounts(LoggedRun("run", lines, [])) == {
        "steps": 20, "seconds": 5.0, "examples": 15 / 4 * 128 + 5 / 4 * 64, "tokens": 40_000.0
    }  # fmt: skip


@pytest.mark.parametrize(
    ("evaluated", "expected"),
    [
        ([HELD_OUT], "Evaluated on these records:"),
        ([HELD_OUT, MANIFEST], "Evaluated on records that it was trained on (train.tfrecord)"),
        ([], "are not recorded"),
    ],
)
def test_the_card_says_when_scores_are_of_records_trained_on(evaluated: list[dict[str, Any]], expected: str):
    run = LoggedRun("run", [train_line(10)], [line(10)])
    assert expected in model_card(run, {**METADATA, "evaluation_data": evaluated}, [], {})


def test_the_card_says_which_positions_have_learnt_nothing():
    short, long = train_line(10, max_seq_length=128), train_line(20, max_seq_length=512)
    for train, expected in (([short], True), ([short, long], False)):
        card = model_card(LoggedRun("run", train, []), METADATA, [], {})
        assert ("positions from there to 512" in card) == expected


def test_a_step_logged_twice_counts_once_as_logged_last(tmp_path: pathlib.Path):
    folder = run_folder(
        tmp_path / "run", [train_line(20)], [line(10, 3.0), line(20, 9.0), line(15, 2.0), line(20, 1.0)]
    )
    found = summary.read_logged_run(folder)
    assert [(each["step"], each["masked_lm_loss"]) for each in found.eval] == [(10, 3.0), (15, 2.0), (20, 1.0)]


def test_of_many_notices_the_last_are_shown(tmp_path: pathlib.Path):
    folder = run_folder(tmp_path / "run", [train_line(100)])
    log = TrainingLog(folder, 100)
    for step in range(1, 61):
        log.note(step, f"skipped step no. {step};")
    card = write_card(folder, METADATA)
    assert "At most 50 are shown. notices.jsonl contains all." in card
    assert "no. 60;" in card
    assert "no. 11;" in card
    assert "no. 10;" not in card


def test_a_log_cut_short_by_a_kill_goes_on_in_a_new_line(tmp_path: pathlib.Path):
    folder = run_folder(tmp_path / "run", [train_line(10), train_line(20)], [line(10), line(20)])
    for kind in (TRAIN, EVAL, "notices"):
        with open(tmp_path / "run" / f"{kind}.jsonl", "a") as writer:
            writer.write('{"step": 3')
    log = TrainingLog(folder, 10)
    log.note(10, "resumed")
    log.write(EVAL, 15, line(15))
    assert [each["step"] for each in read_log(folder, TRAIN)] == [10]
    assert [each["step"] for each in read_log(folder, EVAL)] == [10, 15]
    assert read_log(folder, "notices") == [{"step": 10, "notice": "resumed"}]


def test_the_data_table_has_the_share_of_random_pairs():
    rows = summary.make_data_table({"statistics": {"random_next": 30, "instances": 40}})
    assert ["pairs labelled random (the rest: true next segments)", "75.00 %"] in rows
