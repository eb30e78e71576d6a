"""Checkpoints by name: hf://owner/name on the Hugging Face Hub, and google://name for Google's releases.

A name can be used in place of a checkpoint's path. Downloads are cached. Well-known models, for example
bert-base-uncased, need no scheme.
"""

import contextlib
import difflib
import functools
import glob
import os
import re
import sys
import zipfile
from collections.abc import Iterator

from official_bert.errors import UserError
from official_bert.modeling.choices import HUB_MODELS, MINIATURES
from official_bert.modeling.config import BertConfig
from official_bert.utils import files
from official_bert.utils.counting import join_words

HUB_PREFIX = "hf://"
_HUB_NAME = re.compile(r"hf://([\w.-]+(?:/[\w.-]+)?)(?:@([\w./-]+))?/?")
# The files of every format that can be read. Weights of other frameworks, and code, are not downloaded.
_PATTERNS = [
    "*.json",  # configurations, tokenizers, labels, indices of shards
    "vocab.txt",
    "assets/tokenizer/vocabulary.txt",  # keras-hub
    "model.safetensors",
    "model-*-of-*.safetensors",
    "*.weights.h5",  # keras-hub, fine-tuned models
    "checkpoint",
    "*.index",  # TensorFlow
    "*.data-*-of-*",
]
# Hugging Face's TensorFlow weights, which many folders have in addition to the others.
_TENSORFLOW_PATTERNS = ["tf_model.h5", "tf_model.h5.index.json", "tf_model-*-of-*.h5"]
_WEIGHTS = (".safetensors", ".weights.h5", ".index")

_LICENCE = "Apache-2.0"  # The licence of all models listed here, which Google published.
_HUB_OWNERS = re.compile("google-bert/|google/bert_")  # how the Hub's users write the names
_NAME = re.compile(r"[\w-][\w.-]*(?:/[\w-][\w.-]*)?")  # of a model, without a scheme

GOOGLE_PREFIX = "google://"
GOOGLE_ADDRESS = "https://storage.googleapis.com/bert_models"
CACHE_VARIABLE = "OFFICIAL_BERT_CACHE"
# The dates in the addresses of Google's zips. For a name with two dates, the first one.
_DATES = {
    "uncased_L-12_H-768_A-12": "2018_10_18",
    "uncased_L-24_H-1024_A-16": "2018_10_18",
    "cased_L-12_H-768_A-12": "2018_10_18",
    "cased_L-24_H-1024_A-16": "2018_10_18",
    "multilingual_L-12_H-768_A-12": "2018_11_03",
    "chinese_L-12_H-768_A-12": "2018_11_03",
    "multi_cased_L-12_H-768_A-12": "2018_11_23",
    "wwm_uncased_L-24_H-1024_A-16": "2019_05_30",
    "wwm_cased_L-24_H-1024_A-16": "2019_05_30",
}
# All of Google's releases, with the miniatures.
GOOGLE_RELEASES = _DATES | {
    name: "2020_02_20"
    for layers in (2, 4, 6, 8, 10, 12)
    for width in (128, 256, 512, 768)
    if (name := f"uncased_L-{layers}_H-{width}_A-{width // 64}") not in _DATES
}


def list_known_models() -> dict[str, tuple[str, str]]:
    """Returns the well-known models, which users can name without hf:// or google://.

    Returns:
        For each name, where the model is downloaded from (a hf:// or google:// name), and the name of its configuration
        file in configs/models, without .json.
    """
    models = {name: (f"{HUB_PREFIX}google-bert/{name}", size) for name, size in HUB_MODELS.items()}
    models |= {name: (GOOGLE_PREFIX + size, size) for name, size in MINIATURES.items()}
    return models | {name: (GOOGLE_PREFIX + name, name.removeprefix("wwm_")) for name in GOOGLE_RELEASES}


