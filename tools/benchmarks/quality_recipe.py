"""How official_bert trains in tools/benchmarks/quality.py: model sizes, records, schedule and precision."""

import dataclasses
from typing import Any

from official_bert.modeling.config import BertConfig

BATCH_SIZE = 32
MOST_PASSES = 10  # over the text, with different masks each time


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size:
    """A model size with the settings that suit it."""

    layers: int
    width: int
    heads: int
    initializer_range: float
    learning_rate: float

    def config(self, vocab_size: int, length: int) -> BertConfig:
        """Returns the model configuration. It has no dropout because a short run does not overfit."""
        return BertConfig(
            vocab_size=vocab_size,
            hidden_size=self.width,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            intermediate_size=4 * self.width,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            max_position_embeddings=length,
            initializer_range=self.initializer_range,
        )


SIZES = {
    "tiny": Size(layers=2, width=128, heads=2, initializer_range=0.06, learning_rate=1e-3),
    "mini": Size(layers=4, width=256, heads=4, initializer_range=0.03, learning_rate=6e-4),
    "small": Size(layers=4, width=512, heads=8, initializer_range=0.02, learning_rate=3e-4),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """Records of one length, and the number and share of their tokens that are predicted."""

    length: int
    predictions: int
    masked_share: float


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The settings of an official_bert run.

    Attributes:
        init_from_records: Whether the initial weights are counted from the records.
        masked_share: Share of the tokens to predict.
        short_share: Share of the training time spent on sequences of 16 tokens first.
        next_sentence: Whether records are sentence pairs and the next-sentence loss is trained.
        rate_factor: Factor for the learning rate of the size.
        dropout: Dropout rate of the model.
        initializer_range: Initializer range of the model. None for the default of the size.
        dtype: Precision of the computation.
    """

    init_from_records: bool = True
    masked_share: float = 0.2
    short_share: float = 0.0
    next_sentence: bool = True
    rate_factor: float = 1.0
    dropout: float = 0.0
    initializer_range: float | None = None
    dtype: str = "float32"


# The changes to the recipe in each run of --ingredients.
INGREDIENTS: dict[str, dict[str, Any]] = {
    "the recipe": {},
    "random initial weights": {"init_from_records": False},
    "a masked share of 0.15": {"masked_share": 0.15},
    "16 tokens for half of the time": {"short_share": 0.5},
    "no next sentences": {"next_sentence": False},
    "half the rate": {"rate_factor": 0.5},
    "twice the rate": {"rate_factor": 2.0},
    "the paper's dropout": {"dropout": 0.1},
    "the paper's initializer_range": {"initializer_range": 0.02},
    "bfloat16": {"dtype": "bfloat16"},
}


def num_warmup_steps(num_train_steps: int) -> int:
    """Returns the number of warm-up steps: an eighth of the run, at most 300."""
    return max(1, min(300, num_train_steps // 8))


def should_jit_compile(dtype: str) -> bool:
    """Returns whether --jit_compile makes CPU steps faster. XLA has no bfloat16 matrix products for CPUs."""
    return dtype == "float32"
