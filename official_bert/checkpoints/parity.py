"""Checks a conversion: runs the same input through our model and through the framework that a format belongs to.

B batch, S sequence, H hidden size, V vocabulary
"""

from collections.abc import Mapping

import keras
import numpy as np

from official_bert.checkpoints.checkpoint import (
    MASKED_LM,
    NEXT_SENTENCE,
    PARTS,
    POOLED_HEADS,
    POOLER,
    TASK_HEADS,
    Array,
    LoadedModel,
)
from official_bert.checkpoints.formats.format import Framework
from official_bert.checkpoints.tensors import assign_weights
from official_bert.errors import UserError
from official_bert.modeling import layer_names
from official_bert.modeling.config import BertConfig
from official_bert.modeling.fast.model_parts import find_blocks
from official_bert.modeling.pretraining_model import build_pretraining_model

_BATCH, _LONGEST = 2, 32
_TEXTS = (
    "The quick brown fox jumps over the lazy dog, 42 times!",
    "Don't stop: #1 e-mail (user@example.org) <tag> [E1] {x} $5.00",
    "UPPER lower MiXed Ünïcode na\u0308ive café",
    "日本語 and 中文, mixed\twith\n white  space",
)
# The contexts in which each added token occurs.
_TOKEN_TEMPLATES = ("{0}", "the {0} cat", "the{0}, {0}{0}.")


def find_largest_difference(a: dict[str, Array], b: dict[str, Array]) -> float:
    """Returns the largest absolute difference between two dicts of arrays, or infinity if names or shapes differ."""
    if a.keys() != b.keys() or any(a[name].shape != b[name].shape for name in a):
        return float("inf")
    return max((float(np.abs(a[name] - b[name]).max(initial=0.0)) for name in a), default=0.0)


def make_fixed_input(config: BertConfig) -> dict[str, Array]:
    """Returns the same input features [B, S], int32, for every comparison: random tokens, padding and both segments."""
    rng = np.random.default_rng(0)
    length = min(_LONGEST, config.max_position_embeddings)
    lengths = np.array([[length], [length // 2 + 1]])
    positions = np.arange(length)
    mask = positions < lengths
    return {
        "input_ids": (rng.integers(0, config.vocab_size, (_BATCH, length)) * mask).astype(np.int32),
        "input_mask": mask.astype(np.int32),
        "segment_ids": ((positions >= lengths // 2) & mask & (config.type_vocab_size > 1)).astype(np.int32),
    }


def compute_outputs(checkpoint: LoadedModel, features: Mapping[str, Array] | None = None) -> dict[str, Array]:
    """Runs our model on input features and returns the outputs of all parts that the checkpoint has.

    Args:
        checkpoint: The checkpoint.
        features: The input features [B, S], by name. Defaults to the result of `make_fixed_input`.

    Returns:
        Arrays by name: hidden_<n> [B, S, H] is the output of block n. pooled_output [B, H], masked_lm_logits [B, S, V],
        next_sentence_logits [B, 2], and logits [B, C] or [B, S, C] of a task head exist if the checkpoint has the part.
    """
    config, parts = checkpoint.config, checkpoint.parts
    features = features or make_fixed_input(config)
    # Parts that the checkpoint lacks are built, and their outputs are dropped.
    model = build_pretraining_model(config)
    assign_weights(model, checkpoint.weights, allow_missing=True)
    batch, length = features["input_ids"].shape
    everywhere = np.broadcast_to(np.arange(length, dtype=np.int32), (batch, length))
    blocks = [block.encoded for block in find_blocks(model)]
    inner = {"pooled_output": model.get_layer(layer_names.POOLER).output, "encoder_outputs": blocks}
    computed = keras.Model(model.input, {**model.output, **inner})({**features, "masked_lm_positions": everywhere})
    pooled, encoded = computed["pooled_output"], computed["encoder_outputs"]
    outputs = {f"hidden_{number}": layer for number, layer in enumerate(encoded)}
    names = {POOLER: "pooled_output", MASKED_LM: "masked_lm_logits", NEXT_SENTENCE: "next_sentence_logits"}
    outputs |= {name: computed[name] for part, name in names.items() if part in parts}
    for part in set(TASK_HEADS) & set(parts):
        kernel, bias = (checkpoint.weights[f"{PARTS[part]}/{name}"] for name in ("kernel", "bias"))
        outputs["logits"] = (pooled if part in POOLED_HEADS else encoded[-1]) @ kernel + bias
    return {name: np.asarray(value) for name, value in outputs.items()}


def compare_texts(checkpoint: LoadedModel, framework: Framework, folder: str) -> int:
    """Compares the ids of our tokenizer with the ids of the framework that the folder's format belongs to.

    Returns:
        The number of texts, which is 0 without a vocabulary or if the framework's tokenizer is not compared.

    Raises:
        UserError: If the ids of a text differ.
        ModuleNotFoundError: If the framework is not installed.
    """
    if framework.encode is None or checkpoint.vocab is None:
        return 0
    tokenizer, added = checkpoint.tokenizer, checkpoint.casing.added_tokens
    texts = [*_TEXTS, *(template.format(token.content) for token in added for template in _TOKEN_TEMPLATES)]
    for text, theirs in zip(texts, framework.encode(folder, texts), strict=True):
        tokens = tokenizer.tokenize(text)
        if tokenizer.convert_tokens_to_ids(tokens) != theirs:
            names = [tokenizer.inv_vocab.get(index, str(index)) for index in theirs]
            advice = "; pass --do_lower_case or --nodo_lower_case, because the files do not state the casing"
            raise UserError(
                f"{framework.title} splits the text {text!r} into {' '.join(names)} with the tokenizer in {folder}, "
                f"but this model splits it into {' '.join(tokens)}{'' if checkpoint.states_casing else advice}"
            )
    return len(texts)


def compare_forward_pass(checkpoint: LoadedModel, framework: Framework, folder: str) -> float:
    """Returns the largest difference between our outputs and the outputs of `framework` for the same folder.

    Raises:
        ModuleNotFoundError: If the framework is not installed.
    """
    expected = framework.outputs(checkpoint, folder, make_fixed_input(checkpoint.config))
    computed = compute_outputs(checkpoint)
    return find_largest_difference({name: computed[name] for name in expected}, expected)
