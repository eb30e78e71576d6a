"""What the head of a task reads: the encoder's output, or a BiLSTM on top of it (paper, section 5.3 and table 5).

This module imports neither TensorFlow nor Keras, so that option classes can import it.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from official_bert.errors import UserError

# The encoder, a BiLSTM that is fine-tuned with it (table 5), or a BiLSTM on features of a frozen encoder (table 7).
LINEAR, BILSTM = "linear", "bilstm"
FEATURES = ("embeddings", "last_hidden", "second_to_last_hidden", "sum_last_four", "concat_last_four", "sum_all")
HEADS = (LINEAR, BILSTM, *FEATURES)

LSTM_UNITS = 768
_MAX_UNITS = 100_000


@dataclasses.dataclass(frozen=True)
class HeadInput:
    """What the head of a task reads: the encoder's output, or a BiLSTM on top of it (see bilstm.extend_encoder).

    Attributes:
        head: LINEAR for the encoder's output, BILSTM for a BiLSTM that is trained with the encoder, or one of FEATURES
            for a BiLSTM on these outputs of a frozen encoder. The value of --head.
        lstm_units: Units of each direction of the BiLSTM.

    Raises:
        UserError: If a value is invalid.
    """

    head: str = LINEAR
    lstm_units: int = LSTM_UNITS

    def __post_init__(self) -> None:
        if self.head not in HEADS:
            raise UserError(f"head is {self.head!r}; expected one of {', '.join(HEADS)}")
        units = self.lstm_units
        if not isinstance(units, int) or isinstance(units, bool) or not 1 <= units <= _MAX_UNITS:
            raise UserError(f"lstm_units is {units!r}; expected a whole number from 1 to {_MAX_UNITS:,}")

    @property
    def is_encoder(self) -> bool:
        """Whether the head reads the encoder's output directly, without a BiLSTM."""
        return self.head == LINEAR

    @classmethod
    def from_dict(cls, task_spec: Mapping[str, Any]) -> Self:
        """Creates a HeadInput from the contents of task.json. Without the keys, the head reads the encoder's output."""
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: task_spec[name] for name in names if name in task_spec})

    def to_dict(self) -> dict[str, Any]:
        """Returns the entries for task.json. Empty if the head reads the encoder's output."""
        return {} if self.is_encoder else dataclasses.asdict(self)
