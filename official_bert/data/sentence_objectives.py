"""Sentence objectives: the values of --sentence_objective of make-records.

- next_sentence: Predict whether b follows a in the text (0) or comes from elsewhere (1), as the original does (paper,
  section 3.1).
- none: One segment of full sentences, without such a prediction, like RoBERTa's FULL-SENTENCES (arXiv:1907.11692,
  section 4.2).
"""

from collections.abc import Mapping
from typing import Any

SENTENCE_OBJECTIVES = NEXT_SENTENCE, NONE = ("next_sentence", "none")

# Descriptions of the labels 0 and 1.
LABELS = {
    NEXT_SENTENCE: ("b follows a in the text", "b comes from elsewhere"),
    NONE: ("none", "none"),
}


def get_objective(flags: Mapping[str, Any]) -> str:
    """Returns the sentence objective of records from the flags in their manifest. Defaults to next_sentence."""
    return str(flags.get("sentence_objective", NEXT_SENTENCE))
