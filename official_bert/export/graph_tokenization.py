"""The exact tokenizer as TensorFlow operations, so that a model that takes text needs no Python where it is served.

The rules 1 to 5 of tokenization/exact.py become look-ups in tables (character_tables.py). Two rules look beyond one
character, and are operations here: how a capital sigma is lowered, and the canonical order of combining marks.
tensorflow-text's kernel cuts words into pieces (rule 6). It gets words and not texts, so that its own Unicode data play
no part.

B texts, C characters of all texts, E characters of all texts after rules 1 to 5, W words, P pieces
"""

from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_text

from official_bert.errors import UserError
from official_bert.export import character_tables as tables
from official_bert.export.graph_inputs import each_position, positions_of
from official_bert.tokenization import exact

_TOO_LONG = "a" * (exact.MAX_BYTES_PER_WORD + 1)  # the kernel answers [UNK]

# One control character stands for each special token while a text is tokenized. Rule 1 deletes control characters, so
# that those of the text itself may be replaced by another one.
_SPECIAL_CODES = {token: code for code, token in enumerate(exact.SPECIAL_TOKENS, start=1)}
_OTHER_CONTROL = "\x06"


class Tokens(NamedTuple):
    """The pieces of a batch of texts, each a tf.RaggedTensor [B, (pieces of the text)]."""

    ids: Any  # int32
    starts: Any  # int32, the position in the text of the piece's first character
    ends: (
        Any  # int32, the position after its last one; accents that follow belong to it, as in tokenization.exact.Piece
    )
    word_starts: Any  # bool, whether the piece is the first of a word


