"""A tokenizer for large amounts of text. It returns the same ids as exact.FullTokenizer and needs no TensorFlow.

Cleaning, lower-casing, accents and punctuation (rules 1 to 5 of exact.py) become one array lookup per character and a
split at white space. The table of characters, and the word pieces of each distinct word (rule 6), are computed with the
exact tokenizer and cached. Texts with a character whose result depends on its neighbors are tokenized by the exact
rules:

- A capital sigma, in lower-cased text.
- One of about forty combining marks that rule 4 reorders but does not delete (category Mc, not Mn).
- A character that is unassigned in Python's Unicode data, and half a surrogate pair.
"""

import itertools
import sys
import threading
import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from official_bert.tokenization.casing import Casing
from official_bert.tokenization.exact import BasicTokenizer, FullTokenizer, Ids, Splits, WordpieceTokenizer

# Maximum number of cached words. The cache is emptied when full. Words longer than _LONGEST_CACHED rarely repeat.
_CACHED_WORDS = 400_000
_LONGEST_CACHED = 50

# Characters per batch: few enough to stay in the processor's cache.
_BATCH_CHARACTERS = 1 << 16

_SEPARATOR = "\n"
_CAPITAL_SIGMA = "Σ"
# A word that marks the end of a text. Rule 1 deletes this character, so it occurs in no other word.
TEXT_END = "\x01"

# Values in the table of characters other than the code point that a character becomes:
_UNKNOWN = 0  # not looked up so far
_STRINGS = sys.maxunicode + 1  # plus an index: the character becomes the string with that index
_DELETED = _STRINGS
_EXACT = 0xFFFFFFFF  # the text needs the exact rules

_learning = threading.Lock()  # not an attribute, so that tokenizers can be pickled


def normal_form(character: str, tokenizer: BasicTokenizer) -> str | None:
    """Returns what the exact tokenizer turns a character into, if this is the same in every context.

    Args:
        character: One character.
        tokenizer: The exact tokenizer.

    Returns:
        The resulting characters, with spaces around words of one character: " " for white space, "" if the character is
        deleted. None if the result depends on neighboring characters, or if the character is unassigned.
    """
    if unicodedata.category(character) in ("Cn", "Cs"):
        return None
    if tokenizer.do_lower_case and character == _CAPITAL_SIGMA:
        return None
    form = " ".join(tokenizer.tokenize(f"a{character}a"))[1:-1]
    return None if tokenizer.strip_accents and any(map(unicodedata.combining, form)) else form


class FastBasicTokenizer:
    """Splits many texts into words at once. Returns the same words as BasicTokenizer.

    Applies `normal_form` to arrays of code points, with a table that is filled when a character first occurs.
    """

    def __init__(self, exact: BasicTokenizer) -> None:
        self._exact = exact
        self._targets = np.full(sys.maxunicode + 1, _UNKNOWN, np.dtype("<u4"))
        self._targets[ord(_SEPARATOR)] = ord(_SEPARATOR)
        self._strings = {"": 0}
        self._lengths = np.zeros(1, np.intp)
        self._letters = np.zeros((1, 1), np.dtype("<u4"))  # a row for each string, padded with zeros

    def words(self, texts: list[str]) -> list[str]:
        """Returns the words of all texts in one list, with the word TEXT_END between two texts."""
        joined = _SEPARATOR.join(texts)
        if joined.count(_SEPARATOR) >= len(texts):
            joined = _SEPARATOR.join([text.replace(_SEPARATOR, " ") for text in texts])
        codes = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), np.dtype("<u4"))
        normalized, positions = self._normalize(codes)
        if len(positions):
            parts = normalized.split(_SEPARATOR)
            separators = np.flatnonzero(codes == ord(_SEPARATOR))
            for number in np.unique(np.searchsorted(separators, positions)).tolist():
                parts[number] = " ".join(self._exact.tokenize(texts[number]))
            normalized = _SEPARATOR.join(parts)
        return normalized.replace(_SEPARATOR, f" {TEXT_END} ").split()

    def _normalize(self, codes: npt.NDArray[np.uint32]) -> tuple[str, npt.NDArray[np.intp]]:
        """Returns the normal form of a text, and the positions in `codes` of characters that have no normal form.

        Characters without a normal form are left out. The separators between texts are kept.

        Args:
            codes: The code points of texts, joined by _SEPARATOR.
        """
        indices = codes.astype(np.intp)
        normalized = self._targets.take(indices)
        if normalized.min(initial=_DELETED) == _UNKNOWN:
            with _learning:
                self._extend_tables(codes[normalized == _UNKNOWN])
            normalized = self._targets.take(indices)
        exact = np.flatnonzero(normalized == _EXACT)
        normalized[exact] = _DELETED
        is_string = normalized >= _STRINGS
        if is_string.any():
            strings = normalized[is_string] - _STRINGS
            counts = np.ones(len(normalized), np.intp)
            counts[is_string] = self._lengths[strings]
            normalized = np.repeat(normalized, counts)
            letters = self._letters[strings]
            normalized[normalized >= _STRINGS] = letters[letters > 0]
        return normalized.tobytes().decode("utf-32-le"), exact

    def _extend_tables(self, codes: npt.NDArray[np.uint32]) -> None:
        targets = {}
        for code in np.unique(codes).tolist():
            form = normal_form(chr(code), self._exact)
            if form is None:
                targets[code] = _EXACT
            elif len(form) == 1:
                targets[code] = ord(form)
            else:
                targets[code] = _STRINGS + self._strings.setdefault(form, len(self._strings))
        new = list(self._strings)[len(self._lengths) :]
        if new:
            known = self._letters
            self._lengths = np.append(self._lengths, [len(string) for string in new])
            letters = np.zeros((len(self._strings), self._lengths.max()), np.dtype("<u4"))
            letters[: len(known), : known.shape[1]] = known
            for row, string in zip(letters[len(known) :], new, strict=True):
                row[: len(string)] = [ord(letter) for letter in string]
            self._letters = letters  # Complete, because other threads read it meanwhile.
        # Last, for the same reason.
        self._targets[list(targets)] = list(targets.values())


