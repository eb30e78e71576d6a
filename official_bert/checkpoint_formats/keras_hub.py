"""keras-hub presets: folders that keras_hub.models.BertBackbone.from_preset and BertTokenizer.from_preset load.

keras-hub is not needed to read and write them. The weights are Keras' HDF5 files: the backbone's in model.weights.h5,
a task's head in task.weights.h5, variables numbered within their layer.
"""

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from official_bert import files
from official_bert.checkpoint_formats import checksums
from official_bert.checkpoint_formats.checkpoint import (
    ENCODER,
    MASKED_LM,
    POOLER,
    SEQUENCE_CLASSIFIER,
    Array,
    Checkpoint,
    Given,
    Source,
    as_theirs,
    check_vocabulary,
    collect,
    is_uncased,
    numbered,
    only,
    take_inventory,
    with_head_axis,
)
from official_bert.config import LAYER_NORM_EPSILON, BertConfig
from official_bert.errors import UserError

NAME = "keras-hub"
VERSION = "0.32.0"  # whose files these are
CONFIG_FILE = "config.json"
METADATA_FILE = "metadata.json"
TOKENIZER_FILE = "tokenizer.json"
VOCAB_FILE = "assets/tokenizer/vocabulary.txt"
PREPROCESSOR_FILE = "preprocessor.json"
TASK_FILE = "task.json"
MODEL_WEIGHTS_FILE = "model.weights.h5"
TASK_WEIGHTS_FILE = "task.weights.h5"

_BLOCK = "model.weights.h5/layers/transformer_encoder_{}/"
# File and name there, by our names; {} is the number of a block. (Block 0 has no number in the file.)
NAMES = {
    "word_embeddings/embeddings": "model.weights.h5/layers/reversible_embedding/vars/0",
    "token_type_embeddings/embeddings": "model.weights.h5/layers/embedding/vars/0",
    "position_embeddings/embeddings": "model.weights.h5/layers/position_embedding/vars/0",
    "embeddings_layer_norm/gamma": "model.weights.h5/layers/layer_normalization/vars/0",
    "embeddings_layer_norm/beta": "model.weights.h5/layers/layer_normalization/vars/1",
    "layer_{}_attention_query/kernel": _BLOCK + "_self_attention_layer/query_dense/vars/0",
    "layer_{}_attention_query/bias": _BLOCK + "_self_attention_layer/query_dense/vars/1",
    "layer_{}_attention_key/kernel": _BLOCK + "_self_attention_layer/key_dense/vars/0",
    "layer_{}_attention_key/bias": _BLOCK + "_self_attention_layer/key_dense/vars/1",
    "layer_{}_attention_value/kernel": _BLOCK + "_self_attention_layer/value_dense/vars/0",
    "layer_{}_attention_value/bias": _BLOCK + "_self_attention_layer/value_dense/vars/1",
    "layer_{}_attention_output/kernel": _BLOCK + "_self_attention_layer/output_dense/vars/0",
    "layer_{}_attention_output/bias": _BLOCK + "_self_attention_layer/output_dense/vars/1",
    "layer_{}_attention_layer_norm/gamma": _BLOCK + "_self_attention_layer_norm/vars/0",
    "layer_{}_attention_layer_norm/beta": _BLOCK + "_self_attention_layer_norm/vars/1",
    "layer_{}_intermediate/kernel": _BLOCK + "_feedforward_intermediate_dense/vars/0",
    "layer_{}_intermediate/bias": _BLOCK + "_feedforward_intermediate_dense/vars/1",
    "layer_{}_output/kernel": _BLOCK + "_feedforward_output_dense/vars/0",
    "layer_{}_output/bias": _BLOCK + "_feedforward_output_dense/vars/1",
    "layer_{}_output_layer_norm/gamma": _BLOCK + "_feedforward_layer_norm/vars/0",
    "layer_{}_output_layer_norm/beta": _BLOCK + "_feedforward_layer_norm/vars/1",
    "pooler/kernel": "model.weights.h5/layers/dense/vars/0",
    "pooler/bias": "model.weights.h5/layers/dense/vars/1",
    "masked_lm_transform/kernel": "task.weights.h5/layers/masked_lm_head/_intermediate_dense/vars/0",
    "masked_lm_transform/bias": "task.weights.h5/layers/masked_lm_head/_intermediate_dense/vars/1",
    "masked_lm_layer_norm/gamma": "task.weights.h5/layers/masked_lm_head/_intermediate_layer_norm/vars/0",
    "masked_lm_layer_norm/beta": "task.weights.h5/layers/masked_lm_head/_intermediate_layer_norm/vars/1",
    "masked_lm_output/bias": "task.weights.h5/layers/masked_lm_head/vars/0",
    "sequence_classifier/kernel": "task.weights.h5/layers/dense/vars/0",
    "sequence_classifier/bias": "task.weights.h5/layers/dense/vars/1",
}
# A task is compiled when it is loaded, and then wants its optimizer's step and learning rate.
_TASK_OPTIMIZER: dict[str, Array] = {
    "optimizer/vars/0": np.array(0, np.int64),
    "optimizer/vars/1": np.array(5e-5, np.float32),
}
_IGNORED = {"of the optimizer's state": r"(model|task)\.weights\.h5/optimizer/vars/\d+"}

