"""Multi-label classification as TensorFlow functions, for SavedModels."""

from typing import Any

import tensorflow as tf

from official_bert.kinds.graph_model import LabelGraph


class Graph(LabelGraph):
    """The TensorFlow functions of a multi-label classifier, from strings to probabilities and decisions."""

    def answer_logits(self, logits: Any) -> dict[str, Any]:
        labels = tf.broadcast_to(tf.constant(self.task_spec["labels"])[None], tf.shape(logits))
        probabilities = tf.sigmoid(self.scale_logits(logits))
        predicted = probabilities > tf.constant(self.task_spec.get("thresholds") or 0.5, tf.float32)
        return {"labels": labels, "probabilities": probabilities, "predicted": predicted, "logits": logits}
