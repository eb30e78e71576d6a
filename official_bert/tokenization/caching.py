"""A tokenizer for much text in processes without TensorFlow: the ids of FullTokenizer, many times as fast.

Text is brought into normal form by fast.py's table of characters and split at white space. The ids of each word are
computed once by the exact tokenizer and then looked up. fast.py is faster per character, but importing its kernel takes
seconds of processor time.
"""

import numpy as np
import numpy.typing as npt

from official_bert.tokenization.exact import FullTokenizer
from official_bert.tokenization.fast import CharacterTable

# Words whose ids are remembered; all are forgotten when there are more.
_CACHED_WORDS = 400_000
_LONGEST_CACHED = 50  # characters

# Characters that are treated at once: few enough to stay in the processor's cache.
_BATCH_CHARACTERS = 1 << 16

_SEPARATOR = "\n"
# Stands between texts. It is a noncharacter: texts that hold it go through the exact tokenizer.
_BETWEEN_TEXTS = "\U0010ffff"


class _WordNumbers(dict[str, int]):
    """The numbers of words in the cache's arrays; a word that is missing is cut into pieces and added.

    Args:
        tokenizer: the exact one.
    """

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
    """Many texts to ids at once, exactly as FullTokenizer.

    Args:
        exact: the tokenizer whose ids these are.
    """

    def __init__(self, exact: FullTokenizer) -> None:
        self.exact = exact
        self._table = CharacterTable(exact.basic_tokenizer, spaced=True)
        self._numbers = _WordNumbers(exact)
        self._ids = np.empty(0, np.int32)
        self._starts = np.zeros(1, np.int64)

    def encode(self, texts: list[str]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Cuts texts into word pieces.

        Args:
            texts: any strings.

        Returns:
            The ids of all pieces of all texts, int32; and the row splits, int64, one more than texts: those of text i
            are ids[row_splits[i] : row_splits[i + 1]].
        """
        all_ids, all_lengths = [np.empty(0, np.int32)], [np.zeros(1, np.int64)]
        batch: list[str] = []
        characters = 0
        for text in texts:
            if len(text) > _BATCH_CHARACTERS:
                ids, lengths = self._encode_batch(batch)
                long = [self._encode_batch([part])[0] for part in _parts_of(text)]
                all_ids += [ids, *long]
                all_lengths += [lengths, np.array([sum(map(len, long))])]
                batch, characters = [], 0
                continue
            batch.append(text)
            characters += len(text)
            if characters >= _BATCH_CHARACTERS:
                ids, lengths = self._encode_batch(batch)
                all_ids.append(ids)
                all_lengths.append(lengths)
                batch, characters = [], 0
        ids, lengths = self._encode_batch(batch)
        return np.concatenate([*all_ids, ids]), np.cumsum(np.concatenate([*all_lengths, lengths]))

    def _encode_batch(self, texts: list[str]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Returns the ids of the texts' pieces, and their number for each text."""
        if not texts:
            return np.empty(0, np.int32), np.empty(0, np.int64)
        joined = _SEPARATOR.join(texts)
        if joined.count(_SEPARATOR) >= len(texts):
            joined = _SEPARATOR.join([text.replace(_SEPARATOR, " ") for text in texts])
        codes = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), np.dtype("<u4"))
        normal, positions = self._table.normalize(codes)
        if len(positions):
            return self._encode_with_exact(texts, codes, positions)
        spaced = normal.tobytes().decode("utf-32-le").replace(_SEPARATOR, f" {_BETWEEN_TEXTS} ")
        ids = self._ids_of(spaced.split())
        between = np.flatnonzero(ids < 0)
        lengths = np.diff(np.concatenate([[-1], between, [len(ids)]])) - 1
        return ids[ids >= 0], lengths

    def _encode_with_exact(
        self, texts: list[str], codes: npt.NDArray[np.uint32], positions: npt.NDArray[np.intp]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Encodes a batch in which the characters at some positions need the exact tokenizer."""
        exact = set(np.searchsorted(np.flatnonzero(codes == ord(_SEPARATOR)), positions).tolist())
        ids, lengths = self._encode_batch([text for number, text in enumerate(texts) if number not in exact])
        others = iter(np.split(ids, np.cumsum(lengths)[:-1]))
        parts = [
            np.array(self.exact.convert_tokens_to_ids(self.exact.tokenize(text)), np.int32)
            if number in exact
            else next(others)
            for number, text in enumerate(texts)
        ]
        return np.concatenate(parts), np.array(list(map(len, parts)), np.int64)

    def _ids_of(self, words: list[str]) -> npt.NDArray[np.int32]:
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
        ids: npt.NDArray[np.int32] = self._ids[np.arange(len(shift)) + shift]
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
