"""Computes the pre-training losses as sums and counts, which can be added up over the devices of a batch.

B batch, P predictions, V vocabulary, R records of a packed row
"""

import functools
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from keras import ops

from official_bert.modeling.fast.compiled_blocks import FactoredLogits

# Added to the number of predictions, as in the original, so that a batch without predictions does not divide by zero.
MASKED_LM_EPSILON = 1e-5


def compute_pretraining_sums(
    outputs: dict[str, Any], features: dict[str, Any], compiled: bool = False
) -> dict[str, Any]:
    """Computes the sums and counts for the losses and accuracies.

    A record whose input_mask is all zero pads the batch and is not counted. If several records share a row (see
    data.packing), each is counted.

    Args:
        outputs: Outputs of the pre-training model, by name.
        features: The batch: features by name.
        compiled: Whether XLA compiles a part of `masked_lm_losses`.

    Returns:
        float32 scalars by name. masked_lm_loss, masked_lm_correct and masked_lm_count are the cross-entropy (in nats),
        hits and number of the masked tokens. next_sentence_loss, next_sentence_correct and next_sentence_count are the
        same for the records. tokens is the number of positions that are not padding.
    """
    labels, weights = features["masked_lm_ids"], features["masked_lm_weights"]  # [B, P]
    masked_lm_loss, masked_lm_hits = masked_lm_losses(outputs["masked_lm_logits"], labels, compiled)

    real = ops.reshape(record_weights(features), (-1,))  # [B], packed [B * R]
    targets = ops.reshape(features["next_sentence_labels"], (-1,))
    scores = ops.reshape(outputs["next_sentence_logits"], (-1, 2))
    next_sentence_loss = ops.sparse_categorical_crossentropy(targets, scores, from_logits=True)
    next_sentence_hits = ops.cast(ops.equal(ops.argmax(scores, axis=-1), targets), "float32")
    return {
        "masked_lm_loss": ops.sum(weights * masked_lm_loss),
        "masked_lm_correct": ops.sum(weights * masked_lm_hits),
        "masked_lm_count": ops.sum(weights),
        "next_sentence_loss": ops.sum(real * next_sentence_loss),
        "next_sentence_correct": ops.sum(real * next_sentence_hits),
        "next_sentence_count": ops.sum(real),
        "tokens": ops.sum(ops.cast(features["input_mask"], "float32")),
    }


def record_weights(features: dict[str, Any]) -> Any:
    """Returns the weight of each record, [B, 1], or [B, R] for packed batches: 1.0, or 0.0 for an empty row."""
    if "next_sentence_weights" in features:
        return features["next_sentence_weights"]
    return ops.cast(features["input_mask"][:, :1], "float32")  # [CLS] is never padding


def masked_lm_losses(logits: Any, labels: Any, compiled: bool = False) -> tuple[Any, Any]:
    """Returns two float32 arrays [B, P]: each masked token's cross-entropy, and 1 if its prediction is right or else 0.

    The code makes few passes over the logits, because they are by far the largest tensor of a small model: 78 MB for
    640 predictions over 30,522 tokens. A prediction is right if argmax returns the label.

    The gradient with respect to the logits is (softmax - one-hot) multiplied by one number per prediction. With
    FactoredLogits, the number is multiplied with the much smaller vectors instead, which saves a pass.

    Args:
        logits: [B, P, V] float32, or FactoredLogits.
        labels: [B, P] int32, at least 0 and less than V. The loss of other labels is NaN.
        compiled: Whether XLA compiles `_compute_losses_and_errors`. Use it if the step is not compiled as a whole: XLA
            fuses several passes into one, while matrix products keep TensorFlow's kernels.
    """
    compute: Any = _compile(_compute_losses_and_errors) if compiled else _compute_losses_and_errors

    @tf.custom_gradient
    def losses(vectors: tf.Tensor, *table_and_bias: tf.Tensor) -> tuple[Any, Any]:
        if not table_and_bias:
            loss, hits, errors, scale = compute(vectors, None, flat_labels)
            return (loss, hits), lambda loss_gradient, _: errors * (loss_gradient * scale)[:, None]
        table, bias = table_and_bias
        cast_table = tf.cast(table, vectors.dtype)
        products, still_to_add = tf.matmul(vectors, cast_table, transpose_b=True), bias  # [B * P, V]
        if products.dtype == bias.dtype:  # TensorFlow fuses this addition with the product
            products, still_to_add = tf.nn.bias_add(products, bias), None
        loss, hits, errors, scale = compute(products, still_to_add, flat_labels)

        def gradient(loss_gradient: tf.Tensor, _: tf.Tensor) -> tuple[Any, Any, Any]:
            weights = (loss_gradient * scale)[:, None]  # [B * P, 1]
            vectors_gradient = tf.cast(tf.matmul(errors, cast_table), weights.dtype) * weights
            weighted = tf.cast(tf.cast(vectors, weights.dtype) * weights, vectors.dtype)
            # As a batch of one, because TensorFlow's kernel for batches is faster for this transposed product.
            table_gradient = tf.matmul(errors[None], weighted[None], transpose_a=True)[0]
            bias_gradient = tf.matmul(tf.cast(weights, errors.dtype), errors, transpose_a=True)[0]
            return (
                tf.cast(vectors_gradient, vectors.dtype),
                tf.cast(table_gradient, table.dtype),
                tf.cast(bias_gradient, bias.dtype),
            )

        return (loss, hits), gradient

    flat_labels = tf.reshape(labels, [-1])  # [B * P]
    vectors, *table_and_bias = logits if isinstance(logits, FactoredLogits) else (logits,)
    loss, hits = losses(tf.reshape(vectors, [-1, vectors.shape[-1]]), *table_and_bias)
    return tf.reshape(loss, tf.shape(labels)), tf.reshape(hits, tf.shape(labels))


