"""BERT's exact tokenizer: text to words (BasicTokenizer), and words to pieces (WordpieceTokenizer).

The rules treat every character as the original does, with Python's Unicode data:

1. U+0000, U+FFFD and every control or format character (Cc, Cf) other than tab and line ends are deleted. No space
   replaces them.
2. Tab, line ends and space separators (Zs) become a space.
3. Each character in eight blocks of Chinese ideographs gets a space on either side. Hangul and Kana do not.
4. In uncased models only, text is lower-cased. Unless accents are kept, it is also decomposed canonically (NFD) and
   loses its non-spacing marks (Mn).
5. Each punctuation character (ASCII other than letters, digits and spaces; any P* category) is a word of its own.
6. A word is split into the longest pieces of the vocabulary from left to right. Pieces within a word begin with "##". A
   word of over 200 characters, or with a remainder that no piece matches, becomes a single "[UNK]".

Added tokens (see added_tokens.py) are found before these rules split the text: normalized ones in the text after rules
1, 2 and 4, the others in the original text.

FullTokenizer is the interface of all tokenizers. fast.py implements it for large amounts of text, and in_graph.py in
TensorFlow graphs.
"""

import dataclasses
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from official_bert.errors import UserError
from official_bert.tokenization.added_tokens import AddedToken, make_pattern
from official_bert.tokenization.casing import Casing, make_casing
from official_bert.utils import files

Ids = npt.NDArray[np.int32]
Splits = npt.NDArray[np.int64]

PAD, UNK, CLS, SEP, MASK = SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

CONTINUATION = "##"
MAX_CHARACTERS_PER_WORD = 200
MAX_BYTES_PER_WORD = 4 * MAX_CHARACTERS_PER_WORD  # in UTF-8; tensorflow-text's kernel counts bytes

_CJK_BLOCKS = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip

# Words repeat, so the pieces of this many words are cached. The cache is emptied when full.
_CACHED_WORDS = 200_000


@dataclasses.dataclass(frozen=True)
class Piece:
    """A word piece and its position in the text: text[start:end]."""

    token: str
    start: int
    end: int


def is_punctuation(character: str) -> bool:
    """Returns whether a character is punctuation, which is always a word of its own (rule 5 of this module)."""
    code = ord(character)
    if code < 128:
        return 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126
    return unicodedata.category(character).startswith("P")


class _Table(dict[int, str]):
    """A table for str.translate that computes the replacement of a character when it first occurs."""

    def __init__(self, replacement: Callable[[str], str]) -> None:
        super().__init__()
        self._replacement = replacement

    def __missing__(self, code: int) -> str:
        self[code] = self._replacement(chr(code))
        return self[code]


def _clean(character: str) -> str:
    """Converts white space to a space, and deletes control characters (rules 1 and 2 of this module)."""
    category = unicodedata.category(character)
    if character in "\t\n\r" or category == "Zs":
        return " "
    if character in "\0\ufffd" or category in ("Cc", "Cf"):
        return ""
    return character


def _split(character: str) -> str:
    """Puts spaces around punctuation and Chinese ideographs, which are words of their own (rules 3 and 5)."""
    is_word = is_punctuation(character) or any(first <= ord(character) <= last for first, last in _CJK_BLOCKS)
    return f" {character} " if is_word else character


def _delete_mark(character: str) -> str:
    """Deletes a character if it is a non-spacing mark, such as an accent (part of rule 4)."""
    return "" if unicodedata.category(character) == "Mn" else character


def _split_without_mark(character: str) -> str:
    """Deletes non-spacing marks, and puts spaces around punctuation and Chinese ideographs."""
    return _delete_mark(character) and _split(character)


