"""The model for tagging: a dense layer at each position.

B batch size, S sequence length, C tags
"""

import keras

from official_bert.kinds import model
from official_bert.kinds.tagging.spec import TaggingSpec


def build_token_tagger(
    encoder: keras.Model,
    num_labels: int,
    dropout_rate: float = model.DROPOUT_RATE,
    seed: int | None = None,
    name: str | None = None,
) -> keras.Model:
    """Returns a tagger: dropout and a dense layer compute logits for each position, [B, S, C].

    Args:
        encoder: An encoder.
        num_labels: Number of tags, C.
        dropout_rate: Dropout rate of the encoder's output in training.
        seed: Seed of the initial weights of the dense layer. None draws a random seed.
        name: Name of the model and prefix of the names of its new layers, for several heads on one encoder in one Keras
            model. Defaults to None: "token_tagger", and no prefix.
    """
    x = encoder.output["sequence_output"]
    logits = model.add_head(encoder, x, num_labels, "token_classifier", dropout_rate, seed, name)
    return keras.Model(encoder.input, logits, name=name or "token_tagger")


class Model(model.TokenKindModel[TaggingSpec]):
    """The Keras head, loss and metrics of tagging."""

    def build_head(self, encoder: keras.Model, seed: int | None) -> keras.Model:
        return build_token_tagger(encoder, len(self.spec.labels), seed=seed)
