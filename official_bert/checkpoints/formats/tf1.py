"""Google's TF1 checkpoints: bert_config.json, vocab.txt and bert_model.ckpt.*. TensorFlow 1 is not needed."""

import functools
import os

import numpy as np

from official_bert.checkpoints import bundle
from official_bert.checkpoints.checkpoint import SLOTS, LoadedModel, LoadOverrides
from official_bert.checkpoints.formats.format import CheckpointPath, Format
from official_bert.checkpoints.model_files import format_model_files, read_model_files, write_model_files
from official_bert.checkpoints.tensors import SUFFIXES, Naming, look_up_name, read_weights, to_external
from official_bert.errors import UserError
from official_bert.modeling.config import LAYER_NORM_EPSILON

NAME = "Google TF1"
CHECKPOINT = "bert_model.ckpt"
STEP = "global_step"

# Google's names, by layer or variable of our models (see `look_up_name`). {} is the number of a block.
_TABLE = {
    "word_embeddings/embeddings": "bert/embeddings/word_embeddings",
    "token_type_embeddings/embeddings": "bert/embeddings/token_type_embeddings",
    "position_embeddings/embeddings": "bert/embeddings/position_embeddings",
    "embeddings_layer_norm": "bert/embeddings/LayerNorm",
    "layer_{}_attention_query": "bert/encoder/layer_{}/attention/self/query",
    "layer_{}_attention_key": "bert/encoder/layer_{}/attention/self/key",
    "layer_{}_attention_value": "bert/encoder/layer_{}/attention/self/value",
    "layer_{}_attention_output": "bert/encoder/layer_{}/attention/output/dense",
    "layer_{}_attention_layer_norm": "bert/encoder/layer_{}/attention/output/LayerNorm",
    "layer_{}_intermediate": "bert/encoder/layer_{}/intermediate/dense",
    "layer_{}_output": "bert/encoder/layer_{}/output/dense",
    "layer_{}_output_layer_norm": "bert/encoder/layer_{}/output/LayerNorm",
    "pooler": "bert/pooler/dense",
    "masked_lm_transform": "cls/predictions/transform/dense",
    "masked_lm_layer_norm": "cls/predictions/transform/LayerNorm",
    "masked_lm_output/bias": "cls/predictions/output_bias",
    "next_sentence/kernel": "cls/seq_relationship/output_weights",
    "next_sentence/bias": "cls/seq_relationship/output_bias",
    "sequence_classifier/kernel": "output_weights",
    "sequence_classifier/bias": "output_bias",
    "question_answering/kernel": "cls/squad/output_weights",
    "question_answering/bias": "cls/squad/output_bias",
}
# Tensors that are not weights.
_MOMENTS = {"of the optimizer's moments and step (--optimizer takes them)": rf".*/({'|'.join(SLOTS)})|{STEP}"}
# Variables of users' own training programs. The name of an optimizer slot begins with the name of its variable.
_VARIABLE = "(kernel|bias|gamma|beta|output_bias|output_weights|(word|token_type|position)_embeddings)"
_OTHER_PROGRAMS = {
    "of another optimizer": (
        rf"(.*/)?({_VARIABLE}/[^/]+|(beta[12]_power|\w*loss_scale\w*|good_steps|accum_step)(_\d+)?)"
    ),
    "of heads or programs that BERT does not have": (
        r"(?!(bert/(embeddings|encoder|pooler)|cls/(predictions|seq_relationship))/).*"
    ),
}


NAMING = Naming(
    functools.partial(look_up_name, _TABLE, SUFFIXES),
    # Google stores the kernels of these heads as [classes, H]. Ours are [H, classes].
    transposed="(next_sentence|sequence_classifier|question_answering)/kernel",
    ignored=_MOMENTS,
    foreign=_OTHER_PROGRAMS,
    slot_name=lambda _, theirs, slot: f"{theirs}/{slot}",
    step=STEP,
)


def detect(path: CheckpointPath) -> bool:
    """Returns whether a path holds a TensorFlow checkpoint with the tensor names of google-research/bert."""
    return path.has_tensor(_TABLE["word_embeddings/embeddings"])


def read(path: CheckpointPath, overrides: LoadOverrides) -> LoadedModel:
    """Reads a TF1 checkpoint with its configuration and vocabulary.

    Raises:
        UserError: If a file or tensor is missing, unexpected or damaged, or files contradict each other.
    """
    source = path.open_bundle()
    return read_weights(read_model_files(os.path.dirname(source.path), overrides), source, NAMING, overrides)


def write(checkpoint: LoadedModel, folder: str) -> LoadedModel:
    """Writes a TF1 checkpoint with the same bytes as Google's scripts would write. Returns the model that was written.

    Raises:
        UserError: If Google's code would compute different outputs or has no name for one of the weights.
    """
    config = checkpoint.config
    if config.layer_norm_eps != LAYER_NORM_EPSILON:
        raise UserError(
            f"the model has layer_norm_eps {config.layer_norm_eps}; Google's code always uses "
            f"{LAYER_NORM_EPSILON}, so its outputs would differ; choose another --to_format"
        )
    tensors = to_external(checkpoint.weights, config, NAMING, NAME)
    for path, value in checkpoint.slots.items():
        name, slot = path.rsplit("/", 1)
        tensors[f"{NAMING.get_name(name)}/{slot}"] = NAMING.to_stored(name, value, config)
    if checkpoint.slots:
        tensors[STEP] = np.array(checkpoint.step or 0, np.int64)
    bundle.write_bundle(os.path.join(folder, CHECKPOINT), tensors)
    write_model_files(folder, format_model_files(checkpoint))
    if config.hidden_act != "gelu_exact":
        return checkpoint
    return checkpoint.add_notes(
        "Google's code has no gelu_exact and will reject the configuration. Convert with --hidden_act=gelu to store "
        "the tanh approximation."
    )


FORMAT = Format(name="tf1", title=NAME, detect=detect, read=read, write=write, holds_optimizer=True)
