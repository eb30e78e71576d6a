"""The exact tokenizer as TensorFlow operations, for exported models that take text and run without Python.

Cleaning, lower-casing, accents and punctuation (rules 1 to 5 of exact.py) become table lookups (see
character_tables.py). Two rules depend on neighboring characters and are separate operations: lower-casing a capital
sigma, and the canonical order of combining marks. tensorflow-text's kernel splits words into pieces (rule 6). It
receives words instead of texts, so its own Unicode data has no effect.

Only modules that build graphs import this module, because it imports TensorFlow and tensorflow-text.

B texts, C characters of all texts, E characters of all texts after rules 1 to 5, W words, P pieces, R rows
"""

from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_text

from official_bert.errors import UserError
from official_bert.tokenization import character_tables as tables
from official_bert.tokenization import exact
from official_bert.tokenization.added_tokens import make_pattern
from official_bert.tokenization.truncation import row_positions

_TOO_LONG = "a" * (exact.MAX_BYTES_PER_WORD + 1)  # the kernel returns [UNK] for it

# Regular expressions find added tokens and put a control character before and after each. Rule 1 deletes control
# characters, so those in the text itself can be replaced by _OTHER_CONTROL first.
_BEGIN, _END, _OTHER_CONTROL = "\x01", "\x02", "\x03"

# What a letter belongs to: ordinary text, or an added token that was found before or after normalization.
_TEXT, _RAW, _NORMALIZED = range(3)


class Tokens(NamedTuple):
    """The word pieces of a batch of texts. Each field is a tf.RaggedTensor [B, (pieces of the text)].

    Attributes:
        ids: int32.
        starts: Position in the text of the piece's first character, int32.
        ends: Position after the piece's last character, including accents that follow as in exact.Piece, int32.
        word_starts: Whether the piece is the first one of a word, bool.
    """

    ids: Any
    starts: Any
    ends: Any
    word_starts: Any


