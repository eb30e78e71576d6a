"""A run's curves as a picture."""

import io
import os

from official_bert import files
from official_bert.training_log import EVAL, TRAIN, read_log

CURVES_FILE = "curves.png"

_PANELS = (
    ("loss (nats)", {"masked_lm_loss": "masked LM", "next_sentence_loss": "next sentence"}),
    ("accuracy", {"masked_lm_accuracy": "masked LM", "next_sentence_accuracy": "next sentence"}),
)


def draw_curves(folder: str) -> str | None:
    """Draws losses and accuracies over steps into the run's folder: lines for training, points for evaluation.

    Returns:
        The picture's path, or None where nothing was logged or matplotlib, which training does not need, is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    logged = {kind: read_log(folder, kind) for kind in (TRAIN, EVAL)}
    if not logged[TRAIN]:
        return None
    figure = Figure(figsize=(10, 4), layout="constrained")
    for axes, (title, curves) in zip(figure.subplots(1, 2), _PANELS, strict=True):
        for color, (name, label) in zip(("tab:blue", "tab:orange"), curves.items(), strict=True):
            for kind, style in ((TRAIN, "-"), (EVAL, "o")):
                if logged[kind]:
                    steps = [line["step"] for line in logged[kind]]
                    values = [line[name] for line in logged[kind]]
                    axes.plot(steps, values, style, color=color, label=f"{label}, {kind}")
        axes.set_title(title)
        axes.set_xlabel("step")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend()
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    path = os.path.join(folder, CURVES_FILE)
    files.write_bytes(path, picture.getvalue())
    return path
