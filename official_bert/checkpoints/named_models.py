"""Checkpoints by name: hf://owner/name on the Hugging Face Hub, and google://name for Google's releases.

A name can be used in place of a checkpoint's path. Downloads are cached. Well-known models, for example
bert-base-uncased, need no scheme.
"""

import dataclasses
import difflib
import functools
import os
import re
from collections.abc import Iterator

from official_bert.checkpoints import google_models
from official_bert.checkpoints.checkpoint import ENCODER, POOLER, count_parameters
from official_bert.errors import UserError
from official_bert.modeling.choices import HUB_MODELS, MINIATURES
from official_bert.modeling.config import BertConfig
from official_bert.utils import files
from official_bert.utils.configs import find_config
from official_bert.utils.counting import join_words

HUB_PREFIX = "hf://"
_HUB_NAME = re.compile(r"hf://([\w.-]+(?:/[\w.-]+)?)(?:@([\w./-]+))?/?")
# The files of every format that can be read. Weights of other frameworks, and code, are not downloaded.
_PATTERNS = [
    "config.json", "vocab.txt", "tokenizer.json", "tokenizer_config.json",  # Hugging Face
    "model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors",
    "metadata.json", "task.json", "model.weights.h5", "task.weights.h5", "assets/tokenizer/vocabulary.txt",  # keras-hub
    "bert_config.json", "labels.json", "checksums.json", "checkpoint", "*.index", "*.data-*-of-*",  # TensorFlow's
]  # fmt: skip
# Hugging Face's TensorFlow weights, which many folders have in addition to the others.
_TENSORFLOW_PATTERNS = ["tf_model.h5", "tf_model.h5.index.json", "tf_model-*-of-*.h5"]
_WEIGHTS = (".safetensors", ".weights.h5", ".index")

_LICENCE = "Apache-2.0"  # The licence of all models listed here, which Google published.
_HUB_OWNERS = re.compile("google-bert/|google/bert_")  # how the Hub's users write the names
_NAME = re.compile(r"[\w-][\w.-]*(?:/[\w-][\w.-]*)?")  # of a model, without a scheme


@dataclasses.dataclass(frozen=True)
class KnownModel:
    """A well-known model that users can name without hf:// or google://.

    Attributes:
        name: The name that users write.
        source: Where it is downloaded from: a hf:// or google:// name.
        size: The name of its configuration file in configs/models, without .json.
    """

    name: str
    source: str
    size: str


def list_known_models() -> dict[str, KnownModel]:
    """Returns the well-known models by name."""
    released = {name: name.removeprefix("wwm_") for name in google_models.list_names()}
    models = [KnownModel(name, f"{HUB_PREFIX}google-bert/{name}", size) for name, size in HUB_MODELS.items()]
    models += [KnownModel(name, google_models.PREFIX + size, size) for name, size in MINIATURES.items()]
    models += [KnownModel(name, google_models.PREFIX + name, size) for name, size in released.items()]
    return {model.name: model for model in models}


def get_local_folder(path: str) -> str:
    """Returns the local folder of a named checkpoint, which is downloaded if necessary, or `path` itself.

    A name is hf://owner/name, optionally with @revision (a branch, tag or commit), google://name, or one in
    `list_known_models`. A file or folder with the name of a well-known model takes precedence.

    Raises:
        UserError: If the name is unknown, or cannot be downloaded and is not in the cache.
    """
    path = os.fspath(path)
    model = list_known_models().get(_HUB_OWNERS.sub("", path, count=1))
    if model is not None and not files.exists(path) and not files.exists(f"{path}.index"):
        _print_source(path, model.source)
        path = model.source
    if path.startswith(HUB_PREFIX):
        return _download_from_hub(path)
    path = google_models.get_local_folder(path)
    if not files.is_remote(path) or files.is_folder(path):
        return files.local_copy(path)
    folder, name = os.path.split(path)  # A file, or a checkpoint without .index.
    return os.path.join(files.local_copy(folder), name)


@functools.cache
def _print_source(name: str, source: str) -> None:
    print(f"note: {name} is read from {source}, because no file or folder has this name")


def explain_unknown_name(path: str) -> UserError | None:
    """Returns an error with suggestions if `path` looks like a model's name but does not exist, or else None."""
    if not _NAME.fullmatch(path) or files.exists(path):
        return None
    close = difflib.get_close_matches(path.lower(), list_known_models(), n=3)
    hint = f"did you mean {join_words(close, 'or')}? " if close else ""
    if "/" in path:
        hint = f"pass hf://{path} for a model on the Hugging Face Hub; {hint}"
    return UserError(
        f"there is no file or folder {path}, and no known model has this name; {hint}`official-bert models` lists the "
        "names"
    )


def format_table() -> Iterator[str]:
    """Yields the lines of a table of the known models with their sizes and licenses. Nothing is downloaded."""
    rows = [["name", "parameters", "layers", "hidden", "licence", "taken from"]]
    for model in list_known_models().values():
        config = BertConfig.from_json_file(find_config(f"configs/models/{model.size}.json"))
        sizes = count_parameters((ENCODER, POOLER), config), config.num_hidden_layers, config.hidden_size
        rows.append([model.name, *(f"{size:,}" for size in sizes), _LICENCE, model.source])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [f"{cell:{side}{width}}" for cell, side, width in zip(row, "<>>><<", widths, strict=True)]
        yield "  ".join(cells).rstrip()
    yield "The parameters are counted without heads. Pass a name wherever a checkpoint is expected: --init=bert-tiny"


@functools.cache
def _download_from_hub(path: str) -> str:
    """Downloads a model named hf://owner/name, optionally with @revision, and returns its local folder.

    huggingface_hub provides the cache, the access token, the offline mode (HF_HUB_OFFLINE) and the address
    (HF_ENDPOINT).
    """
    match = _HUB_NAME.fullmatch(path)
    if not match:
        raise UserError(f"{path} is not a valid address; expected hf://owner/name or hf://owner/name@revision")
    import huggingface_hub
    from huggingface_hub import constants

    name, revision = match.groups()
    try:
        folder = huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=_PATTERNS)
        if not any(each.endswith(_WEIGHTS) for _, _, names in os.walk(folder) for each in names):
            huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=_TENSORFLOW_PATTERNS)
    except Exception as error:  # errors of its own, of its HTTP library and of the file system
        reason = " ".join(str(error).split()) or repr(error)
        raise UserError(
            f"cannot download {path}: {name} at revision {revision or 'main'} is not in the cache "
            f"{constants.HF_HUB_CACHE}, and {constants.ENDPOINT} did not provide it: {reason}. A private or gated "
            f"model needs `hf auth login`. Without network, run `hf download {name} --local-dir FOLDER` on another "
            "machine and pass the FOLDER."
        ) from error
    return str(folder)
