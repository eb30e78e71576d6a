"""A run in tables of text, for its page and its model card: scores, amounts, rates, data."""

import collections
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from official_bert.pretraining.curves import Curves, phases, values_of
from official_bert.utils.progress import duration

Table = list[list[str]]  # rows of cells; the first row is the head

MISSING = "–"


def _loss(value: float) -> str:
    return f"{value:.4f}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _share_of_rate(value: float) -> str:
    # Logs of earlier versions have shares above 1, of rates that were measured while something else ran.
    return _percent(value) if value <= 1 else MISSING


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _flops(value: float) -> str:
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G")):
        if value >= size:
            return f"{value / size:.3g} {prefix}FLOP/s"
    return f"{value / 1e6:.3g} MFLOP/s"


# Name in the logs: what the reader sees, how it is written, and the function that finds the best value.
_SCORES: dict[str, tuple[str, Callable[[float], str], Callable[[np.ndarray], Any]]] = {
    "loss": ("loss, both tasks (nats)", _loss, np.nanargmin),
    "masked_lm_loss": ("masked LM loss (nats)", _loss, np.nanargmin),
    "masked_lm_accuracy": ("masked LM accuracy", _percent, np.nanargmax),
    "next_sentence_loss": ("next sentence loss (nats)", _loss, np.nanargmin),
    "next_sentence_accuracy": ("next sentence accuracy", _percent, np.nanargmax),
}

_RATES: dict[str, tuple[str, Callable[[float], str]]] = {
    "steps_per_second": ("steps/s", lambda value: f"{value:.3g}"),
    "examples_per_second": ("examples/s", _count),
    "tokens_per_second": ("tokens/s, without padding", _count),
    "input_wait_share": ("share of time waiting for input", _percent),
    "model_flops_per_second": ("model FLOP/s", _flops),
    "flops_utilization": ("their share of the matrix-product rate", _share_of_rate),
}

# Of a manifest's statistics.
_COUNTS = {
    "text_documents": "documents of text",
    "text_tokens": "tokens of text",
    "tokens": "tokens in the records, without padding",
    "predictions": "predictions",
}
_SHARES = (
    ("text_unknown", "text_tokens", "unknown tokens of text"),
    ("random_next", "instances", "random or swapped second segments"),
)


def score_table(curves: Curves) -> Table:
    """Returns the last and the best scores, with the steps they belong to; only a head where nothing was measured."""
    columns = []
    if curves.train:
        columns.append((f"training, step {curves.train[-1]['step']:,}", curves.train[-1:], False))
    if curves.eval:
        columns.append((f"evaluation, step {curves.eval[-1]['step']:,}", curves.eval[-1:], False))
        columns.append(("best evaluation", curves.eval, True))
    if curves.general:
        columns.append((f"general text, step {curves.general[-1]['step']:,}", curves.general[-1:], False))
    table = [["score", *(head for head, _, _ in columns)]]
    if columns:
        for name, (label, *_) in _SCORES.items():
            table.append([label, *(_score(lines, name, with_step) for _, lines, with_step in columns)])
    return table


def _score(lines: list[dict[str, Any]], name: str, with_step: bool) -> str:
    _, text, best = _SCORES[name]
    values = values_of(lines, name)
    if not np.isfinite(values).any():
        return MISSING
    index = int(best(np.where(np.isfinite(values), values, np.nan)))
    return text(values[index]) + (f" (step {lines[index]['step']:,})" if with_step else "")


def rate_table(curves: Curves) -> Table:
    """Returns the rates of training, medians over the log's lines, with a column for each phase."""
    of_phases = phases(curves.train)
    heads = [f"length {length}" if length else "median" for length, _ in of_phases]
    table = [["rate", *heads]]
    for name, (label, text) in _RATES.items():
        values = [values_of(lines, name) for _, lines in of_phases]
        medians = [np.median(each[np.isfinite(each)]) if np.isfinite(each).any() else None for each in values]
        if any(median is not None for median in medians):
            table.append([label, *(MISSING if median is None else text(float(median)) for median in medians)])
    return table


def amounts(curves: Curves) -> dict[str, float]:
    """Returns how much was trained: steps, examples, tokens (without padding) and seconds spent in steps."""
    steps = values_of(curves.train, "step")
    of_line = np.diff(steps, prepend=0)  # the steps that a line stands for
    seconds = of_line / values_of(curves.train, "steps_per_second")
    return {
        "steps": float(steps[-1]) if len(steps) else 0.0,
        "examples": float(np.nansum(seconds * values_of(curves.train, "examples_per_second"))),
        "tokens": float(np.nansum(seconds * values_of(curves.train, "tokens_per_second"))),
        "seconds": float(np.nansum(seconds)),
    }


def amount_table(curves: Curves) -> Table:
    """Returns how much was trained, as text; only a head where nothing was."""
    table = [["amount", "value"]]
    if curves.train:
        done = amounts(curves)
        table += [
            ["steps", _count(done["steps"])],
            ["examples", _count(done["examples"])],
            ["tokens, without padding", _count(done["tokens"])],
            ["time in steps", duration(done["seconds"])],
        ]
        of_phases = phases(curves.train)
        for number, (length, lines) in enumerate(of_phases if len(of_phases) > 1 else (), start=1):
            table.append([f"phase {number}", f"length {length or 'unknown'}, up to step {lines[-1]['step']:,}"])
    return table


def model_table(metadata: Mapping[str, Any]) -> Table:
    """Returns the model's configuration and its number of parameters."""
    rows = [["parameters", _count(metadata["parameters"])]] if "parameters" in metadata else []
    return [["setting", "value"], *rows, *([name, str(value)] for name, value in metadata.get("config", {}).items())]


def flag_table(flags: Mapping[str, Any]) -> Table:
    """Returns flags and their values; those that were not given are left out."""
    rows = [
        [f"--{name}", ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)]
        for name, value in flags.items()
        if value is not None and value != []
    ]
    return [["flag", "value"], *rows]


def environment_table(metadata: Mapping[str, Any]) -> Table:
    """Returns versions and devices."""
    kinds = collections.Counter(str(device).split(":")[0] for device in metadata.get("devices", ()))
    devices = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    rows = [[name, str(version)] for name, version in metadata.get("versions", {}).items()]
    return [["what", "value"], *rows, *([["devices", devices]] if devices else [])]


def data_table(manifest: Mapping[str, Any]) -> Table:
    """Returns what a manifest says of a set of records: its files, counts, vocabulary and text, and its flags."""
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
    return [["what", "value"], *rows, *flag_table(source.get("flags", {}))[1:]]


def _names(names: Sequence[str]) -> str:
    if len(names) <= 3:
        return ", ".join(names) or MISSING
    return f"{names[0]} to {names[-1]} ({len(names):,} files)"


def shared_shards(manifests: Iterable[Mapping[str, Any]], others: Iterable[Mapping[str, Any]]) -> set[str]:
    """Returns the names of the others' files that are also among the first ones', judged by content."""
    hashes = {shard.get("sha256") for manifest in manifests for shard in manifest.get("shards", ())}
    of_others = (shard for manifest in others for shard in manifest.get("shards", ()))
    return {str(shard.get("file")) for shard in of_others if shard.get("sha256") in hashes}
