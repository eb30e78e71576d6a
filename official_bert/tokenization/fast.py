"""The tokenizer for much text: the ids of exact.FullTokenizer, many times as fast.

Text is brought into the form that rules 1, 2 and 4 of exact.py give by looking each character up in a table;
what a character becomes is asked of the exact tokenizer. The cutting into words (rules 3 and 5) and pieces (rule 6) is
left to a kernel, tensorflow-text's FastWordpieceTokenizer, which agrees with the exact one on text in that form. Where
this is not sure, the text goes through the exact tokenizer:

- those with a character that is not assigned in Python's Unicode data: the kernel's data are newer, and know other
  punctuation;
- uncased models without accents: those with one of some forty marks that rule 4 moves about but does not delete
  (class Mc, not Mn);
- those with a word of over 200 characters, which the kernel would cut, since it counts bytes.

Where words are wanted instead of pieces, the same table sets spaces about punctuation too, and Python splits.
"""

import itertools
import sys
import unicodedata
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from official_bert.tokenization.exact import (
    CONTINUATION,
    MAX_BYTES_PER_WORD,
    MAX_CHARACTERS_PER_WORD,
    UNK,
    BasicTokenizer,
    FullTokenizer,
)

# Characters that are treated at once: so many that NumPy's and TensorFlow's cost per call vanishes, so few that all of
# them stay in the processor's cache.
_BATCH_CHARACTERS = 1 << 17

SEPARATOR = "\n"
_CAPITAL_SIGMA = "Σ"
# A noncharacter: texts that hold it do not go to the kernel.
_NEVER_IN_TEXT = "\U0010ffff"

# What the table of characters holds, besides the code point that a character becomes:
_NOT_YET_KNOWN = 0
_STRINGS = sys.maxunicode + 1  # this plus a number: the character becomes the string of that number
_DELETED = _STRINGS
_EXACT = 0xFFFFFFFF  # the text needs the exact tokenizer


Codes = npt.NDArray[np.uint32]  # code points
Ids = npt.NDArray[np.int32]
Numbers = npt.NDArray[np.int64]


def join_texts(texts: list[str]) -> str:
    """Returns the texts with a separator between them; those within them become spaces."""
    joined = SEPARATOR.join(texts)
    if joined.count(SEPARATOR) >= len(texts):
        joined = SEPARATOR.join([text.replace(SEPARATOR, " ") for text in texts])
    return joined


