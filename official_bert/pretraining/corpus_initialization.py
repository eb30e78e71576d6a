"""Initial weights from counts of the records' tokens, where the original's are all random.

From random weights a model first learns how frequent pieces are, then which pieces stand beside which, and only then
where to look; a short training ends before that. All three can be had from the text beforehand:

- the bias of the masked-LM output: the logarithm of each piece's share of the text;
- word embeddings: a singular value decomposition of how much more often than by chance a piece stands directly before
  or after each of the commonest ones (positive pointwise mutual information; Levy and Goldberg 2014,
  "Neural Word Embedding as Implicit Matrix Factorization");
- position embeddings: sines and cosines (Vaswani et al. 2017, section 3.5), in dimensions that word embeddings leave
  free, and in the first block queries and keys that compare them, so that each head attends to one neighbour;
- in models of two blocks that learn next sentences, the last heads: [CLS] sees how many pieces both segments share.

Everything else, network and losses too, stays as it is: any other tool reads the weights.

V vocabulary, H hidden size, D head size, L longest sequence, F frequencies, C contexts
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import keras
import numpy as np

from official_bert.modeling import layer_names
from official_bert.modeling.config import BertConfig
from official_bert.pretraining.record_files import RecordFiles

_MOST_TOKENS = 4_000_000  # that are counted
_BATCH_SIZE = 256  # records that are counted together
_OFFSETS = (-1, 1)  # of a context from its piece; with two more on each side nothing was gained
_MOST_CONTEXTS = 1000  # pieces, for each offset
_MOST_CELLS = 128_000_000  # of the table of pieces by contexts: 512 MB
_POWER_ITERATIONS = 3  # of the decomposition: more change nothing that can be seen in training
_SPARE_DIRECTIONS = 20

_MOST_FREQUENCIES = 8
_FASTEST, _RATIO = 0.9 * math.pi, 0.72  # radians a position, and from one frequency to the next: periods of 2 to 22
_POSITIONS_SHARE = 0.3  # of the squared length of a token's vector
_SHARPNESS = 6.0  # the score of the position that a head attends to, where others have about 0
_REST = 0.1  # what is left of random values beside the sines and cosines

# Of the heads that compare segments. More blocks learn it by themselves, on text of many topics at least.
_COMPARING_BLOCKS, _COMPARING_HEADS = 2, 4  # just so many, and at least so many
_KEPT = 8  # dimensions of the head that still compare positions
_LEAST_COMPARED = 8  # dimensions
_SAME_PIECE, _OTHER_SEGMENT = 12.0, 1.0  # scores; of the own segment it is the opposite
_MARK = 2.0  # the value of a dimension that marks a token, where that of others is about 1
_SECOND_SEGMENT = 2.0  # the score of its tokens for the first position


@dataclasses.dataclass(frozen=True)
class TokenCounts:
    """What was counted in records.

    Attributes:
        tokens: how many tokens.
        pieces: how often each piece occurs, [V] int64.
        contexts: how often the commonest pieces stand at each offset from each piece, [V, C] float32.
    """

    tokens: int
    pieces: np.ndarray
    contexts: np.ndarray


def initialize_from_records(
    model: keras.Model, config: BertConfig, records: RecordFiles, seed: int, next_sentence_prediction: bool
) -> str:
    """Counts the records and initializes the model from the counts; returns a line for the log.

    Arguments are as for `initialize`.

    Raises:
        UserError: If a record is damaged.
    """
    with records.naming_damage():
        counts = count(records.evaluation(_BATCH_SIZE), config.vocab_size)
    known = initialize(model, config, counts, seed, next_sentence_prediction)
    return (
        f"initial weights from {counts.tokens:,} tokens of the records: word vectors of {known:,} of "
        f"{config.vocab_size:,} pieces, the others at random"
    )


def count(batches: Iterable[Mapping[str, Any]], vocab_size: int) -> TokenCounts:
    """Counts the tokens of pre-training records, those under masks included, up to some millions.

    Args:
        batches: of records with masks: input_ids and input_mask [B, S] int, masked_lm_positions and masked_lm_ids
            [B, P] int, masked_lm_weights [B, P] float.
        vocab_size: V.
    """
    rows, tokens = [], 0
    for batch in batches:
        rows.append(_unmasked({name: np.asarray(value) for name, value in batch.items()}))
        tokens += int((rows[-1] >= 0).sum())
        if tokens >= _MOST_TOKENS:
            break
    apart = max(map(abs, _OFFSETS))
    # One line of ids, in which neighbours of different records are kept apart by -1.
    line = np.concatenate([np.pad(row, ((0, 0), (0, apart)), constant_values=-1).ravel() for row in rows])
    pieces = np.bincount(line[line >= 0], minlength=vocab_size)
    number = min(_MOST_CONTEXTS, vocab_size, _MOST_CELLS // (len(_OFFSETS) * vocab_size))
    column_of = np.full(vocab_size, -1)
    column_of[np.argsort(-pieces, kind="stable")[:number]] = np.arange(number)
    contexts = np.zeros((vocab_size, len(_OFFSETS), number), np.float32)
    for index, offset in enumerate(_OFFSETS):
        beside = np.roll(line, -offset)  # the last rows end with -1, so that nothing is beside its other end
        there = (line >= 0) & (beside >= 0)
        columns = column_of[beside[there]]
        cells = line[there][columns >= 0] * number + columns[columns >= 0]
        contexts[:, index] = np.bincount(cells, minlength=vocab_size * number).reshape(vocab_size, number)
    return TokenCounts(tokens, pieces, contexts.reshape(vocab_size, -1))


def _unmasked(batch: Mapping[str, np.ndarray]) -> np.ndarray:
    """The records' tokens as they were before masking, [B, S]; -1 for padding."""
    ids = batch["input_ids"].astype(np.int64)
    record, prediction = np.nonzero(batch["masked_lm_weights"] > 0)
    ids[record, batch["masked_lm_positions"][record, prediction]] = batch["masked_lm_ids"][record, prediction]
    return np.where(batch["input_mask"] > 0, ids, -1)