def get_local_folder(path: str) -> str:
    """Returns the local folder of a named checkpoint, which is downloaded if necessary, or `path` itself.

    A name is hf://owner/name, optionally with @revision (a branch, tag or commit), google://name, or one in
    `list_known_models`. A file or folder with the name of a well-known model takes precedence.

    Raises:
        UserError: If the name is unknown, or cannot be downloaded and is not in the cache.
    """
    path = os.fspath(path)
    source, _ = list_known_models().get(_HUB_OWNERS.sub("", path, count=1), (None, None))
    if source is not None and not files.exists(path) and not files.exists(f"{path}.index"):
        _print_source(path, source)
        path = source
    if path.startswith(HUB_PREFIX):
        return _download_from_hub(path)
    path = get_google_release(path)
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
        f"{path} is neither a file, a folder nor a known model; {hint}`official-bert models` lists the known models"
    )


def format_table() -> Iterator[str]:
    """Yields the lines of a table of the known models with their sizes and licenses. Nothing is downloaded."""
    rows = [["name", "parameters", "layers", "hidden", "licence", "taken from"]]
    for name, (source, size) in list_known_models().items():
        config = BertConfig.from_json_file(f"configs/models/{size}.json")
        sizes = _count_parameters(config), config.num_hidden_layers, config.hidden_size
        rows.append([name, *(f"{number:,}" for number in sizes), _LICENCE, source])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [f"{cell:{side}{width}}" for cell, side, width in zip(row, "<>>><<", widths, strict=True)]
        yield "  ".join(cells).rstrip()
    yield "The parameters are counted without heads. Pass a name wherever a checkpoint is expected: --init=bert-tiny"


def _count_parameters(config: BertConfig) -> int:
    """Returns the number of weights of an encoder with its pooler."""
    width, wide = config.hidden_size, config.intermediate_size
    rows = config.vocab_size + config.type_vocab_size + config.max_position_embeddings + 2  # 2 of the normalization
    block = 4 * width * (width + 1) + 2 * width * wide + wide + 5 * width
    return rows * width + config.num_hidden_layers * block + width * (width + 1)


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


@functools.cache
def get_google_release(path: str) -> str:
    """Returns the local folder of a release, downloading it if necessary. Returns a path without google:// unchanged.

    Raises:
        UserError: If the name is unknown, or its zip file cannot be downloaded or is damaged.
    """
    if not path.startswith(GOOGLE_PREFIX):
        return path
    name = path.removeprefix(GOOGLE_PREFIX).rstrip("/")
    date = GOOGLE_RELEASES.get(name)
    if date is None:
        raise UserError(
            f"{path} is not one of Google's releases; the names are {', '.join(_DATES)} and "
            "uncased_L-{2,4,6,8,10,12}_H-{128,256,512,768}_A-{2,4,8,12}"
        )
    cache = os.environ.get(CACHE_VARIABLE) or os.path.join(os.path.expanduser("~"), ".cache", "official_bert")
    folder = os.path.join(cache, "google", name)
    if os.path.isfile(folder):
        raise UserError(f"{folder} is a file; expected the folder of a checkpoint. Remove it to download the folder.")
    if not files.exists(folder):
        # The zip is in the same temporary folder, which the next process removes if this one is killed.
        with files.explain_write_errors(folder), files.create_temporary_folder(folder) as temporary:
            checkpoint = _download_release(f"{GOOGLE_ADDRESS}/{date}/{name}.zip", temporary, folder)
            if not files.exists(folder):  # Otherwise another process has finished first.
                os.replace(checkpoint, folder)
    return folder


def _download_release(address: str, temporary: str, folder: str) -> str:
    """Downloads and unpacks a zip into a temporary folder. Returns the folder of the checkpoint in it."""
    import keras  # imported late, because the names of the releases are listed without it

    unpacked = os.path.join(temporary, "unpacked")
    try:
        with contextlib.redirect_stdout(sys.stderr):  # for the progress bar
            zip_file = keras.utils.get_file("release.zip", address, cache_dir=temporary, cache_subdir="")
        with zipfile.ZipFile(zip_file) as opened:
            opened.extractall(unpacked)  # compares the checksum of each file
    except Exception as error:  # errors of urllib, zipfile and of Keras, which has no class for them
        raise UserError(
            f"cannot download {address}, or it was damaged on the way: {error}. Try again, or download it on any "
            f"machine, unpack it, and pass its folder or copy the folder to {folder}."
        ) from error
    found = glob.glob(os.path.join(glob.escape(unpacked), "**", "bert_config.json"), recursive=True)
    if not found:
        raise UserError(f"{address} contains no checkpoint")
    return os.path.dirname(found[0])
