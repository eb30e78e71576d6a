"""Fits the laws of planning (official_bert/pretraining/scaling_law.py) to measured runs, and draws the fits.

    python -m tools.reproduce.scaling_law

reads the measurements in configs/scaling_law.json, fits, and writes the laws beside them and
docs/images/scaling_law.svg. docs/planning.md says how the measurements were made.
"""

import dataclasses
import itertools
import json
import math
from typing import Any

import numpy as np

from official_bert.pretraining.scaling_law import FINAL, FROM_RANDOM, FROM_RECORDS, LAW_FILE, Reached, ScalingLaw
from official_bert.utils import files

PICTURE = "docs/images/scaling_law.svg"
_NAMES = ("floor", "slope", "growth", "repeats")
# What is believed before anything is measured, and deviations of the logarithm: few runs do not decide all of it.
# Repetitions are those of Muennighoff et al. (2023), "Scaling Data-Constrained Language Models".
_BEFORE = {"floor": (0.4, 0.3), "slope": (1.0, 0.3), "growth": (0.05, 1.0), "repeats": (15.4, 0.5)}
_NOISE = 0.02  # of a loss, believed
_NO_STEP = 1e9  # damping by which no step helps any more: the fit is there
_LATER = 2  # times as many tokens
_SPREAD = 0.25  # of texts' floors, believed

Row = dict[str, Any]
Pair = tuple[list[Row], Row]  # measurements by number of tokens, and one that is to be expected from them


def pairs(rows: list[Row], kind: str) -> dict[str, list[Pair]]:
    """Returns the measurements of a law, by what has a scale of its own.

    A loss in training is expected from each earlier one of the run; a held-out loss at the end from those of the
    text's shorter pilots.
    """
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row["kind"] == kind:
            groups.setdefault(row["text"] if kind == FINAL else _curve(row), []).append(row)
    if kind == FINAL:
        found = {name: [(_pilots_before(row, group), row) for row in group] for name, group in groups.items()}
        return {name: [(known, row) for known, row in of if known] for name, of in found.items()}
    return {name: [([first], row) for first, row in itertools.combinations(group, 2)] for name, group in groups.items()}


def _pilots_before(row: Row, rows: list[Row]) -> list[Row]:
    # One of as many tokens still tells what a larger model comes to.
    found = (each for each in rows if each["pilot"] and each["tokens"] <= row["tokens"] and each is not row)
    return sorted(found, key=lambda each: each["tokens"])


def _curve(row: Row) -> str:
    return f"{row['text']}, {row['model']}"


def _law(logarithms: np.ndarray, spread: float) -> ScalingLaw:
    values = dict(zip(_NAMES, np.exp(logarithms).tolist(), strict=True))
    return ScalingLaw(**values, spread=spread, deviations=(0.0,))


def residuals(law: ScalingLaw, of: list[Pair]) -> np.ndarray:
    """Returns the logarithms of measured by expected losses, [pairs]."""
    return np.array([math.log(row["loss"] / expected(law, known, row)) for known, row in of])


def expected(law: ScalingLaw, known: list[Row], row: Row) -> float:
    """Returns the loss that a law expects of a measured run, from other measurements of its text."""
    reached = [Reached(each["loss"], each["tokens"], each["parameters"]) for each in known]
    text = row["unigram_entropy"], row["text_tokens"]
    return law.of_text(reached, *text).loss_later(reached[-1], row["tokens"], row["parameters"], *text)


def fit(groups: dict[str, list[Pair]], spread: float) -> ScalingLaw:
    """Returns the law that is the most probable, given the measurements and what is believed before them.

    Texts are taken to have floors of their own, as far apart as the spread says.

    Its deviations are those of measurements from laws that were fitted without the run, or the text, that they are of;
    those of runs that are hardly longer than what they are expected from would say less of longer ones.
    """
    missed: dict[int, list[float]] = {}  # by how many earlier losses were used
    for each, of in groups.items():
        law = _fit([pair for name in groups if name != each for pair in groups[name]], spread)
        for known, row in of:
            for number in range(1, len(known) + 1):
                if row["tokens"] >= _LATER * known[number - 1]["tokens"]:
                    missed.setdefault(number, []).extend(residuals(law, [(known[:number], row)]))
    found = _fit([pair for of in groups.values() for pair in of], spread)
    return dataclasses.replace(
        found, deviations=tuple(math.sqrt(np.mean(np.square(missed[number]))) for number in sorted(missed))
    )


def _fit(of: list[Pair], spread: float) -> ScalingLaw:
    middle = np.array([math.log(_BEFORE[name][0]) for name in _NAMES])
    widths = np.array([_BEFORE[name][1] for name in _NAMES])

    def errors(logarithms: np.ndarray) -> np.ndarray:
        return np.concatenate([residuals(_law(logarithms, spread), of) / _NOISE, (logarithms - middle) / widths])

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
        if damping > _NO_STEP:
            break
    return _law(best, spread)


def fit_kind(rows: list[Row], kind: str) -> ScalingLaw:
    """Returns the law of one kind of measurements; a text's floor is told by pilots, which training does not have."""
    return fit(pairs(rows, kind), _SPREAD if kind == FINAL else 0.0)


def _draw(rows: list[Row], laws: dict[str, ScalingLaw]) -> None:
    from matplotlib import colormaps
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    figure = Figure(figsize=(13, 4.6), layout="constrained")
    curves = dict.fromkeys(map(_curve, rows))
    colors = {each: colormaps["tab20"](number) for number, each in enumerate(curves)}
    titles = {
        FROM_RANDOM: "training from random weights",
        FROM_RECORDS: "training from counts",
        FINAL: "held-out, from counts, at the end",
    }
    for axes, (kind, law) in zip(figure.subplots(1, 3), laws.items(), strict=True):
        groups = pairs(rows, kind)
        for curve, color in colors.items():
            of = [pair for group in groups.values() for pair in group if _curve(pair[1]) == curve]
            if not of:
                continue
            # The line is what is expected from the same measurements: the first, or all pilots.
            known, some = max(of, key=lambda pair: len(pair[0]))
            measured = [row for each in of for row in (*each[0], each[1]) if _curve(row) == curve]
            points = sorted({(row["tokens"], row["loss"]) for row in measured})
            tokens = np.geomspace(known[0]["tokens"], points[-1][0], 40)
            line = [expected(law, known, {**some, "tokens": each}) for each in tokens]
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
    laws = {kind: fit_kind(rows, kind) for kind in (FROM_RANDOM, FROM_RECORDS, FINAL)}
    everything = json.dumps({kind: vars(law) for kind, law in laws.items()})
    kept = json.loads(everything, parse_float=lambda digits: float(f"{float(digits):.4g}"))
    lines = ",\n".join(json.dumps(row) for row in rows)
    files.write_text(LAW_FILE, f'{{"laws": {json.dumps(kept, indent=1)},\n"measured": [\n{lines}\n]}}\n')
    _draw(rows, laws)
    for kind, law in laws.items():
        print(kind, law)
        for of in pairs(rows, kind).values():
            for (known, row), error in zip(of, residuals(law, of), strict=True):
                print(
                    f"  {_curve(row)}, {row['tokens'] / 1e6:.1f} M tokens from {known[-1]['tokens'] / 1e6:.1f}: "
                    f"{row['loss']:.3f}, expected {expected(law, known, row):.3f} ({100 * error:+.1f} %)"
                )


if __name__ == "__main__":
    main()
