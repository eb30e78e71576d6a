"""How a model of each size is trained: on short sequences first, then on longer ones, as in the measured runs.

A model learns sooner what neighbouring words tell from few tokens than from many, and next sentences only from longer
sequences. The rate of the first part stays as it is after warm-up, that of the second falls to 0.
"""

import dataclasses

from official_bert.modeling.config import BertConfig

BATCH_SIZE = 32
_SHORT_PER_LONG = 8  # steps
MOST_PASSES = 10  # over the text, with other masks each time


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size:
    """A size of model, with the settings that its runs were measured with."""

    name: str
    layers: int
    width: int
    heads: int
    initializer_range: float
    short_rate: float
    long_rate: float

    def config(self, vocab_size: int) -> BertConfig:
        """Returns the model's configuration."""
        return BertConfig(
            vocab_size=vocab_size,
            hidden_size=self.width,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            intermediate_size=4 * self.width,
            hidden_dropout_prob=0.0,  # the text is read a few times: there is nothing to overfit
            attention_probs_dropout_prob=0.0,
            max_position_embeddings=LONG.length,
            initializer_range=self.initializer_range,
        )


# From small to large.
SIZES = (
    Size(name="BERT-Tiny", layers=2, width=128, heads=2, initializer_range=0.06, short_rate=6e-4, long_rate=1e-3),
    Size(name="BERT-Mini", layers=4, width=256, heads=4, initializer_range=0.03, short_rate=3e-4, long_rate=3e-4),
    Size(name="BERT-Small", layers=4, width=512, heads=8, initializer_range=0.02, short_rate=1.5e-4, long_rate=1.5e-4),
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """Records of one length, and how many of their tokens are predicted."""

    length: int
    predictions: int
    masked_share: float


SHORT = Part(length=16, predictions=4, masked_share=0.25)
LONG = Part(length=64, predictions=13, masked_share=0.2)


@dataclasses.dataclass(frozen=True)
class Steps:
    """Steps of both parts."""

    short: int
    long: int

    @classmethod
    def within(cls, seconds: float, short_seconds: float, long_seconds: float) -> "Steps":
        """Returns the most steps that fit into some seconds, from what a step of each part takes."""
        long = max(1, int(seconds / (_SHORT_PER_LONG * short_seconds + long_seconds)))
        return cls(_SHORT_PER_LONG * long, long)

    @property
    def tokens(self) -> int:
        """How many tokens they train on."""
        return BATCH_SIZE * (self.short * SHORT.length + self.long * LONG.length)

    def passes(self, text_tokens: float) -> int:
        """How often records are made of the text: as often as the longer part reads it, but not too often."""
        most = BATCH_SIZE * max(self.short * SHORT.length, self.long * LONG.length)
        return max(1, min(MOST_PASSES, -int(-most // max(text_tokens, 1))))


def vocabulary_size(tokens_of_text: float) -> int:
    """Returns how many pieces to learn: few where there is little text to learn each from."""
    for most, size in ((3e6, 4000), (3e7, 8000), (3e8, 16000)):
        if tokens_of_text < most:
            return size
    return 30_522
