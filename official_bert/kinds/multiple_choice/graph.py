"""Multiple choice as TensorFlow functions, for SavedModels.

B examples, N choices, S sequence length
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from official_bert.kinds import graph_inputs
from official_bert.kinds.graph_inputs import Rows, TokenSpans, span_texts
from official_bert.kinds.graph_model import GraphModel
from official_bert.kinds.multiple_choice.spec import MultipleChoiceSpec


class Graph(GraphModel):
    """The TensorFlow functions of a multiple-choice model, from prompts and endings to the likeliest ending."""

    spec: MultipleChoiceSpec

    @property
    def inputs(self) -> dict[str, tf.TensorSpec]:
        return super().inputs | {"endings": tf.TensorSpec([None, self.spec.num_choices], tf.string)}

    def read_texts(self, texts: Mapping[str, Any]) -> Rows:
        prompts = span_texts(self.tokenizer.tokenize(texts["prompt"]).ids)
        endings = span_texts(self.tokenizer.tokenize(tf.reshape(texts["endings"], [-1])).ids)
        prompts = TokenSpans(prompts.ids, *(tf.repeat(each, self.spec.num_choices) for each in prompts[1:]))
        spans = graph_inputs.truncate(prompts, endings, self.max_seq_length)
        features = self.pack(*spans, drop_empty=True)  # [B * N, S]
        shape = [-1, self.spec.num_choices, tf.shape(features["input_ids"])[1]]
        have_lost_tokens = graph_inputs.have_lost_tokens(spans, (prompts, endings))
        is_truncated = tf.reduce_any(tf.reshape(have_lost_tokens, [-1, self.spec.num_choices]), -1)
        return Rows({name: tf.reshape(value, shape) for name, value in features.items()}, is_truncated)

    def answer_logits(self, logits: Any) -> dict[str, Any]:  # [B, N]
        return {"choice": tf.argmax(logits, -1, tf.int32), "probabilities": tf.nn.softmax(logits), "logits": logits}
