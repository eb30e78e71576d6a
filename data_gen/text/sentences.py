"""Paragraphs to sentences, by the rules of their language."""

import re
from collections.abc import Iterator

import sentencex

from official_bert.errors import UserError

_LANGUAGE = re.compile(r"[a-z]{2,3}(-[a-z]+)*")

# A paragraph is split in windows of this many characters, because the splitter needs quadratic time, and because an
# unpaired quotation mark hides all later boundaries from it. A window without a boundary is doubled.
_WINDOW = 20_000

# The splitter panics on some of these before a period ("Plan B\u00a0."). BERT's tokenizer takes each for a space.
_WIDE_SPACE = re.compile("[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")


def check_language(language: str) -> None:
    """Raises a UserError unless this could be a language code: the splitter takes anything, and has general rules."""
    if not _LANGUAGE.fullmatch(language):
        raise UserError(f"{language!r} is not a language code; expected one in lower case such as en, de or zh")


def split_sentences(text: str, language: str) -> list[str]:
    """Returns the sentences of paragraphs that are separated by line breaks."""
    sentences = []
    for paragraph in text.splitlines():
        if not paragraph.isascii():
            paragraph = _WIDE_SPACE.sub(" ", paragraph)
        for sentence in _split_in_windows(paragraph, language):
            if stripped := sentence.strip():
                sentences.append(stripped)
    return sentences


def _split_in_windows(paragraph: str, language: str) -> Iterator[str]:
    start, window = 0, _WINDOW
    while start + window < len(paragraph):
        *whole, _ = _segment(paragraph[start : start + window], language)
        yield from whole
        # The last sentence may continue beyond the window: the next window begins with it.
        start += sum(map(len, whole))
        window = _WINDOW if whole else 2 * window
    yield from _segment(paragraph[start:], language)


def _segment(text: str, language: str) -> list[str]:
    """Returns the text in pieces, one for each sentence."""
    try:
        return sentencex.segment(language, text)
    except BaseException as error:
        # A defect of the splitter on odd characters; the exception's class cannot be imported. Better an unsplit
        # paragraph than a corpus that cannot be read.
        if type(error).__name__ != "PanicException":
            raise
        return [text]
