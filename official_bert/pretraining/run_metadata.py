"""Reads and writes run.json: command, flags, data and versions of a run. A resumed run is compared with it."""

import dataclasses
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
from official_bert.pretraining.options import RECORDS, Phase, PretrainingOptions
from official_bert.pretraining.record_files import RecordFiles
from official_bert.pretraining.run_records import RunRecords
from official_bert.runs import run_file
from official_bert.utils import files
from official_bert.utils.counting import join_first, pluralize
from official_bert.version import __version__

RUN_FILE = "run.json"
CHANGE_DESCRIPTIONS = {RECORDS: "the records differ"}  # see run_file.describe_changes
_MICRO_BATCHES = "gradient_accumulation_steps"


def read_run_metadata(folder: str) -> dict[str, Any]:
    """Returns the contents of run.json in the folder of a run, or {} if the file is missing."""
    path = os.path.join(folder, RUN_FILE)
    try:
        return run_file.read_run_file(path)
    except UserError as error:
        raise UserError(f"{path} is damaged ({error}). Remove it; the next run writes it again.") from error


def write_run_metadata(folder: str, metadata: Mapping[str, Any]) -> None:
    """Writes run.json into the folder of a run."""
    run_file.write_run_file(os.path.join(folder, RUN_FILE), metadata)


