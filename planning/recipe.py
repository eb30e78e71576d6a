"""How a model of each size is trained, as in the measured runs.

It begins with weights from counts of its records (pretrain --init_from_records), and takes steps on sequences of one
length, while the rate rises and then falls to 0.
"""

import dataclasses
import math

from official_bert.modeling.config import BertConfig

BATCH_SIZE = 32
MOST_PASSES = 10  # over the text, with other masks each time


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size:
    """A size of model, with the settings that its runs were measured with."""

    name: str
    layers: int
    width: int
    heads: int
    initializer_range: float
    learning_rate: float

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
            max_position_embeddings=PART.length,
            initializer_range=self.initializer_range,
        )


# From small to large.
SIZES = (
    Size(name="BERT-Tiny", layers=2, width=128, heads=2, initializer_range=0.06, learning_rate=1e-3),
    Size(name="BERT-Mini", layers=4, width=256, heads=4, initializer_range=0.03, learning_rate=6e-4),
    Size(name="BERT-Small", layers=4, width=512, heads=8, initializer_range=0.02, learning_rate=3e-4),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """Records of one length, and how many of their tokens are predicted."""

    length: int
    predictions: int
    masked_share: float


# More predictions than the original's 15 %: one more costs less than a token more.
PART = Part(length=64, predictions=13, masked_share=0.2)


def tokens_of(steps: int) -> int:
    """Returns how many tokens some steps train on."""
    return BATCH_SIZE * PART.length * steps


def warmup_of(steps: int) -> int:
    """Returns in how many of some steps the rate rises."""
    return max(1, min(300, steps // 8))


def passes_over(text_tokens: float, steps: int) -> int:
    """Returns how often records are made of a text: as often as some steps read it, but not too often."""
    return max(1, min(MOST_PASSES, math.ceil(tokens_of(steps) / max(text_tokens, 1))))


def vocabulary_size(tokens_of_text: float) -> int:
    """Returns how many pieces to learn: few where there is little text to learn each from."""
    for most, size in ((3e6, 4000), (3e7, 8000), (3e8, 16000)):
        if tokens_of_text < most:
            return size
    return 30_522


def compiles_whole_step(dtype: str) -> bool:
    """Whether XLA compiles all of a step on a CPU, or all but the products of matrices (pretrain --compile_parts).

    XLA's products do not use a processor's instructions for bfloat16 (AVX512_BF16, AMX); TensorFlow's do.
    """
    return dtype == "float32"
