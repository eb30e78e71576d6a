"""BERT's tokenizer, exactly: text to words (BasicTokenizer), words to pieces (WordpieceTokenizer).

The rules are the original's, to the character (Unicode data are Python's):

1. U+0000, U+FFFD and every control or format character (Cc, Cf) other than tab and line ends are deleted, not spaced.
2. Tab, line ends and space separators (Zs) become a space.
3. Each character of eight blocks of Chinese ideographs gets a space on either side. Hangul and Kana do not.
4. Uncased models only: lower case; and, unless accents are to stay, canonical decomposition (NFD), and non-spacing
   marks (Mn) deleted.
5. Each punctuation character (ASCII that is neither letter, digit nor space; any P* category) is a word of its own.
6. A word is cut into the longest pieces of the vocabulary from left to right; pieces within a word begin with "##".
   A word of over 200 characters, or with an end that no piece matches, is "[UNK]" as a whole.
"""

import dataclasses
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from typing import Self

from official_bert.errors import UserError
from official_bert.tokenization.casing import casing_of
from official_bert.utils import files

PAD, UNK, CLS, SEP, MASK = SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

CONTINUATION = "##"
MAX_CHARACTERS_PER_WORD = 200
MAX_BYTES_PER_WORD = 4 * MAX_CHARACTERS_PER_WORD  # in UTF-8; tensorflow-text's kernel counts bytes

_CJK_BLOCKS = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip

# The vocabulary is small and words repeat, so that most look-ups end in this cache; it is emptied when full.
_CACHED_WORDS = 200_000


@dataclasses.dataclass(frozen=True)
class Piece:
    """A word piece and the characters of the source text that it stands for: text[start:end]."""

    token: str
    start: int
    end: int


def is_punctuation(character: str) -> bool:
    """Whether the character is a word of its own (rule 5)."""
    code = ord(character)
    if code < 128:
        return 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126
    return unicodedata.category(character).startswith("P")


class _Table(dict[int, str]):
    """A table for str.translate, filled as characters are met."""

    def __init__(self, replacement: Callable[[str], str]) -> None:
        super().__init__()
        self._replacement = replacement

    def __missing__(self, code: int) -> str:
        self[code] = self._replacement(chr(code))
        return self[code]


def _cleaned(character: str) -> str:
    """Rules 1 to 3."""
    category = unicodedata.category(character)
    if character in "\t\n\r" or category == "Zs":
        return " "
    if character in "\0\ufffd" or category in ("Cc", "Cf"):
        return ""
    if any(first <= ord(character) <= last for first, last in _CJK_BLOCKS):
        return f" {character} "
    return character


def _split(character: str) -> str:
    """Rule 5."""
    return f" {character} " if is_punctuation(character) else character


def _split_without_mark(character: str) -> str:
    """Rule 5, and the deletion of rule 4."""
    return "" if unicodedata.category(character) == "Mn" else _split(character)


class BasicTokenizer:
    """Cuts text into words and punctuation (rules 1 to 5).

    Args:
        do_lower_case: True for uncased models: lower case and no accents.
        strip_accents: False for those uncased models that keep accents.

    Raises:
        UserError: strip_accents is true for a cased model.
    """

    def __init__(self, do_lower_case: bool = True, strip_accents: bool | None = None) -> None:
        self.casing = casing_of(do_lower_case, strip_accents)
        self.do_lower_case, self.strip_accents = self.casing
        self._clean = _Table(_cleaned)
        self._split = _Table(_split_without_mark if self.strip_accents else _split)

    def tokenize(self, text: str | bytes) -> list[str]:
        """Returns the words; bytes are read as UTF-8, and those that are not are dropped, as in the original."""
        # The rules look at one character at a time, but for lower case (the final sigma) and NFD (the order of marks),
        # whose contexts end at white space; so the whole text can be treated at once, whatever the order of splitting.
        text = convert_to_unicode(text).translate(self._clean)
        if self.do_lower_case:
            text = text.lower()
        if self.strip_accents:
            text = unicodedata.normalize("NFD", text)
        return text.translate(self._split).split()

    def tokenize_with_origins(self, text: str) -> list[tuple[str, list[int]]]:
        """Returns each word with, for each of its characters, the index of the source character it came from."""
        traced = [(new, index) for index, character in enumerate(text) for new in character.translate(self._clean)]
        if self.do_lower_case:
            traced = _lowered(traced)
        if self.strip_accents:
            traced = _decomposed(traced)
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


