"""TensorFlow's checkpoint files, .index and .data: what Google's TF1 checkpoints, model garden's and ours consist of.

They carry checksums of every tensor, which TensorFlow compares when it reads.
"""

import os
import re
from collections.abc import Mapping

import tensorflow as tf

from official_bert import files
from official_bert.checkpoint_formats.checkpoint import Array, Source
from official_bert.errors import UserError

# What TensorFlow raises for a damaged or missing file: its own errors, and others where its C++ code meets Python's.
_READ_ERRORS = (ValueError, IndexError, RuntimeError, tf.errors.OpError)


def prefix_of(path: str) -> str:
    """Returns a checkpoint's path without .index, from a folder, one of its files or that path itself.

    Raises:
        UserError: there is none, or several in a folder that does not say which is the newest.
    """
    if files.exists(f"{path}.index"):
        return path
    base = re.sub(r"\.(index|data-\d+-of-\d+)$", "", path)
    if base != path and files.exists(f"{base}.index"):
        return base
    if not tf.io.gfile.isdir(path):
        raise UserError(
            f"there is no readable checkpoint {path}; give a folder, or the path of a checkpoint without .index"
        )
    try:
        newest = tf.train.latest_checkpoint(path)
    except _READ_ERRORS as error:
        raise UserError(
            f"{os.path.join(path, 'checkpoint')} is damaged: {_first_line(error)}; give the path of one checkpoint, "
            "without .index"
        ) from error
    if newest:
        return str(newest)
    found = sorted(tf.io.gfile.glob(os.path.join(path, "*.index")))
    if len(found) != 1:
        names = ", ".join(os.path.basename(name) for name in found)
        raise UserError(
            f"{path} has {len(found)} checkpoints ({names or 'no .index file'}) and its file named checkpoint does not "
            "say which is the newest; give the path of one without .index"
        )
    return str(found[0]).removesuffix(".index")


def is_bundle(path: str) -> bool:
    """Whether there is a checkpoint of TensorFlow's at the path, whole or not."""
    return bool(tf.io.gfile.glob(f"{path}.index") or tf.io.gfile.glob(os.path.join(path, "*.index")))


def open_bundle(prefix: str) -> Source:
    """Opens a checkpoint by its path without .index; reading a damaged tensor raises a UserError."""
    try:
        reader = tf.train.load_checkpoint(prefix)
        shapes = {name: tuple(shape) for name, shape in reader.get_variable_to_shape_map().items()}
    except _READ_ERRORS as error:
        raise UserError(
            f"{prefix}.index is missing or damaged: {_first_line(error)}; give a folder, or a path without .index"
        ) from error

    missing = _missing_data_files(prefix)
    if missing:
        raise UserError(
            f"{prefix}.index is there, but not {', '.join(missing)} beside it; copy the checkpoint's every file"
        )

    def read(name: str) -> Array:
        try:
            value: Array = reader.get_tensor(name)
        except _READ_ERRORS as error:
            raise UserError(
                f"{name} in {data_files(prefix)} is damaged: {_first_line(error)}; restore the file from a copy"
            ) from error
        return value

    return Source(prefix, shapes, read)


def data_files(prefix: str) -> str:
    """Returns the names of a checkpoint's data files, for a message."""
    return ", ".join(sorted(tf.io.gfile.glob(f"{prefix}.data-*"))) or f"{prefix}.data-*"


def _missing_data_files(prefix: str) -> list[str]:
    """The data files that should stand beside an index and do not; the name of each tells how many there are."""
    folder, base = os.path.split(prefix)
    beside = tf.io.gfile.listdir(folder or ".")
    counts = {
        match.group(1) for name in beside if (match := re.fullmatch(rf"{re.escape(base)}\.data-\d+-of-(\d+)", name))
    }
    if len(counts) > 1:  # files of several checkpoints; reading will tell
        return []
    count = counts.pop() if counts else "00001"
    names = [f"{base}.data-{number:05}-of-{count}" for number in range(int(count))]
    return [name for name in names if name not in beside]


def _first_line(error: Exception) -> str:
    return str(error).split("\n")[0]


def write_bundle(prefix: str, tensors: Mapping[str, Array]) -> None:
    """Writes tensors by their names, in the names' order, as TF1's Saver did: PREFIX.index and one data file."""
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
