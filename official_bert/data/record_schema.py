"""The schema of the TFRecord files: name, shape, type and range of each feature, for writing and for reading."""

import dataclasses
from collections.abc import Mapping

INT64, FLOAT = "int64", "float32"


@dataclasses.dataclass(frozen=True)
class Feature:
    """A feature's shape, its type in the file, and its range."""

    shape: tuple[int, ...]  # of one record, without the batch
    dtype: str  # in the file, INT64 or FLOAT; the format has no other numbers
    limit: int | None = None  # integers are from 0 up to, not including, this; None where it is not known


Schema = Mapping[str, Feature]


def pretraining_schema(
    max_seq_length: int, max_predictions_per_seq: int, vocab_size: int | None = None, type_vocab_size: int | None = None
) -> dict[str, Feature]:
    """Returns the features of a pre-training record, the original's.

    - input_ids: ids after masking, padded with 0.
    - input_mask: 1 for a token, 0 for padding.
    - segment_ids: 0 for [CLS] a [SEP], 1 for b [SEP], 0 for padding.
    - masked_lm_positions: where a token is to be predicted, ascending, padded with 0.
    - masked_lm_ids: the ids that stood there before masking, padded with 0.
    - masked_lm_weights: 1.0 for a prediction, 0.0 for padding.
    - next_sentence_labels: 0 where b follows a in the text, 1 where it comes from elsewhere (other objectives:
      sentence_objectives.py).

    Args:
        max_seq_length: positions of a record.
        max_predictions_per_seq: predictions of a record.
        vocab_size: the number of ids, if known.
        type_vocab_size: the number of segment ids, if known.
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
    """Returns the features of a record whose tokens are to be hidden while training: those that are not about that."""
    masked = pretraining_schema(max_seq_length, 0, vocab_size, type_vocab_size)
    return {name: feature for name, feature in masked.items() if not name.startswith("masked_lm_")}