def code_points(text: str) -> Codes:
    """Returns the text's code points."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.dtype("<u4"))


def texts_at(positions: npt.NDArray[np.intp], codes: Codes) -> set[int]:
    """Returns the numbers of the texts that have these positions among the code points of joined texts."""
    return set(np.searchsorted(np.flatnonzero(codes == ord(SEPARATOR)), positions).tolist())


def encode_in_batches(
    texts: list[str], characters: int, encode: Callable[[list[str]], tuple[Ids, Numbers]]
) -> tuple[Ids, Numbers]:
    """Encodes texts some at a time.

    Args:
        texts: any strings.
        characters: a batch begins with the text that passes a multiple of so many.
        encode: some texts to the ids of their pieces, and their number for each text.

    Returns:
        As `FastTokenizer.encode`.
    """
    ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
    edges = np.flatnonzero(np.diff(ends // characters)) + 1
    batches = [encode(texts[start:end]) for start, end in itertools.pairwise([0, *edges.tolist(), len(texts)])]
    ids, lengths = zip(*batches, strict=True)
    return np.concatenate(ids), np.cumsum(np.concatenate([np.zeros(1, np.int64), *lengths]))


def normal_form(character: str, tokenizer: BasicTokenizer, spaced: bool = False) -> str | None:
    """Returns what a character becomes before text is split into words, wherever it stands.

    Args:
        character: one character.
        tokenizer: the exact rules, cased or uncased.
        spaced: whether punctuation and ideographs get their spaces; the kernel splits there itself.

    Returns:
        The character or characters that it becomes: " " for white space, "" if it is deleted. None if that depends on
        its neighbours, or if the kernel's Unicode data might say otherwise.
    """
    if unicodedata.category(character) in ("Cn", "Cs"):
        return None
    form = " ".join(tokenizer.tokenize(f"a{character}a"))[1:-1]
    if tokenizer.do_lower_case and character == _CAPITAL_SIGMA:
        return None
    if tokenizer.strip_accents and any(map(unicodedata.combining, form)):
        return None
    return form if spaced else form.strip() or form


class CharacterTable:
    """`normal_form` for arrays of code points, asked once for each character that is met."""

    def __init__(self, tokenizer: BasicTokenizer, spaced: bool = False) -> None:
        self._tokenizer, self._spaced = tokenizer, spaced
        self._targets = np.zeros(sys.maxunicode + 1, np.dtype("<u4"))  # nothing known yet
        self._targets[ord(SEPARATOR)] = ord(SEPARATOR)
        self._strings = {"": 0}
        self._lengths = np.zeros(1, np.intp)
        self._letters = np.zeros((1, 1), np.dtype("<u4"))  # a row for each string, filled up with zeros

    def normalize(self, codes: Codes) -> tuple[Codes, npt.NDArray[np.intp]]:
        """Returns the code points of a text in normal form; SEPARATOR stays as it is.

        Characters without a normal form are deleted; their positions in `codes` are returned too.
        """
        indices = codes.astype(np.intp)
        normalized = self._targets.take(indices)
        if normalized.min(initial=_DELETED) == _NOT_YET_KNOWN:
            self._learn(codes[normalized == _NOT_YET_KNOWN])
            normalized = self._targets.take(indices)
        if normalized.max(initial=0) < _STRINGS:
            return normalized, np.empty(0, np.intp)
        exact = np.flatnonzero(normalized == _EXACT)
        normalized[exact] = _DELETED
        is_string = normalized >= _STRINGS
        strings = normalized[is_string] - _STRINGS
        if not strings.any():
            return normalized[~is_string], exact
        counts = np.ones(len(normalized), np.intp)
        counts[is_string] = self._lengths[strings]
        normalized = np.repeat(normalized, counts)
        letters = self._letters[strings]
        normalized[normalized >= _STRINGS] = letters[letters > 0]
        return normalized, exact

    def _learn(self, codes: Codes) -> None:
        for code in np.unique(codes).tolist():
            form = normal_form(chr(code), self._tokenizer, self._spaced)
            if form is None:
                self._targets[code] = _EXACT
            elif len(form) == 1:
                self._targets[code] = ord(form)
            else:
                self._targets[code] = _STRINGS + self._strings.setdefault(form, len(self._strings))
        new = list(self._strings)[len(self._lengths) :]
        if new:
            known = self._letters
            self._lengths = np.append(self._lengths, [len(string) for string in new])
            self._letters = np.zeros((len(self._strings), self._lengths.max()), np.dtype("<u4"))
            self._letters[: len(known), : known.shape[1]] = known
            for row, string in zip(self._letters[len(known) :], new, strict=True):
                row[: len(string)] = [ord(letter) for letter in string]


class FastBasicTokenizer:
    """Many texts to words at once, exactly as BasicTokenizer, about twice as fast."""

    def __init__(self, do_lower_case: bool = True, strip_accents: bool | None = None) -> None:
        self._exact = BasicTokenizer(do_lower_case, strip_accents)
        self._table = CharacterTable(self._exact, spaced=True)

    def words(self, texts: list[str]) -> list[str]:
        """Returns the words of all texts; those of texts that need the exact tokenizer come last."""
        normalized, positions = self._table.normalize(code_points(SEPARATOR.join(texts)))
        if not len(positions):
            return normalized.tobytes().decode("utf-32-le").split()
        ends = np.cumsum([len(text) + 1 for text in texts])
        exact = set(np.searchsorted(ends, positions, side="right").tolist())
        words = self.words([text for number, text in enumerate(texts) if number not in exact])
        for number in sorted(exact):
            words += self._exact.tokenize(texts[number])
        return words


class Tokenizer(Protocol):
    """What cuts many texts at once, as FastTokenizer and caching.CachingTokenizer do.

    Attributes:
        exact: the FullTokenizer whose ids it gives.
    """

    exact: FullTokenizer

    def encode(self, texts: list[str]) -> tuple[Ids, Numbers]:
        """Returns the ids of all pieces, int32, and where each text's begin among them, and the end, int64."""


