"""Checkpoints of the TensorFlow model garden: encoders, pre-training models and sentence classifiers. Read only.

Their keys are paths of Python objects, such as layer_with_weights-4, which change with the code. The object graph in
the file maps each key to the name of its variable, and we look weights up by these names.

A head may have its own pooler, which was trained instead of the encoder's. In this case the head's pooler is read, and
the encoder's pooler, which still has its initial values, is ignored.
"""

import functools
import os
import re

import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

from official_bert.checkpoints.checkpoint import LoadedModel, LoadOverrides
from official_bert.checkpoints.formats.format import CheckpointPath, Format
from official_bert.checkpoints.model_files import read_model_files
from official_bert.checkpoints.tensors import SUFFIXES, Naming, TensorFile, look_up_name, read_weights
from official_bert.errors import UserError

NAME = "model garden"

# Model garden's names, by layer or variable of our models (see `look_up_name`). {} is the number of a block.
_TABLE = {
    "word_embeddings": "word_embeddings",
    "token_type_embeddings": "type_embeddings",
    "position_embeddings": "position_embedding",
    "embeddings_layer_norm": "embeddings/layer_norm",
    "layer_{}_attention_query": "transformer/layer_{}/self_attention/query",
    "layer_{}_attention_key": "transformer/layer_{}/self_attention/key",
    "layer_{}_attention_value": "transformer/layer_{}/self_attention/value",
    "layer_{}_attention_output": "transformer/layer_{}/self_attention/attention_output",
    "layer_{}_attention_layer_norm": "transformer/layer_{}/self_attention_layer_norm",
    "layer_{}_intermediate": "transformer/layer_{}/intermediate",
    "layer_{}_output": "transformer/layer_{}/output",
    "layer_{}_output_layer_norm": "transformer/layer_{}/output_layer_norm",
    "pooler": "pooler_transform",
    "masked_lm_transform": "cls/predictions/transform/dense",
    "masked_lm_layer_norm": "cls/predictions/transform/LayerNorm",
    "masked_lm_output/bias": "cls/predictions/output_bias/bias",
    "next_sentence": "next_sentence/logits",
    "sequence_classifier": "sentence_prediction/logits",
}
get_name = functools.partial(look_up_name, _TABLE, SUFFIXES)
# A model's name may precede these, as in bert/cls/predictions/output_bias/bias.
_NAME_OF_MODEL = re.compile(
    r"^.*?(?=\b(word_embeddings|type_embeddings|position_embedding|embeddings/layer_norm|transformer/layer_\d+|"
    r"pooler_transform|cls/predictions|next_sentence|sentence_prediction|predictions/transform/logits)/)"
)
# Names of 2019 and 2020, and the names that replaced them.
_OLD_NAMES = {
    r"embedding_postprocessor/type_embeddings$": "type_embeddings/embeddings",
    r"embedding_postprocessor/position_embeddings$": "position_embedding/embeddings",
    r"embedding_postprocessor/layer_norm/": "embeddings/layer_norm/",
    r"\bencoder/layer_(?=\d+/)": "transformer/layer_",
    r"(?<=/)self_attention_output/": "self_attention/attention_output/",
}
CASING = r"(.*/)?do_lower_case/\.ATTRIBUTES/VARIABLE_VALUE"  # a variable of SavedModels
GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_POOLER, _SPARE_POOLER = "pooler_transform/", "the encoder's pooler_transform/"
_POOLERS_OF_HEADS = ("next_sentence/pooler_dense/", "sentence_prediction/pooler_dense/")
# The next-sentence head of BertPretrainer, the predecessor of BertPretrainerV2. Model garden's token classifier and
# span model use the same name, but have no masked-LM head.
_OLD_NEXT_SENTENCE, _NEXT_SENTENCE = "predictions/transform/logits/", "next_sentence/logits/"

# Tensors that are not weights, or that the model does not use.
IGNORED = {
    "of the optimizer's moments and step": r"(.*/)?(global_step|optimizer|\.OPTIMIZER_SLOT)/.*",
    "of TensorFlow's own (number of saves, graph of objects)": rf"save_counter/.*|{GRAPH}",
    "of the casing": CASING,
    "of the encoder's pooler, in whose place the head has its own": rf"{_SPARE_POOLER}(kernel|bias)",
}
NAMING = Naming(get_name, splits_heads=True, ignored=IGNORED)


def detect(path: CheckpointPath) -> bool:
    """Returns whether a path holds an object-based TensorFlow checkpoint with the model garden's variable names."""
    return (
        path.has_tensor(GRAPH) and get_name("word_embeddings/embeddings") in rename_variables(path.open_bundle()).shapes
    )


def read(path: CheckpointPath, overrides: LoadOverrides) -> LoadedModel:
    """Reads a checkpoint. bert_config.json and vocab.txt come from its folder or from `overrides`.

    Raises:
        UserError: If a file or tensor is missing, unexpected or damaged, or files contradict each other.
    """
    source = rename_variables(path.open_bundle())
    return read_weights(read_model_files(os.path.dirname(source.path), overrides), source, NAMING, overrides)


def rename_variables(source: TensorFile) -> TensorFile:
    """Returns the source with variable names in place of object paths.

    Other objects, such as the optimizer's variables, keep their keys. The source is returned unchanged if it has no
    object graph.

    Raises:
        UserError: If the object graph, which contains the names, is damaged.
    """
    if GRAPH not in source.shapes:
        return source
    graph = trackable_object_graph_pb2.TrackableObjectGraph()
    try:
        graph.ParseFromString(bytes(source.read(GRAPH)))
    except (tf.errors.OpError, ValueError, TypeError, RuntimeError) as error:
        raise UserError(f"{GRAPH} in {source.path} is damaged: {error}; restore the file from a copy") from error
    keys = {key: key for key in source.shapes}
    for node in graph.nodes:
        for attribute in node.attributes:
            key, name = attribute.checkpoint_key, attribute.full_name
            for old, new in _OLD_NAMES.items():
                name = re.sub(old, new, name)
            name = _NAME_OF_MODEL.sub("", name)
            is_weight = key in keys and not any(re.fullmatch(pattern, key) for pattern in IGNORED.values())
            if is_weight and name not in keys:
                keys[name] = keys.pop(key)
    _rename_head(keys)
    shapes = {name: source.shapes[key] for name, key in keys.items()}
    return TensorFile(source.path, shapes, lambda name: source.read(keys[name]))


def _rename_head(keys: dict[str, str]) -> None:
    """Renames keys of a dict in place: the old next-sentence head, and a head's own pooler to the encoder's pooler.

    Args:
        keys: The key in the checkpoint, by variable name.
    """
    replaced = []
    if get_name("masked_lm_output/bias") in keys:
        replaced.append((_OLD_NEXT_SENTENCE, _NEXT_SENTENCE))
    for pooler in _POOLERS_OF_HEADS:
        if f"{pooler}kernel" in keys:
            replaced += [(_POOLER, _SPARE_POOLER), (pooler, _POOLER)]
    for before, after in replaced:
        for variable in ("kernel", "bias"):
            if before + variable in keys and after + variable not in keys:
                keys[after + variable] = keys.pop(before + variable)


FORMAT = Format(name="model_garden", title=NAME, detect=detect, read=read)
