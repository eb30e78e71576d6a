"""Splits paragraphs into sentences by the rules of their language."""

import re
from collections.abc import Iterator

import sentencex

from official_bert.errors import UserError

_LANGUAGE = re.compile(r"[a-z]{2,3}(-[a-z]+)*")

# Number of characters in a window of a paragraph. The splitter takes quadratic time, and finds no boundary after an
# unpaired quotation mark. A window without a boundary is doubled.
_WINDOW = 20_000

# The splitter panics on some of these before a period ("Plan B\u00a0."). BERT's tokenizer treats them as spaces.
_WIDE_SPACE = re.compile("[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")


def check_language(language: str) -> None:
    """Raises a UserError if `language` is not a known language code.

    The sentence splitter itself accepts any string, and falls back to general rules.
    """
    if not _LANGUAGE.fullmatch(language):
        raise UserError(f"--language is {language!r}; expected an ISO code in lower case, such as en, de or zh")


def split_sentences(text: str, language: str) -> list[str]:
    """Splits text into sentences. Line breaks separate paragraphs, and a sentence never spans paragraphs."""
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
        *complete, _ = _segment(paragraph[start : start + window], language)
        yield from complete
        # The last sentence may continue beyond the window, so the next window starts with it.
        start += sum(map(len, complete))
        window = _WINDOW if complete else 2 * window
    yield from _segment(paragraph[start:], language)


def _segment(text: str, language: str) -> list[str]:
    """Splits one text into sentences with the splitter of a language."""
    try:
        return sentencex.segment(language, text)
    except BaseException as error:
        # The splitter fails on some characters. Its exception class cannot be imported. The paragraph stays unsplit.
        if type(error).__name__ != "PanicException":
            raise
        return [text]
