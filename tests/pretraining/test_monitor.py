"""Measurements of the machine in a line of the log."""

from types import SimpleNamespace
from typing import Any

import pytest

from official_bert.modeling.config import BertConfig
from official_bert.pretraining import cost, monitor


@pytest.mark.parametrize(("share", "logged"), [(0.4, 0.4), (1.022, None)])
def test_a_step_is_no_faster_than_the_machine(tiny_config: BertConfig, monkeypatch, share: float, logged: float | None):
    lines: list[dict[str, float]] = []
    flop = cost.count_training_flop(tiny_config, 8, 12, 3)
    monkeypatch.setattr(cost, "measure_matmul_rate", lambda *_: flop / share)
    phase: Any = SimpleNamespace(max_seq_length=12, train_batch_size=8, predictions=lambda config: 3)
    options: Any = SimpleNamespace(dtype="float32", total_steps=1, init_checkpoint=None)
    pretrainer: Any = SimpleNamespace(step=0, schedule=lambda step: 0.1, strategy=None)
    records: Any = SimpleNamespace(rows=lambda phase: 8)
    log: Any = SimpleNamespace(write=lambda kind, step, values: lines.append(values))
    watched = monitor.Monitor(options, tiny_config, pretrainer, records, log, is_chief=False)
    names = "masked_lm_loss masked_lm_count masked_lm_correct next_sentence_loss next_sentence_count tokens input_wait"
    sums = dict.fromkeys([*names.split(), "next_sentence_correct", "gradient_norm"], 1.0)
    watched.add({**sums, "nonfinite_steps": 0.0}, seconds=1.0, processor_seconds=2.0)
    watched.write(1, phase)
    assert lines[0].get("flops_utilization") == pytest.approx(logged)
