"""Reads and writes Keras weight files in HDF5 format."""

import contextlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from official_bert.checkpoints.checkpoint import Array
from official_bert.checkpoints.tensors import TensorFile
from official_bert.errors import UserError
from official_bert.utils import files

_MAX_OVERHEAD = 16 << 10  # Upper bound for the bytes of a tensor's metadata in a file.
_FOREIGN = "{} contains {}. Only files that contain all of their weights can be read. Download the file again."


def check_self_contained(path: str, title: str) -> dict[str, tuple[int, ...]]:
    """Checks that a local HDF5 file refers to no other files, and returns the shapes of its datasets by name.

    An HDF5 file can refer to other files in three ways: links, datasets with external storage, and virtual datasets.
    Without this check, a prepared file could load the bytes of any file as weights.

    Args:
        path: Path of the file.
        title: The name of the file in error messages.

    Raises:
        UserError: If the file is damaged or refers to other files.
    """
    import h5py

    files.check_regular(path)
    shapes: dict[str, tuple[int, ...]] = {}

    def check(group: h5py.Group) -> None:
        for name in group:
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                raise UserError(_FOREIGN.format(title, f"the link {group.name.rstrip('/')}/{name}"))
            item = group[name]
            if isinstance(item, h5py.Group):
                check(item)
            elif isinstance(item, h5py.Dataset):
                if item.external or item.is_virtual:
                    raise UserError(_FOREIGN.format(title, f"the dataset {item.name}, stored in other files"))
                shapes[item.name.removeprefix("/")] = tuple(item.shape)

    try:
        with h5py.File(path, "r") as opened:
            check(opened)
    except UserError:
        raise
    except Exception as error:  # h5py raises many kinds of errors for damaged files.
        raise UserError(f"{title} is damaged: {error}; restore the file from a copy") from error
    return shapes


def open_hdf5(path: str) -> TensorFile:
    """Opens an HDF5 weight file for reading tensor by tensor. Raises a UserError if the file is damaged."""
    import h5py

    if files.is_remote(path):
        raise UserError(f"{path} is on a remote file system; copy the folder to this machine first")
    shapes = check_self_contained(path, path)
    opened = h5py.File(path, "r")

    def read(name: str) -> Array:
        try:
            value: Array = opened[name][()]
        except Exception as error:  # as above
            raise UserError(f"{name} in {path} is damaged: {error}; restore the file from a copy") from error
        return value

    return TensorFile(path, shapes, read)


def write_hdf5(path: str, tensors: Mapping[str, Array]) -> None:
    """Writes tensors to an HDF5 file, each under its name. The file appears under `path` only when it is complete."""
    import h5py

    with write_atomically(path, list(tensors.values())) as temporary, h5py.File(temporary, "w") as writer:
        for name, value in tensors.items():
            writer[name] = value


@contextlib.contextmanager
def write_atomically(path: str, values: Sequence[Any]) -> Iterator[str]:
    """Yields a temporary path that is renamed to `path` at the end, and first reserves disk space for `values`.

    Space is reserved because on a full disk HDF5 may end the process instead of raising an error.

    Args:
        path: The final path.
        values: The arrays or variables that will be written.
    """
    with files.write_atomically(path) as temporary:
        if hasattr(os, "posix_fallocate"):
            with open(temporary, "wb") as probe:
                size = sum(math.prod(value.shape) * np.dtype(value.dtype).itemsize + _MAX_OVERHEAD for value in values)
                os.posix_fallocate(probe.fileno(), 0, size)
            os.remove(temporary)
        yield temporary
