"""Caches features on disk. The name of a file is a digest of everything that the features depend on."""

import hashlib
import io
import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from official_bert.kinds.features import Features
from official_bert.kinds.text_spec import DECISIONS
from official_bert.tasks.task import Task
from official_bert.tokenization.fast import FastTokenizer
from official_bert.utils import files
from official_bert.version import __version__

_VERSION = 5  # increase it when features are computed differently
_CHECKSUM_BYTES = 32  # a SHA-256 digest before the arrays
# Entries of task.json that do not affect features, or that the examples already contain.
_IGNORED = ("table", *DECISIONS)
_ARRAYS = ("input_ids", "segment_ids", "splits", "is_truncated")


def compute_digest(task: Task, examples: Sequence[Any], tokenizer: FastTokenizer, max_seq_length: int) -> str:
    """Returns a digest of everything that the features of some examples depend on, the arguments."""
    inputs = [
        __version__,
        {key: value for key, value in task.task_spec(max_seq_length).items() if key not in _IGNORED},
        *tokenizer.casing.settings.values(),
        list(tokenizer.vocab.items()),
    ]
    hasher = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode())
    for example in examples:
        # The repr of a dataclass or tuple of strings and numbers is the same in every process.
        hasher.update(repr(example).encode("utf-8", "surrogatepass") + b"\0")
    return hasher.hexdigest()[:32]


def load_or_compute_features(
    task: Task, examples: Sequence[Any], tokenizer: FastTokenizer, max_seq_length: int, folder: str, digest: str
) -> Features:
    """Returns the features of some examples. Reads them from the cache, or else computes and stores them.

    Args:
        task: The task that tokenizes the examples.
        examples: Examples of the task.
        tokenizer: Tokenizer of the model.
        max_seq_length: Maximum sequence length.
        folder: Folder of the cache.
        digest: The result of `compute_digest` for the other arguments.
    """
    path = os.path.join(folder, f"{digest}.{_VERSION}.npz")
    if files.exists(path) and (cached := _read(path)) is not None:
        return cached
    features = task.head.featurize(examples, tokenizer, max_seq_length)
    _write(path, features)
    return features


def _compute_checksum(content: bytes | memoryview) -> bytes:
    return hashlib.sha256(memoryview(content)[_CHECKSUM_BYTES:]).digest()


def _write(path: str, features: Features) -> None:
    arrays = {name: getattr(features, name) for name in _ARRAYS}
    for part in ("targets", "details"):
        arrays |= {f"{part}/{name}": array for name, array in getattr(features, part).items()}
    content = io.BytesIO()
    content.write(bytes(_CHECKSUM_BYTES))
    np.savez(content, choices=features.choices, **arrays)
    with content.getbuffer() as whole:
        whole[:_CHECKSUM_BYTES] = _compute_checksum(whole)
        files.write_bytes(path, whole)


def _read(path: str) -> Features | None:
    """Returns the features in a cache file, or None if the file is damaged."""
    content = files.read_bytes(path)
    if content[:_CHECKSUM_BYTES] != _compute_checksum(content):
        return None
    stream = io.BytesIO(content)
    stream.seek(_CHECKSUM_BYTES)
    with np.load(stream, allow_pickle=False) as arrays:
        parts: dict[str, dict[str, Any]] = {"targets": {}, "details": {}}
        for name in arrays.files:
            part, _, rest = name.partition("/")
            if rest:
                parts[part][rest] = arrays[name]
        return Features(
            arrays["input_ids"],
            arrays["segment_ids"],
            arrays["splits"],
            parts["targets"],
            parts["details"],
            int(arrays["choices"]),
            arrays["is_truncated"],
        )
