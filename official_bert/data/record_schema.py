"""The schema of pre-training records in TFRecord files: the name, shape, type and range of each feature."""

import dataclasses
from collections.abc import Mapping

INT64, FLOAT = "int64", "float32"


@dataclasses.dataclass(frozen=True)
class Feature:
    """The shape, type and range of one feature of a record.

    Attributes:
        shape: Shape in one record, without the batch dimension.
        dtype: Type in the file, INT64 or FLOAT. The format has no other numeric types.
        limit: Exclusive upper limit of the integers, which start at 0. None if it is unknown.
    """

    shape: tuple[int, ...]
    dtype: str
    limit: int | None = None


Schema = Mapping[str, Feature]


def pretraining_schema(
    max_seq_length: int, max_predictions_per_seq: int, vocab_size: int | None = None, type_vocab_size: int | None = None
) -> dict[str, Feature]:
    """Returns the features of a pre-training record, by name. They are the same as in the original.

    - input_ids: Token ids after masking, padded with 0.
    - input_mask: 1 for a token, 0 for padding.
    - segment_ids: 0 for [CLS] a [SEP], 1 for b [SEP], 0 for padding.
    - masked_lm_positions: Positions of the tokens to predict, ascending, padded with 0.
    - masked_lm_ids: Ids at these positions before masking, padded with 0.
    - masked_lm_weights: 1.0 for a prediction, 0.0 for padding.
    - next_sentence_labels: 0 if b follows a in the text, 1 if it comes from elsewhere. sentence_objectives.py has the
      other objectives.

    Args:
        max_seq_length: Number of positions per record.
        max_predictions_per_seq: Maximum number of predictions per record.
        vocab_size: Number of token ids. None if unknown.
        type_vocab_size: Number of segment ids. None if unknown.
    """
    sequence, predictions = (max_seq_length,), (max_predictions_per_seq,)
    return {
        "input_ids": Feature(sequence, INT64, vocab_size),
        "input_mask": Feature(sequence, INT64, 2),
        "segment_ids": Feature(sequence, INT64, type_vocab_size),
        "masked_lm_positions": Feature(predictions, INT64, max_seq_length),
        "masked_lm_ids": Feature(predictions, INT64, vocab_size),
        "masked_lm_weights": Feature(predictions, FLOAT),
        "next_sentence_labels": Feature((1,), INT64, 2),
    }


def unmasked_schema(
    max_seq_length: int, vocab_size: int | None = None, type_vocab_size: int | None = None
) -> dict[str, Feature]:
    """Returns the features of a record for dynamic masking: `pretraining_schema` without the masked_lm_* features."""
    masked = pretraining_schema(max_seq_length, 0, vocab_size, type_vocab_size)
    return {name: feature for name, feature in masked.items() if not name.startswith("masked_lm_")}
