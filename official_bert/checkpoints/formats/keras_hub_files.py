"""Reads and writes the JSON files of a keras-hub preset: serialized Keras objects with their constructor arguments."""

import json
import os
from collections.abc import Mapping
from typing import Any

from official_bert.checkpoints.checkpoint import MASKED_LM, Array, LoadedModel, LoadOverrides
from official_bert.checkpoints.vocabulary import FoundTokenizer, resolve_tokenizer
from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.tokenization.casing import NO_RULE, Casing, has_accents
from official_bert.utils import files

VERSION = "0.32.0"  # The version whose files are written.
CONFIG_FILE = "config.json"
METADATA_FILE = "metadata.json"
TOKENIZER_FILE = "tokenizer.json"
VOCAB_FILE = "assets/tokenizer/vocabulary.txt"
PREPROCESSOR_FILE = "preprocessor.json"
TASK_FILE = "task.json"
TASK_WEIGHTS_FILE = "task.weights.h5"

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


def read_config(path: str) -> BertConfig:
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


def read_tokenizer(folder: str, config: BertConfig, overrides: LoadOverrides) -> LoadedModel:
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


def check_head(folder: str, weights: Mapping[str, Array]) -> None:
    """Raises a UserError if the preset's task.json names a task whose head is not among the weights."""
    task_file = os.path.join(folder, TASK_FILE)
    task = files.read_json_object(task_file).get("class_name") if files.exists(task_file) else None
    if isinstance(task, str) and task in _HEADS and _HEADS[task] not in weights:
        raise UserError(f"{task_file} describes a {task}, but its head is not in {TASK_WEIGHTS_FILE}")


def preset_files(checkpoint: LoadedModel) -> dict[str, str]:
    """Returns the JSON files and the vocabulary of a preset, as texts by file name.

    Raises:
        UserError: If a preset cannot express the model's tokenizer.
    """
    config = checkpoint.config
    inner: dict[str, Any] = {theirs: getattr(config, ours) for ours, theirs in _KEYS.items()}
    backbone = _serialized("bert_backbone", "BertBackbone", "float32", inner)
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
    if checkpoint.vocab is not None:
        if added := checkpoint.casing.added_tokens:
            raise UserError(
                f"a keras-hub preset cannot store added tokens, and the model has {added[0].content}; choose another "
                "format"
            )
        if (
            not checkpoint.casing.strip_accents
            and checkpoint.casing.do_lower_case
            and not has_accents(checkpoint.vocab)
        ):
            raise UserError(
                "a keras-hub preset cannot state that lower-cased texts keep their accents if the vocabulary "
                "contains no accents; pass --strip_accents to write it with BERT's own rule"
            )
        settings: dict[str, Any] = {"config_file": TOKENIZER_FILE, "vocabulary": None}
        settings |= {"lowercase": checkpoint.casing.do_lower_case, "strip_accents": checkpoint.casing.strip_accents}
        values[TOKENIZER_FILE] = tokenizer = _serialized("bert_tokenizer", "BertTokenizer", "int32", settings)
        contents[VOCAB_FILE] = checkpoint.vocab
        if has_head:
            settings = {"tokenizer": tokenizer, "config_file": PREPROCESSOR_FILE}
            settings["sequence_length"] = config.max_position_embeddings
            values[PREPROCESSOR_FILE] = preprocessor = _serialized(
                f"{_MODULES[head]}_preprocessor", f"{head}Preprocessor", "float32", settings
            )
    if has_head:
        task: dict[str, Any] = {"backbone": backbone, "preprocessor": preprocessor}
        if head == "BertTextClassifier":
            task |= {"num_classes": checkpoint.weights["sequence_classifier/bias"].shape[0], "activation": "linear"}
            task["dropout"] = config.hidden_dropout_prob
        values[TASK_FILE] = _serialized(_MODULES[head], head, None, task)
    return {**contents, **{name: json.dumps(value, indent=4) + "\n" for name, value in values.items()}}


def _serialized(module: str, name: str, dtype: str | None, config: dict[str, Any]) -> dict[str, Any]:
    policy = {"module": "keras", "class_name": "DTypePolicy", "config": {"name": dtype}, "registered_name": None}
    return {
        "module": f"keras_hub.src.models.bert.{module}",
        "class_name": name,
        "config": {"name": module, **({"trainable": True, "dtype": policy} if dtype else {}), **config},
        "registered_name": f"keras_hub>{name}",
    }
