"""TensorFlow checkpoints (NAME.index, NAME.data-...): the files of Google's TF1 models, the model garden and our runs.

The files contain a checksum of every tensor. TensorFlow verifies it when it reads the tensor.

A checkpoint is identified by its prefix: the path without .index, such as model/ckpt-1000.
"""

import contextlib
import os
import re
import weakref
from collections.abc import Mapping

import tensorflow as tf

from official_bert.checkpoints.checkpoint import Array
from official_bert.checkpoints.tensors import TensorFile
from official_bert.errors import UserError
from official_bert.utils import files

# The errors that TensorFlow raises for a damaged or missing file.
_READ_ERRORS = (ValueError, IndexError, RuntimeError, tf.errors.OpError)

_known_complete: set[tuple[object, ...]] = set()


def find_prefix(path: str) -> str:
    """Returns the prefix of the checkpoint at a path, such as model/ckpt-1000.

    Args:
        path: The prefix itself, the .index file, a .data file, or a folder. Of several numbered checkpoints in a
            folder, the newest complete one is chosen.

    Raises:
        UserError: If no checkpoint is found, or the folder has several that are not numbered.
    """
    if files.exists(f"{path}.index"):
        return path
    base = re.sub(r"\.(index|data-\d+-of-\d+)$", "", path)
    if base != path and files.exists(f"{base}.index"):
        return base
    if not files.is_folder(path):
        raise UserError(
            f"{path} is not a readable checkpoint; pass a folder, or the path of a checkpoint without .index"
        )
    prefixes = _prefixes_in(path)
    if len(prefixes) == 1:  # Also if it is damaged, so that reading it reports the damage.
        return prefixes[0]
    numbered = list_checkpoints(path)
    if numbered and len(numbered) == len(prefixes):
        return find_newest_complete(path) or numbered[0]
    names = ", ".join(f"{os.path.basename(name)}.index" for name in prefixes)
    raise UserError(
        f"{path} has {len(prefixes)} checkpoints ({names or 'no .index file'}); pass the path of one without .index"
    )


def is_bundle(path: str) -> bool:
    """Returns whether `path` is the prefix of a TensorFlow checkpoint, or a folder with one. It may be damaged."""
    return files.exists(f"{path}.index") or bool(_prefixes_in(path))


def _prefixes_in(folder: str) -> list[str]:
    """Returns the prefixes of all checkpoints in a folder. The folder's name may contain [ and *."""
    if not files.is_folder(folder):
        return []
    names = files.list_folder(folder)
    return [os.path.join(folder, name.removesuffix(".index")) for name in names if name.endswith(".index")]


def list_checkpoints(folder: str, name: str | None = None) -> list[str]:
    """Returns the prefixes of the numbered checkpoints in a folder (ckpt-20, model.ckpt-20), the highest number first.

    TensorFlow's file named checkpoint is not read: it may be damaged, or older than the checkpoints.

    Args:
        folder: The folder, which may be missing.
        name: The part of the names before the number, such as "ckpt". If it is None and the checkpoints have different
            names, the result is empty.
    """
    matches = [(prefix, re.fullmatch(r"(.+)-(\d+)", os.path.basename(prefix))) for prefix in _prefixes_in(folder)]
    numbers = {prefix: int(match[2]) for prefix, match in matches if match and name in (None, match[1])}
    if name is None and len({match[1] for _, match in matches if match}) > 1:
        return []
    return sorted(numbers, key=lambda prefix: numbers[prefix], reverse=True)


def find_newest_complete(folder: str, name: str | None = None) -> str | None:
    """Returns the prefix of the complete checkpoint with the highest number, or None if the folder has no checkpoint.

    Truncated and damaged checkpoints are skipped with a warning. An empty .index file means that the save was
    interrupted; such a checkpoint is skipped with a message. The arguments are the same as for `list_checkpoints`.

    Raises:
        UserError: If every checkpoint is damaged.
    """
    damaged = []
    for prefix in list_checkpoints(folder, name):
        if not files.size(f"{prefix}.index"):
            print(f"{prefix} was not saved completely and is skipped", flush=True)
            continue
        damage = find_damage(prefix)
        if damage is None:
            return prefix
        print(f"warning: {prefix} is damaged and skipped: {damage}", flush=True)
        damaged.append(prefix)
    if damaged:
        raise UserError(
            f"the checkpoints {', '.join(damaged)} cannot be read; restore one from a copy, or start again in another "
            "folder"
        )
    return None


def find_damage(prefix: str) -> str | None:
    """Reads all tensors of a checkpoint, which verifies their checksums.

    Args:
        prefix: The path of the checkpoint without .index.

    Returns:
        The error message if the checkpoint is damaged or incomplete. None if all tensors can be read.
    """
    try:
        source = open_bundle(prefix)
        stats = [tf.io.gfile.stat(path) for path in (f"{prefix}.index", *_data_files(prefix))]
        identity = (prefix, *((stat.length, stat.mtime_nsec) for stat in stats))
        if identity not in _known_complete:  # Read each checkpoint only once.
            for name in source.shapes:
                source.read(name)
            _known_complete.add(identity)
    except UserError as error:
        return str(error)
    return None


def open_bundle(prefix: str) -> TensorFile:
    """Opens the checkpoint `prefix` (its path without .index) for reading tensor by tensor.

    Raises:
        UserError: If the checkpoint cannot be opened. The source's `read` raises a UserError for a damaged tensor.
    """
    for path in (f"{prefix}.index", *_data_files(prefix)):
        files.check_regular(path)
    opened = contextlib.ExitStack()  # Stays open as long as the reader, which opens its files late.
    try:
        reader = tf.train.load_checkpoint(opened.enter_context(files.link_to_plain_path(prefix)))
        shapes = {name: tuple(shape) for name, shape in reader.get_variable_to_shape_map().items()}
    except _READ_ERRORS as error:
        opened.close()
        raise UserError(
            f"{prefix}.index is missing or damaged: {_first_line(error)}; pass a folder, or a path without .index"
        ) from error

    def read(name: str) -> Array:
        try:
            value: Array = reader.get_tensor(name)
        except _READ_ERRORS as error:
            where = ", ".join(_data_files(prefix)) or f"{prefix}.data-*"
            raise UserError(
                f"{name} in {where} is damaged or missing: {_first_line(error)}. Copy all files of the checkpoint "
                "again."
            ) from error
        return value

    weakref.finalize(read, opened.close)
    return TensorFile(prefix, shapes, read)


def _data_files(prefix: str) -> list[str]:
    folder, base = os.path.split(prefix)
    names = files.list_folder(folder or ".") if files.exists(folder or ".") else []
    return [os.path.join(folder, name) for name in names if name.startswith(f"{base}.data-")]


def _first_line(error: Exception) -> str:
    return str(error).split("\n")[0]


def write_bundle(prefix: str, tensors: Mapping[str, Array]) -> None:
    """Writes tensors to a TensorFlow checkpoint, PREFIX.index and one data file, sorted by name as TF1's Saver did."""
    names = sorted(tensors)
    try:
        tf.raw_ops.SaveV2(
            prefix=prefix,
            tensor_names=names,
            shape_and_slices=[""] * len(names),
            tensors=[tf.constant(tensors[name]) for name in names],
        )
    except tf.errors.OpError as error:
        raise UserError(f"cannot write {prefix}: {_first_line(error)}") from error
