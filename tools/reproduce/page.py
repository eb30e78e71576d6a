"""Writes the page with the results of a table, in Markdown: the paper's scores next to the scores of the runs."""

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from tools.reproduce.experiment import Experiment
from tools.reproduce.tables import Table

Scores = Mapping[tuple[str, str], Sequence[float]]  # of each seed, by variant and column

_STANDARD_ERRORS = 2.0  # a smaller difference of means is not significant

_NOTES = """
Scores are means and standard deviations over the random seeds, in percent on the dev sets. Lower perplexity is better.
A difference of means is significant if it exceeds two standard errors, which a single seed cannot show.
"""


def write_page(experiment: Experiment, scores: Scores) -> str:
    """Returns the Markdown text of an experiment's page."""
    table, columns = experiment.table, experiment.columns
    head = ["", "model", *(f"{column}, {source}" for column in columns for source in ("paper", "ours"))]
    lines = [f"# {table.title}", "", _format_row(head), _format_row(["---"] * len(head))]
    for variant in table.variants:
        cells = [variant.name, str(experiment.shape(variant))]
        for column in columns:
            cells += [str(variant.paper.get(column, "-")), _format_scores(scores[variant.name, column])]
        lines.append(_format_row(cells))
    lines.append(_NOTES)
    lines += [f"- {compare_orders(table, column, scores)}" for column in columns if column in table.variants[0].paper]
    return "\n".join([*lines, "", "```bash", *(run.line() for run in experiment.runs()), "```", ""])


def _format_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _format_scores(values: Sequence[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{deviation}"


def compare_orders(table: Table, column: str, scores: Scores) -> str:
    """Returns a sentence on how many pairs of rows in a column have the same order as in the paper."""
    pairs = list(itertools.combinations([variant for variant in table.variants if column in variant.paper], 2))
    signs = [
        (one.paper[column] - other.paper[column])
        * find_difference(scores[one.name, column], scores[other.name, column])
        for one, other in pairs
    ]
    same, reversed_ = sum(sign > 0 for sign in signs), sum(sign < 0 for sign in signs)
    return f"{column}: {same} of {len(pairs)} pairs in the paper's order, {reversed_} reversed, others not significant"


def find_difference(one: Sequence[float], other: Sequence[float]) -> float:
    """Returns the difference of the means of two lists of scores, or 0 if it is not significant.

    With fewer than two scores in a list, no difference is significant.
    """
    if min(len(one), len(other)) < 2:
        return 0.0
    difference = statistics.fmean(one) - statistics.fmean(other)
    error = math.sqrt(statistics.variance(one) / len(one) + statistics.variance(other) / len(other))
    return difference if abs(difference) > _STANDARD_ERRORS * error else 0.0
