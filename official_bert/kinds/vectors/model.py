"""The model for vectors, which pools the encoder's output without new weights, and its losses.

B rows of a batch, D dimensions, N texts of a row: an anchor, a positive (a text that belongs to it), and optionally a
negative (one that does not)
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
    """Base class of the losses that train vectors.

    y_true is the target cosine of each row, float32 [B], which only CosineLoss uses. y_pred is the vectors of the N
    texts of each row, [B, N, D]. `call` returns a loss per row, [B].

    Args:
        dimensions: Sizes of prefixes of the vectors that are trained to be good vectors too (Matryoshka,
            arXiv:2205.13147). The loss is the sum over the normalized prefixes and full vectors. If empty, only the
            full vectors count.
        settings: Arguments of keras.losses.Loss.
    """

    def __init__(self, dimensions: Sequence[int] = (), **settings: Any) -> None:
        super().__init__(**settings)
        self.dimensions = tuple(dimensions)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return self.compute_row_losses(y_true, y_pred, ops.ones(ops.shape(y_pred)[:1]))

    def compute_row_losses(self, y_true: Any, y_pred: Any, is_row: Any) -> Any:
        vectors = y_pred
        if len(vectors.shape) != 3:
            raise UserError(
                "a model of vectors is trained on pairs or triplets, but the inputs are token ids of single texts; "
                "pass the pairs or triplets as texts"
            )
        if not self.dimensions:
            return self._compute_losses(y_true, vectors, is_row)
        sizes = {vectors.shape[-1], *self.dimensions}
        return sum(self._compute_losses(y_true, normalized(vectors[..., :size]), is_row) for size in sorted(sizes))

    @abc.abstractmethod
    def _compute_losses(self, y_true: Any, vectors: Any, is_row: Any) -> Any: ...

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "dimensions": list(self.dimensions)}


@keras.saving.register_keras_serializable(package="official_bert")
class RankingLoss(VectorLoss):
    """A softmax cross-entropy over in-batch negatives: which text of the batch is the positive of each anchor.

    Args:
        scale: Factor of the cosines before the softmax.
        settings: Arguments of VectorLoss.
    """

    def __init__(self, scale: float = 20.0, **settings: Any) -> None:
        super().__init__(**settings)
        self.scale = scale

    def _compute_losses(self, y_true: Any, vectors: Any, is_row: Any) -> Any:
        vectors = normalized(vectors)
        # N is not static if a model is trained on pairs and then on triplets.
        candidates = ops.reshape(ops.swapaxes(vectors[:, 1:], 0, 1), (-1, vectors.shape[-1]))  # [(N - 1) B, D]
        padding = ops.tile((1.0 - is_row) * _NO_ROW, [ops.shape(vectors)[1] - 1])
        scores = self.scale * ops.matmul(vectors[:, 0], ops.transpose(candidates)) + padding  # [B, (N - 1) B]
        own = self.scale * ops.sum(vectors[:, 0] * vectors[:, 1], -1)
        return ops.logsumexp(scores, -1) - own

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "scale": self.scale}


@keras.saving.register_keras_serializable(package="official_bert")
class CosineLoss(VectorLoss):
    """The squared difference between the cosine of two texts and their target similarity."""

    def _compute_losses(self, y_true: Any, vectors: Any, is_row: Any) -> Any:
        vectors = normalized(vectors)
        return ops.square(ops.sum(vectors[:, 0] * vectors[:, 1], -1) - ops.cast(y_true, vectors.dtype))


@keras.saving.register_keras_serializable(package="official_bert")
class TripletLoss(VectorLoss):
    """The triplet loss: max(0, distance to the positive - distance to the negative + margin), with Euclidean distances.

    Args:
        margin: The margin.
        settings: Arguments of VectorLoss.
    """

    def __init__(self, margin: float = 5.0, **settings: Any) -> None:
        super().__init__(**settings)
        self.margin = margin

    def _compute_losses(self, y_true: Any, vectors: Any, is_row: Any) -> Any:
        differences = vectors[:, :1] - vectors[:, 1:] + _DISTANCE_OFFSET  # [B, 2, D]
        distances = ops.sqrt(ops.sum(ops.square(differences), -1))
        return ops.relu(distances[:, 0] - distances[:, 1] + self.margin)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "margin": self.margin}


class Model(model.KindModel[VectorSpec]):
    """The pooling and the loss of vectors."""

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
