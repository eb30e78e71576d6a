"""An estimate of the memory that training needs.

B batch of one device, S sequence, H hidden size, F intermediate size, N heads
"""

import math
from typing import NamedTuple

from official_bert.checkpoints.tensors import get_pretraining_shapes
from official_bert.modeling.config import BertConfig
from official_bert.optimization.choices import TPU
from official_bert.pretraining.options import Phase, PretrainingOptions

# Number of [B, S, F] tensors that the gradient of an activation needs in addition to its result. Others need none.
_KEPT_BY_ACTIVATION = {"gelu": 4, "gelu_exact": 3}


class Memory(NamedTuple):
    """Bytes that pre-training needs on each device."""

    weights: int  # in float32
    activations: int  # tensors that the forward pass keeps for the backward pass
    total: int  # peak memory of a step


def estimate_memory(
    config: BertConfig, batch: int, length: int, predictions: int, dtype: str = "float32", rematerialize: bool = False
) -> Memory:
    """Estimates the bytes that pre-training needs on each device, without the memory of the program itself.

    Activations are counted tensor by tensor, as TensorFlow keeps them without XLA, with dropout. Each block keeps, with
    c bytes per number (4, or 2 in half precision):

        B S H (6 c + 18)          input, query, key, value, context and input of the feed-forward layer in c bytes;
                                  input and scale of each normalization in float32; two dropout masks of one byte
        B N S S (c + 5)           probabilities in float32 before dropout and in c bytes after it, and the mask
        B S F c (1 + 4)           the feed-forward layer's hidden values, and 4 tensors of GELU (exact: 3; others: 0)

    With `rematerialize`, each block keeps B S H c. The other parts are less exact. All optimizers keep two numbers per
    weight. Measured peaks are 1.1 to 1.6 times the total.

    Args:
        config: Configuration of the model.
        batch: Rows that one device processes at a time: in a step, or in a micro-batch.
        length: Sequence length.
        predictions: Predictions per row.
        dtype: "float32", or any other name for half precision.
        rematerialize: Whether the backward pass computes encoder blocks again.
    """
    number = 4 if dtype == "float32" else 2
    width, wide, blocks = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    tokens, scores = batch * length, batch * config.num_attention_heads * length**2
    inside = (
        tokens * width * (6 * number + 18)
        + scores * (number + 5)
        + tokens * wide * number * (1 + _KEPT_BY_ACTIVATION.get(config.hidden_act, 0))
    )
    weights = 4 * sum(map(math.prod, get_pretraining_shapes(config).values()))
    table = 4 * config.vocab_size * width
    logits = 4 * batch * predictions * config.vocab_size
    activations = blocks * (tokens * width * number if rematerialize else inside)
    activations += tokens * width * 9  # the embeddings' normalization and dropout mask
    activations += logits + table * number // 4  # the loss's gradient; the transposed table
    if number == 2 and not rematerialize:
        activations += (weights - table) // 2  # copies of the matrices in half precision
    # Temporary tensors of the loss, or of one block's backward pass.
    working = max(3 * logits, inside * 3 // 2 if rematerialize else inside // 2)
    backward = activations + working + weights + 2 * table  # with separate gradients of the table for input and output
    update = weights * 11 // 2  # gradients, clipped gradients and intermediate values for all variables
    return Memory(weights, activations, 3 * weights + max(backward, update))  # with two moments for each weight


def print_memory_estimate(
    options: PretrainingOptions, config: BertConfig, replicas: int, phase: Phase, rows: int
) -> None:
    """Prints the estimated memory of each device in a phase of training.

    Args:
        options: The options of the run.
        config: Configuration of the model.
        replicas: Number of replicas.
        phase: The phase.
        rows: Number of rows per step over all replicas.
    """
    if options.pack_sequences:
        print(f"phase {phase.number}: {phase.train_batch_size} records are packed into {rows} rows", flush=True)
    needed = estimate_memory(
        config,
        rows // replicas // options.gradient_accumulation_steps,
        phase.max_seq_length,
        phase.predictions(config),
        options.dtype,
        options.rematerialize,
    ).total
    on_tpu = " (TPUs usually need less: see make tpu-check)" if options.strategy == TPU else ""
    print(f"estimated memory of each device in phase {phase.number}: {needed / 1e9:.2f} GB{on_tpu}", flush=True)
