"""What the model is judged on, and when."""

import dataclasses

from official_bert.errors import UserError
from official_bert.utils.flags import EVALUATION, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """The flags about evaluation."""

    do_eval: bool = option(
        False,
        "Whether to evaluate, after training if there is any, on --eval_input_file or else the input files.",
        group=EVALUATION,
        free=True,
    )
    eval_input_file: list[str] = option(
        [], "Held-out TFRecord files or patterns, of the first phase's length.", group=EVALUATION, free=True
    )
    eval_batch_size: int = option(8, "Records in an evaluation batch, over all devices.", group=EVALUATION, free=True)
    max_eval_steps: int = option(100, "The most batches to evaluate.", group=EVALUATION, free=True)
    eval_steps: int = option(
        0, "Steps between evaluations on --eval_input_file while training; 0 for none.", group=EVALUATION, free=True
    )

    def check_evaluation(self) -> None:
        """Raises a UserError if flags about evaluation contradict each other."""
        if self.eval_steps and not self.eval_input_file:
            raise UserError("--eval_steps needs --eval_input_file: evaluation is on records that are not trained on")