# Keys of a backbone's configuration, by ours.
_KEYS = {
    "vocab_size": "vocabulary_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "hidden_size": "hidden_dim",
    "intermediate_size": "intermediate_dim",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "dropout",
    "max_position_embeddings": "max_sequence_length",
    "type_vocab_size": "num_segments",
}
_INITIALIZER_RANGE = 0.02
# A weight of each task's head.
_HEADS = {"BertMaskedLM": "masked_lm_output/bias", "BertTextClassifier": "sequence_classifier/bias"}
_MASKED_LM_NOTE = (
    "keras-hub's masked-LM head computes with the exact GELU and an epsilon of 1e-5, BERT's with the encoder's: its "
    "weights come across to the bit, its logits there and here differ slightly"
)
_LABELS_NOTE = "left out, since a preset has no place for them: the classes' names, in the order of the logits {}"


def is_format(folder: str) -> bool:
    """Whether a folder looks like a preset of keras-hub's."""
    return files.exists(os.path.join(folder, MODEL_WEIGHTS_FILE))


def read(path: str, given: Given) -> Checkpoint:
    """Reads a preset's folder.

    Args:
        path: the folder, or its model.weights.h5.
        given: a vocabulary to take in place of the folder's, with its casing.

    Raises:
        UserError: something is missing, left over or damaged, or the preset is none of BERT's.
    """
    folder = os.path.dirname(path) if os.path.basename(path) == MODEL_WEIGHTS_FILE else path
    if given.optimizer:
        raise UserError(f"the {NAME} format is read without the optimizer's state; convert without --optimizer")
    checksums.check_files(folder)
    config = _read_config(os.path.join(folder, CONFIG_FILE))
    vocab, do_lower_case, notes = _read_tokenizer(folder, config, given)
    source = checksums.with_checks(_open_weights(folder), folder)
    weights = collect(source, config, NAMES, with_head_axis(config), _IGNORED)
    _check_head(folder, weights)
    if "masked_lm_output/bias" in weights:
        notes += (_MASKED_LM_NOTE,)
    theirs = numbered(NAMES, config)
    inventory = take_inventory(source, {theirs[name]: name for name in weights}, _IGNORED)
    return Checkpoint(config, weights, vocab, do_lower_case, notes=notes, inventory=inventory)


def _read_config(path: str) -> BertConfig:
    values = files.read_json_object(path)
    if values.get("class_name") != "BertBackbone":
        raise UserError(f"{path} describes a {values.get('class_name')}; expected a BertBackbone")
    inner = values.get("config")
    if not isinstance(inner, dict):
        raise UserError(f"{path} has no configuration of the backbone")
    missing = sorted({theirs for theirs in _KEYS.values() if theirs not in inner})
    if missing:
        raise UserError(f"{path} lacks {', '.join(missing)}")
    try:
        return BertConfig.from_dict({ours: inner[theirs] for ours, theirs in _KEYS.items()})
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def _read_tokenizer(folder: str, config: BertConfig, given: Given) -> tuple[str | None, bool, tuple[str, ...]]:
    """The vocabulary, whether it is uncased, and notes."""
    vocab_file = given.vocab_file or os.path.join(folder, VOCAB_FILE)
    settings_file = os.path.join(folder, TOKENIZER_FILE)
    if not given.vocab_file and not files.exists(vocab_file):
        note = f"{folder} has no {VOCAB_FILE}; give it as --vocab_file to have it written with the model"
        return None, given.do_lower_case is not False, (note,)
    vocab = files.read_text(vocab_file)
    notes = check_vocabulary(vocab, config, vocab_file)
    if given.do_lower_case is not None:
        return vocab, given.do_lower_case, notes
    if given.vocab_file or not files.exists(settings_file):
        return vocab, is_uncased(vocab), notes
    settings = files.read_json_object(settings_file).get("config")
    if not isinstance(settings, dict) or not isinstance(settings.get("lowercase"), bool):
        raise UserError(f"{settings_file} is damaged: it does not say whether to lower-case")
    if settings["lowercase"] and not settings.get("strip_accents"):
        notes += ("the preset's tokenizer keeps accents; BERT's, which is taken here, removes them in uncased models",)
    return vocab, settings["lowercase"], notes


