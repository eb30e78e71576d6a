"""Fits the laws of planning (official_bert/pretraining/law.py) to measured runs, and draws the fits.

    python -m reproduce.law

reads the measurements in configs/law.json, fits, and writes the laws beside them and docs/images/law.svg.
docs/planning.md says how the measurements were made.
"""

import dataclasses
import itertools
import json
import math
from typing import Any

import numpy as np

from official_bert.pretraining.law import FINAL, FROM_RANDOM, FROM_RECORDS, LAW_FILE, Law, Reached
from official_bert.utils import files

PICTURE = "docs/images/law.svg"
_NAMES = ("floor", "slope", "growth", "repeats")
# What is believed before anything is measured, as logarithms and their deviations: few runs do not decide all of it.
_BEFORE = {"floor": (0.4, 0.3), "slope": (1.0, 0.3), "growth": (0.05, 1.0), "repeats": (8.0, 0.5)}
_NOISE = 0.02  # of a loss, believed

Row = dict[str, Any]
Pair = tuple[Row, Row]  # a measurement, and one that is to be expected from it


def pairs(rows: list[Row], kind: str) -> dict[str, list[Pair]]:
    """Returns the measurements of a law, by what has a scale of its own.

    A loss in training is expected from each earlier one of the run; a held-out loss at the end from that of the text's
    pilot, which is its first.
    """
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row["kind"] == kind:
            groups.setdefault(row["text"] if kind == FINAL else _curve(row), []).append(row)
    if kind == FINAL:
        return {name: [(group[0], row) for row in group[1:]] for name, group in groups.items()}
    return {name: list(itertools.combinations(group, 2)) for name, group in groups.items()}


def _curve(row: Row) -> str:
    return f"{row['text']}, {row['model']}"


def _law(logarithms: np.ndarray, deviation: float = 0.0) -> Law:
    values = dict(zip(_NAMES, np.exp(logarithms).tolist(), strict=True))
    return Law(**values, deviation=deviation)


def residuals(law: Law, of: list[Pair]) -> np.ndarray:
    """Returns the logarithms of measured by expected losses, [pairs]."""
    return np.array([math.log(row["loss"] / expected(law, first, row)) for first, row in of])


def expected(law: Law, first: Row, row: Row) -> float:
    """Returns the loss that a law expects of a measured run, from the first measurement."""
    reached = Reached(first["loss"], first["tokens"], first["parameters"])
    return law.loss_later(reached, row["tokens"], row["parameters"], row["unigram_entropy"], row["text_tokens"])


def fit(groups: dict[str, list[Pair]]) -> Law:
    """Returns the law that is the most probable, given the measurements and what is believed before them.

    Its deviation is that of measurements from laws that were fitted without the run, or the text, that they are of.
    """
    left_out = [
        residuals(_fit([pair for name in groups if name != each for pair in groups[name]]), of)
        for each, of in groups.items()
        if of
    ]
    deviation = math.sqrt(np.mean(np.concatenate(left_out) ** 2))
    return dataclasses.replace(_fit([pair for of in groups.values() for pair in of]), deviation=deviation)


def _fit(of: list[Pair]) -> Law:
    middle = np.array([math.log(_BEFORE[name][0]) for name in _NAMES])
    widths = np.array([_BEFORE[name][1] for name in _NAMES])

    def errors(logarithms: np.ndarray) -> np.ndarray:
        return np.concatenate([residuals(_law(logarithms), of) / _NOISE, (logarithms - middle) / widths])

    # Gauss and Newton's steps, damped where they do not help.
    best, damping = middle, 1.0
    for _ in range(200):
        here = errors(best)
        slopes = np.stack([(errors(best + step) - here) / 1e-5 for step in 1e-5 * np.eye(len(best))], axis=1)
        step = np.linalg.solve(slopes.T @ slopes + damping * np.eye(len(best)), -slopes.T @ here)
        if np.sum(errors(best + step) ** 2) < np.sum(here**2):
            best, damping = best + step, damping / 3
        else:
            damping *= 4
    return _law(best)


def _draw(rows: list[Row], laws: dict[str, Law]) -> None:
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    figure = Figure(figsize=(13, 4.6), layout="constrained")
    colors = {each: f"C{number}" for number, each in enumerate(dict.fromkeys(map(_curve, rows)))}
    titles = {
        FROM_RANDOM: "training from random weights",
        FROM_RECORDS: "training from counts",
        FINAL: "held-out, from counts, at the end",
    }
    for axes, (kind, law) in zip(figure.subplots(1, 3), laws.items(), strict=True):
        groups = pairs(rows, kind)
        for curve, color in colors.items():
            # A line goes through the measurement that the others are expected from.
            of = [pair for group in groups.values() for pair in group if _curve(pair[1]) == curve]
            of = [pair for pair in of if pair[0] is of[0][0]]
            if not of:
                continue
            points = sorted((row["tokens"], row["loss"]) for row in (of[0][0], *(row for _, row in of)))
            tokens = np.geomspace(points[0][0], points[-1][0], 40)
            line = [expected(law, of[0][0], {**of[0][1], "tokens": each}) for each in tokens]
            axes.plot(tokens, line, color=color, linewidth=1)
            axes.plot(*zip(*points, strict=True), "o", markersize=4, color=color, label=curve)
        axes.set(title=titles[kind], xlabel="tokens trained on", ylabel="masked LM loss (nats)", xscale="log")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid(alpha=0.3)
    named = {
        label: handle for axes in figure.axes for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(named.values(), named, loc="outside lower center", ncols=3, fontsize="small")
    figure.savefig(PICTURE, format="svg", metadata={"Date": None})


def main() -> None:
    """Fits the laws and writes them."""
    rows = files.read_json_object(LAW_FILE)["measured"]
    laws = {kind: fit(pairs(rows, kind)) for kind in (FROM_RANDOM, FROM_RECORDS, FINAL)}
    kept = {kind: {name: float(f"{value:.4g}") for name, value in vars(law).items()} for kind, law in laws.items()}
    lines = ",\n".join(json.dumps(row) for row in rows)
    files.write_text(LAW_FILE, f'{{"laws": {json.dumps(kept, indent=1)},\n"measured": [\n{lines}\n]}}\n')
    _draw(rows, laws)
    for kind, law in laws.items():
        print(kind, law)
        for of in pairs(rows, kind).values():
            for (first, row), error in zip(of, residuals(law, of), strict=True):
                print(
                    f"  {_curve(row)}, {row['tokens'] / 1e6:.1f} M tokens from {first['tokens'] / 1e6:.1f}: "
                    f"{row['loss']:.3f}, expected {expected(law, first, row):.3f} ({100 * error:+.1f} %)"
                )


if __name__ == "__main__":
    main()
