"""Scores of retrieval by vectors.

Q queries, C candidates, D dimensions
"""

from collections.abc import Sequence

import numpy as np

from official_bert.kinds.features import Array

_DEPTHS = (1, 5, 10)
_AT_ONCE = 1024  # queries at a time, to bound the memory


def normalize_vectors(vectors: Array) -> Array:
    """Returns vectors, [..., D], divided by their lengths, float64. Vectors of length 0 are returned unchanged."""
    vectors = np.asarray(vectors, np.float64)
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1.0))


def rank_answers(queries: Array, candidates: Array, answers: Sequence[Array]) -> tuple[list[Array], Array]:
    """Returns the ranks, from 1, of the answers to each query among the candidates, and the nearest candidate.

    Candidates that are as near as an answer rank before it.

    Args:
        queries: Vectors of length 1, [Q, D].
        candidates: Vectors of length 1, [C, D].
        answers: Indices of the right candidates of each query.
    """
    all_ranks: list[Array] = []
    nearest: list[Array] = []
    for start in range(0, len(queries), _AT_ONCE):
        cosines = queries[start : start + _AT_ONCE] @ candidates.T
        nearest.append(cosines.argmax(-1))
        for row, numbers in zip(cosines, answers[start : start + _AT_ONCE], strict=True):
            all_ranks.append((row >= row[numbers][:, None]).sum(-1))
    return all_ranks, np.concatenate(nearest)


def score_ranks(ranks: Sequence[Array]) -> dict[str, float]:
    """Returns the scores of the ranks of each query's answers.

    accuracy_at_k is the share of queries with an answer among the k nearest candidates. recall_at_k is the mean share
    of the answers among them. mrr is the mean of 1 / the rank of the first answer.
    """
    first = np.array([each.min() for each in ranks])
    values = {f"accuracy_at_{depth}": float(np.mean(first <= depth)) for depth in _DEPTHS}
    values |= {f"recall_at_{depth}": float(np.mean([np.mean(each <= depth) for each in ranks])) for depth in _DEPTHS}
    return values | {"mrr": float(np.mean(1.0 / first))}
