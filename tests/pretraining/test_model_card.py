"""The model card of a run, and the training log that it is built from."""

import math
import re
import sys
from unittest import mock

from official_bert.modeling.config import BertConfig
from official_bert.pretraining import summary
from official_bert.pretraining.model_card import CARD_FILE, model_card, write_model_card
from official_bert.pretraining.run import write_report
from official_bert.pretraining.run_metadata import command_line, read_run_metadata, write_run_metadata
from official_bert.runs.training_log import EVAL, GENERAL, TRAIN, TrainingLog, format_line
from tests.make import write_text

STATISTICS = {"text_documents": 131, "text_tokens": 644_926, "text_unknown": 129, "instances": 80, "random_next": 60}
SOURCE = {"flags": {"dupe_factor": 5}, "vocabulary": "ab" * 32, "inputs": [{"file": "wiki.txt"}]}
SHARD = {"file": "train.tfrecord", "records": 6566, "sha256": "12"}
MANIFEST = {"made_by": "official_bert 0.1.0", "source": SOURCE, "shards": [SHARD], "statistics": STATISTICS}
HELD_OUT = {**MANIFEST, "shards": [{"file": "heldout.tfrecord", "records": 99, "sha256": "34"}]}
FLAGS = {"train_batch_size": 32, "learning_rate": 1e-4, "max_seq_length": 512, "next_sentence_prediction": True}
FLAGS |= {"init_checkpoint": None, "do_lower_case": None, "vocab_file": None, "input_file": ["a", "b"]}
METADATA = {
    "command": "python -m run_pretraining --do_train",
    "flags": FLAGS,
    "config": BertConfig(30522, 128, 2, 2, 512).to_dict(),
    "parameters": 4_433_468,
    "data": [MANIFEST],
    "records": {"1": [{"file": "train.tfrecord", "bytes": 9, "sha256": "12"}]},
    "evaluation_data": [HELD_OUT],
    "versions": {"tensorflow": "2.21.0"},
    "devices": ["TPU:0", "TPU:1"],
    "changes": [],
}
RATES = {"steps_per_second": 4.0, "examples_per_second": 128.0, "tokens_per_second": 8000.0}


def line(step, loss=2.0, **others):
    scores = {"loss": loss + 0.5, "masked_lm_loss": loss, "masked_lm_accuracy": 0.25}
    return {"step": step, **scores, "next_sentence_loss": 0.5, "next_sentence_accuracy": 0.75, **others}


def train_line(step, loss=2.0, **others):
    return line(step, loss, **{"learning_rate": 1e-4, "gradient_norm": 1.0, "max_seq_length": 128, **RATES, **others})


def write_card(folder, notices=(), **changes):
    """Writes the card of a run with a line of training and notices."""
    write_text(folder / "train.jsonl", format_line(train_line(10)))
    log = TrainingLog(str(folder), None)
    for step, notice in notices:
        log.note(step, notice)
    assert write_model_card(str(folder), {**METADATA, **changes}) == f"{folder}/{CARD_FILE}"
    return (folder / CARD_FILE).read_text(encoding="utf-8")


def make_card(train=(), evaluations=(), sections=(), **changes):
    return model_card("run", make_logs(train, evaluations), {**METADATA, **changes}, [], dict(sections))


def make_logs(train=(), evaluations=(), general=()):
    return {TRAIN: train, EVAL: evaluations, GENERAL: general}


def test_the_stored_command_can_be_run_again(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/opt/run_pretraining.py", "--input_file=a b*"])
    assert command_line() == "python -m run_pretraining '--input_file=a b*'"
    monkeypatch.setattr(sys, "argv", ["/opt/bin/official-bert", "pretrain", "--do_eval"])
    assert command_line() == "official-bert pretrain --do_eval"


def test_a_card_has_sizes_data_devices_scores_and_flags():
    card = make_card([train_line(10), train_line(20, 1.5)], [line(20, 1.75)])
    assert all(each in card for each in ("4,433,468", "6,566", "2 TPU", "1.7500", "--train_batch_size", "tensorflow"))
    assert re.search(r"pairs labelled random \(the rest: true next segments\) +\| 75.00 %", card)
    assert "init_checkpoint" not in card
    assert "Nothing was measured." in make_card()


def test_the_card_lists_every_file_that_was_read_and_those_without_a_manifest():
    first, *others = ({"file": name, "bytes": 9, "sha256": None} for name in "abcde")
    files = {"1": [first, *METADATA["records"]["1"], first, *others], "2": others[:3]}
    card = make_card(data=[], records=files)
    rows = ["1 | a | 2 | no", "1 | train.tfrecord | 1 | yes", "1 | b to e (4 files) | 1 | no", "2 | b, c, d | 1 | no"]
    assert re.findall(r"^\| (\d .*) \|$", card, re.MULTILINE)[:4] == rows
    assert "8 files have no manifest." in card
    assert "\n1 file has no manifest." in make_card(records={"1": [first, first]})
    assert "no manifest" not in make_card()


def test_extra_sections_are_at_the_beginning_of_the_card():
    card = make_card([train_line(10)], sections={"Words": [["word", "count"], ["cat | mat", "7"]]})
    assert card.index("## Words") < card.index("| cat \\| mat | 7 |") < card.index("## Model")


def test_html_is_escaped_in_the_card(tmp_path):
    hostile = '<script>alert("&")</script>'
    changes = {"command": hostile, "flags": {**FLAGS, hostile: hostile}, "versions": {hostile: hostile}}
    card = write_card(tmp_path / "<b>run", [(5, hostile)], **changes)
    assert card.count("alert") == 6
    assert not re.search(r"<(script|b)>", re.sub(r"`[^`]*`", "", card))


def test_markdown_is_escaped_in_the_card(tmp_path):
    card = write_card(tmp_path / "run_1", flags={**FLAGS, "a_b": "x|y*z* [_q_](r) `c`"}, command="echo `date`")
    assert r"| --a_b | x\|y\*z\* \[\_q\_\](r) \`c\` |" in card
    assert "`` echo `date` ``" in card
    assert card.startswith("# run_1\n")
    for rows in re.findall(r"(?:^\|.*\n)+", card, re.MULTILINE):  # all tables have equal column counts
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows.splitlines()}) == 1


