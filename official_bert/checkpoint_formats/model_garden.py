"""TensorFlow model garden's object checkpoints: of a BertEncoder, or of a BertPretrainerV2 with the masked-LM head.

They are read only. Their keys are paths among Python objects, layer_with_weights-4 and so on, and change with the code;
the graph of objects in the file also tells each variable's own name, which is what is looked for here.
"""

import os
import re

import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

from official_bert.checkpoint_formats import bundle
from official_bert.checkpoint_formats.checkpoint import Checkpoint, Given, Source, collect, with_head_axis
from official_bert.checkpoint_formats.google_files import read_small_files
from official_bert.errors import UserError

NAME = "model garden"

# Names of variables there, by ours; {} is the number of a block.
NAMES = {
    "word_embeddings/embeddings": "word_embeddings/embeddings",
    "token_type_embeddings/embeddings": "type_embeddings/embeddings",
    "position_embeddings/embeddings": "position_embedding/embeddings",
    "embeddings_layer_norm/gamma": "embeddings/layer_norm/gamma",
    "embeddings_layer_norm/beta": "embeddings/layer_norm/beta",
    "layer_{}_attention_query/kernel": "transformer/layer_{}/self_attention/query/kernel",
    "layer_{}_attention_query/bias": "transformer/layer_{}/self_attention/query/bias",
    "layer_{}_attention_key/kernel": "transformer/layer_{}/self_attention/key/kernel",
    "layer_{}_attention_key/bias": "transformer/layer_{}/self_attention/key/bias",
    "layer_{}_attention_value/kernel": "transformer/layer_{}/self_attention/value/kernel",
    "layer_{}_attention_value/bias": "transformer/layer_{}/self_attention/value/bias",
    "layer_{}_attention_output/kernel": "transformer/layer_{}/self_attention/attention_output/kernel",
    "layer_{}_attention_output/bias": "transformer/layer_{}/self_attention/attention_output/bias",
    "layer_{}_attention_layer_norm/gamma": "transformer/layer_{}/self_attention_layer_norm/gamma",
    "layer_{}_attention_layer_norm/beta": "transformer/layer_{}/self_attention_layer_norm/beta",
    "layer_{}_intermediate/kernel": "transformer/layer_{}/intermediate/kernel",
    "layer_{}_intermediate/bias": "transformer/layer_{}/intermediate/bias",
    "layer_{}_output/kernel": "transformer/layer_{}/output/kernel",
    "layer_{}_output/bias": "transformer/layer_{}/output/bias",
    "layer_{}_output_layer_norm/gamma": "transformer/layer_{}/output_layer_norm/gamma",
    "layer_{}_output_layer_norm/beta": "transformer/layer_{}/output_layer_norm/beta",
    "pooler/kernel": "pooler_transform/kernel",
    "pooler/bias": "pooler_transform/bias",
    "masked_lm_transform/kernel": "cls/predictions/transform/dense/kernel",
    "masked_lm_transform/bias": "cls/predictions/transform/dense/bias",
    "masked_lm_layer_norm/gamma": "cls/predictions/transform/LayerNorm/gamma",
    "masked_lm_layer_norm/beta": "cls/predictions/transform/LayerNorm/beta",
    "masked_lm_output/bias": "cls/predictions/output_bias/bias",
}
_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
# Keys of what is no weight: the graph, the number of saves, an optimizer and its averages.
_IGNORED_KEYS = re.compile(rf"{_GRAPH}|save_counter/.*|(.*/)?global_step/.*|(.*/)?optimizer/.*|.*/\.OPTIMIZER_SLOT/.*")


def is_format(source: Source) -> bool:
    """Whether a checkpoint is one of objects, with the names of model garden's encoder."""
    return _GRAPH in source.shapes and NAMES["word_embeddings/embeddings"] in _by_variable_name(source).shapes


def read(path: str, given: Given) -> Checkpoint:
    """Reads a checkpoint; its folder, or `given`, has bert_config.json and vocab.txt.

    Raises:
        UserError: something is missing, left over, damaged, or does not fit together.
    """
    if given.optimizer:
        raise UserError(f"the {NAME} format is read without the optimizer's state; convert without --optimizer")
    prefix = bundle.prefix_of(path)
    small = read_small_files(os.path.dirname(prefix), given)
    source = _by_variable_name(bundle.open_bundle(prefix))
    return small.checkpoint(collect(source, small.config, NAMES, with_head_axis(small.config)))


def _by_variable_name(source: Source) -> Source:
    """The source under the variables' own names."""
    graph = trackable_object_graph_pb2.TrackableObjectGraph()
    try:
        graph.ParseFromString(bytes(source.read(_GRAPH)))
    except (tf.errors.OpError, ValueError, TypeError, RuntimeError) as error:
        raise UserError(f"{_GRAPH} in {source.path} is damaged: {error}; restore the file from a copy") from error
    keys: dict[str, str] = {}
    for node in graph.nodes:
        for attribute in node.attributes:
            if attribute.checkpoint_key in source.shapes and not _IGNORED_KEYS.fullmatch(attribute.checkpoint_key):
                # A pretrainer's name stands before those of its head.
                keys[re.sub(r"^.*/(?=cls/predictions/)", "", attribute.full_name)] = attribute.checkpoint_key
    named = set(keys.values())
    shapes = {name: source.shapes[key] for name, key in keys.items()}
    # What the graph does not name is left over, under its key.
    left = {key: shape for key, shape in source.shapes.items() if key not in named and not _IGNORED_KEYS.fullmatch(key)}
    return Source(source.path, {**shapes, **left}, lambda name: source.read(keys[name]))
