"""The page of a table: the paper's figures, ours, and what may be concluded from them."""

import itertools
import math
import statistics
from collections.abc import Sequence

from official_bert.utils import html_pages
from tools.reproduce.figures import Losses, Scores, losses_by_step, scores_by_share
from tools.reproduce.tables import PERPLEXITY, Table

_DEVIATIONS = 2.0  # a difference of fewer standard errors is not told from chance


def page(
    table: Table,
    columns: Sequence[str],
    scores: Scores,
    scale: str,
    settings: Sequence[Sequence[str]],
    missing: Sequence[str],
    commands: Sequence[str],
    losses: Losses,
) -> str:
    """Returns the HTML of a table.

    Args:
        table: the paper's.
        columns: those that were measured.
        scores: ours.
        scale: its name.
        settings: what was run, as rows of cells.
        missing: what is left out, and why.
        commands: all that were run.
        losses: of pre-training, by model.
    """
    rows = [["", *(f"{column}, {whose}" for column in columns for whose in ("paper", "ours"))]]
    for variant in table.variants:
        cells = []
        for column in columns:
            known = variant.paper.get(column)
            cells += ["–" if known is None else f"{known:g}", _cell(scores[variant.name, column])]
        rows.append([variant.name, *cells])
    seeds = min(map(len, scores.values()))
    text = html_pages.text
    paragraphs = [
        f"<h1>{text(table.title)}, at the scale {text(scale)}</h1>",
        html_pages.table(rows),
        f"<p>{text(_key(seeds))}</p>",
        scores_by_share(table, columns, scores),
        f"<p>The paper: {text(table.finding)}.</p>",
        "<h2>Is the paper's order found?</h2>",
        "<ul>" + "".join(f"<li>{text(line)}</li>" for line in orders(table, columns, scores)) + "</ul>",
        "<h2>What may and may not be concluded</h2>",
        "<p>" + text(_caution(seeds, scale)) + (f" {text(_sentence(table.differs))}" if table.differs else "") + "</p>",
    ]
    if picture := losses_by_step(losses):
        paragraphs.append(f"<h2>Pre-training</h2>\n{picture}")
        if any(len(parts) > 1 for parts in losses.values()):
            paragraphs.append("<p>Where a line is interrupted, the sequences become longer.</p>")
    if missing:
        paragraphs.append(f"<p>Left out: {text('; '.join(missing))}.</p>")
    paragraphs.append(html_pages.section("What was run", settings))
    listed = "".join(f"<p><code>{text(command)}</code></p>\n" for command in commands)
    paragraphs.append(html_pages.folded("The commands", listed))
    return html_pages.page(f"{table.title} ({scale})", [part for part in paragraphs if part])


def _key(seeds: int) -> str:
    return (
        f"Means over {seeds} seed{'s' * (seeds > 1)}; after ± the standard deviation of a run. A seed is of a "
        "pre-training and of the fine-tuning from it. Scores are percent, of the dev parts; less perplexity is better."
    )


def _cell(values: Sequence[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{deviation}"


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


def _caution(seeds: int, scale: str) -> str:
    if seeds == 1:
        return "With one seed no difference can be told from chance: this page shows that the commands work."
    words = (
        f"A difference counts where it is larger than {_DEVIATIONS:g} standard errors of the difference of means over "
        f"{seeds} seeds; of many such comparisons some do by chance."
    )
    if scale != "base":
        words += (
            " The models, the text and the time are far smaller than the paper's: that an order is not found here does "
            "not contradict the paper, and one that is found may have other reasons at this scale."
        )
    return words


def orders(table: Table, columns: Sequence[str], scores: Scores) -> list[str]:
    """Returns a sentence for each column: which pairs of rows are in the paper's order, or in which order they are."""
    lines = []
    for column in columns:
        known = [variant for variant in table.variants if column in variant.paper]
        if not known:
            lines.append(_own_order(table, column, scores))
        same: list[str] = []
        against: list[str] = []
        open_ = 0
        for one, other in itertools.combinations(known, 2):
            theirs = one.paper[column] - other.paper[column]
            ours = difference(scores[one.name, column], scores[other.name, column])
            if not theirs or ours is None:
                open_ += 1
            else:
                better, worse = (one, other) if (theirs > 0) != (column == PERPLEXITY) else (other, one)
                found = same if (ours > 0) == (theirs > 0) else against
                found.append(f"{better.name} before {worse.name}")
        if same or against or open_:
            names = f" (the paper has {'; '.join(against)})" if against else ""
            lines.append(
                f"{column}: of {len(same) + len(against) + open_} pairs {len(same)} are in the paper's order, "
                f"{len(against)} in the other{names}; {open_} cannot be told apart"
            )
    return lines


def _own_order(table: Table, column: str, scores: Scores) -> str:
    found = []
    pairs = [pair for pair in itertools.combinations(table.variants, 2) if pair[0].share == pair[1].share]
    for one, other in pairs:
        value = difference(scores[one.name, column], scores[other.name, column])
        if value is not None:
            better, worse = (one, other) if (value > 0) != (column == PERPLEXITY) else (other, one)
            found.append(f"{better.name} before {worse.name}")
    told = f"{len(found)} of {len(pairs)} pairs of rows can be told apart"
    return f"{column}, which the paper's table does not have: {told}{': ' if found else ''}{'; '.join(found)}"


def difference(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Returns the difference of the means, or None where it is within what chance gives, as with a single seed."""
    if min(len(one), len(other)) < 2:
        return None
    value = statistics.fmean(one) - statistics.fmean(other)
    error = math.sqrt(statistics.variance(one) / len(one) + statistics.variance(other) / len(other))
    return value if abs(value) > _DEVIATIONS * error else None
