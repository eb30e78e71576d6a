"""Hugging Face folders: config.json, model.safetensors, vocab.txt or tokenizer.json, tokenizer_config.json.

Read and written without PyTorch. Pickled weights are never opened: they can run any code.
"""

import dataclasses
import json
import os
import re
from typing import Any

from official_bert import files
from official_bert.checkpoint_formats import checksums
from official_bert.checkpoint_formats.checkpoint import (
    ENCODER,
    MASKED_LM,
    MULTIPLE_CHOICE,
    NEXT_SENTENCE,
    PARTS,
    POOLER,
    QUESTION_ANSWERING,
    SEQUENCE_CLASSIFIER,
    TOKEN_CLASSIFIER,
    Array,
    Checkpoint,
    Given,
    Layout,
    Source,
    as_theirs,
    collect,
    numbered,
    take_inventory,
)
from official_bert.checkpoint_formats.hugging_face_tokenizer import read_tokenizer, tokenizer_files
from official_bert.config import BertConfig
from official_bert.errors import UserError

NAME = "Hugging Face"
CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
PICKLED_FILE = "pytorch_model.bin"

# Hugging Face's names, by ours; {} is the number of a block.
NAMES = {
    "word_embeddings/embeddings": "bert.embeddings.word_embeddings.weight",
    "token_type_embeddings/embeddings": "bert.embeddings.token_type_embeddings.weight",
    "position_embeddings/embeddings": "bert.embeddings.position_embeddings.weight",
    "embeddings_layer_norm/gamma": "bert.embeddings.LayerNorm.weight",
    "embeddings_layer_norm/beta": "bert.embeddings.LayerNorm.bias",
    "layer_{}_attention_query/kernel": "bert.encoder.layer.{}.attention.self.query.weight",
    "layer_{}_attention_query/bias": "bert.encoder.layer.{}.attention.self.query.bias",
    "layer_{}_attention_key/kernel": "bert.encoder.layer.{}.attention.self.key.weight",
    "layer_{}_attention_key/bias": "bert.encoder.layer.{}.attention.self.key.bias",
    "layer_{}_attention_value/kernel": "bert.encoder.layer.{}.attention.self.value.weight",
    "layer_{}_attention_value/bias": "bert.encoder.layer.{}.attention.self.value.bias",
    "layer_{}_attention_output/kernel": "bert.encoder.layer.{}.attention.output.dense.weight",
    "layer_{}_attention_output/bias": "bert.encoder.layer.{}.attention.output.dense.bias",
    "layer_{}_attention_layer_norm/gamma": "bert.encoder.layer.{}.attention.output.LayerNorm.weight",
    "layer_{}_attention_layer_norm/beta": "bert.encoder.layer.{}.attention.output.LayerNorm.bias",
    "layer_{}_intermediate/kernel": "bert.encoder.layer.{}.intermediate.dense.weight",
    "layer_{}_intermediate/bias": "bert.encoder.layer.{}.intermediate.dense.bias",
    "layer_{}_output/kernel": "bert.encoder.layer.{}.output.dense.weight",
    "layer_{}_output/bias": "bert.encoder.layer.{}.output.dense.bias",
    "layer_{}_output_layer_norm/gamma": "bert.encoder.layer.{}.output.LayerNorm.weight",
    "layer_{}_output_layer_norm/beta": "bert.encoder.layer.{}.output.LayerNorm.bias",
    "pooler/kernel": "bert.pooler.dense.weight",
    "pooler/bias": "bert.pooler.dense.bias",
    "masked_lm_transform/kernel": "cls.predictions.transform.dense.weight",
    "masked_lm_transform/bias": "cls.predictions.transform.dense.bias",
    "masked_lm_layer_norm/gamma": "cls.predictions.transform.LayerNorm.weight",
    "masked_lm_layer_norm/beta": "cls.predictions.transform.LayerNorm.bias",
    "masked_lm_output/bias": "cls.predictions.bias",
    "next_sentence/kernel": "cls.seq_relationship.weight",
    "next_sentence/bias": "cls.seq_relationship.bias",
    "question_answering/kernel": "qa_outputs.weight",
    "question_answering/bias": "qa_outputs.bias",
    # Of these three, which share names, a model has at most one; its class says which.
    "sequence_classifier/kernel": "classifier.weight",
    "sequence_classifier/bias": "classifier.bias",
    "token_classifier/kernel": "classifier.weight",
    "token_classifier/bias": "classifier.bias",
    "multiple_choice/kernel": "classifier.weight",
    "multiple_choice/bias": "classifier.bias",
}
_CLASSIFIERS = {
    SEQUENCE_CLASSIFIER: "BertForSequenceClassification",
    TOKEN_CLASSIFIER: "BertForTokenClassification",
    MULTIPLE_CHOICE: "BertForMultipleChoice",
}
# Which class has which parts.
CLASSES = {
    frozenset({ENCODER}): "BertModel",
    frozenset({ENCODER, POOLER}): "BertModel",
    frozenset({ENCODER, POOLER, MASKED_LM, NEXT_SENTENCE}): "BertForPreTraining",
    frozenset({ENCODER, MASKED_LM}): "BertForMaskedLM",
    frozenset({ENCODER, POOLER, MASKED_LM}): "BertForMaskedLM",
    frozenset({ENCODER, POOLER, NEXT_SENTENCE}): "BertForNextSentencePrediction",
    frozenset({ENCODER, POOLER, SEQUENCE_CLASSIFIER}): _CLASSIFIERS[SEQUENCE_CLASSIFIER],
    frozenset({ENCODER, POOLER, MULTIPLE_CHOICE}): _CLASSIFIERS[MULTIPLE_CHOICE],
    frozenset({ENCODER, TOKEN_CLASSIFIER}): _CLASSIFIERS[TOKEN_CLASSIFIER],
    frozenset({ENCODER, POOLER, TOKEN_CLASSIFIER}): _CLASSIFIERS[TOKEN_CLASSIFIER],
    frozenset({ENCODER, QUESTION_ANSWERING}): "BertForQuestionAnswering",
    frozenset({ENCODER, POOLER, QUESTION_ANSWERING}): "BertForQuestionAnswering",
}
# The heads that a class must have; without its pooler or in another class a model is still whole.
_HEADS = {name_of_class: parts - {ENCODER, POOLER} for parts, name_of_class in CLASSES.items()}
# What is no weight, or no other one.
_IGNORED = {
    "of numbers that old versions kept": r"bert\.embeddings\.(position_ids|token_type_ids)",
    "of the output layer's copies (of the word embeddings, of its bias)": r"cls\.predictions\.decoder\.(weight|bias)",
}
_TIED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}

