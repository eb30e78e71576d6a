"""Statistics of pre-training records, and histograms as text.

B batch, L sequence length, P predictions, V vocabulary
"""

from collections.abc import Mapping

import numpy as np

from data_gen.inspection import batches
from data_gen.inspection.batches import Batch
from official_bert.data import record_schema
from official_bert.data.record_codec import restore_masked_ids
from official_bert.tokenization import exact

_MAX_BINS = 16
_MAX_BAR_CHARACTERS = 40


def draw_histogram(title: str, numbers: str, counts: np.ndarray, totals: np.ndarray | None = None) -> str:
    """Draws counts of the integers 0, 1, 2, ... as text with one line per bar.

    Args:
        title: What is counted, such as "Length".
        numbers: What the integers mean, such as "number of tokens".
        counts: Number of occurrences of each integer.
        totals: Possible number of occurrences of each integer, to show count / total in percent. None to show counts.
    """
    occurring = np.flatnonzero(counts if totals is None else totals)
    first, end = (int(occurring[0]), int(occurring[-1]) + 1) if len(occurring) else (0, 0)
    step = -(-(end - first) // _MAX_BINS) or 1
    bins = [(start, min(start + step, end)) for start in range(first, end, step)]
    if totals is None:
        heights = [float(counts[start:stop].sum()) for start, stop in bins]
        values = [f"{height:>13,.0f} {100 * height / counts.sum():5.1f} %" for height in heights]
    else:
        heights = [counts[start:stop].sum() / max(1, totals[start:stop].sum()) for start, stop in bins]
        values = [f"{100 * height:5.1f} %" for height in heights]
    names = [str(start) if stop == start + 1 else f"{start}-{stop - 1}" for start, stop in bins]
    lines = [
        f"  {name:>9} {value}  {'#' * round(_MAX_BAR_CHARACTERS * height / (max(heights) or 1))}".rstrip()
        for name, value, height in zip(names, values, heights, strict=True)
    ]
    return "\n".join([f"{title}, by {numbers}", *lines])


class Statistics:
    """Statistics of pre-training records, which are added in batches. Memory use does not grow with their number."""

    def __init__(self, schema: record_schema.Schema, vocab: Mapping[str, int]) -> None:
        (self.max_seq_length,) = schema["input_ids"].shape
        self.masked = "masked_lm_positions" in schema
        self._vocab = vocab
        self._tokens = {number: token for token, number in vocab.items()}
        self.records = self.random_next = self.text = self.unknown = 0
        # Numbers of predicted tokens that were replaced by [MASK], kept, or replaced by a random token.
        self.hidden = self.kept = self.replaced = 0
        self._lengths = np.zeros(self.max_seq_length + 1, np.int64)  # Number of records of each length.
        self._a_lengths, self._b_lengths = np.zeros((2, self.max_seq_length + 1), np.int64)
        self._text_at, self._predicted_at = np.zeros((2, self.max_seq_length), np.int64)
        predictions = schema["masked_lm_positions"].shape[0] if self.masked else 0
        self._predictions = np.zeros(predictions + 1, np.int64)  # Number of records with each number of predictions.
        self._predicted_ids = np.zeros(max(self._tokens) + 1, np.int64)

    def add(self, batch: Batch) -> None:
        """Adds the records of a batch. Their values must be within the limits of the schema."""
        length, first = batches.count_tokens(batch), batches.count_first_segment_tokens(batch)
        text = batches.is_text(batch)
        self.records += len(length)
        self.random_next += int(batch["next_sentence_labels"].sum())
        self.text += int(text.sum())
        self.unknown += int((text & (restore_masked_ids(batch) == self._vocab[exact.UNK])).sum())
        self._lengths += np.bincount(length, minlength=len(self._lengths))
        self._a_lengths += np.bincount(np.maximum(first - 2, 0), minlength=len(self._lengths))
        self._b_lengths += np.bincount(np.maximum(length - first - 1, 0), minlength=len(self._lengths))
        self._text_at += text.sum(axis=0)
        if self.masked:
            self._add_predictions(batch)

    def _add_predictions(self, batch: Batch) -> None:
        used = batch["masked_lm_weights"] > 0
        row, _ = np.nonzero(used)
        positions, labels = batch["masked_lm_positions"][used], batch["masked_lm_ids"][used]
        ids = batch["input_ids"][row, positions]
        hidden, kept = ids == self._vocab[exact.MASK], ids == labels
        self.hidden += int(hidden.sum())
        self.kept += int(kept.sum())
        self.replaced += int((~hidden & ~kept).sum())
        self._predictions += np.bincount(used.sum(axis=1), minlength=len(self._predictions))
        self._predicted_at += np.bincount(positions, minlength=self.max_seq_length)
        self._predicted_ids += np.bincount(labels, minlength=len(self._predicted_ids))

    @property
    def predictions(self) -> int:
        """The number of predicted tokens in all records."""
        return self.hidden + self.kept + self.replaced

    def summarize(self) -> list[tuple[str, str]]:
        """Returns the lines of a printed summary of the records, each as a name and a text."""
        tokens = int((np.arange(len(self._lengths)) * self._lengths).sum())
        positions = self.records * self.max_seq_length
        lines = [
            ("records", f"{self.records:,} of {self.max_seq_length} positions"),
            ("tokens", f"{tokens:,}, {tokens / self.records:.1f} per record, including [CLS] and [SEP]"),
            ("padding", f"{_format_percent(positions - tokens, positions)} of all positions"),
            ("unknown", f"{_format_percent(self.unknown, self.text, 2)} of the tokens of text are [UNK]"),
            ("random segments", f"{_format_percent(self.random_next, self.records)} of the records"),
        ]
        if not self.masked:
            return [*lines, ("predictions", "chosen during training: the records are not masked")]
        return [
            *lines,
            ("predictions", f"{self.predictions:,}, {self.predictions / self.records:.1f} per record"),
            ("", f"{_format_percent(self.predictions, self.text)} of the tokens of text"),
            ("  [MASK]", f"{_format_percent(self.hidden, self.predictions)} of these"),
            ("  kept", f"{_format_percent(self.kept, self.predictions)} of these"),
            ("  random", f"{_format_percent(self.replaced, self.predictions)} of these"),
        ]

    def list_most_predicted(self, count: int) -> list[tuple[str, int]]:
        """Returns the `count` most frequently predicted tokens with their numbers of predictions.

        Tokens with equal numbers are in vocabulary order.
        """
        order = np.argsort(-self._predicted_ids, kind="stable")[:count]
        return [
            (batches.get_token_name(self._tokens, number), int(self._predicted_ids[number]))
            for number in order.tolist()
            if self._predicted_ids[number]
        ]

    def draw_histograms(self) -> list[str]:
        """Draws histograms of the lengths of records and segments, and of the predictions."""
        histograms = [
            draw_histogram("Length", "number of tokens", self._lengths),
            draw_histogram("Length of a", "number of tokens", self._a_lengths),
            draw_histogram("Length of b", "number of tokens", self._b_lengths),
        ]
        if self.masked:
            histograms += [
                draw_histogram("Predictions per record", "number", self._predictions),
                draw_histogram("Share of predicted tokens of text", "position", self._predicted_at, self._text_at),
            ]
        return histograms


def _format_percent(part: int, total: int, decimals: int = 1) -> str:
    return f"{100 * part / max(1, total):.{decimals}f} %"
