"""SavedModels of BERT from TensorFlow Hub and TensorFlow's model garden: encoders, and classifiers of sentences.

They are read only, by the names of the variables in variables/; the graph, which could do anything, is not loaded.
TensorFlow Hub's carry vocab.txt in assets/ and a variable that says whether to lower-case.
"""

import os
import re

from official_bert.checkpoints import bundle
from official_bert.checkpoints.checkpoint import CONFIG_FILE, VOCAB_FILE, LoadedModel, LoadOverrides
from official_bert.checkpoints.formats import model_garden
from official_bert.checkpoints.formats.format import CheckpointPath, Format
from official_bert.checkpoints.model_files import find_tokenizer
from official_bert.checkpoints.tensors import Source, read_weights
from official_bert.checkpoints.vocabulary import FoundTokenizer, resolve_tokenizer
from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.tokenization.casing import make_casing
from official_bert.utils import files

NAME = "SavedModel"
GRAPH_FILE = "saved_model.pb"

_VARIABLES, _ASSETS = os.path.join("variables", "variables"), "assets"
# From which tensor, and which of its axes, a size is known.
_SIZES = {
    "vocab_size": ("word_embeddings/embeddings", 0),
    "hidden_size": ("word_embeddings/embeddings", 1),
    "num_attention_heads": ("layer_{}_attention_query/kernel", 1),
    "intermediate_size": ("layer_{}_intermediate/kernel", 1),
    "max_position_embeddings": ("position_embeddings/embeddings", 0),
    "type_vocab_size": ("token_type_embeddings/embeddings", 0),
}
_RATES_NOTE = "the SavedModel does not say its activation and rates of dropout; BERT's are taken, gelu (tanh) and 0.1"


def detect(path: CheckpointPath) -> bool:
    """Whether a path holds a SavedModel, whatever of."""
    return path.has(GRAPH_FILE)


def read(path: str, overrides: LoadOverrides) -> LoadedModel:
    """Reads a SavedModel's folder, or the one of a saved_model.pb.

    The configuration is that of a bert_config.json there or of `overrides`, else what the tensors' shapes say.

    Raises:
        UserError: something is missing, left over, damaged, or the model is no BERT with known names.
    """
    folder = os.path.dirname(path) if os.path.basename(path) == GRAPH_FILE else path
    raw = bundle.open_bundle(os.path.join(folder, _VARIABLES))
    source = model_garden.by_variable_name(raw)
    config = _config_from_shapes(source, folder)
    config_file = overrides.bert_config_file or os.path.join(folder, CONFIG_FILE)
    has_config = bool(overrides.bert_config_file) or files.exists(config_file)
    if has_config:
        config = BertConfig.from_json_file(config_file)
    tokenizer = resolve_tokenizer(_find_tokenizer(folder, raw), overrides, config)
    if not has_config:
        tokenizer = tokenizer._replace(notes=(_RATES_NOTE, *tokenizer.notes))
    return read_weights(LoadedModel(config, {}, **tokenizer._asdict()), source, model_garden.NAMING, overrides)


def _config_from_shapes(source: Source, folder: str) -> BertConfig:
    """The sizes of a model by its tensors; a UserError says that it is no BERT."""
    weights = [name for name in source.shapes if ".ATTRIBUTES/" not in name and name != model_garden.GRAPH]
    if not weights:
        raise UserError(f"{folder} is a {NAME} without weights, as of preprocessing; give the folder of the encoder")
    names = {size: (model_garden.NAMES[ours].format(0), axis) for size, (ours, axis) in _SIZES.items()}
    absent = next((name for name, axis in names.values() if len(source.shapes.get(name, ())) <= axis), None)
    if absent is not None:
        raise UserError(
            f"{folder} is a {NAME} of another model than BERT, or of a library whose names are not known: among its "
            f"{len(weights)} variables, {', '.join(weights[:3])} and so on, there is no {absent}"
        )
    sizes = {size: source.shapes[name][axis] for size, (name, axis) in names.items()}
    query = model_garden.NAMES["layer_{}_attention_query/kernel"]
    layers = 0
    while query.format(layers) in source.shapes:
        layers += 1
    return BertConfig.from_dict({**sizes, "num_hidden_layers": layers})


def _find_tokenizer(folder: str, source: Source) -> FoundTokenizer:
    """What assets and variables say of the tokenizer, and what files beside them say."""
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
