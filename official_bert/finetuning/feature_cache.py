"""Caches features on disk. The name of a file is a digest of everything that the features depend on."""

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from official_bert.kinds.features import Features
from official_bert.tasks.task import Task
from official_bert.tokenization.fast import FastTokenizer
from official_bert.utils import files
from official_bert.version import __version__

_VERSION = 7  # increase it when features are computed differently
# What NumPy raises for a damaged file. Each array in it has a checksum.
_DAMAGE = (ValueError, OSError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile)
_ARRAYS = ("input_ids", "segment_ids", "splits", "is_truncated")
_NUMBERS = ("choices", "has_token_outputs")


def compute_digest(task: Task, examples: Sequence[Any], tokenizer: FastTokenizer, max_seq_length: int) -> str:
    """Returns a digest of everything that the features of some examples depend on, the arguments."""
    # Entries of task.json that do not affect features, or that the examples already contain.
    ignored = ("table", *task.spec.decision_settings)
    inputs = [
        __version__,
        {key: value for key, value in task.task_spec(max_seq_length).items() if key not in ignored},
        *tokenizer.casing.settings.values(),
        list(tokenizer.vocab.items()),
    ]
    hasher = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode())
    for example in examples:
        # The repr of a dataclass or tuple of strings and numbers is the same in every process.
        hasher.update(repr(example).encode("utf-8", "surrogatepass") + b"\0")
    return hasher.hexdigest()[:32]


def find_path(folder: str, digest: str) -> str:
    """Returns the path of the features with this digest in the cache."""
    return os.path.join(folder, f"{digest}.{_VERSION}.npz")


def write(path: str, features: Features) -> None:
    """Writes features to a file."""
    arrays = {name: getattr(features, name) for name in _ARRAYS}
    for part in ("targets", "details"):
        arrays |= {f"{part}/{name}": array for name, array in getattr(features, part).items()}
    content = io.BytesIO()
    np.savez(content, **{name: getattr(features, name) for name in _NUMBERS}, **arrays)
    files.write_bytes(path, content.getbuffer())


def read(path: str) -> Features | None:
    """Returns the features in a file, or None if it is missing or damaged."""
    if not files.exists(path):
        return None
    try:
        with np.load(io.BytesIO(files.read_bytes(path)), allow_pickle=False) as arrays:
            values = dict(arrays)
        parts = {
            part: {name.removeprefix(part): array for name, array in values.items() if name.startswith(part)}
            for part in ("targets/", "details/")
        }
        flat = {name: values[name] for name in _ARRAYS} | {name: values[name].item() for name in _NUMBERS}
        return Features(**flat, targets=parts["targets/"], details=parts["details/"])
    except _DAMAGE:
        return None
