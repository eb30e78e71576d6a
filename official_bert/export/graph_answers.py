"""From logits to filled masks and tags of words, as TensorFlow operations; graph_spans.py has those of questions.

The Python implementations of the same rules are inference/fill_mask.py and kinds/tagging/spec.py.

B texts, S sequence, C tags, M masks of a text, K candidates, N windows, V vocabulary, W words of all texts
"""

from typing import Any

import tensorflow as tf

from official_bert.export.graph_inputs import Windows, has_most_context
from official_bert.tokenization.in_graph import row_positions


def mask_candidates(logits: Any, counts: Any, vocab: dict[str, int], top_k: int) -> dict[str, Any]:
    """Returns tokens [B, M, K], best first, and their probabilities, from logits [B, M, V].

    Args:
        logits: those at each mask.
        counts: int32 [B], the masks of each text; the padding after them gets "" and 0.
        vocab: pieces and ids; the embedding table may have rows without a piece, which are left out.
        top_k: K.
    """
    ids = sorted(vocab.values())
    piece_of = {index: token for token, index in vocab.items()}
    if ids != list(range(logits.shape[-1])):
        logits = tf.gather(logits, ids, axis=-1)
    best = tf.math.top_k(tf.nn.softmax(logits), min(top_k, len(ids)))
    is_mask = (tf.range(tf.shape(logits)[1])[None] < counts[:, None])[..., None]  # [B, M, 1]
    tokens = tf.gather(tf.constant([piece_of[index] for index in ids]), best.indices)
    return {"tokens": tf.where(is_mask, tokens, ""), "probabilities": tf.where(is_mask, best.values, 0.0)}


def tags(
    logits: Any, labels: list[str], windows: Windows, first_words: Any, last_words: Any, word_starts: Any
) -> tuple[Any, Any]:
    """Returns each word's most probable tag, string [W], and its probability, [W].

    The logits at a word's first piece count, in the window where this piece has most context.

    Args:
        logits: [N, S, C].
        labels: the tags.
        windows: those of all texts.
        first_words: int32 [N], the first word of each window.
        last_words: int32 [N], the word after its last.
        word_starts: int32 [W + 1], the position of each word's first piece among those of all texts, and the end.
    """
    rows, number = row_positions(last_words - first_words)
    words = tf.gather(first_words, rows) + number
    positions = tf.gather(word_starts, words) - tf.gather(tf.gather(word_starts, first_words), rows)
    is_best = has_most_context(windows, rows, positions, words, tf.size(word_starts) - 1)
    order = tf.argsort(words[is_best])
    indices = tf.stack([rows[is_best], 1 + positions[is_best]], 1)  # [CLS] is before the first piece
    probabilities = tf.nn.softmax(tf.gather_nd(logits, tf.gather(indices, order)))  # [W, C]
    return tf.gather(tf.constant(labels), tf.argmax(probabilities, -1)), tf.reduce_max(probabilities, -1)
