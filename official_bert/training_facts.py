"""What is kept of a run as run.json: its command, flags, data and versions; and whether it is still the same run."""

import dataclasses
import json
import os
import platform
import sys
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

import official_bert
from official_bert import files
from official_bert.config import BertConfig
from official_bert.curves import RUN_FILE, read_facts
from official_bert.errors import UserError
from official_bert.training_options import DATA, DECISIVE, Options
from official_bert.training_records import RecordFiles


def earlier_facts(folder: str) -> dict[str, Any]:
    """Returns what a run's folder says of it; nothing where there is no run yet."""
    return read_facts(folder) if files.exists(os.path.join(folder, RUN_FILE)) else {}


def facts_of(
    options: Options,
    config: BertConfig,
    strategy: tf.distribute.Strategy,
    found: Mapping[int, RecordFiles],
    held_out: RecordFiles | None,
) -> dict[str, Any]:
    """Returns what is kept beside the checkpoints (see report.write_report).

    Args:
        options: the run's.
        config: the model.
        strategy: where it runs.
        found: the records of each phase that is not done yet, by its number.
        held_out: those for evaluation.
    """
    before = earlier_facts(options.output_dir)
    manifests = {id(each): each for records in found.values() for each in records.manifests}.values()
    data = [json.loads(each.to_json()) for each in manifests]
    # Of phases that are done, what was noted when they were trained.
    done = len(found) < len(options.phases)
    earlier = [each for each in before.get("data", []) if done and each not in data]
    records_of_done = before.get("records", {}) if done else {}
    return {
        "command": " ".join(sys.argv),
        "flags": dataclasses.asdict(options),
        "config": config.to_dict(),
        "data": [*earlier, *data],
        "evaluation_data": [json.loads(each.to_json()) for each in (held_out.manifests if held_out else [])],
        "versions": {
            "official_bert": official_bert.__version__,
            "tensorflow": tf.__version__,
            "keras": keras.__version__,
            "python": platform.python_version(),
        },
        "devices": [device.split("device:")[-1] for device in strategy.extended.worker_devices],  # CPU:0, TPU:7
        "records": {**records_of_done, **{str(number): each.identity() for number, each in found.items()}},
    }


def changes_asked_for(options: Options, facts: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Compares what decides the weights with what the run was begun with; returns what was changed as asked for.

    Returns:
        Old and new value by flag; None and None for the records, by the name of training_options.DATA.

    Raises:
        UserError: something changed that --allow_changes does not name.
    """
    before = earlier_facts(options.output_dir)
    if not before:
        return {}
    now = json.loads(json.dumps(facts))
    changed = {
        name: (before["flags"].get(name), now["flags"][name])
        for name in sorted(DECISIVE)
        if name in before["flags"] and before["flags"][name] != now["flags"][name]
    }
    problems = [f"--{name} was {old!r} and is {new!r}" for name, (old, new) in changed.items()]
    others = [n for n, found in now["records"].items() if before["records"].get(n, found) != found]
    if others:
        changed[DATA] = (None, None)
        problems.append("the records are other ones")
    problems = [problem for name, problem in zip(changed, problems, strict=True) if name not in options.allow_changes]
    if problems:
        raise UserError(
            f"{options.output_dir} holds a run that was begun otherwise: {'; '.join(problems)}; give what it was begun "
            f"with, or another --output_dir, or go on with the changes by --allow_changes={','.join(changed)}"
        )
    for name, (old, new) in changed.items():
        what = "other records" if name == DATA else f"--{name} from {old!r} to {new!r}"
        print(f"changed as asked for: {what}")
    return changed
