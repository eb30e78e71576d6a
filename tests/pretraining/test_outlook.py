import json
import math
import pathlib
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.pretraining import outlook, training
from official_bert.pretraining.outlook import Outlook
from official_bert.pretraining.scaling_law import FROM_RANDOM, FROM_RECORDS, Reached, ScalingLaw, block_parameters
from official_bert.utils.training_log import NOTICES, TRAIN, line_of, read_log
from tests.pretraining.pretraining_runs import options_for

ENTROPY = 7.0
# Large enough that no loss here is near the floor, where the law bounds it.
CONFIG = BertConfig(vocab_size=100, hidden_size=64, num_hidden_layers=2, num_attention_heads=1, intermediate_size=256)


def outlook_of(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, losses: dict[int, float], **changes: Any):
    """The outlook of a run of 4,000 steps with these losses in its log, and its phase."""
    folder.mkdir(exist_ok=True)
    lines = [line_of({"step": step, "masked_lm_loss": loss}) for step, loss in losses.items()]
    (folder / f"{TRAIN}.jsonl").write_text("".join(lines))
    monkeypatch.setattr(outlook, "unigram_entropy", lambda records: ENTROPY)
    setup: Any = SimpleNamespace(
        folder=str(folder), config=CONFIG, is_chief=True, pretrainer=SimpleNamespace(step=changes.pop("step", 0)),
        options=SimpleNamespace(**{"plan": None, "init_checkpoint": None, "init_from_records": False, **changes}),
        records=SimpleNamespace(training=lambda phase: SimpleNamespace(manifests=[])),
    )  # fmt: skip
    phase: Any = SimpleNamespace(
        number=1, first_step=0, last_step=4000, train_batch_size=32, max_seq_length=16, learning_rate=2e-3,
        num_warmup_steps=100,
    )  # fmt: skip
    log: Any = SimpleNamespace(note=lambda step, sentence: notes.append((step, sentence)))
    notes: list[tuple[int, str]] = []
    watched = Outlook(setup, log)
    for step, loss in losses.items():
        watched.after(step, phase, loss)
    return notes


def test_a_loss_that_stays_at_the_unigram_level_is_a_warning(tmp_path: pathlib.Path, monkeypatch, capsys):
    stalled = {500: 7.3, 1000: 6.95, 1500: 6.9}
    notes = outlook_of(tmp_path / "a", monkeypatch, stalled)
    assert notes == [(1000, notes[0][1])]
    assert "after 1,000 steps the masked LM loss, 6.950 at the lowest, is still that of guessing" in notes[0][1]
    assert "lower --learning_rate (0.002)" in notes[0][1]
    assert "warning: after 1,000 steps" in capsys.readouterr().out
    # One that has learned, one that begins with weights, and one whose warning was given before it was stopped.
    assert not outlook_of(tmp_path / "b", monkeypatch, {500: 7.0, 1000: 6.0})
    assert not outlook_of(tmp_path / "c", monkeypatch, stalled, init_checkpoint="model")
    assert not outlook_of(tmp_path / "d", monkeypatch, stalled, step=1200)


@pytest.mark.parametrize(("from_records", "kind"), [(False, FROM_RANDOM), (True, FROM_RECORDS)])
def test_a_run_says_where_it_will_end(
    from_records: bool, kind: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    law = ScalingLaw.read(kind)
    reached = Reached(6.0, 400 * 512, block_parameters(CONFIG))
    falling = {
        step: law.loss_later(reached, step * 512, reached.parameters, ENTROPY, 4000 * 512)
        for step in (400, 1000, 2000, 3000, 4000)
    }
    outlook_of(tmp_path, monkeypatch, falling, init_from_records=from_records)
    lines = [line for line in capsys.readouterr().out.splitlines() if "as the loss falls so far" in line]
    assert len(lines) == 3
    # A run that falls as the law does ends where the law says.
    assert all(f"about {falling[4000]:.2f} at step 4,000" in line for line in lines)
    # Of one that has not begun to fall nothing is said.
    outlook_of(tmp_path / "begun", monkeypatch, {1000: 6.9, 2000: 6.8}, init_from_records=from_records)
    assert "as the loss falls so far" not in capsys.readouterr().out


def test_a_loss_above_its_plan_is_a_warning_once(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"phases": [{"max_seq_length": 16, "expected_losses": [[400, 6.5], [4000, 4.0]]}]}))
    above = outlook_of(tmp_path / "a", monkeypatch, {200: 7.0, 400: 6.4, 2200: 5.3, 4000: 5.0}, plan=str(plan))
    assert [step for step, _ in above] == [2200]
    assert "at step 2,200, 5.300, is above what the plan expects, at most 5.250" in above[0][1]
    plan.write_text("{}")
    with pytest.raises(UserError, match=r"plan.json is no plan \(KeyError\('phases'\)\); expected the plan.json of"):
        outlook_of(tmp_path / "b", monkeypatch, {}, plan=str(plan))


def test_the_unigram_entropy_is_that_of_the_tokens_to_predict():
    rng = random.Random(0)
    shares = {1: 0.5, 2: 0.25, 3: 0.25}
    ids = np.array(rng.choices(list(shares), list(shares.values()), k=64 * 200)).reshape(200, 64, 1)
    batches = [
        {"masked_lm_ids": np.pad(each, ((0, 0), (0, 1))), "masked_lm_weights": [[1.0, 0.0]] * 64} for each in ids
    ]
    records: Any = SimpleNamespace(
        evaluation=lambda size: tf.data.Dataset.from_generator(
            lambda: iter(batches),
            output_signature={
                "masked_lm_ids": tf.TensorSpec((64, 2), tf.int32), "masked_lm_weights": tf.TensorSpec((64, 2)),
            },
        )
    )  # fmt: skip
    assert outlook.unigram_entropy(records) == pytest.approx(1.5 * math.log(2), abs=0.01)


def test_a_run_trains_with_its_plan_and_says_what_is_wrong_with_it(record_files, config_file, tmp_path: pathlib.Path):
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"phases": [{"max_seq_length": 12, "expected_losses": [[5, 0.1], [20, 0.1]]}]}))
    training.run(options_for(record_files, config_file, tmp_path / "run", plan=str(plan)))
    notices = read_log(str(tmp_path / "run"), NOTICES)
    assert [line["step"] for line in notices] == [5]
