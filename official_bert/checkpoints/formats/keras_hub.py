"""keras-hub presets: folders that keras_hub.models.BertBackbone.from_preset and BertTokenizer.from_preset load.

keras-hub is not needed to read and write them. Presets of keras-nlp, its predecessor, can be read too. The weights are
Keras HDF5 files: model.weights.h5 for the backbone and task.weights.h5 for a task's head. Variables are numbered within
their layer.
"""

import dataclasses
import functools
import json
import os
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from official_bert.checkpoints import checksums, hdf5
from official_bert.checkpoints.checkpoint import (
    ENCODER,
    MASKED_LM,
    POOLER,
    SEQUENCE_CLASSIFIER,
    Array,
    LoadedModel,
    LoadOverrides,
)
from official_bert.checkpoints.formats import finetuned
from official_bert.checkpoints.formats.format import CheckpointPath, Format, Framework
from official_bert.checkpoints.model_files import write_model_files
from official_bert.checkpoints.tensors import Naming, TensorFile, keep_parts, look_up_name, read_weights, to_external
from official_bert.checkpoints.vocabulary import FoundTokenizer, resolve_tokenizer
from official_bert.errors import UserError
from official_bert.modeling.config import LAYER_NORM_EPSILON, BertConfig
from official_bert.tokenization.casing import NO_RULE, Casing, has_accents
from official_bert.utils import files

NAME = "keras-hub"
MODEL_WEIGHTS_FILE, TASK_WEIGHTS_FILE = "model.weights.h5", "task.weights.h5"
VERSION = "0.32.0"  # The version whose files are written.
CONFIG_FILE = "config.json"
METADATA_FILE = "metadata.json"
TOKENIZER_FILE = "tokenizer.json"
VOCAB_FILE = "assets/tokenizer/vocabulary.txt"
PREPROCESSOR_FILE = "preprocessor.json"
TASK_FILE = "task.json"

# Keys of a keras-hub backbone's configuration, by field of BertConfig.
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
_MODULES = {"BertMaskedLM": "bert_masked_lm", "BertTextClassifier": "bert_text_classifier"}
_ACCENTS_NOTE = (
    "the preset's tokenizer keeps accents, which is keras-hub's default, but its vocabulary contains none: accents "
    "are deleted, as in BERT's uncased models"
)
# A weight of each task's head.
_HEADS = {
    "BertMaskedLM": "masked_lm_output/bias",
    "BertTextClassifier": "sequence_classifier/bias",
    "BertClassifier": "sequence_classifier/bias",  # keras-nlp's name of it
}

_BLOCK = "model.weights.h5/layers/transformer_encoder_{}/"
# File and name in it, by layer or variable of our models (see `look_up_name`). {} is the number of a block.
# (Block 0 has no number in the file.)
_TABLE = {
    "word_embeddings": "model.weights.h5/layers/reversible_embedding",
    "token_type_embeddings": "model.weights.h5/layers/embedding",
    "position_embeddings": "model.weights.h5/layers/position_embedding",
    "embeddings_layer_norm": "model.weights.h5/layers/layer_normalization",
    "layer_{}_attention_query": _BLOCK + "_self_attention_layer/query_dense",
    "layer_{}_attention_key": _BLOCK + "_self_attention_layer/key_dense",
    "layer_{}_attention_value": _BLOCK + "_self_attention_layer/value_dense",
    "layer_{}_attention_output": _BLOCK + "_self_attention_layer/output_dense",
    "layer_{}_attention_layer_norm": _BLOCK + "_self_attention_layer_norm",
    "layer_{}_intermediate": _BLOCK + "_feedforward_intermediate_dense",
    "layer_{}_output": _BLOCK + "_feedforward_output_dense",
    "layer_{}_output_layer_norm": _BLOCK + "_feedforward_layer_norm",
    "pooler": "model.weights.h5/layers/dense",
    "masked_lm_transform": "task.weights.h5/layers/masked_lm_head/_intermediate_dense",
    "masked_lm_layer_norm": "task.weights.h5/layers/masked_lm_head/_intermediate_layer_norm",
    "masked_lm_output/bias": "task.weights.h5/layers/masked_lm_head/vars/0",
    "sequence_classifier": "task.weights.h5/layers/dense",
}
_SUFFIXES = {"embeddings": "/vars/0", "kernel": "/vars/0", "bias": "/vars/1", "gamma": "/vars/0", "beta": "/vars/1"}
# keras-hub compiles a task when it loads it, and then needs the optimizer's step and learning rate.
_TASK_OPTIMIZER: dict[str, Array] = {
    "optimizer/vars/0": np.array(0, np.int64),
    "optimizer/vars/1": np.array(5e-5, np.float32),
}
_IGNORED = {
    "of the optimizer's state": r"(model|task)\.weights\.h5/optimizer/vars/\d+",
    "of the backbone, which keras-nlp wrote with the task once more": r"task\.weights\.h5/layers/bert_backbone/.*",
}
NAMING = Naming(functools.partial(look_up_name, _TABLE, _SUFFIXES), splits_heads=True, ignored=_IGNORED)

