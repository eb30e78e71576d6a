"""Reads the log of a run, and makes the tables of its model card: scores, amounts and data."""

import collections
import dataclasses
import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from official_bert.runs.training_log import EVAL, GENERAL, TRAIN, read_log
from official_bert.utils import markdown
from official_bert.utils.progress import format_duration

Table = list[list[str]]  # rows of cells; the first row is the header

LENGTH = "max_seq_length"
MISSING = "–"


@dataclasses.dataclass(frozen=True)
class LoggedRun:
    """The logged measurements of a run. Each list has one line (a dict) for each logged step, in ascending order."""

    name: str
    train: list[dict[str, Any]]  # means over the steps since the previous line; `step` is the last of them
    eval: list[dict[str, Any]]  # evaluations on held-out records
    general: list[dict[str, Any]] = dataclasses.field(default_factory=list)  # evaluations on general text


def read_logged_run(folder: str) -> LoggedRun:
    """Reads the log in the folder of a run. Without a log, the lists are empty."""
    name = os.path.basename(os.path.normpath(folder))
    train, evaluations, general = (_sort_by_step(read_log(folder, kind)) for kind in (TRAIN, EVAL, GENERAL))
    return LoggedRun(name, train, evaluations, general)


def _sort_by_step(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    # A run that was killed after its last checkpoint has logged some steps twice. The later line counts.
    by_step = {line["step"]: line for line in lines}
    return [by_step[step] for step in sorted(by_step)]


def column(lines: Sequence[Mapping[str, Any]], name: str) -> np.ndarray:
    """Returns the measurement `name` of each line, with NaN where it is missing."""
    values = [line.get(name) for line in lines]
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def split_phases(lines: Iterable[dict[str, Any]]) -> list[tuple[int, list[dict[str, Any]]]]:
    """Splits the lines of the training log by the length of the records. Returns each length and its lines."""
    return [(length, list(phase)) for length, phase in itertools.groupby(lines, lambda line: line[LENGTH])]


def _loss(value: float) -> str:
    return f"{value:.4f}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _count(value: float) -> str:
    return f"{value:,.0f}"


# Name in the logs: label, format, and the function that finds the best value.
_SCORES: dict[str, tuple[str, Callable[[float], str], Callable[[np.ndarray], Any]]] = {
    "loss": ("loss, both tasks (nats)", _loss, np.nanargmin),
    "masked_lm_loss": ("{objective} loss (nats)", _loss, np.nanargmin),
    "masked_lm_accuracy": ("{objective} accuracy", _percent, np.nanargmax),
    "next_sentence_loss": ("next sentence loss (nats)", _loss, np.nanargmin),
    "next_sentence_accuracy": ("next sentence accuracy", _percent, np.nanargmax),
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


def make_score_table(run: LoggedRun, objective: str) -> Table:
    """Returns a table of the last and the best scores with their steps, or only its header if nothing was measured.

    Args:
        run: The log of the run.
        objective: Name of the objective that predicts tokens (see BertConfig.token_objective).
    """
    columns = []
    if run.train:
        columns.append((f"training, step {run.train[-1]['step']:,}", run.train[-1:], False))
    if run.eval:
        columns.append((f"evaluation, step {run.eval[-1]['step']:,}", run.eval[-1:], False))
        # Scores on other records, or on fewer of them, cannot be compared with the last ones.
        comparable = [line for line in run.eval if line.get("predictions") == run.eval[-1].get("predictions")]
        columns.append(("best evaluation", comparable, True))
    if run.general:
        columns.append((f"general text, step {run.general[-1]['step']:,}", run.general[-1:], False))
    table = [["score", *(head for head, _, _ in columns)]]
    if columns:
        for name, (label, *_) in _SCORES.items():
            cells = [_format_score(lines, name, shows_step) for _, lines, shows_step in columns]
            table.append([label.format(objective=objective), *cells])
    return table


def _format_score(lines: list[dict[str, Any]], name: str, shows_step: bool) -> str:
    _, text, best = _SCORES[name]
    values = column(lines, name)
    if not np.isfinite(values).any():
        return MISSING
    index = int(best(np.where(np.isfinite(values), values, np.nan)))
    return text(values[index]) + (f" (step {lines[index]['step']:,})" if shows_step else "")


def amounts(run: LoggedRun) -> dict[str, float]:
    """Returns the number of steps, examples, tokens (without padding) and seconds of training, by name."""
    steps = column(run.train, "step")
    steps_per_line = np.diff(steps, prepend=0)
    seconds = steps_per_line / column(run.train, "steps_per_second")
    return {
        "steps": float(steps[-1]) if len(steps) else 0.0,
        "examples": float(np.nansum(seconds * column(run.train, "examples_per_second"))),
        "tokens": float(np.nansum(seconds * column(run.train, "tokens_per_second"))),
        "seconds": float(np.nansum(seconds)),
    }


def make_amount_table(run: LoggedRun) -> Table:
    """Returns a table of the amounts of training, or only its header if nothing was trained."""
    table = [["amount", "value"]]
    if run.train:
        done = amounts(run)
        table += [
            ["steps", _count(done["steps"])],
            ["examples", _count(done["examples"])],
            ["tokens, without padding", _count(done["tokens"])],
            ["time in steps", format_duration(done["seconds"])],
        ]
        phases = split_phases(run.train)
        for number, (length, lines) in enumerate(phases if len(phases) > 1 else (), start=1):
            table.append([f"phase {number}", f"length {length}, up to step {lines[-1]['step']:,}"])
    return table


def make_model_table(metadata: Mapping[str, Any]) -> Table:
    """Returns the model's configuration and its number of parameters."""
    settings = ([name, str(value)] for name, value in metadata["config"].items())
    return [["setting", "value"], ["parameters", _count(metadata["parameters"])], *settings]


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
        table += [[phase, _names(names), _count(count), has_one] for (count, has_one), names in kinds.items()]
    return table


def make_data_table(manifest: Mapping[str, Any]) -> Table:
    """Returns a table of the files, counts, vocabulary, texts and flags in a manifest."""
    shards, source = manifest.get("shards", ()), manifest.get("source", {})
    counts, inputs = manifest.get("statistics", {}), source.get("inputs", ())
    rows = [
        ["files", _names([str(shard.get("file")) for shard in shards])],
        ["records", _count(sum(shard.get("records", 0) for shard in shards))],
        ["text", _names([str(each.get("file")) for each in inputs])],
    ]
    rows += [[label, _count(counts[name])] for name, label in _COUNTS.items() if name in counts]
    for name, of, label in _SHARES:
        if name in counts and counts.get(of):
            rows.append([label, f"{100 * counts[name] / counts[of]:.2f} %"])
    if "vocabulary" in source:
        rows.append(["vocabulary, SHA-256", str(source["vocabulary"])])
    rows.append(["made by", str(manifest.get("made_by", "unknown"))])
    return [["what", "value"], *rows, *markdown.flag_table(source.get("flags", {}))[1:]]


def _names(names: Sequence[str]) -> str:
    if len(names) <= 3:
        return ", ".join(names) or MISSING
    return f"{names[0]} to {names[-1]} ({len(names):,} files)"


def find_shared_shards(
    manifests: Iterable[Mapping[str, Any]], other_manifests: Iterable[Mapping[str, Any]]
) -> set[str]:
    """Returns the names of record files in `other_manifests` whose contents also occur in `manifests`."""
    hashes = {shard.get("sha256") for manifest in manifests for shard in manifest.get("shards", ())}
    shards = (shard for manifest in other_manifests for shard in manifest.get("shards", ()))
    return {str(shard.get("file")) for shard in shards if shard.get("sha256") in hashes}
