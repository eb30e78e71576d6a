"""What a conversion may lose of a model's score."""

from official_bert.errors import UserError


def check(before: float, after: float, perfect: float, max_loss: float, what: str, eval_file: str) -> None:
    """Raises a UserError if a model loses more than it may.

    Args:
        before: the task's score.
        after: that of the converted model.
        perfect: the best one.
        max_loss: the most that may be lost, as a share of the best one.
        what: the converted model, for the error.
        eval_file: what it was measured on, likewise.
    """
    if (before - after) / perfect > max_loss:
        raise UserError(
            f"the {what} loses {before - after:.4f} (from {before:.4f} to {after:.4f}) on {eval_file}, more than "
            f"--max_loss={max_loss}; nothing is written"
        )