_INITIALIZER_RANGE = 0.02
_MASKED_LM_NOTE = (
    "keras-hub's masked-LM head uses the exact GELU and an epsilon of 1e-5, but BERT's uses the encoder's: the "
    "weights are identical, but the logits differ slightly"
)
_LABELS_NOTE = "omitted, because a preset cannot store them: the names of the classes, in the order of the logits {}"


def detect(path: CheckpointPath) -> bool:
    """Returns whether a path holds a keras-hub preset.

    Models that this library fine-tuned have a task.json, too, but are not presets.
    """
    return path.has(MODEL_WEIGHTS_FILE) and not finetuned.is_finetuned(path.folder)


def read(path: CheckpointPath, overrides: LoadOverrides) -> LoadedModel:
    """Reads a keras-hub preset.

    Raises:
        UserError: If a file or tensor is missing, unexpected or damaged, or the preset is not a BERT.
    """
    folder = path.folder
    checksums.check_files(folder)
    config = _read_config(os.path.join(folder, CONFIG_FILE))
    described = _read_tokenizer(folder, config, overrides)
    source = checksums.verify_tensors(_open_weights(folder), folder)
    model = read_weights(described, source, NAMING, overrides)
    _check_head(folder, model.weights)
    return model.add_notes(_MASKED_LM_NOTE) if MASKED_LM in model.parts else model


def _open_weights(folder: str) -> TensorFile:
    """Opens the backbone's and the task's weight files as one source. Each name is prefixed with its file's name."""
    names = [MODEL_WEIGHTS_FILE]
    if files.exists(os.path.join(folder, TASK_WEIGHTS_FILE)):
        names.append(TASK_WEIGHTS_FILE)
    sources = {name: hdf5.open_hdf5(os.path.join(folder, name)) for name in names}
    holders = {
        _to_current_name(f"{file}/{name}"): (source, name) for file, source in sources.items() for name in source.shapes
    }
    shapes = {new: source.shapes[name] for new, (source, name) in holders.items()}

    def read(new: str) -> Array:
        source, name = holders[new]
        return source.read(name)

    return TensorFile(folder, shapes, read)


def _to_current_name(name: str) -> str:
    """Converts a tensor's name in the file to its current form in `_TABLE`. Keras 2 and keras-nlp used other names."""
    name = name.replace("/transformer_encoder/", "/transformer_encoder_0/")
    name = re.sub(r"(?<=/)_((query|key|value|output)_dense)(?=/)", r"\1", name)
    return re.sub(r"(?<=^model\.weights\.h5/)token_embedding(?=/)", "layers/reversible_embedding", name)


def _read_config(path: str) -> BertConfig:
    """Converts the config.json of a preset's backbone to a BertConfig."""
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