def _compute_losses_and_errors(logits: tf.Tensor, bias: tf.Tensor | None, labels: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Computes losses and hits, and the two factors of the losses' gradient.

    Args:
        logits: The logits, or the logits without the bias [N, V].
        bias: The bias [V] that remains to be added, or None.
        labels: Token ids [N].

    Returns:
        Losses [N], hits [N], softmax minus one-hot multiplied by the sum of exponentials [N, V], and the inverse of
        this sum [N]. In float16, softmax minus one-hot, and ones.
    """
    dtype, logits = logits.dtype, tf.cast(logits, tf.float32)
    if bias is not None:
        logits = logits + bias
    pieces = tf.range(logits.shape[-1])
    is_piece = (labels >= 0) & (labels < logits.shape[-1])
    label = tf.where(is_piece, labels, 0)
    label_logits = tf.gather(logits, label, batch_dims=1)
    highest = tf.reduce_max(logits, axis=1)
    exponentials = tf.exp(logits - highest[:, None])
    total = tf.reduce_sum(exponentials, axis=1)
    loss = tf.where(is_piece, tf.math.log(total) - (label_logits - highest), float("nan"))
    is_earlier = (logits == highest[:, None]) & (pieces < labels[:, None])
    hits = tf.cast((label_logits == highest) & ~tf.reduce_any(is_earlier, axis=1), tf.float32)
    errors = tf.tensor_scatter_nd_sub(exponentials, tf.stack([tf.range(tf.size(label)), label], axis=1), total)
    if dtype == tf.float16:  # the sum, which may be as large as V, can exceed its greatest number, 65,504
        errors, total = errors / total[:, None], tf.ones_like(total)
    return loss, hits, tf.cast(errors, dtype), 1.0 / total


@functools.cache
def _compile(function: Any) -> Any:
    return tf.function(function, jit_compile=True, autograph=False)


def compute_mean_losses(sums: dict[str, Any], masked_lm_count: Any, next_sentence_count: Any) -> tuple[Any, Any]:
    """Divides sums of losses by counts: masked-LM loss / (count + 1e-5), and next-sentence loss / count.

    Args:
        sums: Sums of one device.
        masked_lm_count: Number of predictions in the whole batch, on all devices.
        next_sentence_count: Number of records in the whole batch, on all devices.
    """
    masked_lm = sums["masked_lm_loss"] / (masked_lm_count + MASKED_LM_EPSILON)
    return masked_lm, sums["next_sentence_loss"] / ops.maximum(next_sentence_count, 1.0)


def compute_pretraining_metrics(sums: Mapping[str, float]) -> dict[str, float]:
    """Computes losses and accuracies from the sums of `compute_pretraining_sums`.

    The names are those in the original's eval_results.txt. Losses are in nats and accuracies from 0 to 1. "loss" is the
    sum of both losses. Means over nothing are 0. Without sentence labels, the next-sentence metrics are left out.
    """
    predictions = max(sums["masked_lm_count"], 1.0)
    records = max(sums["next_sentence_count"], 1.0)
    masked_lm_loss, next_sentence_loss = sums["masked_lm_loss"] / predictions, sums["next_sentence_loss"] / records
    metrics = {"loss": masked_lm_loss + next_sentence_loss, "masked_lm_loss": masked_lm_loss}
    metrics["masked_lm_accuracy"] = sums["masked_lm_correct"] / predictions
    if sums["next_sentence_count"]:
        metrics["next_sentence_loss"] = next_sentence_loss
        metrics["next_sentence_accuracy"] = sums["next_sentence_correct"] / records
    return metrics
