"""What a loss will be, from one that was measured: a law that was fitted to measured runs (configs/scaling_law.json).

`python -m tools.reproduce.scaling_law` fits it; docs/planning.md has the measurements.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np

from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.utils import files
from official_bert.utils.configs import find_config

LAW_FILE = "configs/scaling_law.json"
# The loss in training: of runs from random weights, on sequences of 16 tokens; of runs from counts of their records
# (--init_from_records), on 64; and of the latter on held-out records, when all is done.
FROM_RANDOM, FROM_RECORDS, FINAL = "random", "records", "final"

LEARNED = 0.99  # of the unigram entropy: a loss above is that of a model that has learned nothing of the context
_LEAST_LEFT = 0.9  # of a loss, bound of the floor below it: the law is not measured beyond
_NOISE = 0.01  # of a measured loss, as a share of it
_WIDE = 1.96  # deviations to each side of a 95 % interval


def block_parameters(config: BertConfig) -> int:
    """Returns the number of weights of the encoder's blocks, the size that the law knows."""
    width, wide = config.hidden_size, config.intermediate_size
    return config.num_hidden_layers * (4 * width * (width + 1) + 2 * width * wide + wide + width + 4 * width)


@dataclasses.dataclass(frozen=True)
class Reached:
    """A loss that was measured.

    Attributes:
        loss: of the masked LM, in nats.
        tokens: that were trained on, padding counted.
        parameters: of the model, see `block_parameters`.
    """

    loss: float
    tokens: float
    parameters: float


@dataclasses.dataclass(frozen=True)
class ScalingLaw:
    """How the masked-LM loss falls from one that was measured.

    As a share of the unigram entropy, which is the loss of guessing by frequency, it falls with the tokens that were
    trained on, as

        floor + (1 - floor) / (1 + (tokens / scale)^slope),    floor proportional to parameters^-growth

    The scale differs between texts and vocabularies; it is found from the loss that was measured. Tokens of repeated
    text count for less: of R repetitions, repeats * (1 - exp(-R / repeats)).

    Attributes:
        floor: the share that is left after any number of tokens, of a model of a million parameters in its blocks.
        slope: how fast it falls.
        growth: how much lower the floor of larger models is.
        repeats: how many repetitions are worth learning from.
        spread: of the logarithms of texts' floors around the law's; 0 where all texts are taken to have one.
        deviations: of the logarithm of measured losses from those that were expected of one earlier loss, of two, and
            so on. The first is the law's own.
    """

    floor: float
    slope: float
    growth: float
    repeats: float
    spread: float
    deviations: tuple[float, ...]

    @classmethod
    def read(cls, kind: str) -> "ScalingLaw":
        """Reads the law of one of FROM_RANDOM, FROM_RECORDS and FINAL."""
        path = find_config(LAW_FILE)
        held = files.read_json_object(path)
        try:
            law = held["laws"][kind]
            return cls(**{**law, "deviations": tuple(law["deviations"])})
        except (KeyError, TypeError) as error:
            raise UserError(
                f"{path} holds no law ({error!r}); restore the file, or run python -m tools.reproduce.scaling_law"
            ) from error

    def worth(self, tokens: float, text_tokens: float) -> float:
        """Returns how many new tokens those of a text are worth, which is repeated where it is shorter."""
        repetitions = max(0.0, tokens / text_tokens - 1)
        return min(tokens, text_tokens) + text_tokens * self.repeats * (1 - math.exp(-repetitions / self.repeats))

    def of_text(self, reached: Sequence[Reached], unigram_entropy: float, text_tokens: float) -> "ScalingLaw":
        """Returns the law with the floor of one text, which several measured losses tell: regular text has a lower one.

        It is the geometric mean of the floors that are possible, each weighed by how well the losses after the first
        are expected from the one before, and by how far it is from the law's own.

        Args:
            reached: what was measured, by number of tokens. Losses of models that have learned nothing say nothing.
            unigram_entropy: of the text's tokens, in nats.
            text_tokens: of the text, once.
        """
        telling = [each for each in reached if 0 < each.loss < LEARNED * unigram_entropy]
        if not self.spread or len(telling) < 2:  # one loss says nothing of the floor
            return self
        distances = np.linspace(-3, 3, 121)  # in spreads
        laws = [dataclasses.replace(self, floor=self.floor * math.exp(self.spread * each)) for each in distances]
        squares = distances**2
        for before, after in itertools.pairwise(telling):
            expected = [
                law.loss_later(before, after.tokens, after.parameters, unigram_entropy, text_tokens) for law in laws
            ]
            squares += (np.log(after.loss / np.array(expected)) / _NOISE) ** 2
        mean = np.average(distances, weights=np.exp((squares.min() - squares) / 2))
        floor = self.floor * math.exp(self.spread * mean)
        left = self.deviations[len(telling) - 1 :] or self.deviations[-1:]
        return dataclasses.replace(self, floor=floor, deviations=left)

    def loss_later(
        self, reached: Reached, tokens: float, parameters: float, unigram_entropy: float, text_tokens: float
    ) -> float:
        """Returns the masked-LM loss to expect of more tokens of the same text, or of another size, in nats.

        Args:
            reached: what was measured.
            tokens: that are trained on in all, padding counted.
            parameters: of the model that is trained on them.
            unigram_entropy: of the text's tokens, in nats.
            text_tokens: of the text, once.
        """
        if unigram_entropy <= 0 or reached.loss <= 0:  # there is nothing left to learn
            return reached.loss
        share = min(reached.loss / unigram_entropy, LEARNED)
        most = _LEAST_LEFT * share  # of a floor: text that is more regular than any measured has a lower one
        floor, floor_later = (
            min(self.floor * (each / 1e6) ** -self.growth, most) for each in (reached.parameters, parameters)
        )
        longer = self.worth(tokens, text_tokens) / self.worth(reached.tokens, text_tokens)
        falling = ((1 - floor) / (share - floor) - 1) * longer**self.slope
        return unigram_entropy * (floor_later + (1 - floor_later) / (1 + falling))

    def interval(self, loss: float) -> tuple[float, float]:
        """Returns between which losses one that is expected to be `loss` lies in 95 of 100 runs."""
        factor = math.exp(_WIDE * self.deviations[0])
        return loss / factor, loss * factor
