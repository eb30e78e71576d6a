"""What the exact tokenizer makes of each character, as tables that TensorFlow operations look up.

The rules 1 to 5 of tokenization/exact.py treat most characters alike wherever they stand. Their result, the character's
form, is asked of the exact tokenizer for each code point. A table row holds the number of the form and what the two
rules need that look at neighbours: how a capital sigma is lowered, and the canonical order of combining marks.
"""

import functools
import sys
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from official_bert.tokenization.casing import Casing
from official_bert.tokenization.exact import BasicTokenizer

CAPITAL_SIGMA, FINAL_SIGMA = "Σς"

# How a capital sigma sees a character beside it.
OTHER, CASED, IGNORED = range(3)

# A character's properties: the number of its form times FORM, and these bits.
CASE_BITS, NON_SPACING, STARTER, BY_NEIGHBOURS, FORM = 3, 4, 8, 16, 32

# A form is a sequence of code points; ITSELF stands for the character that has the form.
ITSELF = -1
# The flags of a code point in a form: a space; a word of its own; and MARK times the combining class that rule 4 orders
# marks by.
SPACE, ALONE, MARK = 1, 2, 4

# From here on no rule changes a code point that Unicode has not assigned.
_FIRST_UNCHANGED = 0x30000
PAGE = 256


class CharacterTables(NamedTuple):
    """The properties of all characters, in pages of PAGE, and the forms that they point to."""

    page_numbers: npt.NDArray[np.int32]  # the page of each PAGE code points
    pages: npt.NDArray[np.int32]  # properties; pages follow each other
    form_starts: npt.NDArray[np.int32]
    form_lengths: npt.NDArray[np.int32]
    codes: npt.NDArray[np.int32]  # code points of all forms
    flags: npt.NDArray[np.int32]  # of these code points


@functools.cache
def character_tables(casing: Casing) -> CharacterTables:
    """Returns the tables of a tokenizer; they take seconds to compute, and so are kept."""
    tokenizer, cased = BasicTokenizer(*casing), BasicTokenizer(do_lower_case=False)
    forms: dict[tuple[tuple[int, int], ...], int] = {((ITSELF, 0),): 0}
    properties = np.full(sys.maxunicode + 1, STARTER, np.int32)
    codes = [code for code in range(sys.maxunicode + 1) if _may_change(code)]  # the others are their own form
    for code, words in zip(codes, _words_between_letters(codes, tokenizer), strict=True):
        character = chr(code)
        form = _form(character, words, casing.strip_accents)
        value = forms.setdefault(form, len(forms)) * FORM
        if unicodedata.category(character) == "Mn":
            value |= NON_SPACING
        if casing.do_lower_case:
            if not form and cased.tokenize(f"a{character}a") == ["aa"]:  # rule 1 deletes it before rule 4
                value |= IGNORED
            else:
                value |= _case(character)
                if not all(map(unicodedata.combining, unicodedata.normalize("NFD", character.lower()))):
                    value |= STARTER
            if character == CAPITAL_SIGMA or any(flags >= MARK for _, flags in form):
                value |= BY_NEIGHBOURS
        properties[code] = value
    pages, page_numbers = np.unique(properties.reshape(-1, PAGE), axis=0, return_inverse=True)
    lengths = np.array([len(form) for form in forms], np.int32)
    letters = np.array([letter for form in forms for letter in form], np.int32)
    numbers, starts = page_numbers.ravel().astype(np.int32), (np.cumsum(lengths) - lengths).astype(np.int32)
    return CharacterTables(numbers, pages.ravel(), starts, lengths, letters[:, 0], letters[:, 1])


def _may_change(code: int) -> bool:
    category = unicodedata.category(chr(code))
    return category != "Cs" and (code < _FIRST_UNCHANGED or category not in ("Cn", "Co"))


def _words_between_letters(codes: list[int], tokenizer: BasicTokenizer) -> Iterator[list[str]]:
    """Yields the words of "aca" for each character c. One text with all of them is tokenized, which is much faster."""
    words = iter(tokenizer.tokenize(" ".join(f"a{chr(code)}a" for code in codes)))
    for _ in codes:
        between = [next(words)]
        if between == ["a"]:  # c is a space or a word of its own
            while len(between) == 1 or between[-1] != "a":
                between.append(next(words))
        yield between


def _form(character: str, words: list[str], orders_marks: bool) -> tuple[tuple[int, int], ...]:
    """What a character c with the words of "aca" becomes wherever it stands: code points with their flags.

    `orders_marks`: whether rule 4 decomposes text, which puts marks into their canonical order.
    """
    if words == ["a", "a"]:
        return ((ord(" "), SPACE),)
    alone = ALONE if len(words) > 1 else 0
    form = []
    for letter in "".join(words)[1:-1]:
        mark = unicodedata.combining(letter) if orders_marks else 0
        form.append((ITSELF if letter == character else ord(letter), alone | MARK * mark))
    return tuple(form)


def _case(character: str) -> int:
    """How a capital sigma beside the character sees it when Python lowers it."""
    if f"{character}{CAPITAL_SIGMA}".lower().endswith(FINAL_SIGMA):
        return CASED
    return IGNORED if f"a{character}{CAPITAL_SIGMA}".lower().endswith(FINAL_SIGMA) else OTHER
