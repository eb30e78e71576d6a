"""A tokenizer for much text in processes without TensorFlow: the ids of FullTokenizer, many times as fast.

Text is brought into normal form by fast.py's table of characters and split at white space. The ids of each word are
computed once by the exact tokenizer and then looked up. fast.py is faster per character, but importing its kernel takes
seconds of processor time.
"""

import itertools
import threading

import numpy as np

from official_bert.tokenization import fast
from official_bert.tokenization.exact import FullTokenizer
from official_bert.tokenization.fast import Ids, Numbers

# Words whose ids are remembered; all are forgotten when there are more.
_CACHED_WORDS = 400_000
_LONGEST_CACHED = 50  # characters

# Characters that are treated at once: few enough to stay in the processor's cache.
_BATCH_CHARACTERS = 1 << 16

# Stands between texts. It is a noncharacter: texts that hold it go through the exact tokenizer.
_BETWEEN_TEXTS = "\U0010ffff"


class _WordNumbers(dict[str, int]):
    """The numbers of words in the cache's arrays; a word that is missing is cut into pieces and added."""

    def __init__(self, tokenizer: FullTokenizer) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self.ids: list[int] = []  # of all words, one after the other
        self.starts: list[int] = []  # where each word begins among the ids, and the end
        self.forget()

    def forget(self) -> None:
        """Forgets all words."""
        self.clear()
        self.ids, self.starts = [-1], [0, 1]
        self[_BETWEEN_TEXTS] = 0  # the only word with an id of -1

    def __missing__(self, word: str) -> int:
        number = len(self.starts) - 1
        pieces = self._tokenizer.wordpiece_tokenizer.pieces(word)
        self.ids += self._tokenizer.convert_tokens_to_ids(pieces)
        self.starts.append(len(self.ids))
        if len(word) <= _LONGEST_CACHED:
            self[word] = number
        return number


class CachingTokenizer:
    """Many texts to ids at once, exactly as a FullTokenizer; several threads may call it."""

    def __init__(self, exact: FullTokenizer) -> None:
        self.exact = exact
        self._table = fast.CharacterTable(exact.basic_tokenizer, spaced=True)
        self._numbers = _WordNumbers(exact)
        self._ids = np.empty(0, np.int32)
        self._starts = np.zeros(1, np.int64)
        self._lock = threading.Lock()  # what is remembered of words is in several arrays

    def encode(self, texts: list[str]) -> tuple[Ids, Numbers]:
        """Cuts texts into word pieces, as FastTokenizer.encode."""
        parts = list(map(_parts_of, texts))
        with self._lock:
            ids, splits = fast.encode_in_batches(
                list(itertools.chain.from_iterable(parts)), _BATCH_CHARACTERS, self._encode_batch
            )
        return ids, splits[np.cumsum([0, *map(len, parts)])]

    def _encode_batch(self, texts: list[str]) -> tuple[Ids, Numbers]:
        """Returns the ids of the texts' pieces, and their number for each text."""
        if not texts:
            return np.empty(0, np.int32), np.empty(0, np.int64)
        codes = fast.code_points(fast.join_texts(texts))
        normal, positions = self._table.normalize(codes)
        if len(positions):
            return self._encode_with_exact(texts, fast.texts_at(positions, codes))
        spaced = normal.tobytes().decode("utf-32-le").replace(fast.SEPARATOR, f" {_BETWEEN_TEXTS} ")
        ids = self._ids_of(spaced.split())
        between = np.flatnonzero(ids < 0)
        lengths = np.diff(np.concatenate([[-1], between, [len(ids)]])) - 1
        return ids[ids >= 0], lengths

    def _encode_with_exact(self, texts: list[str], exact: set[int]) -> tuple[Ids, Numbers]:
        """Encodes a batch in which the texts of some numbers need the exact tokenizer."""
        ids, lengths = self._encode_batch([text for number, text in enumerate(texts) if number not in exact])
        others = iter(np.split(ids, np.cumsum(lengths)[:-1]))
        parts = [
            np.array(self.exact.convert_tokens_to_ids(self.exact.tokenize(text)), np.int32)
            if number in exact
            else next(others)
            for number, text in enumerate(texts)
        ]
        return np.concatenate(parts), np.array(list(map(len, parts)), np.int64)

    def _ids_of(self, words: list[str]) -> Ids:
        if len(self._numbers.starts) > _CACHED_WORDS:
            self._numbers.forget()
            self._ids, self._starts = np.empty(0, np.int32), np.zeros(1, np.int64)
        numbers = np.fromiter(map(self._numbers.__getitem__, words), np.int64, len(words))
        new = len(self._ids)
        if len(self._numbers.ids) > new:
            self._ids = np.append(self._ids, np.array(self._numbers.ids[new:], np.int32))
            self._starts = np.append(self._starts, np.array(self._numbers.starts[len(self._starts) :], np.int64))
        lengths = np.diff(self._starts)[numbers]
        ends = np.cumsum(lengths)
        shift = np.repeat(self._starts[numbers] - ends + lengths, lengths)
        ids: Ids = self._ids[np.arange(len(shift)) + shift]
        return ids


def _parts_of(text: str) -> list[str]:
    """Splits a long text at spaces, where words end in any case, into parts that can be treated at once."""
    parts = []
    start = 0
    while len(text) - start > _BATCH_CHARACTERS:
        end = text.find(" ", start + _BATCH_CHARACTERS)
        if end < 0:
            break
        parts.append(text[start:end])
        start = end
    return [*parts, text[start:]]
