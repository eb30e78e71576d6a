"""Multi-label classification in a TensorFlow graph."""

from typing import Any

import tensorflow as tf

from official_bert.kinds.graph_model import LabelGraph


class Graph(LabelGraph):
    """Any number of labels for each text."""

    def answer_logits(self, logits: Any) -> dict[str, Any]:
        labels = tf.broadcast_to(tf.constant(self.task_spec["labels"])[None], tf.shape(logits))
        probabilities = tf.sigmoid(self.scale_logits(logits))
        predicted = probabilities > tf.constant(self.task_spec.get("thresholds") or 0.5, tf.float32)
        return {"labels": labels, "probabilities": probabilities, "predicted": predicted, "logits": logits}
