"""Text vectors as TensorFlow functions, for SavedModels."""

import re
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from official_bert.kinds.graph_inputs import TokenSpans
from official_bert.kinds.graph_model import TextGraph
from official_bert.tokenization.pairs import PAIR_SEPARATOR

_PAIR = rf"(?s)(.*){re.escape(PAIR_SEPARATOR)}(.*)"


class Graph(TextGraph):
    """The TensorFlow functions of a vector model, from strings to vectors.

    A string may be a text pair, written as two texts with " ||| " between them.
    """

    def answer_logits(self, logits: Any) -> dict[str, Any]:
        return {"vector": logits}

    def span_tokens(self, texts: Mapping[str, Any]) -> tuple[TokenSpans, TokenSpans | None]:
        text = texts["text"]
        first, second = (tf.strings.regex_replace(text, _PAIR, part) for part in (r"\1", r"\2"))
        second = tf.where(tf.strings.regex_full_match(text, _PAIR), second, "")
        return super().span_tokens({"text": first, "text_pair": second})