def _check_head(folder: str, weights: Mapping[str, Array]) -> None:
    """Raises a UserError unless the head that the preset's task has is there."""
    task_file = os.path.join(folder, TASK_FILE)
    task = files.read_json_object(task_file).get("class_name") if files.exists(task_file) else None
    if task in _HEADS and _HEADS[task] not in weights:
        raise UserError(f"{task_file} describes a {task}, but its head is not in {TASK_WEIGHTS_FILE}")


def _open_weights(folder: str) -> Source:
    """Both files of weights as one source, names beginning with the file's."""
    sources = {MODEL_WEIGHTS_FILE: _open_hdf5(os.path.join(folder, MODEL_WEIGHTS_FILE))}
    if files.exists(os.path.join(folder, TASK_WEIGHTS_FILE)):
        sources[TASK_WEIGHTS_FILE] = _open_hdf5(os.path.join(folder, TASK_WEIGHTS_FILE))
    shapes = {f"{file}/{name}": shape for file, source in sources.items() for name, shape in source.shapes.items()}

    def read(name: str) -> Array:
        file, inner = name.split("/", 1)
        return sources[file].read(inner)

    return Source(folder, shapes, read)


def _open_hdf5(path: str) -> Source:
    """The numbered variables in one file."""
    import h5py

    if files.is_remote(path):
        raise UserError(f"{path} is on another file system; copy the folder to this machine first")
    shapes: dict[str, tuple[int, ...]] = {}

    def note(name: str, found: Any) -> None:
        if isinstance(found, h5py.Dataset):
            shapes[_numbered_block(name)] = tuple(found.shape)

    try:
        opened = h5py.File(path, "r")
        opened.visititems(note)
    except Exception as error:  # h5py raises whatever its C library meets
        raise UserError(f"{path} is damaged: {error}; restore the file from a copy") from error

    def read(name: str) -> Array:
        try:
            value: Array = opened[_unnumbered_first_block(name)][()]
        except Exception as error:
            raise UserError(f"{name} in {path} is damaged: {error}; restore the file from a copy") from error
        return value

    return Source(path, shapes, read)


def _numbered_block(name: str) -> str:
    return name.replace("/transformer_encoder/", "/transformer_encoder_0/")


def _unnumbered_first_block(name: str) -> str:
    return name.replace("/transformer_encoder_0/", "/transformer_encoder/")


def write(checkpoint: Checkpoint, folder: str) -> Checkpoint:
    """Writes a preset: the backbone, the tokenizer if there is a vocabulary, and a task with the head if there is one.

    Returns:
        What was written: without a next-sentence head and names of classes, for which keras-hub has no place.

    Raises:
        UserError: keras-hub's BERT would compute something else, or lacks a weight.
    """
    config = checkpoint.config
    wanted = {"hidden_act": "gelu", "layer_norm_eps": LAYER_NORM_EPSILON}
    for key, value in wanted.items():
        if getattr(config, key) != value:
            raise UserError(
                f"the model has {key} {getattr(config, key)}; keras-hub's BERT always computes with {value}, so its "
                "answers would differ" + ("; --hidden_act=gelu takes the model so" if key == "hidden_act" else "")
            )
    if config.hidden_dropout_prob != config.attention_probs_dropout_prob:
        raise UserError(
            f"the model has hidden_dropout_prob {config.hidden_dropout_prob} and attention_probs_dropout_prob "
            f"{config.attention_probs_dropout_prob}; keras-hub's BERT has one rate: make them equal first"
        )
    kept = only(checkpoint, {ENCODER, POOLER, MASKED_LM, SEQUENCE_CLASSIFIER}, NAME)
    if POOLER not in kept.parts:
        raise UserError("the checkpoint has no pooler, which keras-hub's backbone needs")
    if {MASKED_LM, SEQUENCE_CLASSIFIER} <= set(kept.parts):
        raise UserError(f"a preset holds one head; the checkpoint has {MASKED_LM} and {SEQUENCE_CLASSIFIER}")
    if config.initializer_range != _INITIALIZER_RANGE:
        config = dataclasses.replace(config, initializer_range=_INITIALIZER_RANGE)
        note = f"keras-hub's initializer_range is always {_INITIALIZER_RANGE}; the model's was not kept"
        kept = dataclasses.replace(kept, config=config, notes=(*kept.notes, note))
    if MASKED_LM in kept.parts and _MASKED_LM_NOTE not in kept.notes:
        kept = dataclasses.replace(kept, notes=(*kept.notes, _MASKED_LM_NOTE))
    if kept.labels is not None:
        note = _LABELS_NOTE.format(", ".join(kept.labels))
        kept = dataclasses.replace(kept, labels=None, notes=(*kept.notes, note))
    tensors = as_theirs(kept.weights, config, NAMES, with_head_axis(config), NAME)
    contents = _descriptions(kept)
    for name, content in contents.items():
        files.write_text(os.path.join(folder, name), content)
    for file in (MODEL_WEIGHTS_FILE, TASK_WEIGHTS_FILE):
        held = {name: value for name, value in tensors.items() if name.startswith(f"{file}/")}
        if held:
            named = {name.split("/", 1)[1]: value for name, value in held.items()}
            _write_hdf5(os.path.join(folder, file), named | (_TASK_OPTIMIZER if file == TASK_WEIGHTS_FILE else {}))
    checksums.write(folder, list(contents), tensors)
    return kept


