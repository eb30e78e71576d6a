"""Checks batches of pre-training records against the rules that every record must obey.

B batch, L sequence length, P predictions
"""

from collections.abc import Iterator, Mapping

import numpy as np

from data_gen.inspection import batches
from data_gen.inspection.batches import Batch
from official_bert.data.record_codec import restore_masked_ids
from official_bert.tokenization import exact
from official_bert.tokenization.casing import is_marker

# Violations of a rule, [B, n] bool; the values, [B, n]; a message template with {at} for the column and {value}.
_Check = tuple[np.ndarray, np.ndarray, str]


class WordPieces:
    """A vocabulary that can tell which pairs of adjacent tokens the WordPiece algorithm never produces.

    WordPiece always takes the longest matching piece, so two pieces cannot follow each other within a word if the
    vocabulary contains a longer first piece.
    """

    def __init__(self, vocab: Mapping[str, int]) -> None:
        self.vocab = vocab
        self._pieces = {number: piece for piece, number in vocab.items()}
        self._is_continuation = np.zeros(max(vocab.values()) + 1, bool)
        self._is_continuation[[number for piece, number in vocab.items() if piece.startswith("##")]] = True
        self.has_capital = np.zeros(self._is_continuation.shape, bool)
        capitalized = [piece for piece in vocab if piece != piece.lower() and not is_marker(piece)]
        self.has_capital[[vocab[piece] for piece in capitalized]] = True
        self.has_seen_capitals = False  # Whether any checked text had a piece with a capital letter.
        self._possible: dict[int, bool] = {}  # The key contains both ids: first << 32 | second.

    def find_impossible_pairs(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Finds pairs of neighboring tokens that the tokenization of a text never contains.

        Args:
            first: Token ids, of any shape.
            second: The ids of the tokens that follow them, of the same shape.

        Returns:
            A bool array of the same shape, True for the impossible pairs.
        """
        wrong = np.zeros(first.shape, bool)
        rows = np.nonzero(self._is_continuation[second])
        pairs, which = np.unique((first[rows].astype(np.int64) << 32) | second[rows], return_inverse=True)
        wrong[rows] = ~np.array(list(map(self._is_possible, pairs.tolist())), bool)[which]
        return wrong

    def _is_possible(self, pair: int) -> bool:
        if pair not in self._possible:
            piece, after = self._pieces.get(pair >> 32, ""), self._pieces[pair & 0xFFFFFFFF]
            both = piece + after.removeprefix("##")
            longer = any(both[:end] in self.vocab for end in range(len(piece) + 1, len(both) + 1))
            self._possible[pair] = not longer and piece != exact.UNK  # [UNK] replaces a complete word.
        return self._possible[pair]


def find_first_violation(
    batch: Batch, word_pieces: WordPieces | None, one_segment: bool = False
) -> tuple[int, str] | None:
    """Checks the records of a batch against all rules.

    Args:
        batch: Records whose values are within the limits of the schema.
        word_pieces: The vocabulary. If None, the positions of [CLS] and [SEP] and the tokens of words are not checked.
        one_segment: Whether each record has one segment, with a [SEP] between documents. Otherwise it has two.

    Returns:
        The index in the batch of the first record that violates a rule, and an error message. None if there is none.
    """
    first: tuple[int, str] | None = None
    for wrong, values, message in _check_rules(batch, word_pieces, one_segment):
        rows = np.asarray(wrong.any(axis=1))
        row = int(rows.argmax())
        # Later checks assume that earlier ones passed, so the first violated rule of a record is reported.
        if rows[row] and (first is None or row < first[0]):
            at = int(wrong[row].argmax())
            first = row, message.format(at=at, value=values[row, at])
    return first


def _check_rules(batch: Batch, word_pieces: WordPieces | None, one_segment: bool) -> Iterator[_Check]:
    mask, segments = batch["input_mask"], batch["segment_ids"]
    position = np.arange(mask.shape[1])
    length = batches.count_tokens(batch)[:, None]  # [B, 1]
    first = batches.count_first_segment_tokens(batch)[:, None]
    second = length - first
    text = position < length  # [B, L]
    yield mask != text, mask, "input_mask is {value} at position {at}; expected 1 for each token, then 0 for padding"
    for name in ("input_ids", "segment_ids"):
        wrong = ~text & (batch[name] != 0)
        yield wrong, batch[name], name + " contains {value} at position {at}, which is padding; expected 0"
    wrong = text & (segments != (position >= first))
    yield wrong, segments, "segment_ids is {value} at position {at}; expected 0 for [CLS] a [SEP], then 1 for b [SEP]"
    yield first < 3, first, "segment 0 has {value} tokens; expected 3 or more, [CLS] a [SEP]"
    if one_segment:
        yield second > 0, second, "segment 1 has {value} tokens; expected one segment, as the manifest says"
    else:
        yield second < 2, second, "segment 1 has {value} tokens; expected 2 or more, b [SEP]"
    if "masked_lm_positions" in batch:
        yield from _check_predictions(batch)
    if word_pieces is not None:
        yield from _check_special_tokens(batch, word_pieces.vocab, one_segment)
        yield _check_word_pieces(batch, word_pieces)


def _check_predictions(batch: Batch) -> Iterator[_Check]:
    positions, weights = batch["masked_lm_positions"], batch["masked_lm_weights"]
    used = np.arange(weights.shape[1]) < (weights == 1).sum(axis=1)[:, None]  # [B, P]
    message = "masked_lm_weights is {value} in slot {at}; expected 1 for each prediction, then 0"
    yield weights != used, weights, message
    for name in ("masked_lm_positions", "masked_lm_ids"):
        wrong = ~used & (batch[name] != 0)
        yield wrong, batch[name], name + " contains {value} in slot {at}, where the weight is 0; expected 0"
    text = np.take_along_axis(batches.is_text(batch), positions, axis=1)
    yield (
        used & ~text,
        positions,
        "masked_lm_positions contains {value} in slot {at}: [CLS], [SEP] or padding; expected a token of text",
    )
    wrong = np.zeros_like(used)
    wrong[:, 1:] = used[:, 1:] & (positions[:, 1:] <= positions[:, :-1])
    yield (
        wrong,
        positions,
        "masked_lm_positions contains {value} in slot {at}, which is not ascending; expected ascending positions",
    )


def _check_special_tokens(batch: Batch, vocab: Mapping[str, int], one_segment: bool) -> Iterator[_Check]:
    ids = restore_masked_ids(batch)
    cls, sep = vocab[exact.CLS], vocab[exact.SEP]
    text = batches.is_text(batch)
    ends = ~text & (batch["input_mask"] == 1)
    ends[:, 0] = False
    yield ids[:, :1] != cls, ids, f"the first id is {{value}}; expected [CLS], {cls}"
    wrong = ends & (ids != sep)
    yield wrong, ids, f"position {{at}}, the end of a segment, has id {{value}}; expected [SEP], {sep}"
    # Text yields no special token other than [UNK]. Masking may insert any token.
    for token in (exact.PAD, exact.CLS, exact.MASK) if one_segment else (exact.PAD, exact.CLS, exact.SEP, exact.MASK):
        wrong = text & (ids == vocab[token])
        yield wrong, ids, f"position {{at}}, in the text, has {token} (before masking), which no text yields"


def _check_word_pieces(batch: Batch, word_pieces: WordPieces) -> _Check:
    ids, text = restore_masked_ids(batch), batches.is_text(batch)
    word_pieces.has_seen_capitals |= word_pieces.has_capital[ids[text]].any()
    wrong = np.zeros_like(text)
    wrong[:, 1:] = text[:, :-1] & text[:, 1:] & word_pieces.find_impossible_pairs(ids[:, :-1], ids[:, 1:])
    message = "position {at} has id {value}, which WordPiece with this vocabulary never yields after the id before: "
    return wrong, ids, message + "the record was made with another vocabulary or tokenizer"
