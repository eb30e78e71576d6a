"""Extracts vectors of texts from selected layers of the encoder: per word piece, per word, or pooled per text.

B batch size, S sequence length, T tokens of a text, L selected layers, H hidden size
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from official_bert.checkpoints.loading import ModelAndTokenizer
from official_bert.errors import UserError
from official_bert.inference.keras_model import compute_outputs
from official_bert.inference.options import ALIGNMENTS, EXTRACTOR_POOLINGS, NONE, PIECES, WORDS
from official_bert.kinds.features import Features, concatenate_rows
from official_bert.kinds.input_adapters import format_value
from official_bert.modeling.choices import CLS_POOLING, MAX, MEAN
from official_bert.modeling.fast.model_parts import split_model
from official_bert.tokenization import pairs, truncation
from official_bert.tokenization.exact import CLS, CONTINUATION, SEP, UNK, Piece
from official_bert.tokenization.pairs import PAIR_SEPARATOR
from official_bert.utils.counting import pluralize

_NO_OFFSET = -1
# Maximum number of bytes of vectors, and of batches, of the texts that are sorted by length together.
_BYTES_AT_A_TIME = 1 << 28
_BATCHES_AT_A_TIME = 64
_MIN_NORM = 1e-12  # Prevents division by zero.
_DEFAULT_MAX_SEQ_LENGTH = 128


@dataclasses.dataclass(frozen=True)
class TextVectors:
    """The vectors of a text.

    Attributes:
        text: The text, or a pair joined by " ||| ". For lists of words, the words joined by spaces.
        values: float32 [T, L, H], or [L, H] with pooling.
        tokens: The word pieces with [CLS] and [SEP], or the words of the text. Empty with pooling.
        starts: Position of the first character of each token in the text, or -1 for [CLS] and [SEP].
        ends: Position after the last character of each token, or -1 for [CLS] and [SEP].
        is_truncated: Whether the text was truncated.
    """

    text: str
    values: npt.NDArray[np.float32]
    tokens: list[str]
    starts: list[int]
    ends: list[int]
    is_truncated: bool


@dataclasses.dataclass(frozen=True)
class _Example:
    text: str
    pieces: list[Piece]
    segment_ids: list[int]
    is_truncated: bool


class FeatureExtractor:
    """Computes vectors of texts with an encoder.

    Args:
        loaded: An encoder with its configuration and tokenizer, as `official_bert.load` returns it.
        layers: Layers whose outputs are the vectors. 0 is the output of the embeddings, 1 the first block, and -1 the
            last block.
        pooling: "none" for a vector per token, "cls" for the vector of [CLS], or "mean" or "max" over all tokens
            including [CLS] and [SEP].
        align: For pooling="none": "pieces" for a vector per word piece, or "words" for the mean of each word's pieces.
        normalize: With pooling: whether to divide the vectors of a text by their common norm over all layers.
        max_seq_length: Maximum number of tokens, including [CLS] and [SEP]. Defaults to 128, or to the number of
            positions of a smaller model.
        batch_size: Number of texts per batch.
        is_split_into_words: Whether each text is a list of words. With align="words", each of them gets a vector.

    Raises:
        UserError: If a layer does not exist or is repeated, or an option has an invalid value.
    """

    def __init__(
        self,
        loaded: ModelAndTokenizer,
        layers: Sequence[int] = (-1, -2, -3, -4),
        pooling: str = NONE,
        *,
        align: str = PIECES,
        normalize: bool = False,
        max_seq_length: int | None = None,
        batch_size: int = 32,
        is_split_into_words: bool = False,
    ) -> None:
        for name, value, choices in (("pooling", pooling, EXTRACTOR_POOLINGS), ("align", align, ALIGNMENTS)):
            if value not in choices:
                raise UserError(f"{name} is {value!r}; expected one of {', '.join(choices)}")
        config = loaded.config
        count, positions = config.num_hidden_layers, config.max_position_embeddings
        if max_seq_length is None:
            max_seq_length = min(_DEFAULT_MAX_SEQ_LENGTH, positions)
        if not layers or any(not -count <= layer <= count for layer in layers):
            valid = ",".join(str(-layer) for layer in range(1, min(count, 4) + 1))
            raise UserError(
                f"layers are {list(layers)}; they must be from 0 to {count}, or from -{count} to -1, because the model "
                f"has {pluralize(count, 'layer')}. On the command line, pass for example --layers={valid}"
            )
        if len({layer % (count + 1) for layer in layers}) < len(layers):
            raise UserError(f"layers are {list(layers)}; one of them is repeated (-1 is {count}).")
        if not 4 <= max_seq_length <= positions:
            raise UserError(f"max_seq_length is {max_seq_length}; it must be from 4 to {positions}.")
        if pooling != NONE and align == WORDS:
            raise UserError(f"align='words' requires pooling='none', but pooling is {pooling!r}.")
        if normalize and pooling == NONE:
            raise UserError("normalize requires pooling; vectors of tokens are not normalized.")
        if batch_size < 1:
            raise UserError(f"batch_size is {batch_size}; it must be at least 1.")
        self.layers, self.hidden_size, self.max_seq_length = tuple(layers), config.hidden_size, max_seq_length
        per_text = 4 * max_seq_length * len(layers) * config.hidden_size
        self.texts_at_a_time = min(max(_BYTES_AT_A_TIME // per_text, batch_size), _BATCHES_AT_A_TIME * batch_size)
        self.loaded, self.pooling = loaded, pooling
        self._align, self._normalize, self._is_split_into_words = align, normalize, is_split_into_words
        self._batch_size = batch_size
        self._encode = _compile_encoder(loaded, layers)

    def extract(self, texts: Iterable[str | Sequence[str]]) -> Iterator[TextVectors]:
        """Yields the vectors of each text, in order. Memory use does not depend on the number of texts.

        Args:
            texts: Each element is a text, a pair joined by " ||| ", or a list of one text or two texts. With
                `is_split_into_words`, it is a list of words.

        Raises:
            UserError: If `texts` is a single text, or an element is not of this form.
        """
        if isinstance(texts, str):
            raise UserError(f"texts is a single text, {texts[:60]!r}; expected several texts: pass a list")
        waiting = iter(texts)
        while some := list(itertools.islice(waiting, self.texts_at_a_time)):
            examples = list(map(self._tokenize_example, some))
            batch_size = min(self._batch_size, len(examples))
            vectors = compute_outputs(self._encode, self._featurize(examples), batch_size, self.max_seq_length)
            yield from map(self._make_vectors, examples, vectors)

    def _tokenize_example(self, text: str | Sequence[str]) -> _Example:
        parts = [text] if isinstance(text, str) or not np.iterable(text) else list(text)
        is_valid, expected = len(parts) in (1, 2), "a text or a list of 1 or 2"
        if self._is_split_into_words:
            is_valid, expected = not isinstance(text, str), "a list of words (is_split_into_words)"
        if not is_valid or not all(isinstance(part, str) for part in parts):
            raise UserError(f"texts contains {format_value(text)}; expected {expected}")
        if self._is_split_into_words:
            text, a, b = " ".join(text), self._tokenize_words(text), None
        else:
            # Splits at the last separator, and ignores a second text without tokens, like the original.
            first, *second = text.rsplit(PAIR_SEPARATOR, 1) if isinstance(text, str) else text
            text = PAIR_SEPARATOR.join([first, *second])
            a = self._tokenize(first, 0)
            b = (self._tokenize(second[0], len(first) + len(PAIR_SEPARATOR)) if second else None) or None
        room = self.max_seq_length - (3 if b else 2)
        is_truncated = len(a) + len(b or ()) > room
        a, kept = truncation.truncate_pair(a, b or (), room)
        cls, sep = (Piece(token, _NO_OFFSET, _NO_OFFSET) for token in (CLS, SEP))
        pieces, segment_ids = pairs.join(cls, sep, a, kept if b else None)
        return _Example(text, pieces, segment_ids, is_truncated)

    def _featurize(self, examples: Sequence[_Example]) -> Features:
        ids = [
            np.array(self.loaded.tokenizer.convert_tokens_to_ids(piece.token for piece in each.pieces), np.int32)
            for each in examples
        ]
        segment_ids = [np.array(each.segment_ids, np.int32) for each in examples]
        return concatenate_rows(ids, segment_ids, {}, {}, has_token_outputs=True)

    def _tokenize(self, text: str, offset: int) -> list[Piece]:
        if self.pooling != NONE:  # Offsets are not needed, and take time.
            return [Piece(token, _NO_OFFSET, _NO_OFFSET) for token in self.loaded.tokenizer.tokenize(text)]
        pieces = self.loaded.tokenizer.tokenize_with_offsets(text)
        return [Piece(piece.token, piece.start + offset, piece.end + offset) for piece in pieces]

    def _tokenize_words(self, words: Sequence[str]) -> list[Piece]:
        """Tokenizes each word.

        The pieces of a word have the character positions of the whole word. A word without pieces becomes [UNK].
        """
        pieces, start = [], 0
        for word in words:
            end = start + len(word)
            pieces += [Piece(token, start, end) for token in self.loaded.tokenizer.tokenize(word) or [UNK]]
            start = end + 1
        return pieces

    def _make_vectors(self, text: _Example, values: npt.NDArray[np.float32]) -> TextVectors:
        pieces = text.pieces
        if self.pooling != NONE:
            pooled = {CLS_POOLING: values[0], MEAN: values.mean(axis=0), MAX: values.max(axis=0)}[self.pooling]
            if self._normalize:
                pooled = pooled / max(float(np.linalg.norm(pooled)), _MIN_NORM)
            return TextVectors(text.text, pooled, [], [], [], text.is_truncated)
        tokens = [piece.token for piece in pieces]
        starts, ends = [piece.start for piece in pieces], [piece.end for piece in pieces]
        if self._align == WORDS:
            words: list[list[int]] = []  # Positions of the pieces of each word.
            for position, piece in enumerate(pieces):
                if piece.start == _NO_OFFSET:
                    continue
                is_same_word = self._is_split_into_words and piece.start == pieces[position - 1].start
                if is_same_word or (not self._is_split_into_words and piece.token.startswith(CONTINUATION)):
                    words[-1].append(position)
                else:
                    words.append([position])
            means = [values[positions].mean(axis=0) for positions in words]
            values = np.stack(means) if means else values[:0]
            starts, ends = [starts[word[0]] for word in words], [ends[word[-1]] for word in words]
            tokens = [text.text[start:end] for start, end in zip(starts, ends, strict=True)]
        return TextVectors(text.text, values, tokens, starts, ends, text.is_truncated)


def _compile_encoder(loaded: ModelAndTokenizer, layers: Sequence[int]) -> tf.types.experimental.PolymorphicFunction:
    """Returns a TensorFlow function that computes the selected layers of an encoder.

    It maps a dict of input_ids, input_mask and segment_ids, int32 [B, S], to float32 [B, S, L, H].
    """
    parts = split_model(loaded.model)
    assert parts
    input_names = ("input_ids", "input_mask", "segment_ids")
    model = keras.Model(
        {name: loaded.model.input[name] for name in input_names}, {str(layer): parts.encoded[layer] for layer in layers}
    )
    signature = {name: tf.TensorSpec([None, None], tf.int32) for name in input_names}

    @tf.function(input_signature=[signature], autograph=False)
    def encode(inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        outputs = model(inputs, training=False)
        return tf.cast(tf.stack([outputs[str(layer)] for layer in layers], axis=2), tf.float32)

    return encode
