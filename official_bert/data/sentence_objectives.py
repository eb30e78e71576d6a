"""What records ask about their two segments: --sentence_objective of make-records.

- next_sentence: b follows a in the text (0), or comes from elsewhere (1): the original's (paper, section 3.1).
- none: one segment of whole sentences, nothing to decide: RoBERTa's FULL-SENTENCES (arXiv:1907.11692, section 4.2).
"""

from collections.abc import Mapping
from typing import Any

SENTENCE_OBJECTIVES = NEXT_SENTENCE, NONE = ("next_sentence", "none")

# What the labels 0 and 1 mean, for a reader.
LABELS = {
    NEXT_SENTENCE: ("b follows a in the text", "b comes from elsewhere"),
    NONE: ("none", "none"),
}


def get_objective(flags: Mapping[str, Any]) -> str:
    """Returns the objective that a manifest's flags record. Records without a manifest are of next sentences."""
    return str(flags.get("sentence_objective", NEXT_SENTENCE))
