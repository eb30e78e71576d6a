"""Computes initial weights from token counts of the records. In the original, all initial weights are random.

Starting from random weights, a model first learns how frequent pieces (tokens) are, then which pieces occur next to
each other, and only then where to attend. Short trainings end before that. All three can be computed from the text in
advance:

- Bias of the masked-LM output: the logarithm of the frequency of each piece.
- Word embeddings: a singular value decomposition of how much more often than by chance a piece occurs directly before
  or after each of the most frequent pieces (positive pointwise mutual information; Levy and Goldberg 2014, "Neural Word
  Embedding as Implicit Matrix Factorization").
- Position embeddings: sines and cosines (Vaswani et al. 2017, section 3.5) in dimensions that word embeddings leave
  free. Queries and keys of the first block compare them, so that each head attends to one neighboring position.
- The last attention heads of models with two blocks and next-sentence prediction: they let [CLS] see how many pieces
  both segments share.

The network and the losses do not change, so other tools can read the weights.

V vocabulary, H hidden size, D head size, L longest sequence, F frequencies, C contexts
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import keras
import numpy as np

from official_bert.data.record_codec import restore_masked_ids
from official_bert.modeling import layer_names
from official_bert.modeling.config import BertConfig
from official_bert.pretraining.record_files import RecordFiles

_MAX_TOKENS = 4_000_000  # maximum number of counted tokens
_BATCH_SIZE = 256  # number of records counted together
_OFFSETS = (-1, 1)  # positions of the contexts relative to a piece
_MAX_CONTEXTS = 1000  # maximum number of context pieces per offset
_MAX_CELLS = 128_000_000  # maximum size of the table of pieces by contexts, 512 MB
_POWER_ITERATIONS = 3  # iterations of the decomposition
_SPARE_DIRECTIONS = 20

_MAX_FREQUENCIES = 8
# Radians per position of the highest frequency, and the ratio of successive frequencies. The periods are 2 to 22.
_FASTEST, _RATIO = 0.9 * math.pi, 0.72
_POSITIONS_SHARE = 0.3  # share of positions in the squared length of a token's vector
_SHARPNESS = 6.0  # attention score of the position that a head attends to; the others' is about 0
_REST = 0.1  # factor of the random values that remain in the dimensions of sines and cosines

# The heads that compare segments. Models with more blocks learn to compare them.
_COMPARING_BLOCKS, _MIN_COMPARING_HEADS = 2, 4  # exact number of blocks, minimum number of heads
_KEPT = 8  # dimensions of the head that still compare positions
_MIN_COMPARED = 8  # minimum number of dimensions that compare pieces
_SAME_PIECE, _OTHER_SEGMENT = 12.0, 1.0  # attention scores; the own segment has the negative score
_MARK = 2.0  # value of the dimension that marks a token; other dimensions are about 1
_SECOND_SEGMENT = 2.0  # attention score of the second segment's tokens for the first position


@dataclasses.dataclass(frozen=True)
class TokenCounts:
    """Token counts of records, used to compute weights.

    Attributes:
        pieces: Number of occurrences of each piece [V] int64.
        contexts: For each piece, how often each of the most frequent pieces occurs at each offset from it [V, C]
            float32.
    """

    pieces: np.ndarray
    contexts: np.ndarray


def initialize_from_records(
    model: keras.Model, config: BertConfig, records: RecordFiles, seed: int, next_sentence_prediction: bool
) -> str:
    """Sets initial weights, such as the word embeddings, from token counts of the training records.

    The module docstring lists these weights. See `initialize` for the arguments other than `records`.

    Returns:
        A line for the terminal.

    Raises:
        UserError: If a record is damaged.
    """
    with records.explain_damage():
        counts = count(records.evaluation_batches(_BATCH_SIZE), config.vocab_size)
    known = initialize(model, config, counts, seed, next_sentence_prediction)
    return (
        f"initial weights from {counts.pieces.sum():,} tokens of the records: word vectors of {known:,} of "
        f"{config.vocab_size:,} pieces, the others at random"
    )


def count(batches: Iterable[Mapping[str, Any]], vocab_size: int) -> TokenCounts:
    """Counts the tokens of pre-training records, up to a limit. Masked tokens are counted as the original tokens.

    Args:
        batches: Batches of masked records: input_ids and input_mask [B, S] int, masked_lm_positions and masked_lm_ids
            [B, P] int, masked_lm_weights [B, P] float.
        vocab_size: Size of the vocabulary, V.
    """
    rows, tokens = [], 0
    for batch in batches:
        arrays = {name: np.asarray(value) for name, value in batch.items()}
        rows.append(np.where(arrays["input_mask"] > 0, restore_masked_ids(arrays).astype(np.int64), -1))
        tokens += int((rows[-1] >= 0).sum())
        if tokens >= _MAX_TOKENS:
            break
    apart = max(map(abs, _OFFSETS))
    # One array of ids, in which -1 separates the records.
    line = np.concatenate([np.pad(row, ((0, 0), (0, apart)), constant_values=-1).ravel() for row in rows])
    pieces = np.bincount(line[line >= 0], minlength=vocab_size)
    number = min(_MAX_CONTEXTS, vocab_size, _MAX_CELLS // (len(_OFFSETS) * vocab_size))
    column_by_piece = np.full(vocab_size, -1)
    column_by_piece[np.argsort(-pieces, kind="stable")[:number]] = np.arange(number)
    contexts = np.zeros((vocab_size, len(_OFFSETS), number), np.float32)
    for index, offset in enumerate(_OFFSETS):
        neighbours = np.roll(line, -offset)  # the array ends with -1, so it does not wrap around
        is_pair = (line >= 0) & (neighbours >= 0)
        columns = column_by_piece[neighbours[is_pair]]
        cells = line[is_pair][columns >= 0] * number + columns[columns >= 0]
        contexts[:, index] = np.bincount(cells, minlength=vocab_size * number).reshape(vocab_size, number)
    return TokenCounts(pieces, contexts.reshape(vocab_size, -1))


def initialize(
    model: keras.Model, config: BertConfig, counts: TokenCounts, seed: int, next_sentence: bool = False
) -> int:
    """Initializes a pre-training model from counts. Returns the number of pieces whose embeddings come from the counts.

    Args:
        model: The model from `build_pretraining_model`, with random weights.
        config: Configuration of the model.
        counts: Counts of the training records.
        seed: Random seed.
        next_sentence: Whether the records are pairs of segments and the model is trained to predict next sentences.
    """
    shares = (counts.pieces + 1.0) / (counts.pieces.sum() + len(counts.pieces))
    model.get_layer("masked_lm_output").bias.assign(np.log(shares).astype(np.float32))
    head_size = config.hidden_size // config.num_attention_heads
    free = 2 * min(_MAX_FREQUENCIES, head_size // 2, config.hidden_size // 4)  # dimensions of sines and cosines
    compares = (
        next_sentence
        and config.num_hidden_layers == _COMPARING_BLOCKS
        and config.num_attention_heads >= _MIN_COMPARING_HEADS
        and config.type_vocab_size > 1
        and head_size >= _KEPT + _MIN_COMPARED + 1
    )
    first = free + 2 * compares  # first dimension of word embeddings
    vectors = _word_vectors(counts.contexts, config.hidden_size - first, seed)
    known = np.asarray(vectors.any(axis=1))
    with _edit_variables(model.get_layer(layer_names.WORD_EMBEDDINGS).embeddings) as (words,):
        words[known, first:] = vectors[known] * config.initializer_range
        words[:, :first] *= _REST
    _attend_to_neighbours(model, config, free)
    if compares:
        _compare_segments(model, config, free, known, seed)
    return int(known.sum())


@contextlib.contextmanager
def _edit_variables(*variables: keras.Variable) -> Iterator[list[np.ndarray]]:
    """A context for changing variables: yields their values as arrays, and finally assigns the changed arrays."""
    values = [np.array(variable) for variable in variables]
    yield values
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _attention_kernels(model: keras.Model, block: int) -> list[keras.Variable]:
    """Returns the kernels of the query, key, value and output layers of a block, each [H, H]."""
    parts = ("query", "key", "value", "output")
    return [model.get_layer(f"{layer_names.block(block)}_attention_{part}").kernel for part in parts]


def _word_vectors(contexts: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Computes vectors of pieces by a singular value decomposition of their contexts.

    Args:
        contexts: Counts as in `TokenCounts` [V, C]. The array is overwritten.
        size: Size of a vector.
        seed: Random seed.

    Returns:
        Vectors with a mean square of 1, or zeros for pieces without context [V, size].
    """
    rows, columns = contexts.sum(axis=1, keepdims=True), contexts.sum(axis=0, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        expected = columns * (1.0 / max(columns.sum(), 1.0))
        contexts /= rows
        contexts /= expected
        np.log(contexts, out=contexts)
    np.nan_to_num(contexts, copy=False, nan=0.0, neginf=0.0, posinf=0.0)
    np.maximum(contexts, 0.0, out=contexts)
    # Randomized decomposition (Halko, Martinsson and Tropp 2011), which needs only thin products of the [V, C] matrix.
    rng = np.random.default_rng(seed)
    rank = min(size, *contexts.shape)
    basis = rng.standard_normal((contexts.shape[1], min(rank + _SPARE_DIRECTIONS, contexts.shape[1])), np.float32)
    for _ in range(_POWER_ITERATIONS):
        basis = np.linalg.qr(contexts @ basis)[0]
        basis = np.linalg.qr(contexts.T @ basis)[0]
    left, values, _ = np.linalg.svd(contexts @ basis, full_matrices=False)
    vectors = left[:, :rank] * np.sqrt(values[:rank])
    # A random rotation, so that the large directions are spread over all heads.
    vectors = vectors @ np.linalg.qr(rng.standard_normal((size, size), np.float32))[0][:rank]
    known = contexts.any(axis=1)
    vectors -= vectors.sum(axis=0) / max(int(known.sum()), 1)  # the vectors of unknown pieces are 0
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    known &= lengths[:, 0] > 1e-6 * lengths.max()
    vectors[known] *= math.sqrt(size) / lengths[known]
    vectors[~known] = 0.0
    return vectors


def _attend_to_neighbours(model: keras.Model, config: BertConfig, free: int) -> None:
    """Makes the heads of the first block attend to neighboring positions, at offsets of -1, 1, -2, 2 and so on.

    A position is encoded by angles at F frequencies. The key of a position consists of the cosines and sines of its
    angles. The query consists of the cosines and sines of the position to attend to. Their product is the sum of the
    cosines of the angles' differences, which is largest if both are the same position.

    Args:
        model: The model.
        config: Configuration of the model.
        free: Number of dimensions that word embeddings leave free for positions.
    """
    frequencies = _FASTEST * _RATIO ** np.arange(free // 2)  # [F]
    word_square = (config.hidden_size - free) * config.initializer_range**2  # squared length
    position_square = word_square * _POSITIONS_SHARE / (1 - _POSITIONS_SHARE)
    amplitude = math.sqrt(position_square / len(frequencies))
    with _edit_variables(model.get_layer(layer_names.POSITION_EMBEDDINGS).embeddings) as (positions,):  # [L, H]
        angles = np.arange(len(positions))[:, None] * frequencies  # [L, F]
        positions *= _REST
        positions[:, 0:free:2], positions[:, 1:free:2] = amplitude * np.cos(angles), amplitude * np.sin(angles)

    head_size = config.hidden_size // config.num_attention_heads
    # The normalization after the embeddings makes the squared length H. Positions keep their share of it.
    score = _POSITIONS_SHARE * config.hidden_size / math.sqrt(head_size)
    gain = math.sqrt(_SHARPNESS / score)
    with _edit_variables(*_attention_kernels(model, 0)[:2]) as (queries, keys):
        queries *= 0.3
        keys *= 0.3
        for head in range(config.num_attention_heads):
            offset = (1 + head // 2) * (-1) ** (head + 1)  # -1, 1, -2, 2, ...
            columns = slice(head * head_size, head * head_size + free)
            queries[:free, columns], keys[:free, columns] = 0.0, 0.0
            for index, turn in enumerate(frequencies * offset):
                row, column = 2 * index, head * head_size + 2 * index
                keys[row : row + 2, column : column + 2] = gain * np.eye(2)
                rotation = [[math.cos(turn), math.sin(turn)], [-math.sin(turn), math.cos(turn)]]
                queries[row : row + 2, column : column + 2] = gain * np.array(rotation)


def _compare_segments(model: keras.Model, config: BertConfig, free: int, known: np.ndarray, seed: int) -> None:
    """Makes the first position see which pieces both segments share, to predict whether they belong together.

    In the last head of the first block, a token attends to the same piece in the other segment, or to itself if the
    other segment lacks the piece. The segment that it attends to determines the token's mark, a dimension of its
    output. In the last head of the second block, the first position attends to the second segment, and thus sees the
    mean of its marks. Masked tokens attend as before.

    Args:
        model: The model.
        config: Configuration of the model.
        free: Number of dimensions that word embeddings leave free for positions.
        known: Which pieces have vectors from counts [V] bool.
        seed: Random seed.
    """
    head_size = config.hidden_size // config.num_attention_heads
    segment, mark, first = free, free + 1, free + 2  # dimensions of segment and mark, and the first one of words
    begin = config.hidden_size - head_size  # first column of the last head
    compared = head_size - _KEPT - 1
    rng = np.random.default_rng(seed + 1)
    directions = np.linalg.qr(rng.standard_normal((config.hidden_size - first, compared)))[0]

    one = config.initializer_range / math.sqrt(1 - _POSITIONS_SHARE)  # becomes 1 in the normalization
    with _edit_variables(model.get_layer(layer_names.TOKEN_TYPE_EMBEDDINGS).embeddings) as (segments,):
        segments *= _REST
        segments[:2, segment] = -_MARK * one, _MARK * one
    # The vectors of [MASK] and of pieces without counts are random, so they must not match any piece.
    with _edit_variables(model.get_layer(layer_names.WORD_EMBEDDINGS).embeddings) as (words,):
        words[~known, first:] -= words[~known, first:] @ directions @ directions.T

    with _edit_variables(*_attention_kernels(model, 0)) as (queries, keys, values, outputs):
        gain = math.sqrt(_SAME_PIECE * math.sqrt(head_size) / ((1 - _POSITIONS_SHARE) * compared))
        for kernel, sign in ((queries, -1.0), (keys, 1.0)):
            kernel[:, begin + _KEPT :] = 0.0
            kernel[first:, begin + _KEPT : -1] = gain * directions
            kernel[segment, -1] = sign * math.sqrt(_OTHER_SEGMENT * math.sqrt(head_size)) / _MARK
        values[:, begin:] *= 0.3  # values of the pieces, in addition to the mark
        values[segment, begin:], values[:, begin] = 0.0, 0.0
        values[segment, begin] = 1 / _MARK
        outputs[:, mark] *= _REST
        outputs[begin] *= _REST
        outputs[begin, mark] = _MARK

    with _edit_variables(*_attention_kernels(model, 1)) as (queries, keys, values, outputs):
        # At position 0, all cosines are 1. At other positions, they cancel each other.
        cosines = math.sqrt(free // 2 * _POSITIONS_SHARE * config.hidden_size)  # their sum at position 0
        queries[:, begin], keys[:, begin], values[:, begin] = 0.0, 0.0, 0.0
        queries[0:free:2, begin] = _SECOND_SEGMENT * math.sqrt(head_size) / (_MARK * cosines)
        keys[segment, begin], values[mark, begin] = 1.0, 1.0
        outputs[begin] *= _REST
        outputs[begin, mark] = _MARK