class BasicTokenizer:
    """Splits text into words and punctuation, after cleaning, lower-casing and deletion of accents (rules 1 to 5).

    Args:
        do_lower_case: Whether to lower-case the text. True for uncased models.
        strip_accents: Whether to delete accents. None means the value of do_lower_case. False is for uncased models
            that keep accents.

    Raises:
        UserError: If strip_accents is true for a cased model.
    """

    def __init__(self, do_lower_case: bool = True, strip_accents: bool | None = None) -> None:
        self.do_lower_case, self.strip_accents, _ = make_casing(do_lower_case, strip_accents)
        self._clean, self._delete_marks = _Table(_clean), _Table(_delete_mark)
        self._split = _Table(_split_without_mark if self.strip_accents else _split)

    def tokenize(self, text: str | bytes) -> list[str]:
        """Splits a text into words. Bytes are decoded as UTF-8. As in the original, invalid bytes are dropped."""
        return self._normalize(convert_to_unicode(text)).translate(self._split).split()

    def normalize(self, text: str) -> str:
        """Returns the text after cleaning, lower-casing and deletion of accents (rules 1, 2 and 4)."""
        text = self._normalize(text)
        return text.translate(self._delete_marks) if self.strip_accents else text

    def _normalize(self, text: str) -> str:
        """Cleans, lower-cases and decomposes the text, but does not delete accents yet (rules 1, 2 and part of 4)."""
        # The rules treat characters one by one, except for lower case (the final sigma) and NFD (the order of marks),
        # whose contexts end at white space. So each rule can be applied to the whole text before it is split.
        text = text.translate(self._clean)
        if self.do_lower_case:
            text = text.lower()
        if self.strip_accents:
            text = unicodedata.normalize("NFD", text)
        return text

    def normalize_with_origins(self, text: str) -> list[tuple[str, int]]:
        """Returns the characters of the normalized text, each with the index in `text` that it came from."""
        traced = [(new, index) for index, character in enumerate(text) for new in character.translate(self._clean)]
        if self.do_lower_case:
            traced = _lower(traced)
        if self.strip_accents:
            traced = [pair for pair in _decompose(traced) if unicodedata.category(pair[0]) != "Mn"]
        return traced

    def tokenize_with_origins(self, text: str) -> list[tuple[str, list[int]]]:
        """Splits a text into words. Each word has a list with the position in `text` of each of its characters."""
        return self.split_with_origins(self.normalize_with_origins(text))

    def split_with_origins(self, traced: Sequence[tuple[str, int]]) -> list[tuple[str, list[int]]]:
        """Splits normalized characters into words. Each word has a list with the original position of each character.

        Args:
            traced: The result of `normalize_with_origins`, or a part of it.
        """
        words: list[tuple[str, list[int]]] = []
        open_word = False
        for character, index in traced:
            for new in character.translate(self._split):
                if new.isspace():
                    open_word = False
                elif open_word:
                    word, origins = words[-1]
                    words[-1] = (word + new, origins)
                    origins.append(index)
                else:
                    words.append((new, [index]))
                    open_word = True
        return words


def _lower(traced: list[tuple[str, int]]) -> list[tuple[str, int]]:
    lowered = "".join(character for character, _ in traced).lower()
    # The lower case of a character may depend on its neighbors, but its length does not.
    origins = [index for character, index in traced for _ in character.lower()]
    return list(zip(lowered, origins, strict=True))


def _decompose(traced: list[tuple[str, int]]) -> list[tuple[str, int]]:
    result: list[tuple[str, int]] = []
    marks: list[tuple[str, int]] = []
    for character, index in traced:
        for new in unicodedata.normalize("NFD", character):
            if unicodedata.combining(new):
                marks.append((new, index))
            else:
                # Canonical order: a stable sort of consecutive combining marks by class.
                result += sorted(marks, key=lambda mark: unicodedata.combining(mark[0]))
                marks.clear()
                result.append((new, index))
    return result + sorted(marks, key=lambda mark: unicodedata.combining(mark[0]))


