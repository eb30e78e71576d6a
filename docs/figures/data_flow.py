"""Draws the way of the data from text to answers: `python docs/figures/data_flow.py`."""

from drawing import BLUE, GREEN, MUTED, ORANGE, Drawing, write


def draw() -> Drawing:
    """Returns the picture."""
    drawing = Drawing(
        760,
        300,
        "Text becomes a vocabulary and records, pretrain makes a checkpoint of them; released weights are checkpoints "
        "too; finetune learns a task from a table; export writes a model for serve and predict.",
    )
    drawing.box(20, 30, 110, 50, "text", BLUE)
    drawing.box(190, 30, 120, 50, "vocabulary\nrecords", BLUE)
    drawing.box(400, 30, 130, 50, "checkpoint", GREEN)
    drawing.box(400, 130, 130, 50, "fine-tuned model", GREEN)
    drawing.box(400, 230, 130, 50, "export", GREEN)
    drawing.box(20, 130, 290, 50, "weights of Google, Hugging Face,\nkeras-hub, Model Garden", ORANGE)
    drawing.box(610, 130, 130, 50, "table, GLUE,\nSQuAD, tags", BLUE)
    drawing.box(640, 230, 100, 50, "answers", BLUE)
    drawing.arrow((130, 55), (188, 55))
    drawing.text(159, 24, "learn-vocabulary, make-records", 12, color=MUTED)
    drawing.arrow((310, 55), (398, 55))
    drawing.text(354, 48, "pretrain", 12, color=MUTED)
    drawing.arrow((310, 155), (355, 155), (355, 68), (398, 68))
    drawing.text(349, 112, "load, convert, adapt", 12, "end", MUTED)
    drawing.arrow((465, 80), (465, 128))
    drawing.text(473, 122, "finetune", 12, "start", MUTED)
    drawing.arrow((610, 155), (532, 155))
    drawing.arrow((465, 180), (465, 228))
    drawing.text(473, 210, "export", 12, "start", MUTED)
    drawing.arrow((530, 255), (638, 255))
    drawing.text(584, 248, "serve, predict", 12, color=MUTED)
    return drawing


if __name__ == "__main__":
    write(__file__, draw())
