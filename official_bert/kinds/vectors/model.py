"""The model for vectors, which pools without weights, and its losses, which may compare the rows of a batch.

B rows, N texts of a row (a text, one that belongs to it, and optionally one that does not), D dimensions
"""

import abc
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from official_bert.errors import UserError
from official_bert.kinds import model
from official_bert.kinds.losses import BatchLoss
from official_bert.kinds.names import COSINE, TRIPLET
from official_bert.kinds.vectors.spec import VectorSpec
from official_bert.modeling.pooling import build_vector_model, normalized

_NO_ROW = -1e9  # the score of a candidate that is padding
_DISTANCE_OFFSET = 1e-6  # added to differences, so that equal vectors have a distance with a gradient


class VectorLoss(BatchLoss):
    """The base class of the losses of vectors.

    y_true is float32 [B], the target cosine of each pair, which only CosineLoss uses. y_pred is vectors, [B, N, D].
    `call` returns [B].

    Args:
        dimensions: Sizes of prefixes of the vectors. The loss is the sum of the losses of the normalized prefixes and
            vectors (Matryoshka, arXiv:2205.13147). If empty, it is the loss of the vectors.
        settings: Arguments of keras.losses.Loss.
    """

    def __init__(self, dimensions: Sequence[int] = (), **settings: Any) -> None:
        super().__init__(**settings)
        self.dimensions = tuple(dimensions)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return self.losses_of_rows(y_true, y_pred, ops.ones(ops.shape(y_pred)[:1]))

    def losses_of_rows(self, y_true: Any, y_pred: Any, is_row: Any) -> Any:
        vectors = y_pred
        if len(vectors.shape) != 3:
            raise UserError(
                "training vectors requires pairs or triplets of texts, but the inputs are token ids of single texts; "
                "pass the pairs or triplets as texts"
            )
        if not self.dimensions:
            return self._losses(y_true, vectors, is_row)
        sizes = {vectors.shape[-1], *self.dimensions}
        return sum(self._losses(y_true, normalized(vectors[..., :size]), is_row) for size in sorted(sizes))

    @abc.abstractmethod
    def _losses(self, y_true: Any, vectors: Any, is_row: Any) -> Any: ...

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "dimensions": list(self.dimensions)}


@keras.saving.register_keras_serializable(package="official_bert")
class RankingLoss(VectorLoss):
    """The cross-entropy of selecting the second text of a row among the other texts of the whole batch.

    Args:
        scale: Factor of the cosines.
        settings: Arguments of VectorLoss.
    """

    def __init__(self, scale: float = 20.0, **settings: Any) -> None:
        super().__init__(**settings)
        self.scale = scale

    def _losses(self, y_true: Any, vectors: Any, is_row: Any) -> Any:
        vectors = normalized(vectors)
        numbers = range(1, vectors.shape[1])
        by_column = [ops.matmul(vectors[:, 0], ops.transpose(vectors[:, number])) for number in numbers]  # [B, B]
        scores = ops.concatenate([self.scale * each + (1.0 - is_row) * _NO_ROW for each in by_column], -1)
        own = self.scale * ops.sum(vectors[:, 0] * vectors[:, 1], -1)
        return ops.logsumexp(scores, -1) - own

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "scale": self.scale}


@keras.saving.register_keras_serializable(package="official_bert")
class CosineLoss(VectorLoss):
    """The squared error of the cosine of a pair."""

    def _losses(self, y_true: Any, vectors: Any, is_row: Any) -> Any:
        vectors = normalized(vectors)
        return ops.square(ops.sum(vectors[:, 0] * vectors[:, 1], -1) - ops.cast(y_true, vectors.dtype))


@keras.saving.register_keras_serializable(package="official_bert")
class TripletLoss(VectorLoss):
    """The amount by which the negative is less than a margin farther away than the second text (Euclidean distances).

    Args:
        margin: The margin.
        settings: Arguments of VectorLoss.
    """

    def __init__(self, margin: float = 5.0, **settings: Any) -> None:
        super().__init__(**settings)
        self.margin = margin

    def _losses(self, y_true: Any, vectors: Any, is_row: Any) -> Any:
        differences = vectors[:, :1] - vectors[:, 1:] + _DISTANCE_OFFSET  # [B, 2, D]
        distances = ops.sqrt(ops.sum(ops.square(differences), -1))
        return ops.relu(distances[:, 0] - distances[:, 1] + self.margin)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "margin": self.margin}


class Model(model.KindModel[VectorSpec]):
    """The model and loss of vectors."""

    keras_losses = (*model.ERROR_LOSSES, "CosineSimilarity")
    keras_metrics = (*model.ERROR_METRICS, "CosineSimilarity")

    def build_head(self, encoder: keras.Model, seed: int | None) -> keras.Model:
        return encoder

    def answering_model(self, model: keras.Model) -> keras.Model:
        vectors = build_vector_model(model, self.spec.pooling, self.spec.layers, self.spec.normalize)
        self.spec.check(int(vectors.output.shape[-1]))
        return vectors

    def loss(self) -> VectorLoss:
        dimensions = self.spec.dimensions
        if self.spec.objective == COSINE:
            return CosineLoss(dimensions=dimensions)
        if self.spec.objective == TRIPLET:
            return TripletLoss(self.spec.margin, dimensions=dimensions)
        return RankingLoss(self.spec.scale, dimensions=dimensions)

    def metrics(self) -> Any:
        return []
