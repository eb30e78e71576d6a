"""Draws a block of the encoder: `python docs/figures/encoder_block.py`."""

from drawing import BLUE, GRAY, GREEN, MUTED, ORANGE, Drawing, write


def draw() -> Drawing:
    """Returns the picture."""
    drawing = Drawing(
        560,
        610,
        "A block of the encoder, from bottom to top: query, key and value; attention probabilities, a softmax of "
        "scaled products; their product with the values; a dense layer; residual sum and layer normalization; two "
        "dense layers with GELU between them; residual sum and layer normalization.",
    )
    center = 250
    drawing.text(center, 592, "input [B, S, H]")
    drawing.arrow((center, 575), (center, 560), (120, 560), (120, 542))
    drawing.arrow((center, 575), (center, 542))
    drawing.arrow((center, 560), (380, 560), (380, 542))
    for x, name in ((120, "query"), (center, "key"), (380, "value")):
        drawing.box(x - 55, 505, 110, 35, name, BLUE)
    drawing.arrow((120, 505), (120, 480), (160, 480), (160, 462))
    drawing.arrow((center, 505), (center, 462))
    drawing.box(100, 415, 210, 45, "attention probabilities\nsoftmax(q k / √D + mask)", ORANGE)
    drawing.arrow((205, 415), (205, 390), (center - 20, 390), (center - 20, 372))
    drawing.arrow((380, 505), (380, 390), (center + 20, 390), (center + 20, 372))
    drawing.box(center - 90, 330, 180, 40, "probabilities x value", ORANGE)
    drawing.arrow((center, 330), (center, 307))
    drawing.box(center - 90, 270, 180, 35, "dense, dropout", BLUE)
    drawing.arrow((center, 270), (center, 247))
    drawing.box(center - 90, 205, 180, 40, "add, LayerNorm", GREEN)
    drawing.arrow((center, 205), (center, 182))
    drawing.box(center - 90, 145, 180, 35, "dense [4 H], GELU", BLUE)
    drawing.arrow((center, 145), (center, 122))
    drawing.box(center - 90, 85, 180, 35, "dense [H], dropout", BLUE)
    drawing.arrow((center, 85), (center, 67))
    drawing.box(center - 90, 30, 180, 35, "add, LayerNorm", GREEN)
    drawing.text(center, 20, "output [B, S, H]", color=MUTED)
    drawing.arrow((center, 575), (470, 575), (470, 225), (center + 92, 225))
    drawing.text(478, 400, "residual", 12, "start", MUTED)
    drawing.arrow((center - 90, 215), (60, 215), (60, 48), (center - 92, 48))
    drawing.text(52, 130, "residual", 12, "end", MUTED)
    drawing.box(400, 30, 140, 40, "repeated\nnum_hidden_layers", GRAY)
    return drawing


if __name__ == "__main__":
    write(__file__, draw())
