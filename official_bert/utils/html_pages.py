"""The pieces of a page that needs no other file."""

import base64
import html
import io
import re
from collections.abc import Sequence
from typing import Any

_LONGEST_NUMBER = 24  # of a cell that is not broken: a number with its unit
Table = Sequence[Sequence[str]]  # rows of cells; the first row is the head

_STYLE = """
body { margin: 0 auto; max-width: 72rem; padding: 1rem; font: 1rem/1.5 system-ui, sans-serif; color: #1a1a1a;
  background: #fff; }
h1, h2 { line-height: 1.2; overflow-wrap: anywhere; }
h2 { margin-top: 2rem; font-size: 1.2rem; }
img { max-width: 100%; }
.curves { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(20rem, 100%), 1fr)); gap: .5rem; }
.curves img { width: 100%; height: auto; }
/* Shades at the edges show that there is more of a table to the side. */
.table { overflow-x: auto; background:
  linear-gradient(90deg, #fff 1.5rem, #fff0 3rem) 0 0 / 3rem 100% no-repeat local,
  linear-gradient(270deg, #fff 1.5rem, #fff0 3rem) 100% 0 / 3rem 100% no-repeat local,
  linear-gradient(90deg, #0003, #0000) 0 0 / .75rem 100% no-repeat,
  linear-gradient(270deg, #0003, #0000) 100% 0 / .75rem 100% no-repeat; }
table { border-collapse: collapse; font-size: .9rem; }
th, td { text-align: left; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid #ddd; vertical-align: top; }
td { overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
.number { overflow-wrap: normal; white-space: nowrap; }
tbody th { font-weight: normal; }
code { overflow-wrap: anywhere; }
@media (max-width: 40rem) {
  table { font-size: .85rem; }
  th, td { padding-right: .5rem; }
  .stacked thead { position: absolute; left: -999rem; }
  .stacked tr { display: block; padding: .4rem 0; border-bottom: 1px solid #ddd; }
  .stacked th, .stacked td { display: block; border: 0; padding: 0; }
  .stacked td { display: inline-block; padding-right: 1rem; }
  .stacked td::before { content: attr(data-head) ": "; color: #666; }
}
summary { cursor: pointer; margin: .5rem 0; }
"""


def page(title: str, body: Sequence[str]) -> str:
    """Returns the page of a title and the HTML of its parts."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def text(plain: str) -> str:
    """Returns text as HTML."""
    return html.escape(plain)


def picture(alt: str, svg: bytes) -> str:
    """Returns an SVG picture that is part of the page."""
    return f'<img alt="{text(alt)}" src="data:image/svg+xml;base64,{base64.b64encode(svg).decode()}">'


def drawing(alt: str, figure: Any) -> str:
    """Returns a figure of matplotlib as an SVG picture that is part of the page."""
    svg = io.BytesIO()
    figure.savefig(svg, format="svg", metadata={"Date": None})
    return picture(alt, svg.getvalue())


def table(rows: Table, stacked: bool = False) -> str:
    """Returns a table, or nothing where it has only a head.

    Args:
        rows: the first is the head.
        stacked: whether the cells of a row stand below each other on a phone, for rows that begin with a long text.
    """
    if len(rows) < 2:
        return ""
    head = "".join(f"<th>{text(cell)}</th>" for cell in rows[0])
    body = "".join(
        f"<tr><th>{text(row[0])}</th>"
        + "".join(_cell(name, cell, stacked) for name, cell in zip(rows[0][1:], row[1:], strict=True))
        + "</tr>\n"
        for row in rows[1:]
    )
    kind = "table stacked" if stacked else "table"
    return f'<div class="{kind}"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table></div>'


def _cell(head: str, cell: str, stacked: bool) -> str:
    kind = ' class="number"' if len(cell) <= _LONGEST_NUMBER and re.match(r"[-+]?\d", cell) else ""
    name = f' data-head="{text(head)}"' if stacked else ""
    return f"<td{kind}{name}>{text(cell)}</td>"


def section(title: str, rows: Table, stacked: bool = False) -> str:
    """Returns a table with a heading, or nothing where it has only a head; `stacked` as for `table`."""
    return f"<h2>{text(title)}</h2>\n{table(rows, stacked)}" if len(rows) > 1 else ""


def folded(title: str, content: str, is_open: bool = False) -> str:
    """Returns HTML that is shown on a click, or nothing where there is none."""
    if not content:
        return ""
    return f"<details{' open' if is_open else ''}><summary>{text(title)}</summary>\n{content}</details>"