def _write_hdf5(path: str, tensors: Mapping[str, Array]) -> None:
    import h5py

    with files.written_whole(path) as beside, h5py.File(beside, "w") as writer:
        for name, value in tensors.items():
            writer[_unnumbered_first_block(name)] = value


def _descriptions(checkpoint: Checkpoint) -> dict[str, str]:
    """The small files, by name, as keras-hub serializes its objects."""
    config = checkpoint.config
    inner: dict[str, Any] = {theirs: getattr(config, ours) for ours, theirs in _KEYS.items()}
    backbone = _serialized("bert_backbone", "BertBackbone", "float32", inner)
    # Those of the backbone alone.
    parameters = sum(
        value.size for name, value in checkpoint.weights.items() if not name.startswith(("masked_lm", "sequence"))
    )
    metadata = {"keras_version": "3.15.1", "keras_hub_version": VERSION, "parameter_count": parameters}
    values: dict[str, Any] = {CONFIG_FILE: backbone, METADATA_FILE: metadata}
    preprocessor = None
    contents = {}
    head = "BertMaskedLM" if MASKED_LM in checkpoint.parts else "BertTextClassifier"
    has_head = len(checkpoint.parts) > 2
    if checkpoint.vocab is not None:
        values[TOKENIZER_FILE] = tokenizer = _serialized(
            "bert_tokenizer",
            "BertTokenizer",
            "int32",
            {
                "config_file": TOKENIZER_FILE,
                "vocabulary": None,
                "lowercase": checkpoint.do_lower_case,
                "strip_accents": checkpoint.do_lower_case,
            },
        )
        contents[VOCAB_FILE] = checkpoint.vocab
        if has_head:
            values[PREPROCESSOR_FILE] = preprocessor = _serialized(
                f"{_snake(head)}_preprocessor",
                f"{head}Preprocessor",
                "float32",
                {
                    "tokenizer": tokenizer,
                    "config_file": PREPROCESSOR_FILE,
                    "sequence_length": config.max_position_embeddings,
                },
            )
    if has_head:
        task: dict[str, Any] = {"backbone": backbone, "preprocessor": preprocessor}
        if head == "BertTextClassifier":
            task |= {"num_classes": checkpoint.weights["sequence_classifier/bias"].shape[0], "activation": "linear"}
            task["dropout"] = config.hidden_dropout_prob
        values[TASK_FILE] = _serialized(_snake(head), head, None, task)
    return {**contents, **{name: json.dumps(value, indent=4) + "\n" for name, value in values.items()}}


def _serialized(module: str, name: str, dtype: str | None, config: dict[str, Any]) -> dict[str, Any]:
    policy = {"module": "keras", "class_name": "DTypePolicy", "config": {"name": dtype}, "registered_name": None}
    return {
        "module": f"keras_hub.src.models.bert.{module}",
        "class_name": name,
        "config": {"name": module, **({"trainable": True, "dtype": policy} if dtype else {}), **config},
        "registered_name": f"keras_hub>{name}",
    }


def _snake(name: str) -> str:
    return {"BertMaskedLM": "bert_masked_lm", "BertTextClassifier": "bert_text_classifier"}[name]
