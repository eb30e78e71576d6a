"""The exact tokenizer as TensorFlow operations, so that a model that takes text needs no Python where it is served.

The rules 1 to 5 of tokenization.py become look-ups in tables; what each character becomes is asked of the exact
tokenizer when the tables are made. Two rules look beyond one character, and are operations here: how a capital sigma is
lowered, and the canonical order of combining marks. Pieces (rule 6) are cut by tensorflow-text's kernel, which is given
words, so that its own Unicode data play no part.

B texts, C characters of all texts, E characters of all texts in normal form, W words, P pieces
"""

import functools
import sys
import unicodedata
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf
import tensorflow_text

from official_bert.errors import UserError
from official_bert.tokenization import (
    CONTINUATION,
    MAX_CHARACTERS_PER_WORD,
    SPECIAL_TOKENS,
    UNK,
    BasicTokenizer,
    FullTokenizer,
)

_CAPITAL_SIGMA, _FINAL_SIGMA = "Σς"
_LONGEST_IN_UTF8 = 4
_TOO_LONG = "a" * (MAX_CHARACTERS_PER_WORD * _LONGEST_IN_UTF8 + 1)  # the kernel answers [UNK]

# Where special tokens count, these control characters stand for them; else such characters are deleted (rule 1).
_SPECIAL_CODES = {token: code for code, token in enumerate(SPECIAL_TOKENS, start=1)}
_ANOTHER_DELETED = "\x06"

# How a character's neighbours see it when a capital sigma is lowered.
_OTHER, _CASED, _IGNORED = range(3)

# What a table says of a character: the number of its form (_FORM times it), and these bits.
_CASE_BITS, _NON_SPACING, _STARTER, _BY_NEIGHBOURS, _FORM = 3, 4, 8, 16, 32

# A character of a form is a code point or _ITSELF; of it is said whether it is a space or a word of its own, and
# (_MARK times it) the combining class by which rule 4 orders it.
_ITSELF = -1
_SPACE, _ALONE, _MARK = 1, 2, 4

# Beyond these planes no rule knows a character that is not assigned.
_ALL_LOOKED_AT = 0x30000
_PAGE = 256


class Tokens(NamedTuple):
    """The pieces of a batch of texts, each a tf.RaggedTensor [B, (pieces of the text)].

    Args:
        ids: int32.
        starts: int32, the first character of the text that a piece stands for.
        ends: int32, the one behind the last, accents that follow included: as Piece of tokenization.py.
        word_starts: bool, whether the piece is the first of a word.
    """

    ids: Any
    starts: Any
    ends: Any
    word_starts: Any


class _Tables(NamedTuple):
    """How characters are treated; see the constants above."""

    page_numbers: npt.NDArray[np.int32]  # by the upper bits of the code point
    pages: npt.NDArray[np.int32]  # of _PAGE characters each, one behind the other
    form_starts: npt.NDArray[np.int32]
    form_lengths: npt.NDArray[np.int32]
    codes: npt.NDArray[np.int32]  # of all forms, one behind the other
    flags: npt.NDArray[np.int32]