class WordpieceTokenizer:
    """Splits words into pieces of a vocabulary, from left to right, with the longest possible piece first (rule 6).

    Args:
        vocab: Ids by piece.
    """

    def __init__(self, vocab: dict[str, int]) -> None:
        self.vocab = vocab
        self._longest = max(map(len, vocab), default=0)
        self._cache: dict[str, list[str]] = {}

    def tokenize(self, text: str | bytes) -> list[str]:
        """Splits a text at white space, and returns the pieces of its words."""
        return [piece for word in convert_to_unicode(text).split() for piece in self.pieces(word)]

    def pieces(self, word: str) -> list[str]:
        """Returns the pieces of one word. The list is cached and must not be modified."""
        pieces = self._cache.get(word)
        if pieces is None:
            if len(self._cache) >= _CACHED_WORDS:
                self._cache.clear()
            pieces = self._cache[word] = self.split_word(word)
        return pieces

    def split_word(self, word: str) -> list[str]:
        """Computes the pieces of one word, without the cache."""
        if len(word) > MAX_CHARACTERS_PER_WORD:
            return [UNK]
        pieces = []
        start = 0
        while start < len(word):
            prefix = CONTINUATION if start else ""
            for end in range(min(len(word), start + self._longest), start, -1):
                piece = prefix + word[start:end]
                if piece in self.vocab:
                    break
            else:
                return [UNK]
            pieces.append(piece)
            start = end
        return pieces


