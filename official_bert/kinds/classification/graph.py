"""Classification as TensorFlow functions, for SavedModels."""

from typing import Any

import tensorflow as tf

from official_bert.kinds.classification.spec import NO_ANSWER, ClassificationSpec
from official_bert.kinds.graph_model import LabelGraph


class Graph(LabelGraph):
    """The TensorFlow functions of a classification model, from strings to labels and probabilities."""

    spec: ClassificationSpec

    def answer_logits(self, logits: Any) -> dict[str, Any]:
        labels = tf.constant(self.spec.labels)  # [C]
        probabilities = tf.nn.softmax(logits / self.spec.temperature)
        predicted = tf.argmax(probabilities - tf.constant(self.spec.thresholds or 0.0, tf.float32), -1)
        probability, label = tf.gather(probabilities, predicted, batch_dims=1), tf.gather(labels, predicted)
        if self.spec.min_confidence:
            label = tf.where(probability >= self.spec.min_confidence, label, NO_ANSWER)
        return {
            "label": label,
            "probability": probability,
            "labels": tf.broadcast_to(labels[None], tf.shape(logits)),
            "probabilities": probabilities,
            "logits": logits,
        }
