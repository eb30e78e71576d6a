"""What holds of every pre-training record, checked on batches of them.

B batch, L sequence length, P predictions
"""

from collections.abc import Iterator, Mapping

import numpy as np

from official_bert import tokenization
from data_gen import record_batches
from data_gen.record_batches import Batch

# Where a law is broken, [B, n]; values of that shape; the words, in which {at} is the place and {value} what is there.
_Check = tuple[np.ndarray, np.ndarray, str]


def first_violation(batch: Batch, vocab: Mapping[str, int] | None) -> tuple[int, str] | None:
    """Returns the first record of a batch that breaks a law, as its row and what is wrong with it in words, or None.

    Args:
        batch: features by name, [B, *shape], with values within the schema's limits.
        vocab: token to id, or None: then [CLS] and [SEP] are not looked for.
    """
    found: tuple[int, str] | None = None
    for wrong, values, words in _checks(batch, vocab):
        rows = np.asarray(wrong.any(axis=1))
        row = int(rows.argmax())
        # Of a record's broken laws the first is told: the later ones build on it.
        if rows[row] and (found is None or row < found[0]):
            at = int(wrong[row].argmax())
            found = row, words.format(at=at, value=values[row, at])
    return found


def _checks(batch: Batch, vocab: Mapping[str, int] | None) -> Iterator[_Check]:
    mask, segments = batch["input_mask"], batch["segment_ids"]
    place = np.arange(mask.shape[1])
    length = record_batches.text_lengths(batch)[:, None]  # [B, 1]
    first = record_batches.first_lengths(batch)[:, None]
    second = length - first
    text = place < length  # [B, L]
    yield mask != text, mask, "input_mask is {value} at position {at}; expected 1 for each token, then 0 for padding"
    for name in ("input_ids", "segment_ids"):
        wrong = ~text & (batch[name] != 0)
        yield wrong, batch[name], name + " holds {value} at position {at}, which is padding; expected 0"
    wrong = text & (segments != (place >= first))
    yield wrong, segments, "segment_ids is {value} at position {at}; expected 0 for [CLS] a [SEP], then 1 for b [SEP]"
    yield first < 3, first, "segment 0 has {value} tokens; expected 3 or more, [CLS] a [SEP]"
    yield second < 2, second, "segment 1 has {value} tokens; expected 2 or more, b [SEP]"
    if "masked_lm_positions" in batch:
        yield from _checks_of_predictions(batch)
    if vocab is not None:
        yield from _checks_of_special_tokens(batch, vocab)


def _checks_of_predictions(batch: Batch) -> Iterator[_Check]:
    positions, weights = batch["masked_lm_positions"], batch["masked_lm_weights"]
    used = np.arange(weights.shape[1]) < (weights == 1).sum(axis=1)[:, None]  # [B, P]
    yield weights != used, weights, "masked_lm_weights is {value} at place {at}; expected 1 for each prediction, then 0"
    for name in ("masked_lm_positions", "masked_lm_ids"):
        wrong = ~used & (batch[name] != 0)
        yield wrong, batch[name], name + " holds {value} at place {at}, where the weight is 0; expected 0"
    text = np.take_along_axis(record_batches.places_of_text(batch), positions, axis=1)
    yield (
        used & ~text,
        positions,
        "masked_lm_positions holds {value} at place {at}: [CLS], [SEP] or padding is there; expected a token of text",
    )
    wrong = np.zeros_like(used)
    wrong[:, 1:] = used[:, 1:] & (positions[:, 1:] <= positions[:, :-1])
    yield wrong, positions, "masked_lm_positions holds {value} at place {at}, not more than before; expected to ascend"


def _checks_of_special_tokens(batch: Batch, vocab: Mapping[str, int]) -> Iterator[_Check]:
    ids = record_batches.unmasked_ids(batch)
    cls, sep = vocab[tokenization.CLS], vocab[tokenization.SEP]
    text = record_batches.places_of_text(batch)
    ends = ~text & (batch["input_mask"] == 1)
    ends[:, 0] = False
    yield ids[:, :1] != cls, ids, f"it begins with id {{value}}; expected [CLS], {cls}"
    wrong = ends & (ids != sep)
    yield wrong, ids, f"position {{at}}, the end of a segment, holds id {{value}}; expected [SEP], {sep}"
    # [UNK] is text that the vocabulary has no piece for. Masking may put any token anywhere, as a random one.
    for token in (tokenization.PAD, tokenization.CLS, tokenization.SEP, tokenization.MASK):
        wrong = text & (ids == vocab[token])
        yield wrong, ids, f"position {{at}}, of the text, holds {token} (before masking), which no text gives"