# Their "gelu" is the exact one. Ours on the way out has the name that the oldest versions know too.
ACTIVATIONS = {"gelu": "gelu_new", "gelu_exact": "gelu", "relu": "relu", "tanh": "tanh", "linear": "linear"}
_ACTIVATIONS_IN = {
    **{theirs: ours for ours, theirs in ACTIVATIONS.items()},
    "gelu_pytorch_tanh": "gelu",
    "gelu_fast": "gelu",
    "gelu_python": "gelu_exact",
}
# Keys that have the same name and meaning there.
_SAME_KEYS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "max_position_embeddings",
    "type_vocab_size",
    "initializer_range",
    "layer_norm_eps",
)
# Values under which their BERT computes what ours does.
_REQUIRED = {
    "model_type": "bert",
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "quantization_config": None,
}


def layout(name: str, shape: tuple[int, ...]) -> Layout:
    """How the tensor of our name and shape is stored: matrices of dense layers as [out, in]."""
    transposed = name.endswith("/kernel")
    return Layout(transposed, shape[::-1] if transposed else shape)


def is_format(folder: str) -> bool:
    """Whether a folder looks like one of Hugging Face's."""
    return any(files.exists(os.path.join(folder, name)) for name in (WEIGHTS_FILE, PICKLED_FILE))