def test_the_card_has_a_table_of_the_last_and_best_scores():
    scores = ((20, 1.5, 0.5), (30, math.nan, 0.75), (40, 2.0, 0.125))
    evaluations = [line(10, 3.0), *(line(step, loss, masked_lm_accuracy=value) for step, loss, value in scores)]
    train = [train_line(35), train_line(40, 1.0)]
    table = summary.make_score_table(make_logs(train, evaluations, [line(30, 5.0)]), "masked LM")
    titles = ["training, step 40", "evaluation, step 40", "best evaluation", "general text, step 30"]
    assert table[0] == ["score", *titles]
    assert table[2] == ["masked LM loss (nats)", "1.0000", "2.0000", "1.5000 (step 20)", "5.0000"]
    assert table[3] == ["masked LM accuracy", "25.0 %", "12.5 %", "75.0 % (step 30)", "25.0 %"]
    # The best score is chosen among the evaluations of the same records as the last one.
    lines = [line(10, 3.0, predictions=9), line(20, 1.5, predictions=5), line(30, 1.0), line(40, 4.0, predictions=9)]
    table = summary.make_score_table(make_logs(evaluations=lines), "masked LM")
    assert table[2] == ["masked LM loss (nats)", "4.0000", "3.0000 (step 10)"]
    card = make_card(train, evaluations, config={**METADATA["config"], "causal_attention": True})
    assert "| next token loss (nats) | 1.0000" in card
    assert "masked" not in card.lower()


def test_totals_count_every_step_once():
    train = [train_line(10), train_line(15), train_line(20, examples_per_second=64.0)]
    expected = {"steps": 20, "seconds": 5.0, "examples": 15 / 4 * 128 + 5 / 4 * 64, "tokens": 40_000.0}
    assert summary.compute_amounts(train) == expected


def test_the_card_warns_if_scores_are_for_training_records():
    own = ([HELD_OUT, MANIFEST], "Evaluated on records that it was trained on (train.tfrecord)")
    for evaluated, expected in (own, ([HELD_OUT], "Evaluated on these records:"), ([], "are not recorded")):
        assert expected in make_card([train_line(10)], [line(10)], evaluation_data=evaluated)


def test_a_later_evaluation_replaces_only_the_evaluation_data_of_the_run(tmp_path):
    folder, now = str(tmp_path), {**METADATA, "flags": {}, "evaluation_data": [MANIFEST]}
    write_run_metadata(folder, METADATA)
    write_report(mock.Mock(options=mock.Mock(output_dir=folder, do_train=False), metadata=now))
    assert read_run_metadata(folder) == {**METADATA, "evaluation_data": [MANIFEST]}


def test_the_card_warns_about_untrained_positions():
    short, long = train_line(10), train_line(20, max_seq_length=512)
    assert "positions from there to 512" in make_card([short])
    card = make_card([short, train_line(15), long])
    assert "positions from there to 512" not in card
    phases = [("1", "length 128, up to step 15"), ("2", "length 512, up to step 20")]
    assert re.findall(r"^\| phase (\d) \| (.*) \|$", card, re.MULTILINE) == phases
    card = make_card([short], [line(10)], flags={**FLAGS, "init_checkpoint": "model"})
    assert "It started from trained weights" in card
    assert not re.search(r"positions from there|\| phase 1 \||was not evaluated", card)


def test_the_card_describes_the_text_the_objectives_and_the_changes():
    texts = {(True, None): "lower-cased, without accents,", (True, False): "lower-cased, with accents,"}
    for (do_lower_case, strip_accents), expected in {**texts, (False, None): "not lower-cased"}.items():
        flags = {"vocab_file": "vocab.txt", "do_lower_case": do_lower_case, "strip_accents": strip_accents}
        assert f"Text is {expected} and split" in make_card(flags={**FLAGS, **flags})
    assert "predict masked tokens and next sentences." in make_card()
    without = {**MANIFEST, "source": {**SOURCE, "flags": {"sentence_objective": "none"}}}
    card = make_card(data=[without], changes=[{"step": 1000, "option": "dtype", "before": "a", "now": "b"}])
    assert "predict masked tokens. It" in card
    assert "- from step 1,000: --dtype was 'a' and is 'b'" in card
    assert "It was not evaluated in this run." in card


def test_the_last_log_line_of_a_repeated_step_counts(tmp_path):
    evaluations = [line(10, 3.0), line(20, 9.0), line(15, 2.0), line(20, 1.0)]
    write_text(tmp_path / "eval.jsonl", "".join(map(format_line, evaluations)))
    found = summary.read_logs(str(tmp_path))
    assert [(each["step"], each["masked_lm_loss"]) for each in found[EVAL]] == [(10, 3.0), (15, 2.0), (20, 1.0)]


def test_only_the_last_notices_are_shown(tmp_path):
    card = write_card(tmp_path / "run", [(step, f"skipped step no. {step};") for step in range(1, 61)])
    assert "At most 50 are shown. notices.jsonl contains all." in card
    assert re.findall(r"no\\?. (\d+);", card) == [str(step) for step in range(11, 61)]
