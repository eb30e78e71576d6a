"""Reads SavedModels of BERT encoders and sentence classifiers from TensorFlow Hub and the model garden. Read only.

Only the checkpoint in variables/ is read. The graph is not loaded, because it could run any code. TensorFlow Hub's
models have a vocab.txt in assets/ and a variable that states whether text is lower-cased.
"""

import dataclasses
import os
import re

from official_bert.checkpoints import bundle
from official_bert.checkpoints.checkpoint import CONFIG_FILE, VOCAB_FILE, LoadedModel, LoadOverrides
from official_bert.checkpoints.formats import model_garden
from official_bert.checkpoints.formats.format import CheckpointPath, Format
from official_bert.checkpoints.model_files import find_tokenizer
from official_bert.checkpoints.tensors import TensorFile, read_weights
from official_bert.checkpoints.vocabulary import FoundTokenizer, resolve_tokenizer
from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.tokenization.casing import make_casing
from official_bert.utils import files

NAME = "SavedModel"
GRAPH_FILE = "saved_model.pb"

_VARIABLES, _ASSETS = os.path.join("variables", "variables"), "assets"
# The tensor, and its axis, that each size is read from.
_SIZES = {
    "vocab_size": ("word_embeddings/embeddings", 0),
    "hidden_size": ("word_embeddings/embeddings", 1),
    "num_attention_heads": ("layer_0_attention_query/kernel", 1),
    "intermediate_size": ("layer_0_intermediate/kernel", 1),
    "max_position_embeddings": ("position_embeddings/embeddings", 0),
    "type_vocab_size": ("token_type_embeddings/embeddings", 0),
}
_RATES_NOTE = "the SavedModel does not state its activation and dropout rates; BERT's are used: gelu (tanh) and 0.1"


def detect(path: CheckpointPath) -> bool:
    """Returns whether a path holds a SavedModel of any model."""
    return path.has(GRAPH_FILE)


def read(path: CheckpointPath, overrides: LoadOverrides) -> LoadedModel:
    """Reads a SavedModel.

    The configuration is the bert_config.json of the folder or of `overrides`. Without one, it is inferred from the
    shapes of the tensors.

    Raises:
        UserError: If a file or tensor is missing, unexpected or damaged, or the model is not a BERT with known names.
    """
    folder = path.folder
    raw = bundle.open_bundle(os.path.join(folder, _VARIABLES))
    source = model_garden.rename_variables(raw)
    config = _infer_config(source, folder)
    config_file = overrides.bert_config_file or os.path.join(folder, CONFIG_FILE)
    has_config = bool(overrides.bert_config_file) or files.exists(config_file)
    if has_config:
        config = BertConfig.from_json_file(config_file)
    described = resolve_tokenizer(_find_tokenizer(folder, raw), overrides, config)
    if not has_config:
        described = dataclasses.replace(described, notes=(_RATES_NOTE, *described.notes))
    return read_weights(described, source, model_garden.NAMING, overrides)


def _infer_config(source: TensorFile, folder: str) -> BertConfig:
    """Infers the configuration of a model from the shapes of its tensors.

    Args:
        source: The tensors under the model garden's names.
        folder: The folder, for error messages.

    Raises:
        UserError: If the model is not a BERT.
    """
    weights = [name for name in source.shapes if ".ATTRIBUTES/" not in name and name != model_garden.GRAPH]
    if not weights:
        raise UserError(
            f"{folder} is a {NAME} without weights, such as a preprocessing model; pass the folder of the encoder"
        )
    names = {size: (str(model_garden.get_name(ours)), axis) for size, (ours, axis) in _SIZES.items()}
    absent = next((name for name, axis in names.values() if len(source.shapes.get(name, ())) <= axis), None)
    if absent is not None:
        raise UserError(
            f"{folder} is a {NAME} of a model other than BERT, or of an unsupported library: {absent} is not among its "
            f"{len(weights)} variables, such as {', '.join(weights[:3])}"
        )
    sizes = {size: source.shapes[name][axis] for size, (name, axis) in names.items()}
    layers = 0
    while model_garden.get_name(f"layer_{layers}_attention_query/kernel") in source.shapes:
        layers += 1
    return BertConfig.from_dict({**sizes, "num_hidden_layers": layers})


def _find_tokenizer(folder: str, source: TensorFile) -> FoundTokenizer:
    """Returns the vocabulary and casing in a SavedModel's folder: its assets, the casing variable, and our own files.

    Args:
        folder: The folder of the SavedModel.
        source: The tensors under their keys in the checkpoint.
    """
    found = find_tokenizer(folder)
    assets = os.path.join(folder, _ASSETS)
    names = files.list_folder(assets) if files.exists(assets) else []
    texts = [name for name in names if name.endswith(".txt")]
    vocabularies = dict(found.vocabularies)
    if name := VOCAB_FILE if VOCAB_FILE in texts else texts[0] if len(texts) == 1 else None:
        vocabularies[os.path.join(assets, name)] = files.read_text(os.path.join(assets, name))
    key = next((name for name in source.shapes if re.fullmatch(model_garden.CASING, name)), None)
    if key is None:
        return FoundTokenizer(folder, vocabularies, found.casing, found.settings_file)
    casing = make_casing(bool(source.read(key)))
    return FoundTokenizer(folder, vocabularies, casing, f"{source.path} ({key.split('/')[0]})")


FORMAT = Format(name="saved_model", title=NAME, detect=detect, read=read)
