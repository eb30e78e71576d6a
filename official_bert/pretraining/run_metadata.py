"""run.json, which keeps of a run its command, flags, data and versions; and whether a command goes on with that run."""

import dataclasses
import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.pretraining.options import RECORDS, Options
from official_bert.pretraining.record_files import RecordFiles
from official_bert.utils import files, resuming
from official_bert.version import __version__

RUN_FILE = "run.json"
_KINDS = {
    "flags": dict, "config": dict, "versions": dict, "records": dict, "data": list, "evaluation_data": list,
    "devices": list,
}  # fmt: skip


def read_run_metadata(folder: str) -> dict[str, Any]:
    """Returns what a run's folder keeps of the run, or {} where there is no run.json."""
    path = os.path.join(folder, RUN_FILE)
    if not files.exists(path):
        return {}
    try:
        held = files.read_json_object(path)
        for name, kind in _KINDS.items():
            if not isinstance(held.get(name, kind()), kind):
                raise UserError(f"its {name} is {held[name]!r}; expected {'an object' if kind is dict else 'a list'}")
        return held
    except UserError as error:
        raise UserError(f"{path} is damaged ({error}); remove it: the next run writes it again") from error


def write_run_metadata(folder: str, metadata: Mapping[str, Any]) -> None:
    """Writes run.json into the folder of a run."""
    files.write_text(os.path.join(folder, RUN_FILE), json.dumps(metadata, indent=1) + "\n")


def collect_run_metadata(
    options: Options,
    config: BertConfig,
    strategy: tf.distribute.Strategy,
    records: Mapping[int, RecordFiles],
    evaluated: Sequence[RecordFiles],
) -> dict[str, Any]:
    """Returns what is kept beside the checkpoints (see model_card.write_model_card).

    `records` are those of each phase that is not done yet, by its number; `evaluated` those for evaluation.
    """
    before = read_run_metadata(options.output_dir)
    manifests = {id(each): each for of_phase in records.values() for each in of_phase.manifests}.values()
    data = [each.to_values() for each in manifests]
    # Of phases that are done, what was written down when they were trained.
    some_are_done = len(records) < len(options.phases)
    earlier = [each for each in before.get("data", []) if some_are_done and each not in data]
    records_of_done = before.get("records", {}) if some_are_done else {}
    return {
        "command": command_line(),
        "flags": dataclasses.asdict(options),
        "config": config.to_dict(),
        "data": [*earlier, *data],
        "evaluation_data": [each.to_values() for records in evaluated for each in records.manifests],
        "versions": {
            "official_bert": __version__,
            "tensorflow": tf.__version__,
            "keras": keras.__version__,
            "python": platform.python_version(),
        },
        "devices": [device.split("device:")[-1] for device in strategy.extended.worker_devices],  # CPU:0, TPU:7
        "records": {**records_of_done, **{str(number): each.identity() for number, each in records.items()}},
    }


def command_line() -> str:
    """Returns this process's command as it could be given again, without the folder of the program."""
    program, *arguments = sys.argv
    name = os.path.basename(program)
    script = name.removesuffix(".py")
    words = [name] if script == name else ["python", "-m", script]
    return shlex.join([*words, *arguments])


def check_resume_compatibility(options: Options, records: Mapping[int, RecordFiles]) -> dict[str, tuple[Any, Any]]:
    """Compares the locked options and the records with those that the folder's run was begun with.

    Returns:
        What --allow_changes lets differ: old and new value by option; None and None for options.RECORDS.

    Raises:
        UserError: something else differs.
    """
    before = read_run_metadata(options.output_dir)
    if not before:
        return {}
    changes = resuming.changed_options(options, before.get("flags", {}))
    problems = {name: resuming.described({name: change}) for name, change in changes.items()}
    identities = {str(number): each.identity() for number, each in records.items()}
    records_before = before.get("records", {})
    if any(records_before.get(number, identity) != identity for number, identity in identities.items()):
        changes[RECORDS] = (None, None)
        problems[RECORDS] = "the records are other ones"
    refused = [problem for name, problem in problems.items() if name not in options.allow_changes]
    if refused:
        raise UserError(
            f"{options.output_dir} holds a run that was begun otherwise: {'; '.join(refused)}; give what it was begun "
            f"with, or another --output_dir, or go on with the changes by --allow_changes={','.join(changes)}"
        )
    for name, (old, new) in changes.items():
        what = "other records" if name == RECORDS else f"--{name} from {old!r} to {new!r}"
        print(f"changed as asked for: {what}")
    return changes
