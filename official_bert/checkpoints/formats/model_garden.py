"""TensorFlow model garden's object checkpoints: of its encoders, its pretrainers, and its classifier of sentences.

They are read only. Their keys are paths among Python objects, layer_with_weights-4 and so on, and change with the code;
the graph of objects in the file also tells each variable's own name, which is what is looked for here.

A head there may have a pooler of its own, which is the one that was trained: it is read as the pooler, and the
encoder's, which then stands in the file with its initial values, is left behind.
"""

import os
import re

import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

from official_bert.checkpoints import bundle
from official_bert.checkpoints.checkpoint import LoadedModel, LoadOverrides, names_by_variable
from official_bert.checkpoints.formats.format import CheckpointPath, Format
from official_bert.checkpoints.model_files import read_model_files
from official_bert.checkpoints.tensors import Naming, Source, read_weights, with_head_axis
from official_bert.errors import UserError

NAME = "model garden"

# Names of variables there, by ours (`names_by_variable`); {} is the number of a block.
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
NAMES = names_by_variable(_TABLE)
# The name of a model may stand before these, as in bert/cls/predictions/output_bias/bias.
_NAME_OF_MODEL = re.compile(
    r"^.*?(?=\b(word_embeddings|type_embeddings|position_embedding|embeddings/layer_norm|transformer/layer_\d+|"
    r"pooler_transform|cls/predictions|next_sentence|sentence_prediction|predictions/transform/logits)/)"
)
# Names of 2019 and 2020, and what they are called since.
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
# BertPretrainer's next-sentence head, before there was BertPretrainerV2. Its classifier of tokens and its model of
# spans use the name too, and cannot be told apart, but have no masked-LM head.
_OLD_NEXT_SENTENCE, _NEXT_SENTENCE = "predictions/transform/logits/", "next_sentence/logits/"

# What is no weight, or one that nothing is computed from.
IGNORED = {
    "of the optimizer's moments and step": r"(.*/)?(global_step|optimizer|\.OPTIMIZER_SLOT)/.*",
    "of TensorFlow's own (number of saves, graph of objects)": rf"save_counter/.*|{GRAPH}",
    "of the casing": CASING,
    "of the encoder's pooler, in whose place the head has its own": rf"{_SPARE_POOLER}(kernel|bias)",
}
NAMING = Naming(NAMES, with_head_axis, IGNORED)


def detect(path: CheckpointPath) -> bool:
    """Whether a path holds a checkpoint of objects, with the names of model garden's encoder."""
    source = path.bundle
    if not isinstance(source, Source) or GRAPH not in source.shapes:
        return False
    return NAMES["word_embeddings/embeddings"] in by_variable_name(source).shapes


def read(path: str, overrides: LoadOverrides) -> LoadedModel:
    """Reads a checkpoint; its folder, or `overrides`, has bert_config.json and vocab.txt.

    Raises:
        UserError: something is missing, left over, damaged, or does not fit together.
    """
    prefix = bundle.find_prefix(path)
    described = read_model_files(os.path.dirname(prefix), overrides)
    source = by_variable_name(bundle.open_bundle(prefix))
    return read_weights(described, source, NAMING, overrides)


def by_variable_name(source: Source) -> Source:
    """Returns the source under the variables' own names; what has none, or is no weight, is under its key.

    Raises:
        UserError: the graph of objects, which tells the names, is damaged.
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
    return Source(source.path, shapes, lambda name: source.read(keys[name]))


def _rename_head(keys: dict[str, str]) -> None:
    """Gives the old next-sentence head the name of the new one, and the pooler of a head that of the encoder's."""
    replaced = []
    if NAMES["masked_lm_output/bias"] in keys:
        replaced.append((_OLD_NEXT_SENTENCE, _NEXT_SENTENCE))
    for pooler in _POOLERS_OF_HEADS:
        if f"{pooler}kernel" in keys:
            replaced += [(_POOLER, _SPARE_POOLER), (pooler, _POOLER)]
    for before, after in replaced:
        for variable in ("kernel", "bias"):
            if before + variable in keys and after + variable not in keys:
                keys[after + variable] = keys.pop(before + variable)


FORMAT = Format(name="model_garden", title=NAME, detect=detect, read=read)
