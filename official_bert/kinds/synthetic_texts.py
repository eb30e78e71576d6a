"""Generates test texts for comparing two implementations, such as a model and its export.

They have lengths around the limits of the model and unusual characters.
"""

import random

from official_bert.tokenization.exact import CONTINUATION, FullTokenizer
from official_bert.tokenization.pairs import PAIR_SEPARATOR

ODD_TEXTS = (
    "",
    "   ",
    "Müller's naïve café — “20 %” of 5 € (it’s so)… www.example.com/a_b?c=1",
    "北京 is 首都; 東京と서울, Ελλάδα, Москва, हिन्दी, ไทย",
    "a tab\tand a\nline\r\nend, no\u00a0break, wide\u2003space, zero\u200bwidth, soft\u00adhyphen",
    "[CLS] [SEP] [PAD] [UNK] ##ing [unused1] [mask]",
    "w" * 300,
    "İstanbul STRASSE straße \ufb01ne A\u030angstrom e\u0301 \u0130\u0307",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f600 \U00010400 \ufffd \x01\x7f \u202etxet",
    f"one{PAIR_SEPARATOR}two{PAIR_SEPARATOR}three",
)
_ODD_PAIRS = [(text, ODD_TEXTS[(number * 3 + 1) % len(ODD_TEXTS)]) for number, text in enumerate(ODD_TEXTS)]
SHORT = 7  # tokens
_MANY_WORDS = 500  # words of the generated texts


class SyntheticTexts:
    """Generates unusual texts, and texts with a given number of tokens. The same tokenizer always gives the same texts.

    Args:
        tokenizer: The tokenizer that defines the number of tokens.
    """

    def __init__(self, tokenizer: FullTokenizer) -> None:
        self.random, self._tokenizer = random.Random(0), tokenizer
        pieces = [piece for piece in tokenizer.vocab if not piece.startswith((CONTINUATION, "[")) and len(piece) > 1]
        step = max(len(pieces) // _MANY_WORDS, 1)
        words = [piece for piece in pieces[::step] if tokenizer.tokenize(piece) == [piece]]
        self._words = words or ["."]

    def single(self, room: int) -> list[str]:
        """Returns unusual texts and texts of several lengths, among them room - 1, room and room + 1 tokens."""
        return [*ODD_TEXTS, *map(self.text, _list_lengths(room))]

    def text(self, tokens: int) -> str:
        """Returns a text with the given number of tokens."""
        return " ".join(self.random.choices(self._words, k=tokens))

    def pairs(self, room: int) -> list[tuple[str, str]]:
        """Returns text pairs of several lengths. Some have `room` tokens together, or one more or less."""
        half = room // 2
        lengths = [
            (1, 1), (SHORT, SHORT), (half, room - half), (half + 1, room - half), (half, room - half + 1),
            (room - 1, 1), (room, 1), (1, room), (0, room), (0, room + 2), (room + 1, 0), (room + 2, 0),
            (SHORT, 5 * room // 2), (2 * room, 2 * room),
        ]  # fmt: skip
        return [*_ODD_PAIRS, ("", ""), *((self.text(first), self.text(second)) for first, second in lengths)]

    def questions(self, room: int, longest: int) -> list[tuple[str, str]]:
        """Returns pairs of question and context of several lengths.

        Args:
            room: Some pairs have about this number of tokens together.
            longest: Some questions have this number of tokens.
        """
        lengths = [(SHORT, tokens) for tokens in _list_lengths(max(room - SHORT, 1))]
        lengths += [(tokens, 2 * SHORT) for tokens in (1, longest, longest + 1)] + [(0, SHORT)]
        odd = [(question, f"{text} {self.text(3)}") for text, question in _ODD_PAIRS]
        return [*odd, *((self.text(first), self.text(second)) for first, second in lengths)]


def _list_lengths(room: int) -> list[int]:
    """Returns the numbers of tokens to test, around the maximum `room`."""
    return sorted({1, SHORT, max(room - 1, 1), room, room + 1, 5 * room // 2})
