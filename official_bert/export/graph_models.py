"""Builds models as TensorFlow functions from strings to answers: all kinds, encoders and masked-LM models.

B texts, M masks of a text, K candidates, V vocabulary
"""

import importlib
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from official_bert.kinds.graph_inputs import Rows
from official_bert.kinds.graph_model import GraphModel, TextGraph
from official_bert.kinds.names import ENCODER, FILL_MASK
from official_bert.tokenization.exact import MASK, FullTokenizer

TOP_K = 5  # Number of candidates for each mask.


class EncoderGraph(TextGraph):
    """The vectors of the tokens and of the text, without a head."""

    def answer_rows(self, rows: Rows, texts: Mapping[str, Any]) -> dict[str, Any]:
        return {**super().answer_rows(rows, texts), "input_mask": rows.features["input_mask"]}


class FillMaskGraph(TextGraph):
    """The most probable tokens for each [MASK]."""

    reads_special_tokens = True

    def answer_ids(self, **features: Any) -> dict[str, Any]:
        is_mask = (features["input_ids"] == self.vocab[MASK]) & (features["input_mask"] > 0)
        indices = tf.where(is_mask)  # [masks, 2]
        counts = tf.reduce_sum(tf.cast(is_mask, tf.int32), -1)  # [B]
        ragged = tf.RaggedTensor.from_row_lengths(tf.cast(indices[:, 1], tf.int32), counts, validate=False)
        logits = self.compute_logits({**features, "masked_lm_positions": ragged.to_tensor()})  # [B, M, V]
        return choose_candidates(logits, counts, self.vocab, TOP_K)


def choose_candidates(logits: Any, counts: Any, vocab: dict[str, int], top_k: int) -> dict[str, Any]:
    """Returns tokens [B, M, K], best first, and their probabilities, as inference/fill_mask.py does in Python.

    Args:
        logits: [B, M, V], the logits at each mask.
        counts: int32 [B], the number of masks of each text. The padding after them gets "" and 0.
        vocab: Ids by token. Rows of the embedding table without a token are left out.
        top_k: K.
    """
    ids = sorted(vocab.values())
    token_by_id = {index: token for token, index in vocab.items()}
    if ids != list(range(logits.shape[-1])):
        logits = tf.gather(logits, ids, axis=-1)
    best = tf.math.top_k(tf.nn.softmax(logits), min(top_k, len(ids)))
    is_mask = (tf.range(tf.shape(logits)[1])[None] < counts[:, None])[..., None]  # [B, M, 1]
    tokens = tf.gather(tf.constant([token_by_id[index] for index in ids]), best.indices)
    return {"tokens": tf.where(is_mask, tokens, ""), "probabilities": tf.where(is_mask, best.values, 0.0)}


_GRAPHS: dict[str, type[GraphModel]] = {ENCODER: EncoderGraph, FILL_MASK: FillMaskGraph}


def build_graph_model(
    model: keras.Model, tokenizer: FullTokenizer, kind: str, task_spec: Mapping[str, Any]
) -> GraphModel:
    """Returns the functions of a model.

    Args:
        model: See GraphModel, also for the tokenizer and the task_spec.
        tokenizer: See above.
        kind: A kind of head, whose `Graph` is in kinds/<kind>/graph.py, or ENCODER or FILL_MASK.
        task_spec: See above.
    """
    graph = _GRAPHS.get(kind) or importlib.import_module(f"official_bert.kinds.{kind}.graph").Graph
    return graph(model, tokenizer, task_spec)
