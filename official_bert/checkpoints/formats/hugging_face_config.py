"""Reads and writes the config.json of a Hugging Face folder."""

import json
from collections.abc import Iterable
from typing import Any

from official_bert.checkpoints.checkpoint import CLASSIFIER_BIASES, LoadedModel, make_placeholder_labels
from official_bert.errors import UserError
from official_bert.kinds.names import CLASSIFICATION, MULTI_LABEL, REGRESSION
from official_bert.modeling.config import BertConfig

CONFIG_FILE = "config.json"
# Hugging Face's "gelu" is the exact GELU. Our "gelu", the approximation, gets the name that all versions support.
ACTIVATIONS = {"gelu": "gelu_new", "gelu_exact": "gelu", "relu": "relu", "tanh": "tanh", "linear": "linear"}
_ACTIVATIONS_IN = {
    **{theirs: ours for ours, theirs in ACTIVATIONS.items()},
    "gelu_pytorch_tanh": "gelu",
    "gelu_fast": "gelu",
    "gelu_python": "gelu_exact",
}
# Keys with the same name and meaning in config.json and in BertConfig.
_SAME_KEYS = (
    "vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_dropout_prob "
    "attention_probs_dropout_prob max_position_embeddings type_vocab_size initializer_range layer_norm_eps"
).split()
# Our kinds of tasks, by problem_type.
KINDS = {
    "single_label_classification": CLASSIFICATION,
    "multi_label_classification": MULTI_LABEL,
    "regression": REGRESSION,
}
# Values that config.json must have (or omit) to describe a model like ours.
_REQUIRED = {
    "model_type": "bert",
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "quantization_config": None,
}


def read_config(values: dict[str, Any], path: str) -> BertConfig:
    """Converts the contents of a Hugging Face config.json to a BertConfig.

    Args:
        values: The contents of the file.
        path: Path of the file, for error messages.

    Raises:
        UserError: If the model is not a BERT, or a value is invalid or not supported.
    """
    for key, expected in _REQUIRED.items():
        value = values.get(key, expected)
        if value != expected:
            raise UserError(f"{path} has {key} {value!r}; only a BERT with {expected!r} is supported")
    classes = values.get("architectures") if "model_type" not in values else None
    if isinstance(classes, list) and not all(str(name).startswith("Bert") for name in classes):
        raise UserError(f"{path} has no model_type, and architectures {classes!r}; only classes of Bert... can be read")
    act = values.get("hidden_act", "gelu")
    if not isinstance(act, str) or act not in _ACTIVATIONS_IN:
        raise UserError(f"{path} has hidden_act {act!r}; expected one of {', '.join(_ACTIVATIONS_IN)}")
    try:
        return BertConfig.from_dict(
            {"hidden_act": _ACTIVATIONS_IN[act], **{key: values[key] for key in _SAME_KEYS if key in values}}
        )
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def read_kind(values: dict[str, Any], folder: str) -> str | None:
    """Returns what a sequence classifier is for, from the config.json's problem_type, or None if the key is missing.

    Args:
        values: The contents of config.json.
        folder: The folder, for error messages.
    """
    problem = values.get("problem_type")
    if problem is not None and problem not in KINDS:
        raise UserError(f"{folder}/{CONFIG_FILE} has problem_type {problem!r}; expected one of {', '.join(KINDS)}")
    return None if problem is None else KINDS[problem]


def read_labels(values: dict[str, Any], classes: int, folder: str) -> tuple[str, ...] | None:
    """Returns the classes' names from a config.json's id2label, or None if it is missing or only contains placeholders.

    The placeholders are LABEL_0, LABEL_1, ...

    Args:
        values: The contents of config.json.
        classes: Number of classes of the classifier.
        folder: The folder, for error messages.

    Raises:
        UserError: If id2label does not have exactly one name for each class, two classes have the same name, or
            label2id numbers the same names differently.
    """
    labels = values.get("id2label")
    if labels is None or labels == _number_labels(make_placeholder_labels(classes)):
        return None
    numbers = [str(number) for number in range(classes)]
    has_keys = isinstance(labels, dict) and sorted(labels) == sorted(numbers)
    names = tuple(str(labels[number]) for number in numbers) if has_keys else ()
    if len(set(names)) < classes:
        raise UserError(
            f"{folder}/{CONFIG_FILE} has id2label {json.dumps(labels, ensure_ascii=False)[:200]}; expected a different "
            f"name for each of the keys 0 to {classes - 1}, since the classifier has {classes} classes"
        )
    ids = values.get("label2id")
    if isinstance(ids, dict) and set(ids) == set(names) and [str(ids[each]) for each in names] != numbers:
        raise UserError(
            f"{folder}/{CONFIG_FILE} numbers the classes differently in label2id, {json.dumps(ids, ensure_ascii=False)}"
            f", and in id2label, {json.dumps(labels, ensure_ascii=False)}; correct one of them"
        )
    return names


def _number_labels(labels: Iterable[str]) -> dict[str, str]:
    return {str(number): label for number, label in enumerate(labels)}


def config_json(checkpoint: LoadedModel, name_of_class: str) -> str:
    """Returns the text of a config.json for transformers.

    Args:
        checkpoint: The model.
        name_of_class: The transformers class to load it with, such as "BertForPreTraining".
    """
    config = checkpoint.config
    values: dict[str, Any] = {
        "architectures": [name_of_class],
        "model_type": "bert",
        "hidden_act": ACTIVATIONS[config.hidden_act],
        "pad_token_id": 0,
        "dtype": "float32",
        **{key: getattr(config, key) for key in _SAME_KEYS},
    }
    for bias in CLASSIFIER_BIASES:
        if bias in checkpoint.weights:
            labels = checkpoint.labels or make_placeholder_labels(len(checkpoint.weights[bias]))
            values["id2label"] = _number_labels(labels)
            values["label2id"] = {label: number for number, label in enumerate(labels)}
    if checkpoint.kind is not None:
        values["problem_type"] = next(problem for problem, kind in KINDS.items() if kind == checkpoint.kind)
    return json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
