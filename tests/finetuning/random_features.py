"""Random training rows for every kind of head."""

from typing import Any

import numpy as np

from official_bert.kinds.all_kinds import SPECS
from official_bert.kinds.features import NO_LABEL, Features, concatenate_rows
from official_bert.kinds.names import VECTORS
from tests.conftest import WORDS

CLASSES = 4


def random_features(kind: str, rows: int, longest: int, texts: int = 2, classes: int = CLASSES) -> Features:
    """Returns rows of at least 3 and fewer than `longest` tokens, with random targets. Rows of vectors have `texts`."""
    rng = np.random.default_rng(0)
    choices = texts if kind == VECTORS else SPECS[kind](labels=tuple("abcd")).num_choices or 1
    ids = [rng.integers(5, len(WORDS), rng.integers(3, longest)) for _ in range(rows * choices)]
    lengths = np.array([len(each) for each in ids])
    targets: dict[str, Any] = {"labels": rng.integers(0, classes, rows).astype(np.int32)}
    if kind == "multi_label":
        targets = {"labels": rng.integers(0, 2, (rows, classes)).astype(np.float32)}
    elif kind in ("regression", VECTORS):
        targets = {"labels": rng.normal(size=rows).astype(np.float32)}
    elif kind == "tagging":
        targets = {"labels": rng.integers(NO_LABEL, classes, lengths.sum()).astype(np.int32)}
    elif kind == "question_answering":
        targets = {name: (rng.random(rows) * lengths).astype(np.int32) for name in ("start_logits", "end_logits")}
    has_token_outputs = kind in ("tagging", "question_answering")
    segment_ids = [np.zeros(len(each)) for each in ids]
    return concatenate_rows(ids, segment_ids, targets, {}, choices, has_token_outputs=has_token_outputs)
