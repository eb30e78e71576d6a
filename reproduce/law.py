"""Fits the law of planning (official_bert/pretraining/law.py) to measured runs, and draws the fit.

    python -m reproduce.law

reads the measurements in configs/law.json, fits, and writes the laws beside them and docs/images/law.svg.
docs/planning.md says how the measurements were made.
"""

import dataclasses
import json
import math
from typing import Any

import numpy as np

from official_bert.pretraining.law import FINAL, FROM_RANDOM, FROM_RECORDS, LAW_FILE, Law
from official_bert.utils import files

PICTURE = "docs/images/law.svg"
_NAMES = ("floor", "scale", "slope", "growth", "repeats")
# What is believed before anything is measured, as logarithms and their deviations: few runs do not decide all of it.
_BEFORE = {"floor": (0.3, 0.15), "scale": (5e6, 1.5), "slope": (1.2, 0.3), "growth": (0.3, 0.5), "repeats": (8.0, 0.5)}
_NOISE = 0.02  # of a loss, believed


def measured(rows: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Returns the measurements of a law."""
    return [row for row in rows if row["kind"] == kind]


def _law(logarithms: np.ndarray, deviation: float = 0.0) -> Law:
    values = dict(zip(_NAMES, np.exp(logarithms).tolist(), strict=True))
    return Law(**{**values, "floor": min(values["floor"], 0.95)}, deviation=deviation)


def residuals(law: Law, rows: list[dict[str, Any]]) -> np.ndarray:
    """Returns the logarithms of measured by expected losses, [rows]."""
    return np.array([math.log(row["loss"] / expected(law, row)) for row in rows])


def expected(law: Law, row: dict[str, Any]) -> float:
    """Returns the loss that a law expects of a measured run."""
    return law.loss(row["unigram_entropy"], row["parameters"], row["tokens"], row["text_tokens"])


def fit(rows: list[dict[str, Any]]) -> Law:
    """Returns the law that is the most probable, given the measurements and what is believed before them.

    Its deviation is that of measurements from laws that were fitted without the run that they are of.
    """
    left_out = [
        residuals(_fit([row for row in rows if row["run"] != run]), [row for row in rows if row["run"] == run])
        for run in dict.fromkeys(row["run"] for row in rows)
    ]
    deviation = math.sqrt(np.mean(np.concatenate(left_out) ** 2))
    return dataclasses.replace(_fit(rows), deviation=deviation)


def _fit(rows: list[dict[str, Any]]) -> Law:
    middle = np.array([math.log(_BEFORE[name][0]) for name in _NAMES])
    widths = np.array([_BEFORE[name][1] for name in _NAMES])

    def errors(logarithms: np.ndarray) -> np.ndarray:
        return np.concatenate([residuals(_law(logarithms), rows) / _NOISE, (logarithms - middle) / widths])

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


def _group(row: dict[str, Any]) -> str:
    return f"{row['text']}, {row['model']}"


def _draw(rows: list[dict[str, Any]], laws: dict[str, Law]) -> None:
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    figure = Figure(figsize=(13, 4.6), layout="constrained")
    colors = {each: f"C{number}" for number, each in enumerate(dict.fromkeys(map(_group, rows)))}
    titles = {
        FROM_RANDOM: "training from random weights",
        FROM_RECORDS: "training from counts",
        FINAL: "held-out, from counts, at the end",
    }
    for axes, (kind, law) in zip(figure.subplots(1, 3), laws.items(), strict=True):
        for group, color in colors.items():
            of_group = sorted(
                (row for row in measured(rows, kind) if _group(row) == group), key=lambda row: row["tokens"]
            )
            if not of_group:
                continue
            tokens = np.geomspace(of_group[0]["tokens"] / 1.5, of_group[-1]["tokens"] * 1.5, 40)
            curve = [expected(law, {**of_group[0], "tokens": each}) for each in tokens]
            axes.plot(tokens, curve, color=color, linewidth=1)
            points = [(row["tokens"], row["loss"]) for row in of_group]
            axes.plot(*zip(*points, strict=True), "o", markersize=4, color=color, label=group)
        axes.set(title=titles[kind], xlabel="tokens trained on", ylabel="masked LM loss (nats)", xscale="log")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid(alpha=0.3)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize="small")
    figure.savefig(PICTURE, format="svg", metadata={"Date": None})


def main() -> None:
    """Fits the laws and writes them."""
    rows = files.read_json_object(LAW_FILE)["measured"]
    laws = {kind: fit(measured(rows, kind)) for kind in (FROM_RANDOM, FROM_RECORDS, FINAL)}
    kept = {kind: {name: float(f"{value:.4g}") for name, value in vars(law).items()} for kind, law in laws.items()}
    lines = ",\n".join(json.dumps(row) for row in rows)
    files.write_text(LAW_FILE, f'{{"laws": {json.dumps(kept, indent=1)},\n"measured": [\n{lines}\n]}}\n')
    _draw(rows, laws)
    for kind, law in laws.items():
        print(kind, law)
        for row, error in zip(of_kind := measured(rows, kind), residuals(law, of_kind), strict=True):
            print(f"  {row['run']}: {row['loss']:.3f}, expected {expected(law, row):.3f} ({100 * error:+.1f} %)")


if __name__ == "__main__":
    main()