class GraphTokenizer(tf.Module):
    """FullTokenizer for tensors of strings, within any graph; it reads them as UTF-8 and drops bytes that are not.

    Args:
        tokenizer: the one that this one equals.

    Raises:
        UserError: the vocabulary is beyond the limits of tensorflow-text's kernel.
    """

    def __init__(self, tokenizer: exact.FullTokenizer) -> None:
        super().__init__()
        self._unknown_id = tokenizer.vocab[exact.UNK]  # not the vocabulary: a module would track each of its entries
        # Tensors, so that a SavedModel holds each once for all its functions.
        of_characters = tables.character_tables(tokenizer.basic_tokenizer.casing)
        self._tables = tables.CharacterTables(*map(tf.constant, of_characters))
        pieces = _pieces_for_the_kernel(tokenizer.vocab)
        self._piece_lengths = tf.constant([len(piece.removeprefix(exact.CONTINUATION)) for piece in pieces])
        self._special_ids = tf.constant([0, *(tokenizer.vocab[token] for token in _SPECIAL_CODES)])
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
                f"tensorflow-text cannot take the vocabulary of {len(tokenizer.vocab)} tokens: {error}; a model with "
                "it cannot take text in a graph"
            ) from error

    def tokenize(self, texts: Any, special_tokens: bool = False) -> Tokens:
        """Returns the pieces of texts, exactly as FullTokenizer.

        Args:
            texts: string [B].
            special_tokens: as for FullTokenizer.tokenize. Where it is True, starts and ends are those in a text in
                which each special token is one character.
        """
        # A line end after each text separates it from the next one for the rules that look at neighbours.
        texts = tf.strings.join([self._marked(texts) if special_tokens else texts, "\n"])
        decoded = tf.strings.unicode_decode(texts, "UTF-8", errors="ignore")  # [B, (characters)]
        codes, text_splits = decoded.values, tf.cast(decoded.row_splits, tf.int32)  # [C], [B + 1]
        properties = self._properties(codes)
        if special_tokens:
            is_special = (codes > 0) & (codes <= len(exact.SPECIAL_TOKENS))
            properties = tf.where(is_special, self._properties(tf.constant([ord(",")])), properties)  # alone, too
        letters, flags, origins = tf.cond(
            tf.reduce_any(properties & tables.BY_NEIGHBOURS > 0),
            lambda: self._in_canonical_order(
                *self._in_normal_form(*self._with_final_sigmas(codes, properties)), properties
            ),
            lambda: self._in_normal_form(codes, properties),
        )

        # Words: between spaces, and those that are alone.
        breaks = tf.concat([[tables.SPACE], flags[:-1]], 0) & (tables.SPACE | tables.ALONE)
        begins = (breaks > 0) | (flags & tables.ALONE > 0)
        kept = positions_of(flags & tables.SPACE == 0)
        letters, origins, begins = (tf.gather(values, kept) for values in (letters, origins, begins))
        firsts = positions_of(begins)  # [W]
        word_splits = tf.concat([firsts, [tf.size(letters)]], 0)
        words = tf.RaggedTensor.from_row_splits(letters, word_splits, validate=False)
        strings = tf.strings.unicode_encode(words, "UTF-8")
        pieces = self._kernel.tokenize(
            tf.where(words.row_lengths() > exact.MAX_CHARACTERS_PER_WORD, _TOO_LONG, strings)
        )
        ids, piece_splits = pieces.values, tf.cast(pieces.row_splits, tf.int32)

        word_of_piece = _rows(piece_splits, tf.range(tf.size(ids)))  # [P]
        of_words = tf.gather(word_splits[1:] - word_splits[:-1], word_of_piece)
        widths = tf.where(ids == self._unknown_id, of_words, tf.gather(self._piece_lengths, ids))
        if special_tokens:
            first_letters = tf.gather(letters, tf.gather(firsts, word_of_piece))
            special = first_letters <= len(exact.SPECIAL_TOKENS)
            ids = tf.where(special, tf.gather(self._special_ids, tf.where(special, first_letters, 0)), ids)

        # Which piece each letter belongs to: the pieces together are as long as the words.
        piece_of_character = _rows(tf.concat([[0], tf.cumsum(widths)], 0), tf.range(tf.size(letters)))
        starts = tf.math.segment_min(origins, piece_of_character)  # [P] into [C]
        ends = self._after_accents(tf.math.segment_max(origins, piece_of_character) + 1, properties)
        offsets = tf.gather(text_splits, _rows(text_splits, starts))
        # Words before each text's first character.
        words_before = tf.searchsorted(tf.gather(origins, firsts), text_splits)
        splits = tf.gather(piece_splits, words_before)  # [B + 1]

        def by_text(values: Any) -> Any:
            return tf.RaggedTensor.from_row_splits(values, splits, validate=False)

        is_first = tf.concat([[True], word_of_piece[1:] != word_of_piece[:-1]], 0)[: tf.size(ids)]
        return Tokens(by_text(ids), by_text(starts - offsets), by_text(ends - offsets), by_text(is_first))

    def _in_normal_form(self, codes: Any, properties: Any) -> tuple[Any, Any, Any]:
        """Returns the characters' forms one after the other: code points, flags, positions in [C]; int32 [E]."""
        forms = properties // tables.FORM
        lengths = tf.gather(self._tables.form_lengths, forms)
        origins, within = each_position(lengths)  # [E]
        positions = tf.gather(self._tables.form_starts, tf.gather(forms, origins)) + within  # in the codes of all forms
        letters = tf.gather(self._tables.codes, positions)
        letters = tf.where(letters == tables.ITSELF, tf.gather(codes, origins), letters)
        return letters, tf.gather(self._tables.flags, positions), origins

    def _marked(self, texts: Any) -> Any:
        """Replaces each special token by its control character."""
        texts = tf.strings.regex_replace(texts, f"[\x01-{chr(len(exact.SPECIAL_TOKENS))}]", _OTHER_CONTROL)
        for token, code in _SPECIAL_CODES.items():
            texts = tf.strings.regex_replace(texts, rf"\[{token[1:-1]}\]", chr(code))
        return texts

    def _properties(self, codes: Any) -> Any:
        pages = tf.gather(self._tables.page_numbers, codes // tables.PAGE)
        return tf.gather(self._tables.pages, pages * tables.PAGE + codes % tables.PAGE)

    def _with_final_sigmas(self, codes: Any, properties: Any) -> tuple[Any, Any]:
        """Replaces each capital sigma that ends a word (a cased letter stands before it, none after) by a final one."""
        case = properties & tables.CASE_BITS
        seen = positions_of(case != tables.IGNORED)
        is_cased = tf.gather(case, seen) == tables.CASED
        before, after = tf.concat([[False], is_cased[:-1]], 0), tf.concat([is_cased[1:], [False]], 0)
        ends_word = before & ~after & (tf.gather(codes, seen) == ord(tables.CAPITAL_SIGMA))
        positions = tf.gather(seen, positions_of(ends_word))[:, None]
        final = tf.fill(tf.shape(positions)[:1], ord(tables.FINAL_SIGMA))
        codes = tf.tensor_scatter_nd_update(codes, positions, final)
        return codes, tf.tensor_scatter_nd_update(properties, positions, self._properties(final))

    @staticmethod
    def _in_canonical_order(letters: Any, flags: Any, origins: Any, properties: Any) -> tuple[Any, Any, Any]:
        """Sorts the marks between two starters by combining class."""
        starters = tf.cumsum(tf.cast(properties & tables.STARTER > 0, tf.int64))  # so many up to each character
        keys = tf.gather(starters, origins) * tables.PAGE + tf.cast(flags // tables.MARK, tf.int64)
        order = tf.argsort(keys, stable=True)
        return tf.gather(letters, order), tf.gather(flags, order), tf.gather(origins, order)

    @staticmethod
    def _after_accents(positions: Any, properties: Any) -> Any:
        """Moves positions in [C] past the non-spacing marks that stand there."""
        stops = properties & tables.NON_SPACING == 0
        passed = tf.cumsum(tf.cast(stops, tf.int32), exclusive=True)
        return tf.gather(positions_of(stops), tf.gather(passed, positions))


def _rows(splits: Any, positions: Any) -> Any:
    """The rows, int32, that hold these positions, by the rows' splits."""
    return tf.searchsorted(splits[1:], positions, side="right")


def _pieces_for_the_kernel(vocab: dict[str, int]) -> list[str]:
    """Returns the vocabulary as a list in the order of ids.

    Ids without a token (the earlier ones of equal lines), and tokens that the kernel refuses and no word holds, get a
    piece that no word holds either, since there is a space in it.
    """
    pieces = [f" {index}" for index in range(max(vocab.values()) + 1)]
    for token, index in vocab.items():
        if token not in ("", exact.CONTINUATION) and "\0" not in token:
            pieces[index] = token
    return pieces


def characters_between(texts: Any, rows: Any, starts: Any, ends: Any) -> Any:
    """Returns texts[row][start:end], in characters, for each of rows, starts and ends, int32 [N].

    Bytes of the texts, string [B], that are not UTF-8 are dropped, as by the tokenizer.
    """
    decoded = tf.strings.unicode_decode(texts, "UTF-8", errors="ignore")
    first = starts + tf.gather(tf.cast(decoded.row_splits, tf.int32), rows)
    numbers, within = each_position(ends - starts)
    codes = tf.gather(decoded.values, tf.gather(first, numbers) + within)
    return tf.strings.unicode_encode(tf.RaggedTensor.from_row_lengths(codes, ends - starts, validate=False), "UTF-8")
