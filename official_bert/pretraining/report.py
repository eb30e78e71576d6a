"""What a run leaves for its reader: a picture of the curves, a page, a model card."""

import io
import itertools
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from official_bert.pretraining import summary
from official_bert.pretraining.curves import Curves, phases, run_curves, spread, thinned, values_of
from official_bert.pretraining.model_card import model_card
from official_bert.pretraining.run_metadata import RUN_FILE
from official_bert.utils import files, html_pages
from official_bert.utils.training_log import NOTICES, read_log

CURVES_FILE, PAGE_FILE, CARD_FILE = "curves.png", "report.html", "MODEL_CARD.md"

_PANELS = {
    "masked_lm_loss": "masked LM loss (nats)",
    "next_sentence_loss": "next sentence loss (nats)",
    "learning_rate": "learning rate",
    "masked_lm_accuracy": "masked LM accuracy (%)",
    "next_sentence_accuracy": "next sentence accuracy (%)",
    "gradient_norm": "gradient norm",
}
_MOST_POINTS = 400  # of a curve in a picture: about one for two pixels
_FEW = 30  # as many points are marked: a few are hard to see as a line, one is not seen at all
_MOST_NOTICES = 50  # on the page and the card; the log has all
_MOST_ROWS = 20  # of the table of numbers


def write_report(
    folder: str,
    metadata: Mapping[str, Any],
    sections: Mapping[str, summary.Table] | None = None,
) -> list[str]:
    """Writes the report of a run into its folder, from its logs and its metadata.

    run.json holds the metadata, MODEL_CARD.md the model card, report.html a page that needs no other file, curves.png
    the curves. Without matplotlib, which training does not need, there are no pictures; tables show the curves.

    Args:
        folder: the run's.
        metadata: what the logs do not know, as JSON can hold it; any key may be missing:
            - command: the command line, as one string.
            - flags: all flags, by name.
            - config: the model's configuration, with bert_config.json's keys.
            - parameters: the number of weights.
            - data: the manifests of the training records, each as the JSON object of its file.
            - evaluation_data: those of the evaluation records.
            - versions: of official_bert, tensorflow, keras, python, by name.
            - devices: their short names, as in CPU:0.
        sections: tables for the beginning of page and card, by their titles.

    Returns:
        The paths written.

    Raises:
        UserError: If the files cannot be written.
    """
    curves = run_curves(folder)
    notices = read_log(folder, NOTICES)
    picture = _draw(curves, list(_PANELS), "png", columns=3)
    written: dict[str, bytes] = {
        RUN_FILE: (json.dumps(metadata, indent=1) + "\n").encode(),
        CARD_FILE: model_card(curves, metadata, notices[-_MOST_NOTICES:], sections or {}).encode(),
        PAGE_FILE: _page(curves, metadata, notices, sections or {}).encode(),
        **({CURVES_FILE: picture} if picture else {}),
    }
    paths = [os.path.join(folder, name) for name in written]
    for path, content in zip(paths, written.values(), strict=True):
        files.write_bytes(path, content)
    return paths


