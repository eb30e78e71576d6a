"""Builds TensorFlow functions from strings to answers, for fine-tuned models of all kinds, encoders and masked LMs.

B texts, M masks of a text, K candidates, V vocabulary
"""

import importlib
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from official_bert.export.source import ExportSource
from official_bert.kinds.graph_inputs import Rows
from official_bert.kinds.graph_model import GraphModel, TextGraph
from official_bert.kinds.names import ENCODER, FILL_MASK
from official_bert.tokenization.exact import MASK

TOP_K = 5  # Number of candidates for each mask.


class EncoderGraph(TextGraph):
    """The graph of an encoder without a head: returns the vectors of the tokens and of the text."""

    def answer_rows(self, rows: Rows, texts: Mapping[str, Any]) -> dict[str, Any]:
        return {**super().answer_rows(rows, texts), "input_mask": rows.features["input_mask"]}


class FillMaskGraph(TextGraph):
    """The graph of a masked LM: returns the most probable tokens for each [MASK]."""

    reads_special_tokens = True

    def answer_ids(self, **features: Any) -> dict[str, Any]:
        is_mask = (features["input_ids"] == self.vocab[MASK]) & (features["input_mask"] > 0)
        indices = tf.where(is_mask)  # [masks, 2]
        counts = tf.reduce_sum(tf.cast(is_mask, tf.int32), -1)  # [B]
        ragged = tf.RaggedTensor.from_row_lengths(tf.cast(indices[:, 1], tf.int32), counts, validate=False)
        logits = self.compute_logits({**features, "masked_lm_positions": ragged.to_tensor()})  # [B, M, V]
        return choose_candidates(logits, counts, self.vocab, TOP_K)


def choose_candidates(logits: Any, counts: Any, vocab: dict[str, int], top_k: int) -> dict[str, Any]:
    """Returns the most probable tokens for each mask, best first, and their probabilities, each [B, M, K].

    inference/fill_mask.py does the same in Python.

    Args:
        logits: The logits at each mask [B, M, V].
        counts: Number of masks of each text [B] int32. Positions after them are padding and get "" and 0.
        vocab: The id of each token. Ids without a token are never returned.
        top_k: Number of tokens to return for each mask, K.
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


def build_graph_model(source: ExportSource) -> GraphModel:
    """Builds the TensorFlow functions of a model. The `Graph` of a fine-tuned model is in kinds/<kind>/graph.py."""
    kind = source.kind
    graph = _GRAPHS.get(kind) or importlib.import_module(f"official_bert.kinds.{kind}.graph").Graph
    return graph(source.model, source.tokenizer, source.task_spec["max_seq_length"], source.spec)
