"""The phases of training: short records first, then longer ones."""

import dataclasses

from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.utils.flags import option

_GROUP = "second phase"  # the heading in --help


@dataclasses.dataclass(frozen=True, kw_only=True)
class Phase:
    """A part of training, on records of one length.

    Attributes:
        number: 1 or 2.
        first_step: the number of steps done before it.
        last_step: the number of steps done at its end.
        input_file: TFRecord files or glob patterns.
        max_seq_length: length of the records.
        max_predictions_per_seq: predictions in a record.
        train_batch_size: records in a step, over all devices.
        learning_rate: the highest.
        num_warmup_steps: steps in which the rate rises from 0.
    """

    number: int
    first_step: int
    last_step: int
    input_file: list[str]
    max_seq_length: int
    max_predictions_per_seq: int
    train_batch_size: int
    learning_rate: float
    num_warmup_steps: int

    def predictions(self, config: BertConfig) -> int:
        """Returns how many predictions the model makes of a record: from left to right, of all tokens."""
        return self.max_seq_length - 1 if config.causal_attention else self.max_predictions_per_seq

    def flag(self, name: str) -> str:
        """Returns the flag that sets one of these."""
        return f"--{name}" if self.number == 1 else f"--phase2_{name}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SecondPhaseOptions:
    """The flags about the second phase, on longer records."""

    phase2_num_train_steps: int = option(
        0, "Steps of a second phase after the first, on longer records; 0 for none.", group=_GROUP
    )
    phase2_input_file: list[str] = option([], "Its TFRecord files or patterns.", group=_GROUP, free=True)
    phase2_max_seq_length: int = option(512, "Length of its records.", group=_GROUP)
    phase2_max_predictions_per_seq: int = option(77, "Predictions in a record of it.", group=_GROUP)
    phase2_train_batch_size: int | None = option(
        None, "Records in a step of it; by default as in the first phase.", group=_GROUP
    )
    phase2_learning_rate: float | None = option(
        None, "Its highest learning rate; by default as in the first phase.", group=_GROUP
    )
    phase2_num_warmup_steps: int = option(0, "Steps in which its rate rises from 0.", group=_GROUP)

    def check_second_phase(self) -> None:
        """Raises a UserError if flags about the second phase contradict each other."""
        if bool(self.phase2_num_train_steps) != bool(self.phase2_input_file):
            raise UserError("--phase2_num_train_steps and --phase2_input_file go together; one of them is missing")
