"""Scores of retrieval: how high the correct candidates of a query rank by the cosine of their vectors.

Q queries, C candidates, D dimensions
"""

from collections.abc import Sequence

import numpy as np

from official_bert.kinds.features import Array

_DEPTHS = (1, 5, 10)
_AT_ONCE = 1024  # queries at a time, to bound the memory


def normalize_vectors(vectors: Array) -> Array:
    """Scales vectors, [..., D], to length 1, as float64. Vectors of length 0 are returned unchanged."""
    vectors = np.asarray(vectors, np.float64)
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1.0))


def rank_answers(queries: Array, candidates: Array, answers: Sequence[Array]) -> tuple[list[Array], Array]:
    """Ranks the candidates of each query by cosine, and returns the ranks of the correct ones.

    Args:
        queries: Vectors of length 1, [Q, D].
        candidates: Vectors of length 1, [C, D].
        answers: Indices of the correct candidates of each query.

    Returns:
        The ranks of the correct candidates of each query, from 1 (ties count against them), and the index of the
        nearest candidate of each query, [Q].
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
    """Returns accuracy_at_k and recall_at_k for k = 1, 5 and 10, and mrr.

    accuracy_at_k is the share of queries with a correct candidate among the k nearest. recall_at_k is the mean share of
    a query's correct candidates among the k nearest. mrr is the mean of 1 / the rank of the first correct candidate.

    Args:
        ranks: Ranks of the correct candidates of each query, from 1.
    """
    first = np.array([each.min() for each in ranks])
    values = {f"accuracy_at_{depth}": float(np.mean(first <= depth)) for depth in _DEPTHS}
    values |= {f"recall_at_{depth}": float(np.mean([np.mean(each <= depth) for each in ranks])) for depth in _DEPTHS}
    return values | {"mrr": float(np.mean(1.0 / first))}