def read(path: str, given: Given) -> Checkpoint:
    """Reads a folder.

    Args:
        path: the folder, or its model.safetensors.
        given: a vocabulary to take in place of the folder's, with its casing.

    Raises:
        UserError: something is missing, left over, damaged, or nothing that our model computes.
    """
    folder = os.path.dirname(path) if os.path.basename(path) == WEIGHTS_FILE else path
    weights_file = os.path.join(folder, WEIGHTS_FILE)
    if not files.exists(weights_file):
        raise UserError(
            f"{folder} has {PICKLED_FILE} but not {WEIGHTS_FILE}; pickled weights can run any code and are not opened. "
            "If you trust them, turn them into safetensors where transformers and torch are installed: "
            "AutoModelForPreTraining.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER, safe_serialization=True)"
        )
    if given.optimizer:
        raise UserError(f"the {NAME} format holds no optimizer state; convert without --optimizer")
    checksums.check_files(folder)
    values = files.read_json_object(os.path.join(folder, CONFIG_FILE))
    config = read_config(values, os.path.join(folder, CONFIG_FILE))
    vocab, do_lower_case, notes = read_tokenizer(folder, config, given)
    raw = checksums.with_checks(open_safetensors(weights_file), folder)
    source = _with_new_names(raw)
    _check_tied(source)
    classes = [name for name in values.get("architectures") or [] if isinstance(name, str)]
    other_classifiers = {
        name for part, name_of_class in _CLASSIFIERS.items() for name in PARTS[part] if name_of_class not in classes
    }
    if len(other_classifiers) == 2 * len(_CLASSIFIERS):  # none is named: the commonest
        other_classifiers -= set(PARTS[SEQUENCE_CLASSIFIER])
    names = {ours: theirs for ours, theirs in NAMES.items() if ours not in other_classifiers}
    weights = collect(source, config, names, layout, _IGNORED)
    theirs = numbered(names, config)
    inventory = take_inventory(source, {theirs[name]: name for name in weights}, _IGNORED)
    for name_of_class in classes:
        for part in _HEADS.get(name_of_class, ()):
            if next(iter(PARTS[part])) not in weights:
                raise UserError(f"{folder}/{CONFIG_FILE} describes a {name_of_class}, but {weights_file} has no {part}")
    kernel = weights.get("sequence_classifier/kernel", weights.get("token_classifier/kernel"))
    labels = None if kernel is None else _read_labels(values, kernel.shape[1], folder)
    rate = values.get("classifier_dropout")
    if kernel is not None and rate not in (None, config.hidden_dropout_prob):
        notes += (f"the classifier's own dropout rate, {rate}, has no place in our configuration and was not kept",)
    return Checkpoint(config, weights, vocab, do_lower_case, labels=labels, notes=notes, inventory=inventory)


def read_config(values: dict[str, Any], path: str) -> BertConfig:
    """Returns the configuration that a config.json's values stand for; `path` is for errors."""
    for key, expected in _REQUIRED.items():
        value = values.get(key, None if key == "model_type" else expected)
        if value != expected:
            raise UserError(f"{path} has {key} {value!r}; only a BERT with {expected!r} can be read")
    act = values.get("hidden_act", "gelu")
    if not isinstance(act, str) or act not in _ACTIVATIONS_IN:
        raise UserError(f"{path} has hidden_act {act!r}; expected one of {', '.join(_ACTIVATIONS_IN)}")
    try:
        return BertConfig.from_dict(
            {"hidden_act": _ACTIVATIONS_IN[act], **{key: values[key] for key in _SAME_KEYS if key in values}}
        )
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def open_safetensors(path: str) -> Source:
    """Opens a .safetensors file; a damaged one raises a UserError."""
    import safetensors

    if files.is_remote(path):
        raise UserError(f"{path} is on another file system; copy the folder to this machine first")
    try:
        opened: Any = safetensors.safe_open(path, framework="numpy")
        shapes = {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError) as error:
        raise UserError(f"{path} is damaged: {error}; restore the file from a copy") from error

    def read(name: str) -> Array:
        try:
            value: Array = opened.get_tensor(name)
        except (safetensors.SafetensorError, OSError, TypeError, ValueError) as error:
            raise UserError(f"{name} in {path} cannot be read: {error}") from error
        return value

    return Source(path, shapes, read)


