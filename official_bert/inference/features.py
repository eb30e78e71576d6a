"""The encoder's vectors of texts: of chosen layers, for each token, for each word, or one for a text.

B batch, S sequence, T tokens of a text, L chosen layers, H hidden size
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from official_bert.checkpoints.loading import Loaded, assign_weights
from official_bert.errors import UserError
from official_bert.inference.options import NONE, PIECES, WORDS
from official_bert.kinds.rows import batches_by_length
from official_bert.modeling import layer_names
from official_bert.modeling.choices import CLS_POOLING, MAX, MEAN
from official_bert.modeling.encoder import build_encoder
from official_bert.tokenization import pairs, truncation
from official_bert.tokenization.exact import CLS, CONTINUATION, SEP, Piece
from official_bert.tokenization.pairs import PAIR_SEPARATOR

_NOWHERE = -1
# So many texts are sorted by length at a time that their vectors have this many bytes; batches of texts of like length
# need little padding.
_BYTES_AT_A_TIME = 1 << 28
_BATCHES_AT_A_TIME = 64
_LEAST_LENGTH = 1e-12  # what a vector is divided by at least


@dataclasses.dataclass(frozen=True)
class TextFeatures:
    """The vectors of a text.

    Attributes:
        text: the text, or a pair with " ||| " between.
        values: float32 [T, L, H]; [L, H] if they were pooled.
        tokens: the pieces with [CLS] and [SEP], or the words as they stand in the text; empty if they were pooled.
        starts: for each token the character of the text at which it begins; -1 for [CLS] and [SEP].
        ends: the character after its last one, likewise.
        is_truncated: whether the text's end was cut off.
    """

    text: str
    values: npt.NDArray[np.float32]
    tokens: list[str]
    starts: list[int]
    ends: list[int]
    is_truncated: bool


@dataclasses.dataclass(frozen=True)
class _Prepared:
    text: str
    pieces: list[Piece]
    input_ids: list[int]
    segment_ids: list[int]
    is_truncated: bool


class FeatureExtractor:
    """Turns texts into vectors.

    Args:
        loaded: an encoder with its configuration and tokenizer, as `official_bert.load` returns them.
        layers: the numbers of the encoder's blocks, from 1 on or, from the last one, from -1 down.
        pooling: "none" for a vector for each token, "cls" for the one of [CLS], "mean" or "max" over all tokens, [CLS]
            and [SEP] included.
        align: of what there are vectors without pooling: "pieces", or "words", for each the mean of its pieces.
        normalize: whether pooled vectors, of all layers together, are divided by their lengths.
        max_seq_length: tokens of a text that are kept, with [CLS] and [SEP].
        batch_size: texts at a time.

    Raises:
        UserError: there is no such layer, one is named twice, or the length is impossible.
    """

    def __init__(
        self,
        loaded: Loaded,
        layers: Sequence[int] = (-1, -2, -3, -4),
        pooling: str = NONE,
        *,
        align: str = PIECES,
        normalize: bool = False,
        max_seq_length: int = 128,
        batch_size: int = 32,
    ) -> None:
        config = loaded.config
        count = config.num_hidden_layers
        wrong = [layer for layer in layers if layer == 0 or not -count <= layer <= count]
        if wrong or not layers:
            raise UserError(f"layers {list(layers)}: expected some of 1 to {count}, or of -1 to -{count} from the last")
        numbers = [layer % (count + 1) for layer in layers]
        if len(set(numbers)) < len(numbers):
            raise UserError(f"layers {list(layers)}: one is named twice (-1 is {count}); name each once")
        if not 4 <= max_seq_length <= config.max_position_embeddings:
            raise UserError(f"max_seq_length is {max_seq_length}; expected 4 to {config.max_position_embeddings}")
        if pooling != NONE and align == WORDS:
            raise UserError(f"pooling {pooling!r} leaves no words to align; take pooling 'none' or align 'pieces'")
        if normalize and pooling == NONE:
            raise UserError("vectors of tokens are not normalized; choose a pooling, or leave out normalize")
        if batch_size < 1:
            raise UserError(f"batch_size is {batch_size}; expected 1 or more")
        self.layers, self.hidden_size = tuple(layers), config.hidden_size
        self._tokenizer = loaded.tokenizer
        self._pooling, self._align, self._max_seq_length, self._batch_size = pooling, align, max_seq_length, batch_size
        per_text = 4 * max_seq_length * len(layers) * config.hidden_size
        self.texts_at_a_time = min(max(_BYTES_AT_A_TIME // per_text, batch_size), _BATCHES_AT_A_TIME * batch_size)
        self._normalize = normalize
        self._encode = _encoder_of_layers(loaded, layers)

    def extract(self, texts: Iterable[str | Sequence[str]]) -> Iterator[TextFeatures]:
        """Yields the vectors of each text, in order; memory does not grow with their number.

        Args:
            texts: a text, or a pair with " ||| " between; or a list of one text, whatever is in it, or of a pair's two.
        """
        waiting = iter(texts)
        while some := list(itertools.islice(waiting, self.texts_at_a_time)):
            prepared = [self._prepare(text) for text in some]
            lengths = np.array([len(each.input_ids) for each in prepared])
            extracted: dict[int, TextFeatures] = {}
            for numbers in batches_by_length(lengths, self._batch_size):
                extracted |= zip(numbers, self._of_batch([prepared[number] for number in numbers]), strict=True)
            for number in range(len(prepared)):
                yield extracted.pop(number)

    def _prepare(self, text: str | Sequence[str]) -> _Prepared:
        first, *second = text.rsplit(PAIR_SEPARATOR, 1) if isinstance(text, str) else text  # the last, as the original
        text = PAIR_SEPARATOR.join([first, *second])
        a = self._pieces(first, 0)
        # A second text without tokens is none, as in the original.
        b = (self._pieces(second[0], len(first) + len(PAIR_SEPARATOR)) if second else None) or None
        room = self._max_seq_length - (3 if b else 2)
        is_truncated = len(a) + len(b or ()) > room
        a, kept = truncation.truncate_pair(a, b or (), room)
        cls, sep = (Piece(token, _NOWHERE, _NOWHERE) for token in (CLS, SEP))
        pieces, segment_ids = pairs.join(cls, sep, a, kept if b else None)
        ids = self._tokenizer.convert_tokens_to_ids(piece.token for piece in pieces)
        return _Prepared(text, pieces, ids, segment_ids, is_truncated)

    def _pieces(self, text: str, offset: int) -> list[Piece]:
        if self._pooling != NONE:  # nobody asks where the pieces stand, and to find out takes time
            return [Piece(token, _NOWHERE, _NOWHERE) for token in self._tokenizer.tokenize(text)]
        pieces = self._tokenizer.tokenize_with_offsets(text)
        return [Piece(piece.token, piece.start + offset, piece.end + offset) for piece in pieces]

    def _of_batch(self, batch: list[_Prepared]) -> Iterator[TextFeatures]:
        inputs = {
            "input_ids": tf.ragged.constant([each.input_ids for each in batch], tf.int32).to_tensor(),
            "input_mask": tf.sequence_mask([len(each.input_ids) for each in batch], dtype=tf.int32),
            "segment_ids": tf.ragged.constant([each.segment_ids for each in batch], tf.int32).to_tensor(),
        }
        values = self._encode(inputs)  # [B, S, L, H]
        for each, row in zip(batch, values.numpy(), strict=True):
            yield self._of_text(each, row[: len(each.input_ids)])

    def _of_text(self, text: _Prepared, values: npt.NDArray[np.float32]) -> TextFeatures:
        pieces = text.pieces
        if self._pooling != NONE:
            pooled = {CLS_POOLING: values[0], MEAN: values.mean(axis=0), MAX: values.max(axis=0)}[self._pooling]
            if self._normalize:
                pooled = pooled / max(float(np.linalg.norm(pooled)), _LEAST_LENGTH)
            return TextFeatures(text.text, pooled, [], [], [], text.is_truncated)
        tokens = [piece.token for piece in pieces]
        starts, ends = [piece.start for piece in pieces], [piece.end for piece in pieces]
        if self._align == WORDS:
            words: list[list[int]] = []  # the positions of each one's pieces
            for position, piece in enumerate(pieces):
                if piece.token.startswith(CONTINUATION):
                    words[-1].append(position)
                elif piece.start != _NOWHERE:
                    words.append([position])
            means = [values[positions].mean(axis=0) for positions in words]
            values = np.stack(means) if means else values[:0]
            starts, ends = [starts[word[0]] for word in words], [ends[word[-1]] for word in words]
            tokens = [text.text[start:end] for start, end in zip(starts, ends, strict=True)]
        return TextFeatures(text.text, values, tokens, starts, ends, text.is_truncated)


def _encoder_of_layers(loaded: Loaded, layers: Sequence[int]) -> tf.types.experimental.PolymorphicFunction:
    """Returns a function of a batch of inputs, [B, S] each, that gives [B, S, L, H] float32."""
    encoder = build_encoder(
        loaded.config, return_all_layers=True, dtype=loaded.model.get_layer(layer_names.WORD_EMBEDDINGS).dtype_policy
    )
    outputs = encoder.output["encoder_outputs"]
    chosen = {str(layer): outputs[layer - 1 if layer > 0 else layer] for layer in layers}
    model = keras.Model(encoder.input, chosen)
    assign_weights(model, {variable.path: variable for variable in loaded.model.variables})
    signature = {name: tf.TensorSpec([None, None], tf.int32) for name in encoder.input}

    @tf.function(input_signature=[signature])
    def encode(inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        outputs = model(inputs, training=False)
        return tf.cast(tf.stack([outputs[str(layer)] for layer in layers], axis=2), tf.float32)

    return encode
