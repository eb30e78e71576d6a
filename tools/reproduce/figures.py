"""The pictures of a page: scores over the share of the steps (figure 5), losses of pre-training over steps."""

import io
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from official_bert.utils import html_pages
from tools.reproduce.tables import Table

Scores = Mapping[tuple[str, str], Sequence[float]]  # of each seed, by variant and column
Losses = Mapping[str, Sequence[Sequence[tuple[int, float]]]]  # by model: pairs of step and loss, of each of its parts

_PANEL = (5.5, 3.6)  # inches


def scores_by_share(table: Table, columns: Sequence[str], scores: Scores) -> str:
    """Returns an HTML picture of the scores over the steps, a line for each model; nothing where no share is taken.

    A bar is the standard deviation of a run.
    """
    shares = {variant.share for variant in table.variants}
    if len(shares) == 1:
        return ""
    figure = _new_figure(len(columns))
    lines = list(dict.fromkeys(variant.line for variant in table.variants))
    for axes, column in zip(figure.subplots(1, len(columns), squeeze=False).flat, columns, strict=True):
        for line in lines:
            points = [each for each in table.variants if each.line == line]
            of_points = [scores[each.name, column] for each in points]
            axes.errorbar(
                [100 * each.share for each in points],
                [statistics.fmean(values) for values in of_points],
                [statistics.stdev(values) if len(values) > 1 else 0.0 for values in of_points],
                marker="o", markersize=4, capsize=3, label=line,
            )  # fmt: skip
        axes.set_title(column)
        axes.set_xlabel("% of the steps of pre-training")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    return _picture(figure, "scores by the share of the steps")


def losses_by_step(losses: Losses) -> str:
    """Returns an HTML picture of the masked-LM losses (left to right: of all tokens) over steps, a line a model."""
    if not any(any(parts) for parts in losses.values()):
        return ""
    figure = _new_figure(2)
    axes = figure.subplots(1, 1)
    for number, (name, parts) in enumerate(losses.items()):
        for index, part in enumerate(parts):
            steps, values = zip(*part, strict=True) if part else ((), ())
            axes.plot(steps, values, color=f"C{number}", linewidth=1.2, label=name if not index else None)
    axes.set_xlabel("step")
    axes.set_ylabel("masked-LM loss in training")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return _picture(figure, "losses of pre-training")


def _new_figure(panels: int) -> Any:
    from matplotlib.figure import Figure  # only where a picture is drawn: importing it takes a second

    return Figure(figsize=(_PANEL[0] * panels, _PANEL[1]), layout="constrained")


def _picture(figure: Any, alt: str) -> str:
    import matplotlib

    picture = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "the same page again"}):
        figure.savefig(picture, format="svg", metadata={"Date": None})
    return html_pages.picture(alt, picture.getvalue())
