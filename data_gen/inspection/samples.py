"""Converts pre-training records to readable text."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from data_gen.inspection import batches
from data_gen.inspection.batches import Batch, get_token_name
from official_bert.data.sentence_objectives import LABELS, NEXT_SENTENCE, NONE
from official_bert.tokenization import exact

# The token in the record, and the original token if it is predicted.
Token = tuple[str, str | None]

_LABEL_NAMES = {NEXT_SENTENCE: "next sentence", NONE: "label of the segments"}


@dataclasses.dataclass(frozen=True)
class Sample:
    """A pre-training record converted to readable text.

    Attributes:
        name: The name of the file and the number of the record in it.
        properties: Lines that describe the label, the length and the predictions.
        segments: The tokens by segment, "a" and "b", including [CLS] and [SEP].
    """

    name: str
    properties: list[str]
    segments: list[tuple[str, list[Token]]]


def read_sample(batch: Batch, row: int, vocab: Mapping[str, int], name: str, objective: str = NEXT_SENTENCE) -> Sample:
    """Converts one record to readable text.

    Args:
        batch: A batch of records.
        row: Index of the record in the batch.
        vocab: The id of each token.
        name: The name to show for the record.
        objective: The sentence objective of the records, which determines the meaning of their label.
    """
    one = {feature: values[row : row + 1] for feature, values in batch.items()}
    tokens = {number: token for token, number in vocab.items()}
    length, first = int(batches.count_tokens(one)[0]), int(batches.count_first_segment_tokens(one)[0])
    originals: dict[int, int] = {}
    if "masked_lm_positions" in one:
        used = one["masked_lm_weights"] > 0
        positions, labels = one["masked_lm_positions"][used], one["masked_lm_ids"][used]
        originals = dict(zip(positions.tolist(), labels.tolist(), strict=True))
    ids = one["input_ids"][0]
    text: list[Token] = [
        (
            get_token_name(tokens, ids[position]),
            get_token_name(tokens, originals[position]) if position in originals else None,
        )
        for position in range(length)
    ]
    label = int(one["next_sentence_labels"][0, 0])
    properties = [
        f"{_LABEL_NAMES[objective]}: {LABELS[objective][label]} ({label})",
        f"{length} tokens, {len(ids) - length} positions of padding",
        _describe_predictions(ids, originals, vocab)
        if "masked_lm_positions" in one
        else "not masked: masking happens during training",
    ]
    segments = [("a", text[:first]), ("b", text[first:])]
    return Sample(name, properties, segments[:1] if objective == NONE else segments)


def _describe_predictions(ids: np.ndarray, originals: dict[int, int], vocab: Mapping[str, int]) -> str:
    hidden = sum(ids[position] == vocab[exact.MASK] for position in originals)
    kept = sum(ids[position] == original for position, original in originals.items())
    return f"{len(originals)} predictions: {hidden} [MASK], {kept} kept, {len(originals) - hidden - kept} random"
