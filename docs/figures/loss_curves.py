"""Draws the losses of a pre-training run: `python docs/figures/loss_curves.py quickstart/model`."""

import json
import pathlib
import sys

from drawing import LINE_BLUE, LINE_ORANGE, MUTED, Drawing, write

LEFT, TOP, WIDTH, HEIGHT = 60, 30, 560, 240
LOWEST, HIGHEST = 3.0, 6.0


def draw(folder: pathlib.Path) -> Drawing:
    """Returns the picture of the run in a folder."""
    curves = []
    for name in ("train.jsonl", "eval.jsonl"):
        lines = [json.loads(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]
        curves.append([(line["step"], line["masked_lm_loss"]) for line in lines])
    last = curves[0][-1][0]
    first_loss, last_loss = curves[0][0][1], curves[0][-1][1]
    drawing = Drawing(
        660,
        320,
        f"The masked-LM loss of the quickstart falls from {first_loss:.2f} to {last_loss:.2f} in {last:,} steps, and "
        f"on held-out text to {curves[1][-1][1]:.2f}.",
    )
    for loss in range(int(LOWEST), int(HIGHEST) + 1):
        y = to_y(loss)
        drawing.line([(LEFT, y), (LEFT + WIDTH, y)], "#d9dee4", 1)
        drawing.text(LEFT - 8, y + 5, str(loss), 12, "end", MUTED)
    for step in range(0, last + 1, 500):
        drawing.text(LEFT + WIDTH * step / last, TOP + HEIGHT + 20, f"{step:,}", 12, color=MUTED)
    drawing.text(LEFT + WIDTH / 2, TOP + HEIGHT + 40, "step", 12, color=MUTED)
    drawing.text(LEFT, 20, "masked-LM loss of the quickstart", 14, "start")
    for curve, color, label, x in (
        (curves[0], LINE_BLUE, "training text", 420),
        (curves[1], LINE_ORANGE, "held-out text", 530),
    ):
        drawing.line([(LEFT + WIDTH * step / last, to_y(min(loss, HIGHEST))) for step, loss in curve], color)
        drawing.text(x, 20, label, 12, "start", color)
    return drawing


def to_y(loss: float) -> float:
    return TOP + HEIGHT * (HIGHEST - loss) / (HIGHEST - LOWEST)


if __name__ == "__main__":
    write(__file__, draw(pathlib.Path(sys.argv[1])))