def _with_new_names(source: Source) -> Source:
    """The source under today's names: old files say gamma and beta, a model saved alone lacks the prefix."""
    names: dict[str, str] = {}
    for name in source.shapes:
        new = re.sub(r"^(embeddings|encoder|pooler)\.", r"bert.\1.", name)
        new = new.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        if new in names:
            raise UserError(f"{source.path} holds {names[new]} and {name}, which are one tensor; keep one of them")
        names[new] = name
    shapes = {new: source.shapes[name] for new, name in names.items()}
    return Source(source.path, shapes, lambda name: source.read(names[name]))


def _check_tied(source: Source) -> None:
    """Raises a UserError if the output layer has weights of its own: ours shares the word embeddings."""
    for copy, original in _TIED.items():
        if copy in source.shapes and original in source.shapes:
            a, b = source.read(copy), source.read(original)
            if a.shape != b.shape or a.tobytes() != b.tobytes():
                raise UserError(
                    f"{copy} in {source.path} differs from {original}; only models that share it can be read"
                )


def _read_labels(values: dict[str, Any], classes: int, folder: str) -> tuple[str, ...] | None:
    """The classes' names, or None where they have none but their numbers."""
    labels = values.get("id2label")
    if not isinstance(labels, dict) or labels == _numbered_labels(classes):
        return None
    if sorted(labels) != sorted(_numbered_labels(classes)):
        raise UserError(f"{folder}/{CONFIG_FILE} names {len(labels)} classes; the classifier has {classes}")
    return tuple(str(labels[str(number)]) for number in range(classes))


def _numbered_labels(classes: int) -> dict[str, str]:
    return {str(number): f"LABEL_{number}" for number in range(classes)}


def write(checkpoint: Checkpoint, folder: str) -> Checkpoint:
    """Writes a folder that transformers loads, with the class that has the checkpoint's parts; returns the checkpoint.

    Raises:
        UserError: no class of theirs has these parts.
    """
    from safetensors.numpy import save_file

    name_of_class = CLASSES.get(frozenset(checkpoint.parts))
    if name_of_class is None:
        raise UserError(f"no model of transformers has {', '.join(checkpoint.parts)} together")
    tensors = as_theirs(checkpoint.weights, checkpoint.config, NAMES, layout, NAME)
    if checkpoint.labels == tuple(_numbered_labels(len(checkpoint.labels or ())).values()):  # stands there for no names
        checkpoint = dataclasses.replace(checkpoint, labels=None)
    if name_of_class == "BertModel":
        tensors = {name.removeprefix("bert."): value for name, value in tensors.items()}
    contents = {CONFIG_FILE: _config_json(checkpoint, name_of_class), **tokenizer_files(checkpoint)}
    for name, content in contents.items():
        files.write_text(os.path.join(folder, name), content)
    with files.written_whole(os.path.join(folder, WEIGHTS_FILE)) as beside:
        save_file(tensors, beside, metadata={"format": "pt"})
    checksums.write(folder, list(contents), tensors)
    return checkpoint


def _config_json(checkpoint: Checkpoint, name_of_class: str) -> str:
    config = checkpoint.config
    values: dict[str, Any] = {
        "architectures": [name_of_class],
        "model_type": "bert",
        "hidden_act": ACTIVATIONS[config.hidden_act],
        "pad_token_id": 0,
        "dtype": "float32",
        **{key: getattr(config, key) for key in _SAME_KEYS},
    }
    for part in (SEQUENCE_CLASSIFIER, TOKEN_CLASSIFIER):
        if part in checkpoint.parts:
            bias = next(name for name in PARTS[part] if name.endswith("/bias"))
            classes = checkpoint.weights[bias].shape[0]
            labels = _numbered_labels(classes)
            if checkpoint.labels is not None:
                labels = dict(zip(labels, checkpoint.labels, strict=True))
            values["id2label"] = labels
            values["label2id"] = {label: int(number) for number, label in labels.items()}
    return json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