def _read_tokenizer(folder: str, config: BertConfig, overrides: LoadOverrides) -> LoadedModel:
    """Returns a model with the vocabulary and casing of a preset and notes for the user, and without weights.

    keras-hub's tokenizer keeps accents by default, even in presets of models that were trained on text without accents.
    Therefore, if no token of an uncased vocabulary contains an accent, the returned casing deletes accents.

    Raises:
        UserError: If a file is damaged or contradicts the user's settings, or the tokenizer strips accents but keeps
            capital letters.
    """
    vocab_file, settings_file = os.path.join(folder, VOCAB_FILE), os.path.join(folder, TOKENIZER_FILE)
    vocabularies = {vocab_file: files.read_text(vocab_file)} if files.exists(vocab_file) else {}
    casing: Casing | None = None
    notes: tuple[str, ...] = ()
    if files.exists(settings_file):
        settings = files.read_json_object(settings_file).get("config")
        if not isinstance(settings, dict) or not isinstance(settings.get("lowercase"), bool):
            raise UserError(f"{settings_file} is damaged: lowercase is not true or false")
        lowercase, strip_accents = settings["lowercase"], settings.get("strip_accents")
        if strip_accents not in (None, True, False):
            raise UserError(f"{settings_file} is damaged: strip_accents is {strip_accents!r}")
        if strip_accents and not lowercase:
            raise UserError(f"the tokenizer in {folder} deletes accents without lower-casing: {NO_RULE}")
        strip_accents = bool(strip_accents)
        never_saw_any = overrides.strip_accents is not False and not any(map(has_accents, vocabularies.values()))
        if lowercase and not strip_accents and never_saw_any:
            strip_accents, notes = True, (_ACCENTS_NOTE,)
        casing = Casing(lowercase, strip_accents)
    model = resolve_tokenizer(FoundTokenizer(folder, vocabularies, casing, settings_file), overrides, config)
    return model.add_notes(*notes) if model.casing == casing else model


def _check_head(folder: str, weights: Mapping[str, Array]) -> None:
    """Raises a UserError if the preset's task.json names a task whose head is not among the weights."""
    task_file = os.path.join(folder, TASK_FILE)
    task = files.read_json_object(task_file).get("class_name") if files.exists(task_file) else None
    if isinstance(task, str) and task in _HEADS and _HEADS[task] not in weights:
        raise UserError(f"{task_file} describes a {task}, but its head is not in {TASK_WEIGHTS_FILE}")


def write(checkpoint: LoadedModel, folder: str) -> LoadedModel:
    """Writes a keras-hub preset: backbone, tokenizer (if the model has a vocabulary) and task (if it has a head).

    Returns:
        The model without its next-sentence head and names of classes, which keras-hub cannot store.

    Raises:
        UserError: If keras-hub's BERT would compute different outputs or cannot hold one of the weights.
    """
    config = checkpoint.config
    wanted = {"hidden_act": "gelu", "layer_norm_eps": LAYER_NORM_EPSILON}
    for key, value in wanted.items():
        if getattr(config, key) != value:
            raise UserError(
                f"the model has {key} {getattr(config, key)}; keras-hub's BERT always computes with {value}, so its "
                "outputs would differ" + ("; pass --hidden_act=gelu to accept this" if key == "hidden_act" else "")
            )
    if config.hidden_dropout_prob != config.attention_probs_dropout_prob:
        raise UserError(
            f"the model has hidden_dropout_prob {config.hidden_dropout_prob} and attention_probs_dropout_prob "
            f"{config.attention_probs_dropout_prob}; keras-hub's BERT has only one rate; make them equal first"
        )
    kept = keep_parts(checkpoint, {ENCODER, POOLER, MASKED_LM, SEQUENCE_CLASSIFIER}, NAME)
    if POOLER not in kept.parts:
        raise UserError("the checkpoint has no pooler, which keras-hub's backbone needs")
    if {MASKED_LM, SEQUENCE_CLASSIFIER} <= set(kept.parts):
        raise UserError(f"a preset can store only one head; the checkpoint has {MASKED_LM} and {SEQUENCE_CLASSIFIER}")
    notes = kept.notes
    if config.initializer_range != _INITIALIZER_RANGE:
        config = dataclasses.replace(config, initializer_range=_INITIALIZER_RANGE)
        notes += (f"keras-hub's initializer_range is always {_INITIALIZER_RANGE}; the model's value was dropped",)
    if MASKED_LM in kept.parts and _MASKED_LM_NOTE not in notes:
        notes += (_MASKED_LM_NOTE,)
    if kept.labels is not None:
        notes += (_LABELS_NOTE.format(", ".join(kept.labels)),)
    kept = dataclasses.replace(kept, config=config, labels=None, notes=notes)
    tensors = to_external(kept.weights, config, NAMING, NAME)
    contents = _preset_files(kept)
    write_model_files(folder, contents, tensors)
    for file in (MODEL_WEIGHTS_FILE, TASK_WEIGHTS_FILE):
        named = {
            # The first block has no number in the file.
            name.removeprefix(f"{file}/").replace("/transformer_encoder_0/", "/transformer_encoder/"): value
            for name, value in tensors.items()
            if name.startswith(f"{file}/")
        }
        if named:
            named |= _TASK_OPTIMIZER if file == TASK_WEIGHTS_FILE else {}
            hdf5.write_hdf5(os.path.join(folder, file), named)
    return kept