def _lowered(traced: list[tuple[str, int]]) -> list[tuple[str, int]]:
    lowered = "".join(character for character, _ in traced).lower()
    # How a character is lowered may depend on its neighbours, how many characters it becomes does not.
    origins = [index for character, index in traced for _ in character.lower()]
    return list(zip(lowered, origins, strict=True))


def _decomposed(traced: list[tuple[str, int]]) -> list[tuple[str, int]]:
    result: list[tuple[str, int]] = []
    marks: list[tuple[str, int]] = []
    for character, index in traced:
        for new in unicodedata.normalize("NFD", character):
            if unicodedata.combining(new):
                marks.append((new, index))
            else:
                # The canonical order: runs of combining marks, stably sorted by class.
                result += sorted(marks, key=lambda mark: unicodedata.combining(mark[0]))
                marks.clear()
                result.append((new, index))
    return result + sorted(marks, key=lambda mark: unicodedata.combining(mark[0]))


class WordpieceTokenizer:
    """Cuts words into pieces of a vocabulary, greedily, longest first (rule 6).

    Args:
        vocab: the pieces; only membership is asked for.
        unk_token: what stands for a word that cannot be cut.
        max_input_chars_per_word: words of more characters are not cut.
    """

    def __init__(
        self, vocab: dict[str, int], unk_token: str = UNK, max_input_chars_per_word: int = MAX_CHARACTERS_PER_WORD
    ) -> None:
        self.vocab = vocab
        self.unk_token = unk_token
        self.max_input_chars_per_word = max_input_chars_per_word
        self._longest = max(map(len, vocab), default=0)
        self._cache: dict[str, list[str]] = {}

    def tokenize(self, text: str | bytes) -> list[str]:
        """Returns the pieces of words separated by white space, as BasicTokenizer makes them."""
        return [piece for word in convert_to_unicode(text).split() for piece in self.pieces(word)]

    def pieces(self, word: str) -> list[str]:
        """Returns the pieces of one word; the list is shared and must not be changed."""
        pieces = self._cache.get(word)
        if pieces is None:
            if len(self._cache) >= _CACHED_WORDS:
                self._cache.clear()
            pieces = self._cache[word] = self._cut(word)
        return pieces

    def _cut(self, word: str) -> list[str]:
        if len(word) > self.max_input_chars_per_word:
            return [self.unk_token]
        pieces = []
        start = 0
        while start < len(word):
            prefix = CONTINUATION if start else ""
            for end in range(min(len(word), start + self._longest), start, -1):
                piece = prefix + word[start:end]
                if piece in self.vocab:
                    break
            else:
                return [self.unk_token]
            pieces.append(piece)
            start = end
        return pieces