class FastTokenizer:
    """Many texts to ids at once, exactly as FullTokenizer; arguments and errors are that one's.

    Attributes:
        exact: the FullTokenizer that this one equals.
    """

    def __init__(self, vocab_file: str, do_lower_case: bool = True, strip_accents: bool | None = None) -> None:
        self._follow(FullTokenizer(vocab_file, do_lower_case, strip_accents))

    @classmethod
    def from_vocab(
        cls,
        vocab: str | Mapping[str, int],
        do_lower_case: bool = True,
        source: str = "the vocabulary",
        strip_accents: bool | None = None,
    ) -> "FastTokenizer":
        """Returns the tokenizer of a vocabulary that is at hand; arguments as of FullTokenizer.from_vocab."""
        return cls.of(FullTokenizer.from_vocab(vocab, do_lower_case, source, strip_accents))

    @classmethod
    def of(cls, exact: FullTokenizer) -> "FastTokenizer":
        """Returns the one that equals a FullTokenizer."""
        tokenizer = cls.__new__(cls)
        tokenizer._follow(exact)
        return tokenizer

    def _follow(self, exact: FullTokenizer) -> None:
        # Imported late: they take seconds.
        import tensorflow as tf
        import tensorflow_text

        self.exact = exact
        self._table = CharacterTable(self.exact.basic_tokenizer)
        pieces = _pieces_for_the_kernel(self.exact.vocab)
        self._continues = np.array([piece.startswith(CONTINUATION) for piece in pieces])
        self._constant = tf.constant
        try:
            self._kernel = tensorflow_text.FastWordpieceTokenizer(
                pieces, max_bytes_per_word=MAX_BYTES_PER_WORD, token_out_type=tf.int32, unknown_token=UNK
            )
        except RuntimeError:
            self._kernel = None  # a vocabulary beyond the kernel's limits: all text goes through the exact tokenizer

    def encode(self, texts: list[str]) -> tuple[Ids, Numbers]:
        """Cuts texts into word pieces.

        Args:
            texts: any strings.

        Returns:
            The ids of all pieces of all texts, int32; and the row splits, int64, one more than texts: those of text i
            are ids[row_splits[i] : row_splits[i + 1]].
        """
        return encode_in_batches(texts, _BATCH_CHARACTERS, self._encode_batch)

    def _encode_batch(self, texts: list[str]) -> tuple[Ids, Numbers]:
        """Returns the ids of the texts' pieces, and their number for each text."""
        if self._kernel is None or not texts:
            return self._merge(np.empty(0, np.int32), np.zeros(len(texts) + 1, np.int64), texts, set(range(len(texts))))
        # All texts become one string, since a string's cost is many times that of a sentence's characters.
        codes = code_points(self._join(texts))
        normalized, positions = self._table.normalize(codes)
        exact = texts_at(positions, codes) if len(positions) else set()
        data = normalized.tobytes().decode("utf-32-le").encode()
        pieces, starts, ends = (
            ragged.values.numpy() for ragged in self._kernel.tokenize_with_offsets(self._constant([data]))
        )
        separators = np.flatnonzero(np.frombuffer(data, np.uint8) == ord(SEPARATOR))
        splits = np.concatenate([[0], np.searchsorted(starts, separators), [len(pieces)]])
        long_words = self._pieces_of_long_words(data, pieces, starts, ends)
        exact |= set((np.searchsorted(splits, long_words, side="right") - 1).tolist())
        return self._merge(pieces, splits, texts, exact)

    def _join(self, texts: list[str]) -> str:
        joined = join_texts(texts)
        if self.exact.basic_tokenizer.do_lower_case and _CAPITAL_SIGMA in joined:
            # How this letter is lowered depends on its neighbours. Treating a word twice does not change it any more.
            words = self.exact.basic_tokenizer.tokenize
            joined = join_texts([" ".join(words(text)) if _CAPITAL_SIGMA in text else text for text in texts])
        return joined

    def _pieces_of_long_words(self, data: bytes, pieces: Ids, starts: Numbers, ends: Numbers) -> list[int]:
        """Returns the numbers of the first pieces of words of over 200 characters, of those words that were cut."""
        first = np.flatnonzero(~self._continues[pieces])
        last = np.append(first, len(pieces))[1:] - 1
        begin, end = starts[first], ends[last]
        return [
            int(first[word])
            for word in np.flatnonzero(end - begin > MAX_CHARACTERS_PER_WORD)
            if len(data[begin[word] : end[word]].decode()) > MAX_CHARACTERS_PER_WORD
        ]

    def _merge(self, ids: Ids, splits: Numbers, texts: list[str], exact: set[int]) -> tuple[Ids, Numbers]:
        """Puts the exact ids of the texts numbered in `exact` instead of the kernel's."""
        lengths = np.diff(splits)
        if not exact:
            return ids, lengths
        parts = []
        done = 0
        for number in sorted(exact):
            exact_ids = self.exact.convert_tokens_to_ids(self.exact.tokenize(texts[number]))
            parts += [ids[splits[done] : splits[number]], np.array(exact_ids, np.int32)]
            lengths[number] = len(exact_ids)
            done = number + 1
        parts.append(ids[splits[done] :])
        return np.concatenate(parts), lengths


def _pieces_for_the_kernel(vocab: dict[str, int]) -> list[str]:
    """Returns the vocabulary as a list in the order of ids, with pieces that no text has instead of useless ones.

    Useless are the earlier ones of equal lines, which have no token; and tokens that no word holds, such as "a b" or
    "##?", on some of which the kernel does not agree with the exact tokenizer.
    """
    rules = BasicTokenizer(do_lower_case=False)
    pieces = [f"{_NEVER_IN_TEXT}{index}" for index in range(max(vocab.values()) + 1)]
    for token, index in vocab.items():
        word = "a" + token.removeprefix(CONTINUATION) if token.startswith(CONTINUATION) else token
        in_text = token != CONTINUATION and _NEVER_IN_TEXT not in token and rules.tokenize(word) == [word]
        if in_text or token == UNK:  # the kernel wants to know the latter
            pieces[index] = token
    return pieces