def _preset_files(checkpoint: LoadedModel) -> dict[str, str]:
    """Returns the JSON files and the vocabulary of a preset, as texts by file name.

    Raises:
        UserError: If a preset cannot express the model's tokenizer.
    """
    config = checkpoint.config
    inner: dict[str, Any] = {theirs: getattr(config, ours) for ours, theirs in _KEYS.items()}
    backbone = _serialize("bert_backbone", "BertBackbone", "float32", inner)
    # The number of the backbone's parameters.
    parameters = sum(
        value.size for name, value in checkpoint.weights.items() if not name.startswith(("masked_lm", "sequence"))
    )
    metadata = {"keras_version": "3.15.1", "keras_hub_version": VERSION, "parameter_count": parameters}
    values: dict[str, Any] = {CONFIG_FILE: backbone, METADATA_FILE: metadata}
    preprocessor = None
    contents = {}
    head = "BertMaskedLM" if MASKED_LM in checkpoint.parts else "BertTextClassifier"
    has_head = len(checkpoint.parts) > 2
    casing = checkpoint.casing
    if checkpoint.vocab is not None:
        if added := casing.added_tokens:
            raise UserError(
                f"a keras-hub preset cannot store added tokens, and the model has {added[0].content}; choose another "
                "format"
            )
        if casing.do_lower_case and not casing.strip_accents and not has_accents(checkpoint.vocab):
            raise UserError(
                "a keras-hub preset cannot state that lower-cased texts keep their accents if the vocabulary "
                "contains no accents; pass --strip_accents to write it with BERT's own rule"
            )
        settings: dict[str, Any] = {"config_file": TOKENIZER_FILE, "vocabulary": None}
        settings |= {"lowercase": casing.do_lower_case, "strip_accents": casing.strip_accents}
        values[TOKENIZER_FILE] = tokenizer = _serialize("bert_tokenizer", "BertTokenizer", "int32", settings)
        contents[VOCAB_FILE] = checkpoint.vocab
        if has_head:
            settings = {"tokenizer": tokenizer, "config_file": PREPROCESSOR_FILE}
            settings["sequence_length"] = config.max_position_embeddings
            values[PREPROCESSOR_FILE] = preprocessor = _serialize(
                f"{_MODULES[head]}_preprocessor", f"{head}Preprocessor", "float32", settings
            )
    if has_head:
        task: dict[str, Any] = {"backbone": backbone, "preprocessor": preprocessor}
        if head == "BertTextClassifier":
            task |= {"num_classes": checkpoint.weights["sequence_classifier/bias"].shape[0], "activation": "linear"}
            task["dropout"] = config.hidden_dropout_prob
        values[TASK_FILE] = _serialize(_MODULES[head], head, None, task)
    return {**contents, **{name: json.dumps(value, indent=4) + "\n" for name, value in values.items()}}


def _serialize(module: str, name: str, dtype: str | None, config: dict[str, Any]) -> dict[str, Any]:
    policy = {"module": "keras", "class_name": "DTypePolicy", "config": {"name": dtype}, "registered_name": None}
    return {
        "module": f"keras_hub.src.models.bert.{module}",
        "class_name": name,
        "config": {"name": module, **({"trainable": True, "dtype": policy} if dtype else {}), **config},
        "registered_name": f"keras_hub>{name}",
    }


def backbone_outputs(checkpoint: LoadedModel, folder: str, features: Mapping[str, Array]) -> dict[str, Array]:
    """Returns the outputs that keras-hub's backbone computes from a preset (see `Framework.outputs`)."""
    import keras_hub as hub

    backbone = hub.models.BertBackbone.from_preset(folder)
    names = {"token_ids": "input_ids", "segment_ids": "segment_ids", "padding_mask": "input_mask"}
    result = backbone({theirs: features[ours] for theirs, ours in names.items()})
    return {
        f"hidden_{checkpoint.config.num_hidden_layers - 1}": np.asarray(result["sequence_output"]),
        "pooled_output": np.asarray(result["pooled_output"]),
    }


# Only the backbone is compared, because keras-hub's masked-LM head is different.
FORMAT = Format(
    name="keras_hub",
    title=NAME,
    detect=detect,
    read=read,
    write=write,
    holds_config=True,
    framework=Framework("keras-hub's backbone", backbone_outputs),
)