class FullTokenizer:
    """Text to word pieces and ids, as the original's class of the same name.

    Args:
        vocab_file: a vocab.txt, one piece a line; the line number, from 0, is the id.
        do_lower_case: True for uncased models, False for cased ones.
        strip_accents: whether accents are deleted; None for the original's rule, in uncased models. False is for
            uncased models that keep them.

    Raises:
        UserError: the vocabulary is missing, unreadable or without the special tokens; or strip_accents is true for a
            cased model.
    """

    def __init__(self, vocab_file: str, do_lower_case: bool = True, strip_accents: bool | None = None) -> None:
        self._set_up(load_vocab(vocab_file), BasicTokenizer(do_lower_case, strip_accents), vocab_file)

    @classmethod
    def from_vocab(
        cls,
        vocab: str | Mapping[str, int],
        do_lower_case: bool = True,
        source: str = "the vocabulary",
        strip_accents: bool | None = None,
    ) -> Self:
        """Returns the tokenizer of a vocabulary that is at hand.

        Args:
            vocab: the text of a vocab.txt, or token -> id.
            do_lower_case: as of the class.
            source: where the vocabulary is from, for errors.
            strip_accents: as of the class.

        Raises:
            UserError: a special token is missing, or strip_accents is true for a cased model.
        """
        tokenizer = cls.__new__(cls)
        tokens = parse_vocab(vocab) if isinstance(vocab, str) else dict(vocab)
        tokenizer._set_up(tokens, BasicTokenizer(do_lower_case, strip_accents), source)
        return tokenizer

    def _set_up(self, vocab: dict[str, int], basic_tokenizer: BasicTokenizer, source: str) -> None:
        check_special_tokens(vocab, source)
        self.vocab = vocab
        self.inv_vocab = {index: token for token, index in self.vocab.items()}
        self.basic_tokenizer = basic_tokenizer
        self.wordpiece_tokenizer = WordpieceTokenizer(vocab=self.vocab)
        self._special = re.compile("(" + "|".join(map(re.escape, SPECIAL_TOKENS)) + ")")

    def tokenize(self, text: str | bytes, special_tokens: bool = False) -> list[str]:
        """Returns the word pieces of the text.

        Args:
            text: any text; bytes are read as UTF-8.
            special_tokens: whether "[MASK]" and the other special tokens, written so, are taken as the tokens that they
                name. By default they are text like any other and split into brackets and letters, as in the original.
        """
        text = convert_to_unicode(text)
        pieces: list[str] = []
        for part in self._special.split(text) if special_tokens else [text]:
            if special_tokens and part in SPECIAL_TOKENS:
                pieces.append(part)
            else:
                for word in self.basic_tokenizer.tokenize(part):
                    pieces.extend(self.wordpiece_tokenizer.pieces(word))
        return pieces

    def tokenize_with_offsets(self, text: str) -> list[Piece]:
        """Returns the same pieces as `tokenize`, each with the characters of `text` that it stands for.

        Deleted accents that follow a piece's last character belong to it, so that text[start:end] is never cut between
        a letter and its accent.
        """
        traced_pieces = []
        for word, origins in self.basic_tokenizer.tokenize_with_origins(text):
            pieces = self.wordpiece_tokenizer.pieces(word)
            first = 0
            for number, piece in enumerate(pieces):
                length = len(piece) - (len(CONTINUATION) if number else 0)
                last = len(word) if number == len(pieces) - 1 else first + length
                end = max(origins[first:last]) + 1
                while end < len(text) and unicodedata.category(text[end]) == "Mn":
                    end += 1
                traced_pieces.append(Piece(piece, min(origins[first:last]), end))
                first = last
        return traced_pieces

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]:
        """Returns the ids of the tokens; one that is not in the vocabulary is an error that names it."""
        try:
            return [self.vocab[token] for token in tokens]
        except KeyError as error:
            raise UserError(
                f"token {error.args[0]!r} is not among the vocabulary's {len(self.vocab)}; make tokens with tokenize()"
            ) from None

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        """Returns the tokens of the ids; one that is out of range is an error that names it."""
        try:
            return [self.inv_vocab[index] for index in ids]
        except KeyError as error:
            raise UserError(f"id {error.args[0]} is not in the vocabulary (0 to {max(self.inv_vocab)})") from None


def convert_to_unicode(text: str | bytes) -> str:
    """Returns the text as str; bytes are read as UTF-8, and those that are not are dropped, as in the original."""
    if isinstance(text, str):
        return text
    if isinstance(text, bytes):
        return text.decode("utf-8", "ignore")
    raise UserError(f"received {type(text).__name__}; expected text as str or UTF-8 bytes")


def load_vocab(vocab_file: str) -> dict[str, int]:
    """Reads a vocab.txt into token -> id, as `parse_vocab`."""
    return parse_vocab(files.read_text(vocab_file))


def parse_vocab(text: str) -> dict[str, int]:
    """Returns token -> id of a vocab.txt's text, in its order; the id is the line number from 0.

    White space around a token is dropped and, of equal lines, the last one's number counts: both as in the original.
    """
    lines = text.removesuffix("\n").split("\n") if text else []
    return {line.strip(): index for index, line in enumerate(lines)}


def check_special_tokens(vocab: Mapping[str, int], source: str) -> None:
    """Raises a UserError, naming the source, unless the vocabulary holds BERT's special tokens, with [PAD] as 0."""
    missing = [token for token in SPECIAL_TOKENS if token not in vocab]
    if missing:
        raise UserError(
            f"{source} has {len(vocab)} tokens but not {', '.join(missing)}; BERT needs "
            f"{', '.join(SPECIAL_TOKENS)}, each alone on a line"
        )
    if vocab[PAD] != 0:
        raise UserError(
            f"{source} has [PAD] on line {vocab[PAD] + 1}; it must be on line 1, since padding is id 0 everywhere"
        )
