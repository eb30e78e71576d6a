"""Features on disk, under a name that is a digest of all that they were made from."""

import hashlib
import io
import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from official_bert.kinds.features import Features
from official_bert.kinds.label_spec import DECISIONS
from official_bert.tasks.task import Task
from official_bert.tokenization.fast import FastTokenizer
from official_bert.utils import files
from official_bert.version import __version__

_VERSION = 5  # raise it when features are made differently
_CHECKSUM_BYTES = 32  # a SHA-256 before the arrays
# Of what the features do not depend, or what the examples say.
_LEFT_OUT = ("table", *DECISIONS)
_ARRAYS = ("input_ids", "segment_ids", "splits", "is_cut")


def digest(task: Task, examples: Sequence[Any], tokenizer: FastTokenizer, max_seq_length: int) -> str:
    """Returns a name for the features of these examples: equal inputs have equal names, others another one."""
    made_from = [
        __version__,
        {key: value for key, value in task.task_spec(max_seq_length).items() if key not in _LEFT_OUT},
        *tokenizer.casing.settings.values(),
        list(tokenizer.vocab.items()),
    ]
    summed = hashlib.sha256(json.dumps(made_from, sort_keys=True).encode())
    for example in examples:
        # The text of a dataclass or tuple of strings and numbers is the same in every process.
        summed.update(repr(example).encode("utf-8", "surrogatepass") + b"\0")
    return summed.hexdigest()[:32]


def features_of(
    task: Task, examples: Sequence[Any], tokenizer: FastTokenizer, max_seq_length: int, folder: str | None
) -> Features:
    """Returns the features of examples: from the folder where it has them, else made and kept there.

    Args:
        task: makes them.
        examples: as the task reads them.
        tokenizer: for their text.
        max_seq_length: the longest sequence.
        folder: the cache's; None for none.
    """
    if folder is None:
        return task.head.featurize(examples, tokenizer, max_seq_length)
    path = os.path.join(folder, f"{digest(task, examples, tokenizer, max_seq_length)}.{_VERSION}.npz")
    if files.exists(path) and (kept := _read(path)) is not None:
        return kept
    features = task.head.featurize(examples, tokenizer, max_seq_length)
    _write(path, features)
    return features


def _checksum(whole: bytes | memoryview) -> bytes:
    return hashlib.sha256(memoryview(whole)[_CHECKSUM_BYTES:]).digest()


def _write(path: str, features: Features) -> None:
    arrays = {name: getattr(features, name) for name in _ARRAYS}
    for part in ("targets", "details"):
        arrays |= {f"{part}/{name}": array for name, array in getattr(features, part).items()}
    content = io.BytesIO()
    content.write(bytes(_CHECKSUM_BYTES))
    np.savez(content, choices=features.choices, **arrays)
    with content.getbuffer() as whole:
        whole[:_CHECKSUM_BYTES] = _checksum(whole)
        files.write_bytes(path, whole)


def _read(path: str) -> Features | None:
    """The features in a file; None if it is damaged."""
    content = files.read_bytes(path)
    if content[:_CHECKSUM_BYTES] != _checksum(content):
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
            arrays["is_cut"],
        )
