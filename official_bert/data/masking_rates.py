"""Masking rates: how often a token to predict is replaced by [MASK], kept, or replaced by a random token.

Three implementations use these rates: the original's algorithm and its vectorized form in data_gen/rules, and
dynamic_masking.py. tests/data_gen/rules/test_masking_parity.py compares the three.
"""

import dataclasses
import re

from official_bert.errors import UserError


@dataclasses.dataclass(frozen=True)
class MaskingRates:
    """What happens to the tokens to predict, in percent (paper, section 3.1, task 1, and appendix C.2).

    Attributes:
        mask: Percentage of tokens that are replaced by [MASK].
        same: Percentage of tokens that are left unchanged.
        random: Percentage of tokens that are replaced by a random token of the whole vocabulary.
    """

    mask: int = 80
    same: int = 10
    random: int = 10

    @classmethod
    def parse(cls, text: str) -> "MaskingRates":
        """Parses three percentages, such as "80/10/10", in the order of appendix C.2: [MASK], unchanged, random.

        Raises:
            UserError: If `text` is not three percentages that add up to 100.
        """
        if not re.fullmatch(r"\d{1,3}/\d{1,3}/\d{1,3}", text) or sum(map(int, text.split("/"))) != 100:
            raise UserError(
                f"--masking_rates is {text!r}; expected three whole percentages that add up to 100 (tokens that become "
                "[MASK], stay unchanged, become a random token), such as 80/10/10"
            )
        return cls(*map(int, text.split("/")))

    def __str__(self) -> str:
        return f"{self.mask}/{self.same}/{self.random}"

    @property
    def mask_probability(self) -> float:
        """The probability that a token is replaced by [MASK]."""
        return self.mask / 100

    @property
    def mask_or_same_probability(self) -> float:
        """The probability that a token is replaced by [MASK] or kept."""
        return (self.mask + self.same) / 100

    @property
    def same_probability_of_rest(self) -> float:
        """The probability that a token is kept, given that it is not replaced by [MASK]."""
        rest = self.same + self.random
        return self.same / rest if rest else 1.0


BERT_RATES = MaskingRates()
