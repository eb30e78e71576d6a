"""Counts the truncated texts of a tf.data.Dataset for the notes of fit and evaluate."""

import dataclasses

from official_bert.kinds.spec import KindSpec


@dataclasses.dataclass
class TruncationCounter:
    """Counts the texts that fit or evaluate reads from a data set in all epochs, and how many of them are truncated."""

    texts: int = 0
    truncated: int = 0

    def print_note(self, head: KindSpec, max_seq_length: int, steps: int | None, *parts: str) -> None:
        """Prints how many texts were truncated, if any were.

        Args:
            head: The spec of the task, which formulates the note.
            max_seq_length: Maximum number of tokens in a sequence.
            steps: Number of steps after which Keras stops reading, or None. TensorFlow has then read ahead.
            parts: Prefixes of the note, such as "validation". Empty strings are ignored.
        """
        if line := head.describe_truncation(self.truncated, self.texts, max_seq_length):
            parts = (*parts, "with batches read ahead" if steps else "")
            print(": ".join(filter(None, ["note", ", ".join(filter(None, parts)), line])))