def _draw(curves: Curves, names: Sequence[str], kind: str, columns: int) -> bytes | None:
    """A picture ("png" or "svg") with a panel for each name; None where nothing was logged, or without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    if not (curves.train or curves.eval):
        return None
    rows = -(-len(names) // columns)
    figure = Figure(figsize=(5 * columns, 3.4 * rows), layout="constrained")
    for axes, name in zip(figure.subplots(rows, columns, squeeze=False).flat, names, strict=True):
        _draw_panel(axes, curves, name)
    picture = io.BytesIO()
    figure.savefig(picture, format=kind, dpi=100, metadata={"Date": None} if kind == "svg" else None)
    return picture.getvalue()


def _draw_panel(axes: Any, curves: Curves, name: str) -> None:
    scale = 100 if name.endswith("_accuracy") else 1
    _plot(axes, curves.train, name, scale, color="tab:blue", label="training")
    _plot_evaluations(axes, curves.eval, name, scale, color="tab:orange", label="evaluation")
    _plot_evaluations(axes, curves.general, name, scale, color="tab:green", label="evaluation on general text")
    for (before, lines), (after, _) in itertools.pairwise(phases(curves.train)):
        axes.axvline(lines[-1]["step"], color="0.3", linestyle="--", linewidth=1)
        axes.annotate(
            f"length {before} → {after}", (lines[-1]["step"], 0.02), xycoords=("data", "axes fraction"), xytext=(-3, 0),
            textcoords="offset points", rotation=90, ha="right", va="bottom", fontsize="small", color="0.3",
        )  # fmt: skip
    axes.set_title(_PANELS[name])
    axes.set_xlabel("step")
    axes.xaxis.get_major_locator().set_params(nbins=5, integer=True)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(alpha=0.3)
    if len(axes.get_legend_handles_labels()[0]) > 1:
        axes.legend(loc="best", fontsize="small")


def _plot(axes: Any, lines: Sequence[Mapping[str, Any]], name: str, scale: float, **style: Any) -> None:
    if not np.isfinite(values_of(lines, name)).any():
        return
    steps, means, least, greatest = thinned(lines, name, _MOST_POINTS)
    if len(lines) > len(steps):  # a point stands for several lines: show how far they reach
        axes.fill_between(steps, scale * least, scale * greatest, color=style["color"], alpha=0.3, linewidth=0)
    axes.plot(steps, scale * means, marker="." if len(steps) < _FEW else None, **style)


def _plot_evaluations(axes: Any, lines: list[dict[str, Any]], name: str, scale: float, **style: Any) -> None:
    # Evaluations are of single steps: some are chosen rather than a mean taken.
    shown = spread([line for line in lines if np.isfinite(values_of([line], name)).all()], _MOST_POINTS)
    if shown:
        marker = "o" if len(shown) < _FEW else None
        axes.plot(values_of(shown, "step"), scale * values_of(shown, name), marker=marker, markersize=4, **style)


def _page(
    curves: Curves,
    metadata: Mapping[str, Any],
    notices: Sequence[Mapping[str, Any]],
    sections: Mapping[str, summary.Table],
) -> str:
    pictures = {title: _draw(curves, [name], "svg", columns=1) for name, title in _PANELS.items()}
    images = "".join(html_pages.picture(f"{title}, by step", each) + "\n" for title, each in pictures.items() if each)
    parameters = f" {metadata['parameters']:,} parameters." if "parameters" in metadata else ""
    numbers = html_pages.table(_numbers(curves)) if curves.train else ""
    body = [
        f"<h1>{html_pages.text(curves.name)}</h1>",
        f"<p>Pre-training of BERT, at step {curves.last_step:,}.{parameters}</p>",
        *(html_pages.section(title, rows) for title, rows in sections.items()),
        "<h2>Curves</h2>",
        f'<div class="curves">\n{images}</div>' if images else "<p>There are no pictures.</p>",
        html_pages.folded("The numbers", numbers, is_open=not images) if curves.train else "",
        html_pages.section("Scores", summary.score_table(curves)),
        html_pages.section("Training", summary.amount_table(curves)),
        html_pages.section("Throughput, medians over the log", summary.rate_table(curves)),
        _notices(notices),
        "<h2>Settings</h2>",
        f"<p><code>{html_pages.text(str(metadata['command']))}</code></p>" if metadata.get("command") else "",
        html_pages.folded("Flags", html_pages.table(summary.flag_table(metadata.get("flags", {})))),
        html_pages.folded("Model", html_pages.table(summary.model_table(metadata))),
        *(
            html_pages.folded(title, html_pages.table(summary.data_table(each)))
            for title, key in (("Training records", "data"), ("Evaluation records", "evaluation_data"))
            for each in metadata.get(key, ())
        ),
        html_pages.folded("Versions and devices", html_pages.table(summary.environment_table(metadata))),
    ]
    return html_pages.page(curves.name, [part for part in body if part])


def _numbers(curves: Curves) -> summary.Table:
    """A few points of the curves, for those who cannot see them."""
    names = list(_PANELS)
    points = [thinned(curves.train, name, _MOST_ROWS) for name in names]
    table = [["step", *(_PANELS[name] for name in names)]]
    for index, step in enumerate(points[0][0]):
        values = [(100 if name.endswith("_accuracy") else 1) * points[i][1][index] for i, name in enumerate(names)]
        table.append([f"{step:,.0f}", *(f"{value:.4g}" if np.isfinite(value) else summary.MISSING for value in values)])
    return table


def _notices(notices: Sequence[Mapping[str, Any]]) -> str:
    if not notices:
        return ""
    items = "".join(
        f"<li>step {each['step']:,}: {html_pages.text(str(each['notice']))}</li>\n" for each in notices[-_MOST_NOTICES:]
    )
    left_out = len(notices) - _MOST_NOTICES
    earlier = f"<p>{left_out:,} earlier ones are in {NOTICES}.jsonl.</p>\n" if left_out > 0 else ""
    return f"<h2>Notices</h2>\n{earlier}<ul>\n{items}</ul>"
