"""Reads and writes the files next to the weights in Google's releases and our folders: bert_config.json, vocab.txt, ...

tokenizer_config.json states the casing of the vocabulary, and labels.json contains the names of a classifier's classes.
Google's releases lack both files. The user states their casing, or it is inferred from the vocabulary.
"""

import dataclasses
import json
import os
from collections.abc import Mapping

from official_bert.checkpoints import checksums
from official_bert.checkpoints.checkpoint import (
    CONFIG_FILE,
    LABELS_FILE,
    TOKENIZER_FILE,
    VOCAB_FILE,
    Array,
    LoadedModel,
    LoadOverrides,
)
from official_bert.checkpoints.formats import hugging_face_config
from official_bert.checkpoints.formats.hugging_face_tokenizer import read_tokenizer
from official_bert.checkpoints.vocabulary import FoundTokenizer, resolve_tokenizer
from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.tokenization.casing import Casing
from official_bert.utils import files


def read_model_files(folder: str, overrides: LoadOverrides) -> LoadedModel:
    """Reads everything but the weights of a checkpoint: configuration, vocabulary, casing and labels.

    A folder with Hugging Face's config.json instead of bert_config.json is read as well.

    Args:
        folder: The folder of the checkpoint.
        overrides: The user's settings, which may name other files.

    Returns:
        A LoadedModel with empty `weights`.

    Raises:
        UserError: If a file is missing or damaged, or the vocabulary does not fit the configuration.
    """
    checksums.check_files(folder)
    config_file = overrides.bert_config_file or os.path.join(folder, CONFIG_FILE)
    theirs = os.path.join(folder, hugging_face_config.CONFIG_FILE)
    if overrides.bert_config_file or files.exists(config_file):
        config = BertConfig.from_json_file(config_file)
    elif files.exists(theirs):
        return _read_hugging_face(folder, theirs, overrides)
    elif overrides.fallback_config is not None:
        config = overrides.fallback_config
    else:
        raise UserError(f"there is no {config_file}; pass the model's configuration as --bert_config_file")
    labels = _read_labels(os.path.join(folder, LABELS_FILE))
    return dataclasses.replace(resolve_tokenizer(find_tokenizer(folder), overrides, config), labels=labels)


def _read_hugging_face(folder: str, path: str, overrides: LoadOverrides) -> LoadedModel:
    """Does the same as `read_model_files` for a folder with Hugging Face's config.json, whose path is `path`."""
    values = files.read_json_object(path)
    config = hugging_face_config.read_config(values, path)
    model = read_tokenizer(folder, config, overrides, values.get("tokenizer_class"))
    return model.add_notes(f"{path} is read as Hugging Face's, with hidden_act {config.hidden_act}")


def find_tokenizer(folder: str) -> FoundTokenizer:
    """Returns the contents of the vocab.txt and tokenizer_config.json in a folder. Both files may be missing."""
    vocab_file, settings_file = os.path.join(folder, VOCAB_FILE), os.path.join(folder, TOKENIZER_FILE)
    return FoundTokenizer(
        folder=folder,
        vocabularies={vocab_file: files.read_text(vocab_file)} if files.exists(vocab_file) else {},
        casing=read_casing(settings_file) if files.exists(settings_file) else None,
        settings_file=settings_file,
    )


def read_casing(settings_file: str) -> Casing:
    """Reads the casing from a tokenizer_config.json. The key strip_accents is optional."""
    try:
        return Casing.from_settings(files.read_json_object(settings_file))
    except (UserError, KeyError, TypeError) as error:
        raise UserError(
            f'{settings_file} is damaged ({error!r}); it should read {{"do_lower_case": true}} or false'
        ) from error


def _read_labels(path: str) -> tuple[str, ...] | None:
    if not files.exists(path):
        return None
    labels = files.read_json(path)
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise UserError(f"{path} must contain a list of the names of the classes")
    return tuple(labels)


def format_model_files(model: LoadedModel) -> dict[str, str]:
    """Returns the configuration, vocabulary, casing and labels of a model as texts of files, by file name."""
    contents = {CONFIG_FILE: model.config.to_json()}
    if model.vocab is not None:
        contents[VOCAB_FILE] = model.vocab
        contents[TOKENIZER_FILE] = json.dumps(model.casing.settings, indent=2) + "\n"
    if model.labels is not None:
        contents[LABELS_FILE] = json.dumps(model.labels, ensure_ascii=False) + "\n"
    return contents


def list_changed_files(folder: str, contents: Mapping[str, str]) -> list[str]:
    """Returns the names of files in the folder that differ from `contents`, the texts of files by file name."""
    paths = {name: os.path.join(folder, name) for name in contents}
    return [name for name, path in paths.items() if files.exists(path) and files.read_text(path) != contents[name]]


def check_model_files(folder: str, contents: dict[str, str]) -> None:
    """Raises a UserError if a file in the folder differs from `contents`, the texts of files by file name."""
    for name in list_changed_files(folder, contents):
        flags = "--vocab_file, --do_lower_case and --strip_accents"
        if name == CONFIG_FILE:
            flags = "--bert_config_file and --vocab_size_from_vocab"
        raise UserError(
            f"{os.path.join(folder, name)} differs from this command: the folder contains another run; pass the same "
            f"{flags}, or another --output_dir"
        )


def write_model_files(folder: str, contents: Mapping[str, str], tensors: Mapping[str, Array] | None = None) -> None:
    """Writes text files into a folder, together with a checksums.json.

    Args:
        folder: The folder.
        contents: The texts, by file name.
        tensors: The tensors in the folder's weight files, to store their checksums, too. May be None.
    """
    for name, content in contents.items():
        files.write_text(os.path.join(folder, name), content)
    checksums.write(folder, contents, tensors or {})
