"""The plan for devices that are not there: the paper's recipe, as far as the time goes, its hours and its price.

What a step takes comes from counts and published rates (official_bert/pretraining/devices.py), or from the rate that
the user has measured.
"""

import dataclasses
import math
import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.pretraining import cost
from official_bert.pretraining.devices import BATCH, PHASES, Device, StepCount
from official_bert.utils.configs import find_config
from planning import text
from planning.command_lines import CONFIG_FILE, TEXT_FOLDER, command_line, records_line
from planning.options import Options
from planning.recipe import MOST_PASSES, Part
from planning.text import TextCounts

# From small to large.
_MODELS = (("BERT-Base", "uncased_L-12_H-768_A-12"), ("BERT-Large", "uncased_L-24_H-1024_A-16"))
_WHOLE = sum(steps for *_, steps in PHASES)
_LONG_SHARE = PHASES[1][2] / _WHOLE
_BYTES_OF_WEIGHT = 12  # the weight and two moments
_MOST_REPEATED = 40  # times that the paper's runs read their text


@dataclasses.dataclass(frozen=True)
class Run:
    """A run of the paper's recipe on some devices.

    Attributes:
        name: of the model.
        config: its sizes.
        counts: of a step of each phase.
        steps: of both phases together.
        step_seconds: the least that a step takes on average, and the most, as far as counts tell.
    """

    name: str
    config: BertConfig
    counts: tuple[StepCount, ...]
    steps: int
    step_seconds: tuple[float, float]

    @property
    def phase_steps(self) -> tuple[int, int]:
        long = max(1, round(_LONG_SHARE * self.steps))
        return self.steps - long, long

    @property
    def tokens(self) -> int:
        """How many tokens it trains on, padding counted."""
        return sum(BATCH * length * steps for (length, *_), steps in zip(PHASES, self.phase_steps, strict=True))

    @property
    def hours(self) -> tuple[float, float]:
        """The least and the most."""
        low, high = (self.steps * seconds / 3600 for seconds in self.step_seconds)
        return low, high


def runs(options: Options, vocab_size: int) -> list[Run]:
    """Returns the paper's whole run of each model."""
    device, found = Device.read(options.device), []
    for name, file in _MODELS:
        counts = tuple(
            step
            for length, *_ in PHASES
            for step in device.steps
            if (step.model, step.devices, step.length) == (file, options.devices, length)
        )
        path = find_config(f"configs/models/{file}.json")
        config = dataclasses.replace(BertConfig.from_json_file(path), vocab_size=vocab_size)
        found.append(Run(name, config, counts, _WHOLE, _step_seconds(options, device, config, counts)))
    return found


def _step_seconds(
    options: Options, device: Device, config: BertConfig, counts: Sequence[StepCount]
) -> tuple[float, float]:
    if options.device_tflops:
        seconds = [(step.tflop / options.device_tflops,) * 2 for step in counts]
    else:
        variables = _BYTES_OF_WEIGHT * cost.parameter_count(config)
        bounds = [
            device.seconds(1e12 * step.tflop, 1e9 * step.traffic_gb, variables, 1e6 * step.exchanged_mb, step.devices)
            for step in counts
        ]
        seconds = [(each.least, each.accounted) for each in bounds]
    low, high = ((1 - _LONG_SHARE) * short + _LONG_SHARE * long for short, long in zip(*seconds, strict=True))
    return low, high


def chosen(options: Options, whole: Sequence[Run]) -> Run:
    """Returns the largest model whose whole run the time holds, or of the smallest one as many steps as it holds.

    Raises:
        UserError: the time is too short for any.
    """
    for run in reversed(whole):
        if 3600 * run.hours[1] <= options.seconds:
            return run
    smallest = whole[0]
    steps = int(options.seconds / smallest.step_seconds[1])
    if steps < len(PHASES):
        raise UserError(
            f"{options.seconds / 60:g} minutes are too short: a step of {smallest.name} on {options.devices} devices "
            f"takes up to {smallest.step_seconds[1]:.2g} seconds; give more time"
        )
    return dataclasses.replace(smallest, steps=steps)


def _dollars(options: Options, run: Run) -> tuple[float, float]:
    """The least and the most dollars of a run."""
    assert options.devices is not None
    dollars = options.device_dollars or Device.read(options.device).dollars_per_hour
    low, high = (hours * options.devices * dollars for hours in run.hours)
    return low, high


