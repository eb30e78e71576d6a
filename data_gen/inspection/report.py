"""Formats records and statistics as a self-contained HTML page."""

import html

from data_gen.inspection.samples import Sample, Token
from data_gen.inspection.statistics import Statistics

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 46rem; margin: auto;
  padding: 1rem; overflow-wrap: break-word; }
h1 { font-size: 1.5rem; }
h2 { font-size: 1.2rem; margin-top: 2rem; }
table { border-collapse: collapse; }
th, td { text-align: left; vertical-align: top; padding: 0.1rem 1rem 0.1rem 0; font-weight: normal;
  white-space: pre-wrap; }
th { white-space: pre; }
th, .properties { color: #555; }
td.count { text-align: right; font-variant-numeric: tabular-nums; }
pre { overflow-x: auto; }
.segment { border-left: 3px solid #1f77b4; padding-left: 0.6rem; line-height: 2; }
.segment + .segment { border-color: #ff7f0e; }
.special { color: #999; }
ruby { ruby-position: over; white-space: nowrap; background: #ffe9a8; padding: 0 0.2rem; border-radius: 0.2rem; }
rt { font-size: 0.7em; }
ruby.kept { background: #cdebc5; }
ruby.random { background: #f8cfc9; }
.bar { background: #1f77b4; height: 0.8rem; min-width: 1px; }
"""

_SPECIAL = ("[CLS]", "[SEP]")


def make_page(title: str, samples: list[Sample], statistics: Statistics, most_predicted: int) -> str:
    """Returns the text of an HTML page about records.

    Args:
        title: Title of the page.
        samples: The records to show.
        statistics: Statistics of all records.
        most_predicted: Number of most frequently predicted tokens to list.
    """
    summary = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>\n"
        for name, value in statistics.summarize()
    )
    parts = [f"<h1>Records of {html.escape(title)}</h1>", f"<table>\n{summary}</table>"]
    if samples:
        parts.append("<h2>First records</h2>")
        if statistics.masked:
            parts.append(
                "<p>Predicted tokens, with the original above: <ruby>[MASK]<rt>hidden</rt></ruby> "
                '<ruby class="kept">kept<rt>kept</rt></ruby> <ruby class="random">random<rt>replaced</rt></ruby></p>'
            )
    parts += map(_format_sample, samples)
    parts += map(_format_histogram, statistics.draw_histograms())
    if statistics.predictions:
        parts.append(_format_most_predicted(statistics, most_predicted))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Records of {html.escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def _format_sample(sample: Sample) -> str:
    properties = "<br>\n".join(map(html.escape, [sample.name, *sample.properties]))
    segments = "\n".join(
        f'<p class="segment" dir="auto">{" ".join(map(_format_token, tokens))}</p>' for _, tokens in sample.segments
    )
    return f'<p class="properties">{properties}</p>\n{segments}'


def _format_token(token: Token) -> str:
    shown, original = token
    text = html.escape(shown)
    if original is None:
        return f'<span class="special">{text}</span>' if shown in _SPECIAL else text
    kind = "kept" if shown == original else "hidden" if shown == "[MASK]" else "random"
    return f'<ruby class="{kind}">{text}<rt>{html.escape(original)}</rt></ruby>'


def _format_most_predicted(statistics: Statistics, count: int) -> str:
    tokens = statistics.list_most_predicted(count)
    rows = "".join(
        f'<tr><th>{html.escape(token)}</th><td class="count">{number:,}</td>'
        f'<td class="count">{100 * number / statistics.predictions:.1f} %</td>'
        f'<td><div class="bar" style="width: {8 * number / max(1, tokens[0][1]):.2f}rem"></div></td></tr>\n'
        for token, number in tokens
    )
    return f"<h2>Most predicted tokens</h2>\n<table>\n{rows}</table>"


def _format_histogram(histogram: str) -> str:
    title, _, bars = histogram.partition("\n")
    return f"<h2>{html.escape(title)}</h2>\n<pre>{html.escape(bars)}</pre>"