class _WordIds(dict[str, tuple[int, ...]]):
    """A cache of the ids of each word's pieces. A word that is not in the cache is split and added."""

    def __init__(self, tokenizer: WordpieceTokenizer) -> None:
        super().__init__()
        self._tokenizer = tokenizer

    def __missing__(self, word: str) -> tuple[int, ...]:
        if len(self) >= _CACHED_WORDS:
            self.clear()
        vocab = self._tokenizer.vocab
        ids = (-1,) if word == TEXT_END else tuple([vocab[piece] for piece in self._tokenizer.split_word(word)])
        if len(word) <= _LONGEST_CACHED:
            self[word] = ids
        return ids


class FastTokenizer(FullTokenizer):
    """A FullTokenizer whose `encode` is many times as fast. Arguments and errors are the same.

    Several threads may use it at the same time.
    """

    def _set_up(self, vocab: dict[str, int], casing: Casing, source: str) -> None:
        super()._set_up(vocab, casing, source)
        self._fast_basic_tokenizer = FastBasicTokenizer(self.basic_tokenizer)
        self._word_ids = _WordIds(self.wordpiece_tokenizer)

    def encode(self, texts: Sequence[str]) -> tuple[Ids, Splits]:
        if not self.casing.added_tokens:
            return self._encode_ordinary(texts)
        rows = [self._split_at_tokens(text) for text in texts]
        parts = list(itertools.chain.from_iterable(rows))
        is_token = np.array([number % 2 for row in rows for number in range(len(row))], bool)
        ids, splits = self._encode_ordinary(
            ["" if token else part for part, token in zip(parts, is_token, strict=True)]
        )
        tokens = [self.vocab[part] for part, token in zip(parts, is_token, strict=True) if token]
        ids = np.insert(ids, splits[:-1][is_token], tokens)
        ends = np.cumsum(np.concatenate([[0], np.where(is_token, 1, np.diff(splits))]))
        return ids, ends[np.cumsum([0, *map(len, rows)])]

    def _encode_ordinary(self, texts: Sequence[str]) -> tuple[Ids, Splits]:
        """Converts texts without added tokens to ids, in the form that `encode` returns."""
        parts = list(map(_split_long_text, texts))
        batches = [self._encode_batch(batch) for batch in _group_texts(list(itertools.chain.from_iterable(parts)))]
        ids, lengths = zip(*batches, strict=True)
        splits = np.cumsum(np.concatenate([np.zeros(1, np.int64), *lengths]))
        return np.concatenate(ids), splits[np.cumsum([0, *map(len, parts)])]

    def _encode_batch(self, texts: list[str]) -> tuple[Ids, Splits]:
        """Returns the ids of the pieces of all texts, and the number of pieces of each text."""
        if not texts:
            return np.empty(0, np.int32), np.empty(0, np.int64)
        words = self._fast_basic_tokenizer.words(texts)
        ids = np.fromiter(itertools.chain.from_iterable(map(self._word_ids.__getitem__, words)), np.int32)
        ends = np.flatnonzero(ids < 0)
        lengths = np.diff(np.concatenate([[-1], ends, [len(ids)]])) - 1
        return ids[ids >= 0], lengths


def _split_long_text(text: str) -> list[str]:
    """Splits a long text at spaces, where words end anyway, into parts of about _BATCH_CHARACTERS."""
    parts = []
    start = 0
    while len(text) - start > _BATCH_CHARACTERS:
        end = text.find(" ", start + _BATCH_CHARACTERS)
        if end < 0:
            break
        parts.append(text[start:end])
        start = end
    return [*parts, text[start:]]


def _group_texts(texts: list[str]) -> Iterator[list[str]]:
    """Groups texts into batches of about _BATCH_CHARACTERS characters.

    Yields at least one batch, which may be empty.
    """
    ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
    edges = np.flatnonzero(np.diff(ends // _BATCH_CHARACTERS)) + 1
    for start, end in itertools.pairwise([0, *edges.tolist(), len(texts)]):
        yield texts[start:end]