class FullTokenizer:
    """Converts text to word pieces and ids, like the original's class of the same name.

    Args:
        vocab_file: Path of a vocab.txt with one piece per line. The id of a piece is its line number, counted from 0.
        do_lower_case: True for uncased models, False for cased ones.
        strip_accents: Whether to delete accents. None means the value of do_lower_case, as in the original. False is
            for uncased models that keep accents.
        added_tokens: Tokens that are found in a text before it is split into words. Those at the end of the vocabulary
            are not used as pieces of other words.

    Raises:
        UserError: If the vocabulary is missing, unreadable or lacks special or added tokens, or strip_accents is true
            for a cased model.
    """

    def __init__(
        self,
        vocab_file: str,
        do_lower_case: bool = True,
        strip_accents: bool | None = None,
        added_tokens: Sequence[AddedToken] = (),
    ) -> None:
        self._set_up(load_vocab(vocab_file), make_casing(do_lower_case, strip_accents, added_tokens), vocab_file)

    @classmethod
    def from_vocab(
        cls,
        vocab: str | Mapping[str, int],
        do_lower_case: bool = True,
        source: str = "the vocabulary",
        strip_accents: bool | None = None,
        added_tokens: Sequence[AddedToken] = (),
    ) -> Self:
        """Creates a tokenizer from a vocabulary in memory.

        Args:
            vocab: Contents of a vocab.txt, or a mapping from tokens to ids.
            do_lower_case: As for the class.
            source: Where the vocabulary is from, for error messages.
            strip_accents: As for the class.
            added_tokens: As for the class.

        Raises:
            UserError: If a special or added token is missing, or strip_accents is true for a cased model.
        """
        tokenizer = cls.__new__(cls)
        tokens = parse_vocab(vocab) if isinstance(vocab, str) else dict(vocab)
        tokenizer._set_up(tokens, make_casing(do_lower_case, strip_accents, added_tokens), source)
        return tokenizer

    def _set_up(self, vocab: dict[str, int], casing: Casing, source: str) -> None:
        check_special_tokens(vocab, source)
        self.vocab = vocab
        self.casing = casing
        self.inv_vocab = {index: token for token, index in self.vocab.items()}
        self.basic_tokenizer = BasicTokenizer(casing.do_lower_case, casing.strip_accents)
        added = casing.added_tokens
        self.wordpiece_tokenizer = WordpieceTokenizer(vocab=select_word_pieces(vocab, added, source))
        self.raw_contents = tuple(token.content for token in added if not token.normalized)
        self.normalized_contents = {
            self.basic_tokenizer.normalize(token.content): token.content for token in added if token.normalized
        }
        self._raw, self._raw_or_special = map(_compile, (self.raw_contents, (*self.raw_contents, *SPECIAL_TOKENS)))
        self._normalized = _compile(self.normalized_contents)

    def tokenize(self, text: str | bytes, special_tokens: bool = False) -> list[str]:
        """Splits a text into word pieces.

        Args:
            text: Any text. Bytes are decoded as UTF-8.
            special_tokens: Whether "[MASK]" and the names of the other special tokens in the text become these tokens.
                If False, they are ordinary text and are split into brackets and letters, as in the original.
        """
        pieces: list[str] = []
        for number, part in enumerate(self._split_at_tokens(convert_to_unicode(text), special_tokens)):
            if number % 2:
                pieces.append(part)
            else:
                for word in self.basic_tokenizer.tokenize(part):
                    pieces.extend(self.wordpiece_tokenizer.pieces(word))
        return pieces

    def _split_at_tokens(self, text: str, special_tokens: bool = False) -> list[str]:
        """Splits a text at its added tokens. Returns ordinary text and tokens in turn: text, token, text, ..., text."""
        raw = self._raw_or_special if special_tokens else self._raw
        parts = raw.split(text) if raw else [text]
        if self._normalized is None:
            return parts
        cut = []
        for number, part in enumerate(parts):
            found = [part] if number % 2 else self._normalized.split(self.basic_tokenizer.normalize(part))
            cut += [self.normalized_contents[each] if index % 2 else each for index, each in enumerate(found)]
        return cut

    def encode(self, texts: Sequence[str]) -> tuple[Ids, Splits]:
        """Converts many texts to ids.

        Args:
            texts: Any strings.

        Returns:
            The ids of the pieces of all texts, int32, and the row splits, int64, one more than there are texts. The ids
            of text i are ids[row_splits[i] : row_splits[i + 1]].
        """
        rows = [self.convert_tokens_to_ids(self.tokenize(text)) for text in texts]
        splits = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        return np.array([index for row in rows for index in row], np.int32), splits

    def tokenize_with_offsets(self, text: str) -> list[Piece]:
        """Returns the same pieces as `tokenize`, with their positions in the text.

        Accents after the last character of a piece belong to the piece, so that text[start:end] never separates a
        letter from its accent. This does not apply to added tokens.
        """
        pieces: list[Piece] = []
        start = 0
        for number, part in enumerate(self._raw.split(text) if self._raw else [text]):
            end = start + len(part)
            pieces += [Piece(part, start, end)] if number % 2 else self._trace_pieces(text, start, end)
            start = end
        return pieces

    def _trace_pieces(self, text: str, start: int, end: int) -> Iterator[Piece]:
        """Yields the word pieces of text[start:end] with their positions in `text`.

        Also finds the added tokens that are searched in normalized text. The caller has already found the others.
        """
        traced, text = self.basic_tokenizer.normalize_with_origins(text[start:end]), text[:end]
        parts: list[Any] = self._normalized.split("".join(new for new, _ in traced)) if self._normalized else [traced]
        first = 0
        for number, part in enumerate(parts):
            letters = traced[first : first + len(part)]
            first += len(part)
            if number % 2:
                origins = [start + index for _, index in letters]
                yield Piece(self.normalized_contents[part], min(origins), max(origins) + 1)
            else:
                for word, origins in self.basic_tokenizer.split_with_origins(letters):
                    yield from self._trace_word(word, [start + origin for origin in origins], text)

    def _trace_word(self, word: str, origins: list[int], text: str) -> Iterator[Piece]:
        """Yields the pieces of a word with their positions.

        Args:
            word: A normalized word.
            origins: For each of its characters, the index in `text` that it came from.
            text: The original text.
        """
        pieces = self.wordpiece_tokenizer.pieces(word)
        first = 0
        for number, piece in enumerate(pieces):
            length = len(piece) - (len(CONTINUATION) if number else 0)
            last = len(word) if number == len(pieces) - 1 else first + length
            end = max(origins[first:last]) + 1
            while end < len(text) and unicodedata.category(text[end]) == "Mn":
                end += 1
            yield Piece(piece, min(origins[first:last]), end)
            first = last

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]:
        """Converts tokens to ids. Raises a UserError if a token is not in the vocabulary."""
        try:
            return [self.vocab[token] for token in tokens]
        except KeyError as error:
            raise UserError(
                f"token {error.args[0]!r} is not in the vocabulary of {len(self.vocab)} tokens; pass tokens that "
                "tokenize() returns"
            ) from None

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        """Converts ids to tokens. Raises a UserError if an id is not in the vocabulary."""
        try:
            return [self.inv_vocab[index] for index in ids]
        except KeyError as error:
            raise UserError(f"id {error.args[0]} is not in the vocabulary (0 to {max(self.inv_vocab)})") from None