def collect_run_metadata(
    options: PretrainingOptions,
    config: BertConfig,
    strategy: tf.distribute.Strategy,
    records: RunRecords,
    phases: Sequence[Phase],
    changes: run_file.Changes,
    steps_done: int,
) -> dict[str, Any]:
    """Returns the contents of run.json (see model_card.write_model_card).

    Args:
        options: The options of the run.
        config: The model configuration.
        strategy: The distribution strategy.
        records: The records of the run.
        phases: The phases that have steps left to train. The description of completed phases is taken from the present
            run.json.
        changes: The options that --allow_changes changed at this start.
        steps_done: Number of steps before this start.
    """
    before = read_run_metadata(options.output_dir)
    devices = [device.split("device:")[-1] for device in strategy.extended.worker_devices]  # CPU:0, TPU:7
    if (workers := strategy.num_replicas_in_sync // len(devices)) > 1:
        devices = [f"{device} of worker {index}" for index in range(workers) for device in devices]
    training_records = {phase.number: records.training(phase) for phase in phases}
    evaluated = [each for each in (records.held_out, records.general) if each]
    manifests = {id(each): each for of_phase in training_records.values() for each in of_phase.manifests}.values()
    data = [each.to_values() for each in manifests]
    done = before if len(phases) < len(options.phases) else {}
    earlier = [each for each in done.get("data", []) if each not in data]
    return {
        "command": command_line(),
        "flags": dataclasses.asdict(options),
        "config": config.to_dict(),
        "data": [*earlier, *data],
        "evaluation_data": [each.to_values() for of_kind in evaluated for each in of_kind.manifests],
        "versions": {
            "official_bert": __version__,
            "tensorflow": tf.__version__,
            "keras": keras.__version__,
            "python": platform.python_version(),
        },
        "devices": devices,
        "records": {
            **done.get("records", {}),
            **{str(number): each.identity() for number, each in training_records.items()},
        },
        "changes": [
            # Changes of later steps apply from here if the run is resumed from an older checkpoint.
            *({**each, "step": min(each["step"], steps_done)} for each in before.get("changes", []) if steps_done),
            *({"step": steps_done, "option": name, "before": old, "now": new} for name, (old, new) in changes.items()),
        ],
    }


def command_line() -> str:
    """Returns the command line of this process as text. The program is named without its folder."""
    program, *arguments = sys.argv
    name = os.path.basename(program)
    script = name.removesuffix(".py")
    words = [name] if script == name else ["python", "-m", script]
    return shlex.join([*words, *arguments])


def describe_file_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Describes how the record files of this start differ from those of an earlier start.

    Args:
        before: The results of RecordFiles.identity() by number of the phase, at the earlier start.
        now: The same for this start.
    """
    details = []
    for number, found in now.items():
        old, new = ({each["file"]: each for each in some} for some in (before.get(number, found), found))
        details += [f"{name} is missing" for name in old if name not in new]
        details += [f"{name} was not there" for name in new if name not in old]
        for name in old.keys() & new.keys():
            if bool(old[name]["sha256"]) != bool(new[name]["sha256"]):
                details.append(f"{name} {'is' if old[name]['sha256'] else 'was'} not in a manifest")
            elif old[name] != new[name]:
                details.append(f"{name} has other contents")
    more = f", and {pluralize(len(details) - 3, 'other change')}" if len(details) > 3 else ""
    return ", ".join(sorted(details)[:3]) + more or "the files have another order, or files of the same name differ"


def check_records_of_finished_phase(options: PretrainingOptions, phase: Phase) -> None:
    """Raises a UserError if a finished phase did not use the records of this start. The records may be missing."""
    trained = read_run_metadata(options.output_dir).get("records", {}).get(str(phase.number))
    if not trained:
        return
    flag = f"{phase.prefix}input_file"
    try:
        paths = files.expand(getattr(options, flag), flag)
    except UserError:
        return
    known = {(each["file"], each["bytes"]) for each in trained}
    sizes = {path: files.size(path) for path in paths}
    unused = [path for path, size in sizes.items() if size and (os.path.basename(path), size) not in known]
    if unused:
        last = options.phases[-1]  # More steps of phase 1 would follow the steps of phase 2.
        raise UserError(
            f"The run in {options.output_dir} finished {pluralize(phase.last_step, 'step')} without these files of "
            f"--{flag}: {join_first(unused, 3)}. Pass the same records, or another --output_dir. To train further on "
            f"other records, pass them as {last.flag('input_file')}, with a larger {last.flag('num_train_steps')} and "
            f"--allow_changes={RECORDS},{last.prefix}num_train_steps."
        )


def check_resume_compatibility(
    options: PretrainingOptions, config: BertConfig, records: Mapping[int, RecordFiles]
) -> run_file.Changes:
    """Compares the options that must not change, and the records, with run.json of the run's earlier start.

    Args:
        options: The options of the run.
        config: Configuration of the model.
        records: The records by number of the phase.

    Returns:
        The old and new values of the options that have changed. A change is permitted if --allow_changes names the
        option. The number of micro-batches may also change if the model has no dropout, because then the step computes
        the same sums. Under the name options.RECORDS, the values are the records' names, sizes and hashes.

    Raises:
        UserError: If something else has changed.
    """
    before = read_run_metadata(options.output_dir)
    if not before:
        return {}
    changes = run_file.find_changes(before.get("flags", {}), run_file.locked_values(options))
    identities = {str(number): each.identity() for number, each in records.items()}
    # run.json lacks the records of phases that were not started.
    if run_file.find_changes({**identities, **before.get("records", {})}, identities):
        changes[RECORDS] = (before.get("records"), identities)
    permitted = set(options.allow_changes)
    if not (config.hidden_dropout_prob or config.attention_probs_dropout_prob):
        permitted.add(_MICRO_BATCHES)
    refused = {name: change for name, change in changes.items() if name not in permitted}
    reason = " (micro-batches draw other dropout masks)" if _MICRO_BATCHES in refused else ""
    run_file.refuse_changes(
        options.output_dir,
        refused,
        f"Pass the same options and records, pass --allow_changes={','.join(changes)} to resume with the changes"
        f"{reason}, or pass another --output_dir.",
        {RECORDS: f"the records differ ({describe_file_changes(before.get('records', {}), identities)})"},
    )
    for name, change in changes.items():
        print(f"changed since the earlier start: {run_file.describe_changes({name: change}, CHANGE_DESCRIPTIONS)}")
    return changes
