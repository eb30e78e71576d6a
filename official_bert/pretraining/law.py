"""What a loss will be: a law over parameters and tokens, fitted to measured runs (configs/law.json).

`python -m reproduce.law` fits it, and docs/planning.md has the measurements and how well the law fits them.
"""

import dataclasses
import math

from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.utils import files
from official_bert.utils.configs import find_config

LAW_FILE = "configs/law.json"
# The loss in training: of runs from random weights, on sequences of 16 tokens; of runs from counts of their records
# (--init_from_records), on 64; and of the latter on held-out records, when all is done.
FROM_RANDOM, FROM_RECORDS, FINAL = "random", "records", "final"

_BEGUN = 0.95  # of the unigram entropy: what is above says nothing of how the loss will fall
_WIDE = 1.96  # deviations to each side of a 95 % interval


def block_parameters(config: BertConfig) -> int:
    """Returns the number of weights of the encoder's blocks, the size that the law knows."""
    width, wide = config.hidden_size, config.intermediate_size
    return config.num_hidden_layers * (4 * width * (width + 1) + 2 * width * wide + wide + width + 4 * width)


@dataclasses.dataclass(frozen=True)
class Law:
    """The masked-LM loss as a share of the unigram entropy, which is the loss of guessing by frequency.

    It falls with the tokens that were trained on, as

        floor + (1 - floor) / (1 + (tokens / scale)^slope),    scale proportional to parameters^-growth

    Tokens of repeated text count for less: of R repetitions, repeats * (1 - exp(-R / repeats)).

    Attributes:
        floor: the share that is left after any number of tokens.
        scale: the tokens after which a model of a million parameters in its blocks has come half of the way.
        slope: how fast it falls.
        growth: how much sooner larger models come there.
        repeats: how many repetitions are worth learning from.
        deviation: of the logarithm of measured losses from the law's.
    """

    floor: float
    scale: float
    slope: float
    growth: float
    repeats: float
    deviation: float

    @classmethod
    def read(cls, kind: str) -> "Law":
        """Reads the law of one of FROM_RANDOM, FROM_RECORDS and FINAL."""
        path = find_config(LAW_FILE)
        held = files.read_json_object(path)
        try:
            return cls(**held["laws"][kind])
        except (KeyError, TypeError) as error:
            raise UserError(
                f"{path} holds no law ({error!r}); restore the file, or run python -m reproduce.law"
            ) from error

    def worth(self, tokens: float, text_tokens: float) -> float:
        """Returns how many new tokens those of a text are worth, which is repeated where it is shorter."""
        repetitions = max(0.0, tokens / text_tokens - 1)
        return min(tokens, text_tokens) + text_tokens * self.repeats * (1 - math.exp(-repetitions / self.repeats))

    def loss(self, unigram_entropy: float, parameters: float, tokens: float, text_tokens: float) -> float:
        """Returns the masked-LM loss to expect, in nats.

        Args:
            unigram_entropy: of the text's tokens, in nats.
            parameters: see `block_parameters`.
            tokens: that were trained on, padding counted.
            text_tokens: of the text, once.
        """
        scale = self.scale * (parameters / 1e6) ** -self.growth
        falling = (self.worth(tokens, text_tokens) / scale) ** self.slope
        return unigram_entropy * (self.floor + (1 - self.floor) / (1 + falling))

    def loss_later(self, unigram_entropy: float, loss: float, worth: float, worth_later: float) -> float:
        """Returns the loss to expect later of a run that has come to a loss, in nats; NaN where it has hardly begun.

        The run is taken for one whose loss falls as the law's does, sooner or later than the law expects.

        Args:
            unigram_entropy: of the text's tokens, in nats.
            loss: of the run so far.
            worth: of the tokens so far, as `Law.worth` gives it.
            worth_later: of those until then.
        """
        share = loss / unigram_entropy
        if not self.floor < share < _BEGUN:
            return math.nan
        falling = ((1 - self.floor) / (share - self.floor) - 1) * (worth_later / worth) ** self.slope
        return unigram_entropy * (self.floor + (1 - self.floor) / (1 + falling))

    def interval(self, loss: float) -> tuple[float, float]:
        """Returns between which losses one that is expected to be `loss` lies in 95 of 100 runs."""
        return loss * math.exp(-_WIDE * self.deviation), loss * math.exp(_WIDE * self.deviation)
