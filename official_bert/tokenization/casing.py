"""What a tokenizer does to letters: lower case, and whether accents go or stay."""

from typing import Any, NamedTuple

from official_bert.errors import UserError

# The help of the flag, where a checkpoint may say it.
STRIP_ACCENTS = "Whether lower-cased texts lose their accents, where the files do not say it; by default they do."


NO_RULE = "BERT's rules delete accents in lower-cased text alone"


class Casing(NamedTuple):
    """What the texts of a vocabulary are brought to; there are three kinds, which `casing_of` makes."""

    do_lower_case: bool = True  # whether the vocabulary is uncased
    strip_accents: bool = True  # whether accents are deleted; never without lower case

    @property
    def kind(self) -> str:
        """The name of its kind in lines for the user."""
        if not self.do_lower_case:
            return "cased"
        return "uncased" if self.strip_accents else "uncased, accented"

    @property
    def texts(self) -> str:
        """What is done to texts, in words."""
        if not self.do_lower_case:
            return "not lower-cased"
        return "lower-cased" if self.strip_accents else "lower-cased with their accents kept"

    @property
    def settings(self) -> dict[str, Any]:
        """What files say of it; strip_accents stands there only where it is not what do_lower_case says."""
        kept = self.do_lower_case and not self.strip_accents
        return {"do_lower_case": self.do_lower_case, **({"strip_accents": False} if kept else {})}


UNCASED = Casing()


def casing_of(do_lower_case: bool = True, strip_accents: bool | None = None) -> Casing:
    """Returns what a tokenizer of these arguments does; strip_accents None is the original's rule: with lower case.

    Raises:
        UserError: accents are to go where capital letters stay, for which BERT has no rule.
    """
    if strip_accents and not do_lower_case:
        raise UserError(f"strip_accents is true, but do_lower_case is false: {NO_RULE}; leave strip_accents out")
    return Casing(do_lower_case, do_lower_case if strip_accents is None else strip_accents)