def convert_to_unicode(text: str | bytes) -> str:
    """Converts bytes to str. They are decoded as UTF-8, and as in the original, invalid bytes are dropped."""
    if isinstance(text, str):
        return text
    if isinstance(text, bytes):
        return text.decode("utf-8", "ignore")
    raise UserError(f"received {type(text).__name__}; expected text as str or UTF-8 bytes")


def load_vocab(vocab_file: str) -> dict[str, int]:
    """Reads a vocab.txt, and returns a mapping from tokens to ids (see `parse_vocab`)."""
    return parse_vocab(files.read_text(vocab_file))


def parse_vocab(text: str) -> dict[str, int]:
    """Returns a mapping from the tokens of a vocab.txt to their ids, which are line numbers counted from 0.

    As in the original, white space around a token is removed. If several lines are equal, the last one determines the
    id.

    Args:
        text: Contents of the file.
    """
    lines = text.removesuffix("\n").split("\n") if text else []
    return {line.strip(): index for index, line in enumerate(lines)}


def _compile(contents: Iterable[str]) -> re.Pattern[str] | None:
    """Returns a pattern whose `split` separates a text into ordinary text and any of the strings, in turn.

    Returns None if there are no strings.
    """
    pattern = make_pattern(contents)
    return re.compile(f"({pattern})") if pattern else None


def select_word_pieces(vocab: dict[str, int], added_tokens: Iterable[AddedToken], source: str) -> dict[str, int]:
    """Returns the part of a vocabulary into which words are split: everything except the added tokens at its end.

    Args:
        vocab: Ids by token.
        added_tokens: The added tokens.
        source: Where the vocabulary is from, for error messages.

    Raises:
        UserError: If an added token is not in the vocabulary.
    """
    added = {token.content for token in added_tokens}
    if not added:
        return vocab
    if missing := sorted(added - vocab.keys()):
        raise UserError(f"{source} has no line {missing[0]!r}, which is an added token; add this line at the end")
    last = max(index for token, index in vocab.items() if token not in added)
    return {token: index for token, index in vocab.items() if index <= last}


def check_special_tokens(vocab: Mapping[str, int], source: str) -> None:
    """Raises a UserError unless the vocabulary contains BERT's special tokens, with [PAD] as id 0."""
    missing = [token for token in SPECIAL_TOKENS if token not in vocab]
    if missing:
        raise UserError(
            f"{source} has {len(vocab)} tokens, but lacks {', '.join(missing)}; BERT needs "
            f"{', '.join(SPECIAL_TOKENS)}, each on a separate line"
            + (f". If {next(iter(vocab))!r} is a path, pass the contents of the file" if len(vocab) == 1 else "")
        )
    if vocab[PAD] != 0:
        raise UserError(
            f"{source} has [PAD] on line {vocab[PAD] + 1}; it must be on line 1, since padding is id 0 everywhere"
        )
