"""Small SVG pictures: boxes, texts, arrows and lines on a white card, so that they are readable in dark mode too."""

import html
import pathlib

INK, MUTED, BLUE, ORANGE, GREEN, GRAY = "#1f2933", "#616e7c", "#dbeafe", "#ffe8cc", "#d8f5dd", "#eef1f4"
LINE_BLUE, LINE_ORANGE = "#1d4ed8", "#c2410c"


class Drawing:
    """An SVG picture in the making.

    Args:
        width: Width in pixels.
        height: Height in pixels.
        title: The alternative text.
    """

    def __init__(self, width: int, height: int, title: str) -> None:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'role="img" font-family="system-ui, sans-serif" font-size="14" fill="{INK}">'
            f"<title>{html.escape(title)}</title>"
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            f'<path d="M0 0 L8 4 L0 8 z" fill="{MUTED}"/></marker></defs>'
            f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>'
        )
        self._parts = [head]

    def box(self, x: float, y: float, width: float, height: float, text: str, color: str = GRAY) -> None:
        """Adds a box with one or more lines of centered text."""
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" fill="{color}" stroke="#9aa5b1"/>'
        )
        lines = text.split("\n")
        for number, line in enumerate(lines):
            self.text(x + width / 2, y + height / 2 + 5 + 17 * (number - (len(lines) - 1) / 2), line)

    def text(self, x: float, y: float, text: str, size: int = 14, anchor: str = "middle", color: str = INK) -> None:
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="{color}">'
            f"{html.escape(text)}</text>"
        )

    def arrow(self, *points: tuple[float, float]) -> None:
        """Adds an arrow along the points."""
        self._add_line(points, MUTED, ' marker-end="url(#tip)"', 1.5)

    def line(self, points: list[tuple[float, float]], color: str, width: float = 2) -> None:
        self._add_line(points, color, "", width)

    def _add_line(self, points: tuple | list, color: str, end: str, width: float) -> None:
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self._parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="{width:g}"{end}/>')

    def to_svg(self) -> str:
        """Returns the file's text."""
        return "\n".join([*self._parts, "</svg>", ""])


def write(script: str, drawing: Drawing) -> None:
    """Writes the picture next to the script that draws it."""
    pathlib.Path(script).with_suffix(".svg").write_text(drawing.to_svg(), encoding="utf-8")