class GraphTokenizer(tf.Module):
    """Does what FullTokenizer does to string tensors in a TensorFlow graph. Bytes that are not valid UTF-8 are dropped.

    Args:
        tokenizer: The tokenizer whose results are reproduced.

    Raises:
        UserError: If the vocabulary exceeds the limits of tensorflow-text's kernel.
    """

    def __init__(self, tokenizer: exact.FullTokenizer) -> None:
        super().__init__()
        self._unknown_id = tokenizer.vocab[exact.UNK]  # not the vocabulary: tf.Module would track each entry
        # Tensors, so that a SavedModel stores each once for all its functions.
        arrays = tables.character_tables(tokenizer.casing._replace(added_tokens=()))
        self._tables = tables.CharacterTables(*map(tf.constant, arrays))
        pieces = _pieces_for_the_kernel(tokenizer.wordpiece_tokenizer.vocab)
        self._piece_lengths = tf.constant([len(piece.removeprefix(exact.CONTINUATION)) for piece in pieces])
        raw, raw_or_special = tokenizer.raw_contents, (*tokenizer.raw_contents, *exact.SPECIAL_TOKENS)
        self._raw, self._raw_or_special = make_pattern(raw), make_pattern(raw_or_special)
        self._normalized = make_pattern(tokenizer.normalized_contents)
        ids = {(_RAW, content): tokenizer.vocab[content] for content in raw_or_special}
        ids |= {(_NORMALIZED, text): tokenizer.vocab[token] for text, token in tokenizer.normalized_contents.items()}
        hashes = _hash_tokens(*map(tf.constant, zip(*ids, strict=True)))
        self._hashes, self._added_ids = tf.sort(hashes), tf.gather(list(ids.values()), tf.argsort(hashes))
        try:
            self._kernel = tensorflow_text.FastWordpieceTokenizer(
                pieces,
                max_bytes_per_word=exact.MAX_BYTES_PER_WORD,
                token_out_type=tf.int32,
                unknown_token=exact.UNK,
                no_pretokenization=True,
                support_detokenization=False,
            )
        except RuntimeError as error:
            raise UserError(
                f"tensorflow-text cannot take the vocabulary of {len(tokenizer.vocab)} tokens: {error}. A model with "
                "this vocabulary cannot take text in a graph."
            ) from error

    def tokenize(self, texts: Any, special_tokens: bool = False) -> Tokens:
        """Returns the same word pieces and positions as FullTokenizer.tokenize_with_offsets.

        Args:
            texts: string [B].
            special_tokens: Whether "[MASK]" and the names of the other special tokens in a text become these tokens.
        """
        raw = self._raw_or_special if special_tokens else self._raw
        has_added_tokens = raw or self._normalized
        if has_added_tokens:  # invalid bytes must not separate the letters of a token
            texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="ignore")
        # A newline after each text separates it from the next one for the rules that depend on neighbors.
        texts = tf.strings.join([texts, "\n"])
        decoded = tf.strings.unicode_decode(texts, "UTF-8", errors="ignore")  # [B, (characters)]
        codes, text_splits = decoded.values, tf.cast(decoded.row_splits, tf.int32)  # [C], [B + 1]
        properties = self._properties(codes)
        if has_added_tokens:
            is_raw, raw_begins = _find_tokens(texts, raw)  # [C]
            properties = tf.where(is_raw, tables.STARTER, properties)  # it becomes itself and affects no neighbor
        letters, flags, origins = tf.cond(
            tf.reduce_any(properties & tables.DEPENDS_ON_NEIGHBORS > 0),
            lambda: self._sort_marks(*self._normalize(*self._replace_final_sigmas(codes, properties)), properties),
            lambda: self._normalize(codes, properties),
        )

        if has_added_tokens:
            owners = tf.where(tf.gather(is_raw, origins), _RAW, _TEXT)  # [E]
            searched = tf.where(owners == _RAW, ord(_OTHER_CONTROL), letters)
            rows = tf.RaggedTensor.from_value_rowids(searched, _rows(text_splits, origins), tf.size(texts), None, False)
            is_found, found_begins = _find_tokens(tf.strings.unicode_encode(rows, "UTF-8"), self._normalized)
            owners = tf.where(is_found, _NORMALIZED, owners)
            token_begins = tf.gather(raw_begins, origins) | found_begins | _follows(owners != _TEXT) & (owners == _TEXT)
            flags = tf.where(owners == _TEXT, flags, 0)

        # Words are the runs between spaces, the characters that are words of their own, and added tokens.
        breaks = tf.concat([[tables.SPACE], flags[:-1]], 0) & (tables.SPACE | tables.ALONE)
        begins = (breaks > 0) | (flags & tables.ALONE > 0)
        if has_added_tokens:
            begins |= token_begins
        kept = true_positions(flags & tables.SPACE == 0)
        letters, origins, begins = (tf.gather(values, kept) for values in (letters, origins, begins))
        firsts = true_positions(begins)  # [W]
        word_splits = tf.concat([firsts, [tf.size(letters)]], 0)
        words = tf.RaggedTensor.from_row_splits(letters, word_splits, validate=False)
        strings = tf.strings.unicode_encode(words, "UTF-8")
        is_unknown = words.row_lengths() > exact.MAX_CHARACTERS_PER_WORD
        if has_added_tokens:  # an added token is one piece, whose id is set below
            word_owners = tf.gather(tf.gather(owners, kept), firsts)
            is_unknown |= word_owners != _TEXT
        pieces = self._kernel.tokenize(tf.where(is_unknown, _TOO_LONG, strings))
        ids, piece_splits = pieces.values, tf.cast(pieces.row_splits, tf.int32)

        word_of_piece = _rows(piece_splits, tf.range(tf.size(ids)))  # [P]
        word_lengths = tf.gather(word_splits[1:] - word_splits[:-1], word_of_piece)
        widths = tf.where(ids == self._unknown_id, word_lengths, tf.gather(self._piece_lengths, ids))
        if has_added_tokens:
            is_added = tf.gather(word_owners != _TEXT, word_of_piece)  # [P]
            added = true_positions(is_added)
            added_words = tf.gather(word_of_piece, added)
            hashes = _hash_tokens(tf.gather(word_owners, added_words), tf.gather(strings, added_words))
            added_ids = tf.gather(self._added_ids, tf.searchsorted(self._hashes, hashes))
            ids = tf.tensor_scatter_nd_update(ids, added[:, None], added_ids)

        # The piece of each letter. All pieces together are as long as all words.
        piece_of_character = _rows(tf.concat([[0], tf.cumsum(widths)], 0), tf.range(tf.size(letters)))
        starts = tf.math.segment_min(origins, piece_of_character)  # [P] into [C]
        ends = tf.math.segment_max(origins, piece_of_character) + 1
        with_accents = self._skip_accents(ends, properties)
        ends = tf.where(is_added, ends, with_accents) if has_added_tokens else with_accents
        offsets = tf.gather(text_splits, _rows(text_splits, starts))
        words_before = tf.searchsorted(tf.gather(origins, firsts), text_splits)  # [B + 1], before each text
        splits = tf.gather(piece_splits, words_before)  # [B + 1]

        def split_by_text(values: Any) -> Any:
            return tf.RaggedTensor.from_row_splits(values, splits, validate=False)

        is_first = tf.concat([[True], word_of_piece[1:] != word_of_piece[:-1]], 0)[: tf.size(ids)]
        return Tokens(*map(split_by_text, (ids, starts - offsets, ends - offsets, is_first)))

    def _normalize(self, codes: Any, properties: Any) -> tuple[Any, Any, Any]:
        """Replaces each character by what it becomes (its form, see character_tables), and concatenates the results.

        Args:
            codes: Code points of all texts, int32 [C].
            properties: Properties of these characters in the tables, int32 [C].

        Returns:
            Code points, flags, and the index in [C] that each one came from, each int32 [E].
        """
        forms = properties // tables.FORM
        lengths = tf.gather(self._tables.form_lengths, forms)
        origins, within = row_positions(lengths, tf)  # [E]
        positions = tf.gather(self._tables.form_starts, tf.gather(forms, origins)) + within  # in tables.codes
        letters = tf.gather(self._tables.codes, positions)
        letters = tf.where(letters == tables.ITSELF, tf.gather(codes, origins), letters)
        return letters, tf.gather(self._tables.flags, positions), origins

    def _properties(self, codes: Any) -> Any:
        pages = tf.gather(self._tables.page_numbers, codes // tables.PAGE)
        return tf.gather(self._tables.pages, pages * tables.PAGE + codes % tables.PAGE)

    def _replace_final_sigmas(self, codes: Any, properties: Any) -> tuple[Any, Any]:
        """Replaces a capital sigma by a final sigma if it ends a word: after a cased letter, and not before one.

        Args:
            codes: Code points of all texts, int32 [C].
            properties: Properties of these characters in the tables, int32 [C].

        Returns:
            The new code points and properties.
        """
        case = properties & tables.CASE_BITS
        seen = true_positions(case != tables.IGNORED)
        is_cased = tf.gather(case, seen) == tables.CASED
        before, after = tf.concat([[False], is_cased[:-1]], 0), tf.concat([is_cased[1:], [False]], 0)
        ends_word = before & ~after & is_cased & (tf.gather(codes, seen) == ord(tables.CAPITAL_SIGMA))
        positions = tf.gather(seen, true_positions(ends_word))[:, None]
        final = tf.fill(tf.shape(positions)[:1], ord(tables.FINAL_SIGMA))
        codes = tf.tensor_scatter_nd_update(codes, positions, final)
        return codes, tf.tensor_scatter_nd_update(properties, positions, self._properties(final))

    @staticmethod
    def _sort_marks(letters: Any, flags: Any, origins: Any, properties: Any) -> tuple[Any, Any, Any]:
        """Sorts consecutive combining marks by combining class, as the canonical order requires.

        Args:
            letters: Code points after `_normalize`, int32 [E].
            flags: Their flags, int32 [E].
            origins: The index in [C] that each one came from, int32 [E].
            properties: Properties of the original characters, int32 [C].

        Returns:
            `letters`, `flags` and `origins` in the new order.
        """
        starters = tf.cumsum(tf.cast(properties & tables.STARTER > 0, tf.int64))  # number up to each character
        keys = tf.gather(starters, origins) * tables.PAGE + tf.cast(flags // tables.MARK, tf.int64)
        order = tf.argsort(keys, stable=True)
        return tf.gather(letters, order), tf.gather(flags, order), tf.gather(origins, order)

    @staticmethod
    def _skip_accents(positions: Any, properties: Any) -> Any:
        """Moves each position past the non-spacing marks (such as accents) that begin there.

        Args:
            positions: Indices into the characters of all texts, int32.
            properties: Properties of these characters in the tables, int32 [C].
        """
        stops = properties & tables.NON_SPACING == 0
        passed = tf.cumsum(tf.cast(stops, tf.int32), exclusive=True)
        return tf.gather(true_positions(stops), tf.gather(passed, positions))


def _find_tokens(texts: Any, pattern: str | None) -> tuple[Any, Any]:
    """Finds added tokens. Returns which characters of all texts belong to a match, and which begin one, each bool [C].

    Args:
        texts: string [B].
        pattern: A regular expression that matches any of the tokens. None if there are no tokens.
    """
    if pattern is None:
        nothing = tf.zeros_like(tf.strings.unicode_decode(texts, "UTF-8").values, tf.bool)
        return nothing, nothing
    texts = tf.strings.regex_replace(texts, f"[{_BEGIN}{_END}]", _OTHER_CONTROL)
    texts = tf.strings.regex_replace(texts, pattern, rf"{_BEGIN}\0{_END}")
    codes = tf.strings.unicode_decode(texts, "UTF-8").values
    is_begin, is_end = codes == ord(_BEGIN), codes == ord(_END)
    is_inside = tf.cumsum(tf.cast(is_begin, tf.int32) - tf.cast(is_end, tf.int32)) > 0
    kept = true_positions(~(is_begin | is_end))
    return tf.gather(is_inside, kept), tf.gather(_follows(is_begin), kept)


def _hash_tokens(owners: Any, tokens: Any) -> Any:
    """Returns a hash, int64, of each added token together with the way in which it was found.

    Args:
        owners: _RAW if the token was found in the original text, _NORMALIZED if in the normalized text.
        tokens: The tokens.
    """
    return tf.strings.to_hash_bucket_fast(tf.strings.join([tf.strings.as_string(owners), tokens]), 2**62)


def _follows(mask: Any) -> Any:
    """Returns for each element whether the element before it is True."""
    return tf.concat([[False], mask], 0)[:-1]


def _rows(splits: Any, positions: Any) -> Any:
    """Returns the index of the row that contains each position, int32, for rows that are concatenated to a vector.

    Args:
        splits: The row splits: where each row starts, followed by the total length.
        positions: Positions in the vector.
    """
    return tf.searchsorted(splits[1:], positions, side="right")


def _pieces_for_the_kernel(vocab: dict[str, int]) -> list[str]:
    """Returns the vocabulary as a list ordered by id, for tensorflow-text.

    Some entries are replaced by a placeholder that contains a space, so that it is never part of a word: ids without a
    token (all but the last of equal lines), and tokens that the kernel rejects and that never occur in words.
    """
    pieces = [f" {index}" for index in range(max(vocab.values()) + 1)]
    for token, index in vocab.items():
        if token not in ("", exact.CONTINUATION) and "\0" not in token:
            pieces[index] = token
    return pieces


def characters_between(texts: Any, rows: Any, starts: Any, ends: Any) -> Any:
    """Returns the substrings texts[row][start:end], where start and end count characters.

    Bytes that are not valid UTF-8 are dropped, as the tokenizer does.

    Args:
        texts: string [B].
        rows: Index of the text of each substring, int32 [N].
        starts: int32 [N].
        ends: int32 [N].
    """
    decoded = tf.strings.unicode_decode(texts, "UTF-8", errors="ignore")
    first = starts + tf.gather(tf.cast(decoded.row_splits, tf.int32), rows)
    numbers, within = row_positions(ends - starts, tf)
    codes = tf.gather(decoded.values, tf.gather(first, numbers) + within)
    return tf.strings.unicode_encode(tf.RaggedTensor.from_row_lengths(codes, ends - starts, validate=False), "UTF-8")


def true_positions(mask: Any) -> Any:
    """Returns the indices of the True elements of a vector, int32."""
    return tf.cast(tf.where(mask)[:, 0], tf.int32)
