"""The model for tagging: a dense layer on each position.

B batch, S sequence, C classes
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import keras

from official_bert.kinds import model
from official_bert.kinds.features import NO_LABEL
from official_bert.kinds.losses import TagAccuracy, TaggingLoss
from official_bert.kinds.tagging.spec import TaggingSpec


def build_token_tagger(
    encoder: keras.Model, num_labels: int, dropout_rate: float = model.DROPOUT_RATE, seed: int | None = None
) -> keras.Model:
    """Returns a model that computes logits for each position, [B, S, C]. For the arguments see `build_classifier`."""
    x = model.add_dropout(encoder, encoder.output["sequence_output"], dropout_rate)
    logits = model.add_dense(encoder, x, num_labels, "token_classifier", seed)
    return keras.Model(encoder.input, model.add_float32(logits), name="token_tagger")


class Model(model.KindModel[TaggingSpec]):
    """The model, loss and metrics of tagging."""

    keras_metrics = ("SparseCategoricalCrossentropy",)
    keras_arguments: ClassVar[Mapping[str, Any]] = {"from_logits": True, "ignore_class": NO_LABEL}

    def build_head(self, encoder: keras.Model, seed: int | None) -> keras.Model:
        return build_token_tagger(encoder, len(self.spec.labels), seed=seed)

    def loss(self) -> TaggingLoss:
        return TaggingLoss()

    def metrics(self) -> Any:
        return [TagAccuracy()]
