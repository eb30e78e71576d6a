"""Saves an encoder and its preprocessing by the conventions of TensorFlow Hub for text encoders.

EXPORT_DIR/<version>/encoder takes input_word_ids, input_mask and input_type_ids, and can be trained further;
EXPORT_DIR/<version>/preprocess takes strings and returns these. Both load with hub.KerasLayer, with
keras.layers.TFSMLayer or with tf.saved_model.load, where TensorFlow and tensorflow-text are installed.

B batch, S sequence, H hidden size
"""

import os
import tempfile
from typing import Any

import keras
import tensorflow as tf

from official_bert.checkpoints.checkpoint import VOCAB_FILE
from official_bert.errors import UserError
from official_bert.export import graph_inputs
from official_bert.export.graph_inputs import token_spans
from official_bert.export.graph_tokenization import GraphTokenizer
from official_bert.modeling.config import BertConfig
from official_bert.modeling.dropout import dropout_seed
from official_bert.modeling.encoder import build_encoder
from official_bert.tokenization.exact import CLS, SEP, FullTokenizer
from official_bert.utils import files

ENCODER_FOLDER, PREPROCESS_FOLDER = "encoder", "preprocess"
SEQUENCE_LENGTH = 128  # what the preprocessing pads to by default, if the model has as many positions

# The convention's names, and ours.
_NAMES = {"input_word_ids": "input_ids", "input_mask": "input_mask", "input_type_ids": "segment_ids"}


def write(encoder: keras.Model, config: BertConfig, tokenizer: FullTokenizer, vocab: str, folder: str) -> None:
    """Writes both SavedModels into a folder; vocab is the text of the vocab.txt.

    Raises:
        UserError: the encoder has no pooled_output.
    """
    if "pooled_output" not in encoder.output:
        raise UserError("the model has no pooler, and so no pooled_output, which TensorFlow Hub's convention wants")
    write_encoder(encoder, config, os.path.join(folder, ENCODER_FOLDER))
    write_preprocessing(tokenizer, vocab, default_length(config), os.path.join(folder, PREPROCESS_FOLDER))


def default_length(config: BertConfig) -> int:
    """Returns what the preprocessing pads to by default."""
    return min(SEQUENCE_LENGTH, config.max_position_embeddings)


def write_encoder(encoder: keras.Model, config: BertConfig, folder: str) -> None:
    """Writes the encoder: a function of a dict of int32 [B, S].

    It returns a dict: default and pooled_output, [B, H]; sequence_output, [B, S, H]; encoder_outputs, a list of every
    block's output. With training=True there is dropout, from TensorFlow's random numbers. For keras.layers.TFSMLayer
    there are the endpoints "serve" and "train".
    """
    whole = build_encoder(config, return_all_layers=True)
    for variable, trained in zip(whole.variables, encoder.variables, strict=True):
        variable.assign(trained)

    @tf.function
    def call(inputs: dict[str, Any], training: bool = False) -> dict[str, Any]:
        features = {ours: inputs[name] for name, ours in _NAMES.items()}
        # A seed of its own for each call; without it the layers would keep one in a variable.
        with dropout_seed(tf.random.uniform([2], 0, 2**31 - 1, tf.int32)):
            outputs = whole(features, training=training)
        return {**outputs, "default": outputs["pooled_output"]}

    specs = {name: tf.TensorSpec([None, None], tf.int32, name=name) for name in _NAMES}
    for training in (False, True):
        call.get_concrete_function(specs, training=training)

    def named(outputs: dict[str, Any]) -> dict[str, Any]:
        return {name: outputs[name] for name in ("default", "pooled_output", "sequence_output")}

    # What keras.layers.TFSMLayer wants, which knows neither lists nor `training`.
    serve = tf.function(lambda inputs: named(call(inputs, training=False)), input_signature=[specs])
    train = tf.function(lambda inputs: named(call(inputs, training=True)), input_signature=[specs])
    serving = tf.function(lambda **inputs: serve(inputs))

    root = tf.train.Checkpoint()
    root.__call__, root.serve, root.train = call, serve, train
    root.variables = [variable.value for variable in whole.variables]
    root.trainable_variables = list(root.variables)
    root.regularization_losses = []
    tf.saved_model.save(root, folder, signatures=serving.get_concrete_function(**specs))


def write_preprocessing(tokenizer: FullTokenizer, vocab: str, default_length: int, folder: str) -> None:
    """Writes the preprocessing: strings [B] to the encoder's inputs, [B, default_length].

    Its parts are functions of their own: tokenize, strings to a ragged tensor [B, (words), (pieces)]; and
    bert_pack_inputs, which makes inputs of a list of one or two such tensors (or of [B, (pieces)]) and a seq_length.
    """
    graph_tokenizer = GraphTokenizer(tokenizer)
    cls, sep = tokenizer.vocab[CLS], tokenizer.vocab[SEP]
    strings = tf.TensorSpec([None], tf.string)

    @tf.function(input_signature=[strings])
    def tokenize(texts: Any) -> Any:
        tokens = graph_tokenizer.tokenize(texts)
        firsts = tf.where(tokens.word_starts.values)[:, 0]
        word_splits = tf.concat([firsts, [tf.size(tokens.ids.values, tf.int64)]], 0)
        words = tf.RaggedTensor.from_row_splits(tokens.ids.values, word_splits, validate=False)
        text_splits = tf.searchsorted(firsts, tf.cast(tokens.ids.row_splits, tf.int64), out_type=tf.int64)
        return tf.RaggedTensor.from_row_splits(words, text_splits, validate=False)

    def pack(segments: list[Any], seq_length: Any) -> dict[str, Any]:
        flat = [each.merge_dims(1, -1) if each.ragged_rank > 1 else each for each in segments]
        spans = [token_spans(each.with_row_splits_dtype(tf.int64)) for each in flat]
        first, second = graph_inputs.truncated(spans[0], spans[1] if len(spans) > 1 else None, seq_length)
        packed = graph_inputs.pack(first, second, cls, sep)
        padding = [[0, 0], [0, seq_length - tf.shape(packed["input_ids"])[1]]]
        return {name: tf.pad(packed[ours], padding) for name, ours in _NAMES.items()}

    @tf.function
    def bert_pack_inputs(segments: list[Any], seq_length: Any = default_length) -> dict[str, Any]:
        return pack(segments, seq_length)

    length = tf.TensorSpec([], tf.int32)
    for rank in (2, 3):
        spec = tf.RaggedTensorSpec([None] * rank, tf.int32, ragged_rank=rank - 1)
        for count in (1, 2):
            bert_pack_inputs.get_concrete_function([spec] * count, length)

    @tf.function(input_signature=[strings])
    def call(texts: Any) -> dict[str, Any]:
        return pack([graph_tokenizer.tokenize(texts).ids], tf.constant(default_length))

    root = tf.train.Checkpoint()
    root.__call__, root.tokenize, root.bert_pack_inputs = call, tokenize, bert_pack_inputs
    with tempfile.TemporaryDirectory() as local:
        vocab_file = os.path.join(local, VOCAB_FILE)
        files.write_text(vocab_file, vocab)
        root.vocabulary = tf.saved_model.Asset(vocab_file)
        tf.saved_model.save(root, folder, signatures=call.get_concrete_function())