def initialize(
    model: keras.Model, config: BertConfig, counts: TokenCounts, seed: int, next_sentence: bool = False
) -> int:
    """Gives a pre-training model with random weights those that the counts decide; returns for how many pieces.

    Args:
        model: as `build_pretraining_model` builds it.
        config: its sizes.
        counts: of the records that it will learn from.
        seed: of what is random.
        next_sentence: whether the records are pairs of segments, from which next sentences are learned.
    """
    shares = (counts.pieces + 1.0) / (counts.pieces.sum() + len(counts.pieces))
    model.get_layer("masked_lm_output").bias.assign(np.log(shares).astype(np.float32))
    head_size = config.hidden_size // config.num_attention_heads
    free = 2 * min(_MOST_FREQUENCIES, head_size // 2, config.hidden_size // 4)  # dimensions of sines and cosines
    compares = (
        next_sentence
        and config.num_hidden_layers == _COMPARING_BLOCKS
        and config.num_attention_heads >= _COMPARING_HEADS
        and config.type_vocab_size > 1
        and head_size >= _KEPT + _LEAST_COMPARED + 1
    )
    first = free + 2 * compares  # dimension of words
    vectors = _word_vectors(counts.contexts, config.hidden_size - first, seed)
    known = np.asarray(vectors.any(axis=1))
    with _changed(model.get_layer(layer_names.WORD_EMBEDDINGS).embeddings) as (words,):
        words[known, first:] = vectors[known] * config.initializer_range
        words[:, :first] *= _REST
    _attend_to_neighbours(model, config, free)
    if compares:
        _compare_segments(model, config, free, known, seed)
    return int(known.sum())


@contextlib.contextmanager
def _changed(*variables: keras.Variable) -> Iterator[list[np.ndarray]]:
    """Yields the values of variables, and assigns them again after they were changed."""
    values = [np.array(variable) for variable in variables]
    yield values
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _attention_kernels(model: keras.Model, block: int) -> list[keras.Variable]:
    """Those of queries, keys, values and output, each [H, H]."""
    parts = ("query", "key", "value", "output")
    return [model.get_layer(f"{layer_names.block(block)}_attention_{part}").kernel for part in parts]


def _word_vectors(contexts: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Vectors of the pieces, [V, size], of mean square 1; 0 for those without context. Changes `contexts`, [V, C]."""
    rows, columns = contexts.sum(axis=1, keepdims=True), contexts.sum(axis=0, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        expected = columns * (1.0 / max(columns.sum(), 1.0))
        contexts /= rows
        contexts /= expected
        np.log(contexts, out=contexts)
    np.nan_to_num(contexts, copy=False, nan=0.0, neginf=0.0, posinf=0.0)
    np.maximum(contexts, 0.0, out=contexts)
    # The randomized decomposition of Halko, Martinsson and Tropp (2011): of V x C only thin products are needed.
    rng = np.random.default_rng(seed)
    rank = min(size, *contexts.shape)
    basis = rng.standard_normal((contexts.shape[1], min(rank + _SPARE_DIRECTIONS, contexts.shape[1])), np.float32)
    for _ in range(_POWER_ITERATIONS):
        basis = np.linalg.qr(contexts @ basis)[0]
        basis = np.linalg.qr(contexts.T @ basis)[0]
    left, values, _ = np.linalg.svd(contexts @ basis, full_matrices=False)
    vectors = left[:, :rank] * np.sqrt(values[:rank])
    # Turned at random, so that no head has the large directions to itself.
    vectors = vectors @ np.linalg.qr(rng.standard_normal((size, size), np.float32))[0][:rank]
    known = contexts.any(axis=1)
    vectors -= vectors.sum(axis=0) / max(int(known.sum()), 1)  # of those that are not known all are 0
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    known &= lengths[:, 0] > 1e-6 * lengths.max()
    vectors[known] *= math.sqrt(size) / lengths[known]
    vectors[~known] = 0.0
    return vectors


def _attend_to_neighbours(model: keras.Model, config: BertConfig, free: int) -> None:
    """Lets the heads of the first block attend to the position before, the one after, the second before, and so on.

    A position is told by its angles at F frequencies. Where the keys of a head are a position's sines and cosines, and
    its queries those of the position at some offset, their product is the sum of the cosines of the differences: it is
    largest where key and query agree. Arguments are as for `initialize`.
    """
    frequencies = _FASTEST * _RATIO ** np.arange(free // 2)  # [F]
    of_words = (config.hidden_size - free) * config.initializer_range**2  # squared length
    of_positions = of_words * _POSITIONS_SHARE / (1 - _POSITIONS_SHARE)
    amplitude = math.sqrt(of_positions / len(frequencies))
    with _changed(model.get_layer(layer_names.POSITION_EMBEDDINGS).embeddings) as (positions,):  # [L, H]
        angles = np.arange(len(positions))[:, None] * frequencies  # [L, F]
        positions *= _REST
        positions[:, 0:free:2], positions[:, 1:free:2] = amplitude * np.cos(angles), amplitude * np.sin(angles)

    head_size = config.hidden_size // config.num_attention_heads
    # The normalization after the embeddings makes the squared length H, of which positions keep their share.
    score = _POSITIONS_SHARE * config.hidden_size / math.sqrt(head_size)
    gain = math.sqrt(_SHARPNESS / score)
    with _changed(*_attention_kernels(model, 0)[:2]) as (queries, keys):
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
    """Lets the first position see which pieces both segments share, by which it can tell whether they belong together.

    In the last head of the first block a token attends to its own piece in the other segment, and where there is none
    to itself; by the segment of what it attends to it gets a mark. In the last head of the second block the first
    position attends to the second segment, and so to the mean of its marks. Masked tokens attend as before, since what
    they are cannot be compared.

    `known` are the pieces that have vectors from counts, [V] bool; other arguments are as for `initialize`.
    """
    head_size = config.hidden_size // config.num_attention_heads
    segment, mark, first = free, free + 1, free + 2  # dimensions; the last is the first of words
    begin = config.hidden_size - head_size  # of the last head's columns
    compared = head_size - _KEPT - 1
    rng = np.random.default_rng(seed + 1)
    directions = np.linalg.qr(rng.standard_normal((config.hidden_size - first, compared)))[0]

    one = config.initializer_range / math.sqrt(1 - _POSITIONS_SHARE)  # becomes 1 in the normalization
    with _changed(model.get_layer(layer_names.TOKEN_TYPE_EMBEDDINGS).embeddings) as (segments,):
        segments *= _REST
        segments[:2, segment] = -_MARK * one, _MARK * one
    # Vectors of [MASK] and of pieces that were not counted are random: they are the same as nothing.
    with _changed(model.get_layer(layer_names.WORD_EMBEDDINGS).embeddings) as (words,):
        words[~known, first:] -= words[~known, first:] @ directions @ directions.T

    with _changed(*_attention_kernels(model, 0)) as (queries, keys, values, outputs):
        gain = math.sqrt(_SAME_PIECE * math.sqrt(head_size) / ((1 - _POSITIONS_SHARE) * compared))
        for kernel, sign in ((queries, -1.0), (keys, 1.0)):
            kernel[:, begin + _KEPT :] = 0.0
            kernel[first:, begin + _KEPT : -1] = gain * directions
            kernel[segment, -1] = sign * math.sqrt(_OTHER_SEGMENT * math.sqrt(head_size)) / _MARK
        values[:, begin:] *= 0.3  # what it says of pieces beside the mark
        values[segment, begin:], values[:, begin] = 0.0, 0.0
        values[segment, begin] = 1 / _MARK
        outputs[:, mark] *= _REST
        outputs[begin] *= _REST
        outputs[begin, mark] = _MARK

    with _changed(*_attention_kernels(model, 1)) as (queries, keys, values, outputs):
        # At position 0 all cosines are 1, elsewhere they cancel each other.
        cosines = math.sqrt(free // 2 * _POSITIONS_SHARE * config.hidden_size)  # their sum there
        queries[:, begin], keys[:, begin], values[:, begin] = 0.0, 0.0, 0.0
        queries[0:free:2, begin] = _SECOND_SEGMENT * math.sqrt(head_size) / (_MARK * cosines)
        keys[segment, begin], values[mark, begin] = 1.0, 1.0
        outputs[begin] *= _REST
        outputs[begin, mark] = _MARK
