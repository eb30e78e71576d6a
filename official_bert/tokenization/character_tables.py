"""Lookup tables that let TensorFlow operations treat each character as the exact tokenizer does.

Most rules of exact.py (1 to 5: cleaning, lower case, accents and punctuation) treat a character the same in every
context. For each code point, the tables contain its form: the characters that the exact tokenizer turns it into. They
also contain the properties needed by the two rules that depend on neighbors: lower-casing a capital sigma, and the
canonical order of combining marks.
"""

import functools
import sys
import unicodedata
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from official_bert.tokenization.casing import Casing
from official_bert.tokenization.exact import BasicTokenizer

CAPITAL_SIGMA, FINAL_SIGMA = "Σς"

# How a character affects an adjacent capital sigma.
OTHER, CASED, IGNORED = range(3)

# A character's properties: the number of its form times FORM, and these bits.
CASE_BITS, NON_SPACING, STARTER, DEPENDS_ON_NEIGHBORS, FORM = 3, 4, 8, 16, 32

# A form is a sequence of code points. ITSELF means the original character.
ITSELF = -1
# The flags of a code point in a form: a space, a word of its own, and MARK times the combining class, which is rule 4's
# sort key.
SPACE, ALONE, MARK = 1, 2, 4

# From this code point on, no rule changes an unassigned one.
_FIRST_UNCHANGED = 0x30000
PAGE = 256


class CharacterTables(NamedTuple):
    """The properties of all characters in pages of PAGE code points, and what each character becomes (its form)."""

    page_numbers: npt.NDArray[np.int32]  # the page of each block of PAGE code points
    pages: npt.NDArray[np.int32]  # properties, page after page
    form_starts: npt.NDArray[np.int32]
    form_lengths: npt.NDArray[np.int32]
    codes: npt.NDArray[np.int32]  # code points of all forms
    flags: npt.NDArray[np.int32]  # of these code points


@functools.cache
def character_tables(casing: Casing) -> CharacterTables:
    """Returns the tables for a tokenizer with these settings. They take seconds to compute and are cached."""
    tokenizer = BasicTokenizer(casing.do_lower_case, casing.strip_accents)
    cased = BasicTokenizer(do_lower_case=False)
    forms: dict[tuple[tuple[int, int], ...], int] = {((ITSELF, 0),): 0}
    properties = np.full(sys.maxunicode + 1, STARTER, np.int32)
    for code in filter(_may_change, range(sys.maxunicode + 1)):  # all others are their own form
        character = chr(code)
        form = _form(character, tokenizer.tokenize(f"a{character}a"), casing.strip_accents)
        value = forms.setdefault(form, len(forms)) * FORM
        if unicodedata.category(character) == "Mn":
            value |= NON_SPACING
        if casing.do_lower_case:
            if not form and cased.tokenize(f"a{character}a") == ["aa"]:  # rule 1 deletes it before rule 4 sees it
                value |= IGNORED
            else:
                value |= _case(character)
                if not all(map(unicodedata.combining, unicodedata.normalize("NFD", character.lower()))):
                    value |= STARTER
            if character == CAPITAL_SIGMA or any(flags >= MARK for _, flags in form):
                value |= DEPENDS_ON_NEIGHBORS
        properties[code] = value
    pages, page_numbers = np.unique(properties.reshape(-1, PAGE), axis=0, return_inverse=True)
    lengths = np.array([len(form) for form in forms], np.int32)
    letters = np.array([letter for form in forms for letter in form], np.int32)
    numbers, starts = page_numbers.ravel().astype(np.int32), (np.cumsum(lengths) - lengths).astype(np.int32)
    return CharacterTables(numbers, pages.ravel(), starts, lengths, letters[:, 0], letters[:, 1])


def _may_change(code: int) -> bool:
    category = unicodedata.category(chr(code))
    return category != "Cs" and (code < _FIRST_UNCHANGED or category not in ("Cn", "Co"))


def _form(character: str, words: list[str], sorts_marks: bool) -> tuple[tuple[int, int], ...]:
    """Returns what a character becomes in every context: code points, each with flags (SPACE, ALONE, MARK).

    Args:
        character: The character c.
        words: The words into which the exact tokenizer splits "aca".
        sorts_marks: Whether the tokenizer decomposes the text (rule 4 of exact.py), which sorts combining marks.
    """
    if words == ["a", "a"]:
        return ((ord(" "), SPACE),)
    alone = ALONE if len(words) > 1 else 0
    form = []
    for letter in "".join(words)[1:-1]:
        mark = unicodedata.combining(letter) if sorts_marks else 0
        form.append((ITSELF if letter == character else ord(letter), alone | MARK * mark))
    return tuple(form)


def _case(character: str) -> int:
    """Returns how a character affects an adjacent capital sigma when Python lower-cases it: CASED, IGNORED or OTHER."""
    if f"{character}{CAPITAL_SIGMA}".lower().endswith(FINAL_SIGMA):
        return CASED
    return IGNORED if f"a{character}{CAPITAL_SIGMA}".lower().endswith(FINAL_SIGMA) else OTHER
