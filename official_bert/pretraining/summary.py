"""Reads the log of a run, and makes the tables of its model card: scores, amounts and data."""

import collections
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from official_bert.runs.training_log import EVAL, GENERAL, TRAIN, read_log
from official_bert.utils.markdown import Table, flag_table
from official_bert.utils.progress import format_duration

LENGTH = "max_seq_length"
_MISSING, _BEST = "–", "best evaluation"


# The lines of a run's log (dicts) by kind of log, in ascending order of their steps. A line of training has means over
# the steps since the previous line.
Lines = list[dict[str, Any]]
Logs = Mapping[str, Lines]


def read_logs(folder: str) -> Logs:
    """Reads the logs of training and evaluation in the folder of a run. Missing logs have no lines."""
    # A run that was killed after its last checkpoint has logged some steps twice. The later line counts.
    by_step = {kind: {line["step"]: line for line in read_log(folder, kind)} for kind in (TRAIN, EVAL, GENERAL)}
    return {kind: [lines[step] for step in sorted(lines)] for kind, lines in by_step.items()}


# Labels of the scores, by their names in the log.
_SCORES = {
    "loss": "loss, both tasks (nats)",
    "masked_lm_loss": "{objective} loss (nats)",
    "masked_lm_accuracy": "{objective} accuracy",
    "next_sentence_loss": "next sentence loss (nats)",
    "next_sentence_accuracy": "next sentence accuracy",
}

# Labels of a manifest's statistics.
_COUNTS = {
    "text_documents": "documents of text",
    "text_tokens": "tokens of text",
    "tokens": "tokens in the records, without padding",
    "predictions": "predictions",
}
_SHARES = (
    ("text_unknown", "text_tokens", "unknown tokens of text"),
    ("random_next", "instances", "pairs labelled random (the rest: true next segments)"),
)


def make_score_table(logs: Logs, objective: str) -> Table:
    """Returns a table of the last and the best scores with their steps, or only its header if nothing was measured.

    Args:
        logs: The logs of the run.
        objective: Name of the objective that predicts tokens (see BertConfig.token_objective).
    """
    columns: list[tuple[str, Lines]] = []
    for title, kind in (("training", TRAIN), ("evaluation", EVAL), ("general text", GENERAL)):
        if lines := logs[kind]:
            columns.append((f"{title}, step {lines[-1]['step']:,}", lines[-1:]))
            if kind == EVAL:
                # Scores on other records, or on fewer of them, cannot be compared with the last ones.
                same = [line for line in lines if line.get("predictions") == lines[-1].get("predictions")]
                columns.append((_BEST, same))
    table = [["score", *(title for title, _ in columns)]]
    if columns:
        for name, label in _SCORES.items():
            cells = [_format_score(lines, name, shows_step=title == _BEST) for title, lines in columns]
            table.append([label.format(objective=objective), *cells])
    return table


def _format_score(lines: Lines, name: str, shows_step: bool) -> str:
    is_accuracy = name.endswith("accuracy")
    scored = [line for line in lines if math.isfinite(line.get(name, math.nan))]
    if not scored:
        return _MISSING
    best = (max if is_accuracy else min)(scored, key=lambda line: line[name])
    text = f"{100 * best[name]:.1f} %" if is_accuracy else f"{best[name]:.4f}"
    return text + f" (step {best['step']:,})" * shows_step


def compute_amounts(train: Lines) -> dict[str, float]:
    """Returns the number of steps, examples, tokens (without padding) and seconds of training, by name."""
    done = {"steps": 0.0, "examples": 0.0, "tokens": 0.0, "seconds": 0.0}
    for line in train:
        seconds = (line["step"] - done["steps"]) / line["steps_per_second"]
        done["steps"] = line["step"]
        done["seconds"] += seconds
        for name in ("examples", "tokens"):
            done[name] += seconds * line[f"{name}_per_second"]
    return done


def make_amount_table(train: Lines) -> Table:
    """Returns a table of the amounts of training, or only its header if nothing was trained."""
    table = [["amount", "value"]]
    if train:
        done = compute_amounts(train)
        labels = {"steps": "steps", "examples": "examples", "tokens": "tokens, without padding"}
        table += [[label, _format_count(done[name])] for name, label in labels.items()]
        table.append(["time in steps", format_duration(done["seconds"])])
        last_steps = {line[LENGTH]: line["step"] for line in train}  # of each phase
        for number, (length, step) in enumerate(last_steps.items() if len(last_steps) > 1 else (), start=1):
            table.append([f"phase {number}", f"length {length}, up to step {step:,}"])
    return table


def make_model_table(metadata: Mapping[str, Any]) -> Table:
    """Returns the model's configuration and its number of parameters."""
    settings = ([name, str(value)] for name, value in metadata["config"].items())
    return [["setting", "value"], ["parameters", _format_count(metadata["parameters"])], *settings]


def make_environment_table(metadata: Mapping[str, Any]) -> Table:
    """Returns versions and devices."""
    kinds = collections.Counter(device.split(":")[0] for device in metadata["devices"])
    devices = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    rows = [[name, version] for name, version in metadata["versions"].items()]
    return [["what", "value"], *rows, ["devices", devices]]


def make_file_table(records: Mapping[str, Sequence[Mapping[str, Any]]]) -> Table:
    """Returns a table of the record files, or only its header. `records` has the files by phase (see run.json)."""
    table = [["phase", "files", "readings per epoch", "manifest"]]
    for phase, shards in records.items():
        readings = collections.Counter((shard["file"], shard["bytes"], shard["sha256"]) for shard in shards)
        kinds: dict[tuple[int, str], list[str]] = {}
        for (name, _, sha256), count in readings.items():
            kinds.setdefault((count, "yes" if sha256 else "no"), []).append(name)
        table += [[phase, _names(names), _format_count(count), has_one] for (count, has_one), names in kinds.items()]
    return table


def make_data_table(manifest: Mapping[str, Any]) -> Table:
    """Returns a table of the files, counts, vocabulary, texts and flags in a manifest."""
    shards, source, counts = manifest["shards"], manifest["source"], manifest["statistics"]
    rows = [
        ["files", _names([shard["file"] for shard in shards])],
        ["records", _format_count(sum(shard["records"] for shard in shards))],
        ["text", _names([each["file"] for each in source.get("inputs", ())])],
    ]
    rows += [[label, _format_count(counts[name])] for name, label in _COUNTS.items() if name in counts]
    for name, of, label in _SHARES:
        if name in counts and counts.get(of):
            rows.append([label, f"{100 * counts[name] / counts[of]:.2f} %"])
    rows += [["vocabulary, SHA-256", source["vocabulary"]], ["made by", manifest["made_by"]]]
    return [["what", "value"], *rows, *flag_table(source["flags"])[1:]]


def _format_count(value: float) -> str:
    return f"{value:,.0f}"


def _names(names: Sequence[str]) -> str:
    if len(names) <= 3:
        return ", ".join(names) or _MISSING
    return f"{names[0]} to {names[-1]} ({len(names):,} files)"


def find_shared_shards(
    manifests: Iterable[Mapping[str, Any]], other_manifests: Iterable[Mapping[str, Any]]
) -> set[str]:
    """Returns the names of record files in `other_manifests` whose contents also occur in `manifests`."""
    hashes = {shard["sha256"] for manifest in manifests for shard in manifest["shards"]}
    shards = (shard for manifest in other_manifests for shard in manifest["shards"])
    return {shard["file"] for shard in shards if shard["sha256"] in hashes}
