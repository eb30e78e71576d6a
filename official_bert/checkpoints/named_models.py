"""Checkpoints by name: hf://owner/name from the Hugging Face Hub, google://name of Google's releases.

A name is taken wherever a checkpoint's path is. What is downloaded is kept, so that the network is needed once.
"""

import functools
import os
import re

from official_bert.checkpoints import google_models
from official_bert.errors import UserError

HUB_PREFIX = "hf://"
_HUB_NAME = re.compile(r"hf://([\w.-]+(?:/[\w.-]+)?)(?:@([\w./-]+))?/?")
# The files of every format that is read; weights of other frameworks, and code, are left where they are.
_PATTERNS = [
    "config.json", "vocab.txt", "tokenizer.json", "tokenizer_config.json",  # Hugging Face
    "model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors",
    "metadata.json", "task.json", "model.weights.h5", "task.weights.h5", "assets/tokenizer/vocabulary.txt",  # keras-hub
    "bert_config.json", "labels.json", "checksums.json", "checkpoint", "*.index", "*.data-*-of-*",  # TensorFlow's
]  # fmt: skip
# Hugging Face's TensorFlow weights, which many folders have beside the others, as large as they.
_TENSORFLOW_PATTERNS = ["tf_model.h5", "tf_model.h5.index.json", "tf_model-*-of-*.h5"]
_WEIGHTS = (".safetensors", ".weights.h5", ".index")


@functools.cache
def local_folder(path: str) -> str:
    """Returns the folder of a checkpoint: that of a name, which is downloaded if need be, or `path` itself.

    Names are hf://owner/name, with @revision behind it for a branch, tag or commit, and google://name.

    Raises:
        UserError: the name is unknown, or cannot be downloaded and is not in the cache.
    """
    return _from_hub(path) if path.startswith(HUB_PREFIX) else google_models.local_folder(path)


def _from_hub(path: str) -> str:
    """Downloads with huggingface_hub: its cache, token, offline mode (HF_HUB_OFFLINE) and address (HF_ENDPOINT)."""
    match = _HUB_NAME.fullmatch(path)
    if not match:
        raise UserError(f"{path} is no name on the Hub; expected hf://owner/name or hf://owner/name@revision")
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
            f"cannot fetch {path}: config.json, model.safetensors, vocab.txt and what else is there of {name} at "
            f"revision {revision or 'main'} would come from {constants.ENDPOINT}, and they are not in the cache "
            f"{constants.HF_HUB_CACHE}: {reason}; to do it by hand, run `hf download {name} --local-dir FOLDER` on a "
            "machine with network and give the FOLDER; a private or gated model needs `hf auth login`"
        ) from error
    return str(folder)
