"""How well vectors find the texts that belong to a text.

Q queries, C candidates, D dimensions
"""

from collections.abc import Sequence

import numpy as np

from official_bert.kinds.features import Array

_DEPTHS = (1, 5, 10)
_AT_ONCE = 1024  # queries, so that memory does not grow with the square of their number


def unit_vectors(vectors: Array) -> Array:
    """Returns vectors, [..., D], divided by their lengths, float64; those of length 0 stay as they are."""
    vectors = np.asarray(vectors, np.float64)
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1.0))


def ranks(queries: Array, candidates: Array, answers: Sequence[Array]) -> tuple[list[Array], Array]:
    """Returns the ranks, from 1, of each query's answers among the candidates, and the candidate that is nearest.

    Of candidates that are as near as an answer all come before it.

    Args:
        queries: of length 1, [Q, D].
        candidates: likewise, [C, D].
        answers: the numbers of each query's candidates that are right.
    """
    of_queries: list[Array] = []
    nearest: list[Array] = []
    for start in range(0, len(queries), _AT_ONCE):
        cosines = queries[start : start + _AT_ONCE] @ candidates.T
        nearest.append(cosines.argmax(-1))
        for row, numbers in zip(cosines, answers[start : start + _AT_ONCE], strict=True):
            of_queries.append((row >= row[numbers][:, None]).sum(-1))
    return of_queries, np.concatenate(nearest)


def scores(of_queries: Sequence[Array]) -> dict[str, float]:
    """Returns scores of the ranks of each query's answers.

    accuracy_at_k is the share of queries with an answer among the k nearest candidates, recall_at_k the mean share of a
    query's answers among these, and mrr the mean of one through the rank of its first answer.
    """
    first = np.array([each.min() for each in of_queries])
    values = {f"accuracy_at_{depth}": float(np.mean(first <= depth)) for depth in _DEPTHS}
    values |= {
        f"recall_at_{depth}": float(np.mean([np.mean(each <= depth) for each in of_queries])) for depth in _DEPTHS
    }
    return values | {"mrr": float(np.mean(1.0 / first))}