class GraphTokenizer(tf.Module):
    """FullTokenizer for tensors of strings, within any graph; it reads them as UTF-8 and drops bytes that are not.

    Args:
        exact: the tokenizer that this one equals.

    Raises:
        UserError: the vocabulary is beyond the limits of tensorflow-text's kernel.
    """

    def __init__(self, exact: FullTokenizer) -> None:
        super().__init__()
        self.do_lower_case = exact.basic_tokenizer.do_lower_case
        self.vocab = exact.vocab
        # Tensors, so that a SavedModel holds each once for all its functions.
        tables = _tables(self.do_lower_case)
        self._page_numbers, self._pages = tf.constant(tables.page_numbers), tf.constant(tables.pages)
        self._form_starts, self._form_lengths = tf.constant(tables.form_starts), tf.constant(tables.form_lengths)
        self._form_codes, self._form_flags = tf.constant(tables.codes), tf.constant(tables.flags)
        pieces = _pieces_for_the_kernel(exact.vocab)
        self._piece_lengths = tf.constant([len(piece.removeprefix(CONTINUATION)) for piece in pieces])
        self._special_ids = tf.constant([0, *(exact.vocab[token] for token in _SPECIAL_CODES)])
        try:
            self._kernel = tensorflow_text.FastWordpieceTokenizer(
                pieces,
                max_bytes_per_word=MAX_CHARACTERS_PER_WORD * _LONGEST_IN_UTF8,
                token_out_type=tf.int32,
                unknown_token=UNK,
                no_pretokenization=True,
                support_detokenization=False,
            )
        except RuntimeError as error:
            raise UserError(
                f"tensorflow-text cannot take the vocabulary of {len(exact.vocab)} tokens: {error}; a model with it "
                "cannot take text in a graph"
            ) from error

    def tokenize(self, texts: Any, special_tokens: bool = False) -> Tokens:
        """Returns the pieces of texts, exactly as FullTokenizer.

        Args:
            texts: string [B].
            special_tokens: as for FullTokenizer.tokenize. Where it is True, starts and ends are those in a text in
                which each special token is one character.
        """
        # The line end closes whatever depends on what follows, so that texts may be treated one behind the other.
        texts = tf.strings.join([self._marked(texts) if special_tokens else texts, "\n"])
        decoded = tf.strings.unicode_decode(texts, "UTF-8", errors="ignore")  # [B, (characters)]
        codes, text_splits = decoded.values, tf.cast(decoded.row_splits, tf.int32)  # [C], [B + 1]
        properties = self._properties(codes)
        if special_tokens:
            is_special = (codes > 0) & (codes <= len(SPECIAL_TOKENS))
            properties = tf.where(is_special, self._properties(tf.constant([ord(",")])), properties)  # alone, too
        made, flags, origins = tf.cond(
            tf.reduce_any(properties & _BY_NEIGHBOURS > 0),
            lambda: self._in_canonical_order(
                *self._in_normal_form(*self._with_final_sigmas(codes, properties)), properties
            ),
            lambda: self._in_normal_form(codes, properties),
        )

        # Words: between spaces, and those that are alone.
        breaks = tf.concat([[_SPACE], flags[:-1]], 0) & (_SPACE | _ALONE)
        begins = (breaks > 0) | (flags & _ALONE > 0)
        kept = _places(flags & _SPACE == 0)
        made, origins, begins = (tf.gather(values, kept) for values in (made, origins, begins))
        firsts = _places(begins)  # [W]
        word_splits = tf.concat([firsts, [tf.size(made)]], 0)
        words = tf.RaggedTensor.from_row_splits(made, word_splits, validate=False)
        pieces = self._pieces(words)  # [W, (pieces)]
        ids, piece_splits = pieces.values, tf.cast(pieces.row_splits, tf.int32)

        word_of_piece = _rows(piece_splits, tf.range(tf.size(ids)))  # [P]
        widths = tf.where(
            ids == self.vocab[UNK],
            tf.gather(word_splits[1:] - word_splits[:-1], word_of_piece),
            tf.gather(self._piece_lengths, ids),
        )
        if special_tokens:
            first_letters = tf.gather(made, tf.gather(firsts, word_of_piece))
            special = first_letters <= len(SPECIAL_TOKENS)
            ids = tf.where(special, tf.gather(self._special_ids, tf.where(special, first_letters, 0)), ids)

        # A piece's characters: all pieces together are as long as all words.
        piece_of_character = _rows(tf.concat([[0], tf.cumsum(widths)], 0), tf.range(tf.size(made)))
        starts = tf.math.segment_min(origins, piece_of_character)  # [P] into [C]
        ends = self._behind_accents(tf.math.segment_max(origins, piece_of_character) + 1, properties)
        offsets = tf.gather(text_splits, _rows(text_splits, starts))
        # Words before each text's first character.
        words_before = tf.searchsorted(tf.gather(origins, firsts), text_splits)
        splits = tf.gather(piece_splits, words_before)  # [B + 1]

        def by_text(values: Any) -> Any:
            return tf.RaggedTensor.from_row_splits(values, splits, validate=False)

        is_first = tf.concat([[True], word_of_piece[1:] != word_of_piece[:-1]], 0)[: tf.size(ids)]
        return Tokens(by_text(ids), by_text(starts - offsets), by_text(ends - offsets), by_text(is_first))

    def _in_normal_form(self, codes: Any, properties: Any) -> tuple[Any, Any, Any]:
        """Returns the characters that all characters become, their flags, and which one they come from: [E] each."""
        forms = properties // _FORM
        lengths = tf.gather(self._form_lengths, forms)
        ends = tf.cumsum(lengths)
        every = tf.range(tf.reduce_sum(lengths))
        origins = tf.searchsorted(ends, every, side="right")
        place = every - tf.gather(ends - lengths, origins) + tf.gather(self._form_starts, tf.gather(forms, origins))
        made = tf.gather(self._form_codes, place)
        made = tf.where(made == _ITSELF, tf.gather(codes, origins), made)
        return made, tf.gather(self._form_flags, place), origins

    def _marked(self, texts: Any) -> Any:
        """The texts with one control character in the place of each special token."""
        texts = tf.strings.regex_replace(texts, f"[\x01-{chr(len(SPECIAL_TOKENS))}]", _ANOTHER_DELETED)
        for token, code in _SPECIAL_CODES.items():
            texts = tf.strings.regex_replace(texts, rf"\[{token[1:-1]}\]", chr(code))
        return texts

    def _properties(self, codes: Any) -> Any:
        pages = tf.gather(self._page_numbers, codes // _PAGE)
        return tf.gather(self._pages, pages * _PAGE + codes % _PAGE)

    def _with_final_sigmas(self, codes: Any, properties: Any) -> tuple[Any, Any]:
        """Makes a capital sigma that ends a word a final one: it follows a cased letter, and none follows it."""
        case = properties & _CASE_BITS
        seen = _places(case != _IGNORED)
        is_cased = tf.gather(case, seen) == _CASED
        before, after = tf.concat([[False], is_cased[:-1]], 0), tf.concat([is_cased[1:], [False]], 0)
        ends_word = before & ~after & (tf.gather(codes, seen) == ord(_CAPITAL_SIGMA))
        places = tf.gather(seen, _places(ends_word))[:, None]
        final = tf.fill(tf.shape(places)[:1], ord(_FINAL_SIGMA))
        return (
            tf.tensor_scatter_nd_update(codes, places, final),
            tf.tensor_scatter_nd_update(properties, places, self._properties(final)),
        )

    @staticmethod
    def _in_canonical_order(made: Any, flags: Any, origins: Any, properties: Any) -> tuple[Any, Any, Any]:
        """Sorts each run of marks by combining class; those that are deleted are gone already, and do not matter."""
        runs = tf.cumsum(tf.cast(properties & _STARTER > 0, tf.int64))
        keys = tf.gather(runs, origins) * _PAGE + tf.cast(flags // _MARK, tf.int64)
        order = tf.argsort(keys, stable=True)
        return tf.gather(made, order), tf.gather(flags, order), tf.gather(origins, order)

    def _pieces(self, words: Any) -> Any:
        """Cuts words, int32 [W, (characters)], into pieces, int32 [W, (pieces)]."""
        strings = tf.strings.unicode_encode(words, "UTF-8")
        return self._kernel.tokenize(tf.where(words.row_lengths() > MAX_CHARACTERS_PER_WORD, _TOO_LONG, strings))

    @staticmethod
    def _behind_accents(places: Any, properties: Any) -> Any:
        """Moves places in [C] behind the non-spacing marks that stand there."""
        stops = properties & _NON_SPACING == 0
        passed = tf.cumsum(tf.cast(stops, tf.int32), exclusive=True)
        return tf.gather(_places(stops), tf.gather(passed, places))


def _places(mask: Any) -> Any:
    """The indices, int32, at which a vector is True."""
    return tf.cast(tf.where(mask)[:, 0], tf.int32)


def _rows(splits: Any, places: Any) -> Any:
    """The rows, int32, in which places stand, by the rows' splits."""
    return tf.searchsorted(splits[1:], places, side="right")


def _pieces_for_the_kernel(vocab: dict[str, int]) -> list[str]:
    """Returns the vocabulary as a list in the order of ids.

    Ids without a token (the earlier ones of equal lines), and tokens that the kernel refuses and no word holds, get a
    piece that no word holds either, since there is a space in it.
    """
    pieces = [f" {index}" for index in range(max(vocab.values()) + 1)]
    for token, index in vocab.items():
        if token not in ("", CONTINUATION) and "\0" not in token:
            pieces[index] = token
    return pieces


@functools.cache
def _tables(do_lower_case: bool) -> _Tables:
    tokenizer, cased = BasicTokenizer(do_lower_case), BasicTokenizer(do_lower_case=False)
    forms: dict[tuple[tuple[int, int], ...], int] = {((_ITSELF, 0),): 0}
    properties = np.full(sys.maxunicode + 1, _STARTER, np.int32)
    codes = [code for code in range(sys.maxunicode + 1) if _is_looked_at(code)]  # of others the form is themselves
    for code, words in zip(codes, _words_between_letters(codes, tokenizer), strict=True):
        character = chr(code)
        form = _form(character, words, do_lower_case)
        value = forms.setdefault(form, len(forms)) * _FORM
        if unicodedata.category(character) == "Mn":
            value |= _NON_SPACING
        if do_lower_case:
            if not form and cased.tokenize(f"a{character}a") == ["aa"]:  # deleted by rule 1, before what is below
                value |= _IGNORED
            else:
                value |= _case(character)
                if not all(map(unicodedata.combining, unicodedata.normalize("NFD", character.lower()))):
                    value |= _STARTER
            if character == _CAPITAL_SIGMA or any(flags >= _MARK for _, flags in form):
                value |= _BY_NEIGHBOURS
        properties[code] = value
    pages, page_numbers = np.unique(properties.reshape(-1, _PAGE), axis=0, return_inverse=True)
    lengths = np.array([len(form) for form in forms], np.int32)
    letters = np.array([letter for form in forms for letter in form], np.int32)
    return _Tables(
        page_numbers.ravel().astype(np.int32),
        pages.ravel(),
        (np.cumsum(lengths) - lengths).astype(np.int32),
        lengths,
        letters[:, 0],
        letters[:, 1],
    )


def _is_looked_at(code: int) -> bool:
    category = unicodedata.category(chr(code))
    return category != "Cs" and (code < _ALL_LOOKED_AT or category not in ("Cn", "Co"))


def _words_between_letters(codes: list[int], tokenizer: BasicTokenizer) -> Iterator[list[str]]:
    """Yields what the exact tokenizer makes of each character c in aca; all at once, since that is much faster."""
    words = iter(tokenizer.tokenize(" ".join(f"a{chr(code)}a" for code in codes)))
    for _ in codes:
        found = [next(words)]
        if found == ["a"]:
            while len(found) == 1 or found[-1] != "a":
                found.append(next(words))
        yield found


def _form(character: str, words: list[str], do_lower_case: bool) -> tuple[tuple[int, int], ...]:
    """What a character becomes wherever it stands: code points with their flags.

    Args:
        character: the character.
        words: what the exact tokenizer makes of it between two letters.
        do_lower_case: whether rule 4 holds, which alone orders marks.
    """
    if words == ["a", "a"]:
        return ((ord(" "), _SPACE),)
    alone = _ALONE if len(words) > 1 else 0
    form = []
    for letter in "".join(words)[1:-1]:
        mark = unicodedata.combining(letter) if do_lower_case else 0
        form.append((_ITSELF if letter == character else ord(letter), alone | _MARK * mark))
    return tuple(form)


def _case(character: str) -> int:
    """How Python sees the character beside a capital sigma."""
    if f"{character}{_CAPITAL_SIGMA}".lower().endswith(_FINAL_SIGMA):
        return _CASED
    return _IGNORED if f"a{character}{_CAPITAL_SIGMA}".lower().endswith(_FINAL_SIGMA) else _OTHER


def characters_between(texts: Any, rows: Any, starts: Any, ends: Any) -> Any:
    """Returns texts[row][start:end], in characters, for each of rows, starts and ends.

    Args:
        texts: string [B]; bytes that are not UTF-8 are dropped, as by the tokenizer.
        rows: int32 [N].
        starts: int32 [N].
        ends: int32 [N].
    """
    decoded = tf.strings.unicode_decode(texts, "UTF-8", errors="ignore")
    first = starts + tf.gather(tf.cast(decoded.row_splits, tf.int32), rows)
    lengths = ends - starts
    splits = tf.concat([[0], tf.cumsum(lengths)], 0)
    every = tf.range(splits[-1])
    row = _rows(splits, every)
    codes = tf.gather(decoded.values, every + tf.gather(first - splits[:-1], row))
    return tf.strings.unicode_encode(tf.RaggedTensor.from_row_splits(codes, splits, validate=False), "UTF-8")
