"""Multi-label classification as TensorFlow functions, for SavedModels."""

from typing import Any

import tensorflow as tf

from official_bert.kinds.graph_model import LabelGraph
from official_bert.kinds.multi_label.spec import MultiLabelSpec


class Graph(LabelGraph):
    """The TensorFlow functions of a multi-label classifier, from strings to probabilities and decisions."""

    spec: MultiLabelSpec

    def answer_logits(self, logits: Any) -> dict[str, Any]:
        labels = tf.broadcast_to(tf.constant(self.spec.labels)[None], tf.shape(logits))
        probabilities = tf.sigmoid(logits / self.spec.temperature)
        predicted = probabilities > tf.constant(self.spec.thresholds or 0.5, tf.float32)
        return {"labels": labels, "probabilities": probabilities, "predicted": predicted, "logits": logits}
