"""What stands in the place of tokens that are to be predicted: [MASK], the token itself, or a random one.

The one home of these rates. Three implementations draw by them, each in an order of its own:
data_gen/masking.py (the original's), data_gen/vectorized.py (many instances at once) and
official_bert/data/dynamic_masking.py (while training). tests/data_gen/test_masking_parity.py compares the three.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class MaskingRates:
    """Percentages of the tokens to be predicted (paper, section 3.1, task 1); they add up to 100.

    Attributes:
        mask: become [MASK].
        same: stay as they are.
        random: become a token that is drawn from the whole vocabulary.
    """

    mask: int = 80
    same: int = 10
    random: int = 10

    @property
    def mask_probability(self) -> float:
        """The probability of [MASK]."""
        return self.mask / 100

    @property
    def mask_or_same_probability(self) -> float:
        """The probability of [MASK] or the token itself."""
        return (self.mask + self.same) / 100

    @property
    def same_probability_of_rest(self) -> float:
        """The probability of the token itself where [MASK] was not drawn."""
        rest = self.same + self.random
        return self.same / rest if rest else 1.0


BERT_RATES = MaskingRates()
