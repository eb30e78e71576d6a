"""What stands in the place of tokens that are to be predicted: [MASK], the token itself, or a random one.

The one home of these rates. Three implementations draw by them, each in an order of its own: the original's algorithm
and the one for many instances at once, which mask records, and dynamic_masking.py, which masks while training.
tests/data_gen/rules/test_masking_parity.py compares the three.
"""

import dataclasses
import re

from official_bert.errors import UserError


@dataclasses.dataclass(frozen=True)
class MaskingRates:
    """Percentages of the tokens to be predicted (paper, section 3.1, task 1, and appendix C.2); they add up to 100."""

    mask: int = 80  # become [MASK]
    same: int = 10  # stay as they are
    random: int = 10  # become a token that is drawn from the whole vocabulary

    @classmethod
    def parse(cls, text: str) -> "MaskingRates":
        """Reads the rates of [MASK], the same token and a random one, as in "80/10/10" (appendix C.2's order).

        Raises:
            UserError: these are not three percentages that add up to 100.
        """
        if not re.fullmatch(r"\d{1,3}/\d{1,3}/\d{1,3}", text) or sum(map(int, text.split("/"))) != 100:
            raise UserError(
                f"--masking_rates is {text!r}; expected the percentages of [MASK], the same and a random token, whole "
                "numbers that add up to 100, as in 80/10/10"
            )
        return cls(*map(int, text.split("/")))

    def __str__(self) -> str:
        return f"{self.mask}/{self.same}/{self.random}"

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