def _pretraining_flags(options: Options, run: Run) -> dict[str, Any]:
    """The flags of the run that name no files."""
    (short, long), ((length, predictions, _), (long_length, long_predictions, _)) = run.phase_steps, PHASES
    return {
        "distribution_strategy": "tpu", "num_tpu_cores": options.devices, "tpu_name": "NAME", "tpu_zone": "ZONE",
        "gcp_project": "PROJECT", "dtype": "bfloat16", "do_train": True, "do_eval": True, "train_batch_size": BATCH,
        "gradient_accumulation_steps": max(step.micro_batches for step in run.counts), "eval_batch_size": BATCH,
        "max_seq_length": length, "max_predictions_per_seq": predictions, "learning_rate": 1e-4,
        "num_train_steps": short, "num_warmup_steps": max(1, run.steps // 100),
        "phase2_num_train_steps": long, "phase2_max_seq_length": long_length,
        "phase2_max_predictions_per_seq": long_predictions, "phase2_learning_rate": 1e-5,
        "iterations_per_loop": 100, "log_steps": 100, "save_checkpoints_steps": 1000,
        "random_seed": options.random_seed,
    }  # fmt: skip


def describe(options: Options, counts: TextCounts, whole: Sequence[Run], run: Run) -> dict[str, Any]:
    """Returns the plan of a run, as plan.json holds it; `whole` are the paper's runs."""
    flags, tokens = _pretraining_flags(options, run), run.tokens
    passes = max(1, min(MOST_PASSES, math.ceil(tokens / counts.tokens)))
    notes = [
        "no loss is expected: the law was measured up to BERT-Mini and 28 million tokens (docs/planning.md)",
        "hours are at the rate given; start, input and saving come on top" if options.device_tflops else
        "hours lie between two bounds by published rates: nothing was measured; start, input and saving come on top",
    ]  # fmt: skip
    if (repeated := tokens / counts.tokens) > _MOST_REPEATED:
        notes.append(f"the text is small for the run: its {counts.tokens:,.0f} tokens are read {repeated:,.0f} times")
    return {
        "minutes": options.seconds / 60,
        "devices": options.devices,
        "device": options.device,
        "model": run.name,
        "config": run.config.to_dict(),
        "parameters": cost.parameter_count(run.config),
        "vocab_size": counts.vocab_size,
        "text_tokens": round(counts.tokens),
        "tokens": tokens,
        "unigram_loss": round(counts.unigram_entropy, 4),
        "expected_loss": None,
        "train_batch_size": BATCH,
        "phases": [
            {"max_seq_length": step.length, "steps": steps, "memory_bytes": round(step.memory_gib * 2**30)}
            for step, steps in zip(run.counts, run.phase_steps, strict=True)
        ],
        **_hours_and_dollars(options, run),
        "whole_runs": [
            {"model": each.name, "steps": each.steps, **_hours_and_dollars(options, each)} for each in whole
        ],
        "notes": notes,
        "commands": _commands(options, counts, run, flags, passes),
    }


def _hours_and_dollars(options: Options, run: Run) -> dict[str, float]:
    (low, high), (least, most) = run.hours, _dollars(options, run)
    return {
        "expected_hours_low": round(low, 2), "expected_hours_high": round(high, 2),
        "expected_dollars_low": round(least, 2), "expected_dollars_high": round(most, 2),
    }  # fmt: skip


def _commands(options: Options, counts: TextCounts, run: Run, flags: Mapping[str, Any], passes: int) -> list[str]:
    """The commands: records on any machine, what they make into a bucket, and training where the devices are."""
    bucket = "gs://BUCKET/" + os.path.basename(os.path.abspath(options.output_dir))
    short, long = (Part(length=length, predictions=predictions, masked_share=0.15) for length, predictions, _ in PHASES)
    shards = {"num_shards": options.devices, "dupe_factor": passes}
    objective = {} if counts.pairs else {"next_sentence_prediction": False}
    training = {
        "input_file": f"{bucket}/{short.length}-*.tfrecord",
        "phase2_input_file": f"{bucket}/{long.length}-*.tfrecord",
        "eval_input_file": f"{bucket}/heldout.tfrecord", "bert_config_file": f"{bucket}/{CONFIG_FILE}",
        "vocab_file": f"{bucket}/{TEXT_FOLDER}/{text.VOCAB_FILE}", "output_dir": f"{bucket}/model",
    }  # fmt: skip
    return [
        *(records_line(options, counts, str(part.length), text.TEXT_FILE, part, **shards) for part in (short, long)),
        records_line(options, counts, "heldout", text.HELDOUT_FILE, short, dupe_factor=1),
        shlex.join(["gcloud", "storage", "cp", "--recursive", options.output_dir, "gs://BUCKET/"]),
        command_line("pretrain", {**flags, **training, **objective}),
    ]


def rows(made: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns what such a plan says to people: names and values."""

    def takes(run: Mapping[str, Any]) -> str:
        hours, dollars = ((run[f"expected_{name}_low"], run[f"expected_{name}_high"]) for name in ("hours", "dollars"))
        return (
            f"{hours[0]:.1f} to {hours[1]:.1f} hours on {made['devices']} {made['device']}, "
            f"{dollars[0]:,.0f} to {dollars[1]:,.0f} dollars"
        )

    def trained(phase: Mapping[str, Any]) -> str:
        batch = f"{made['train_batch_size']} x {phase['max_seq_length']} tokens"
        return f"{phase['steps']:,} steps of {batch}, {phase['memory_bytes'] / 2**30:.2f} GiB of memory on a device"

    def whole(run: Mapping[str, Any]) -> str:
        return f"{run['model']}, {run['steps']:,} steps as in the paper: {takes(run)}"

    return [
        *(("training", trained(phase)) for phase in made["phases"]),
        ("time", takes(made)),
        *(("whole run", whole(run)) for run in made["whole_runs"]),
    ]
