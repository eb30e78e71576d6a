"""Made-up texts on which the ways from text to answer could part: of every length, and of odd characters."""

import random
from collections.abc import Mapping
from typing import Any

from official_bert.export.text_models import FILL_MASK
from official_bert.kinds import names
from official_bert.tokenization.exact import CONTINUATION, MASK, FullTokenizer
from official_bert.tokenization.pairs import PAIR_SEPARATOR

_ODD = (
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
_SHORT = 7  # tokens
_MANY_WORDS = 500  # from which texts are made


def made_up_texts(tokenizer: FullTokenizer, kind: str, task_spec: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Returns texts for a model of a kind, a column for each of its inputs; always the same ones.

    Args:
        tokenizer: of whose pieces texts of a number of tokens are made.
        kind: one of text_models.TEXT_MODELS.
        task_spec: with max_seq_length, and with pair, num_choices and max_query_length for the kinds that have them.
    """
    writer = _Writer(tokenizer)
    length = int(task_spec["max_seq_length"])
    if kind == FILL_MASK:
        return {"text": writer.with_masks(length - 2)}
    if kind == names.QUESTION_ANSWERING:
        rows = writer.questions(length - 3, int(task_spec["max_query_length"]))
        return {"question": [question for question, _ in rows], "context": [context for _, context in rows]}
    if kind == names.MULTIPLE_CHOICE:
        rows, choices = writer.pairs(length - 3), int(task_spec["num_choices"])
        seconds = [second for _, second in rows]
        endings = [[seconds[(row + choice) % len(rows)] for choice in range(choices)] for row in range(len(rows))]
        return {"prompt": [first for first, _ in rows], "endings": endings}
    if task_spec.get("pair"):
        rows = writer.pairs(length - 3)
        return {"text": [first for first, _ in rows], "text_pair": [second for _, second in rows]}
    return {"text": [*_ODD, *map(writer.text, _lengths(length - 2))]}


def _lengths(room: int) -> list[int]:
    """How many tokens texts have, where the model reads so many at once."""
    return sorted({1, _SHORT, max(room - 1, 1), room, room + 1, 5 * room // 2})


class _Writer:
    """Writes texts of pieces that are tokenized as themselves."""

    def __init__(self, tokenizer: FullTokenizer) -> None:
        self._random, self._tokenizer = random.Random(0), tokenizer
        pieces = [piece for piece in tokenizer.vocab if not piece.startswith((CONTINUATION, "[")) and len(piece) > 1]
        step = max(len(pieces) // _MANY_WORDS, 1)
        words = [piece for piece in pieces[::step] if tokenizer.tokenize(piece) == [piece]]
        self._words = words or ["."]

    def text(self, tokens: int) -> str:
        return " ".join(self._random.choices(self._words, k=tokens))

    def with_masks(self, room: int) -> list[str]:
        """Returns texts with masks that fit in the room."""
        texts = [MASK, f"{MASK}{MASK} , {MASK} .", *(f"{odd} {MASK}" for odd in _ODD)]
        for tokens in (_SHORT, room - 1, room):
            words = self.text(tokens).split(" ")
            for position in self._random.sample(range(tokens), 3):
                words[position] = MASK
            texts.append(" ".join(words))
        return [text for text in texts if len(self._tokenizer.tokenize(text, special_tokens=True)) <= room]

    def pairs(self, room: int) -> list[tuple[str, str]]:
        """Returns pairs of which some fill the room, without special tokens, to the token."""
        half = room // 2
        lengths = [
            (1, 1), (_SHORT, _SHORT), (half, room - half), (half + 1, room - half), (half, room - half + 1),
            (room - 1, 1), (room, 1), (1, room), (0, room), (0, room + 2), (room + 1, 0), (room + 2, 0),
            (_SHORT, 5 * room // 2), (2 * room, 2 * room),
        ]  # fmt: skip
        odd = [(text, _ODD[(number * 3 + 1) % len(_ODD)]) for number, text in enumerate(_ODD)]
        return [*odd, ("", ""), *((self.text(first), self.text(second)) for first, second in lengths)]

    def questions(self, room: int, longest: int) -> list[tuple[str, str]]:
        """Returns questions and contexts, of which some fill the room, or the question's own, to the token."""
        lengths = [(_SHORT, tokens) for tokens in _lengths(max(room - _SHORT, 1))]
        lengths += [(tokens, 2 * _SHORT) for tokens in (1, longest, longest + 1)] + [(0, _SHORT)]
        odd = [(_ODD[(number * 3 + 1) % len(_ODD)], f"{text} {self.text(3)}") for number, text in enumerate(_ODD)]
        return [*odd, *((self.text(first), self.text(second)) for first, second in lengths)]
