"""Reads and writes the files of Keras models. Files are written atomically."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import keras

from official_bert.checkpoints import hdf5
from official_bert.errors import UserError
from official_bert.utils import files

_LEGACY = (".h5", ".hdf5")  # Files of Keras' legacy format, or of weights alone.


@contextlib.contextmanager
def write_atomically(
    filepath: Any, model: keras.Model, overwrite: bool = True, is_folder: bool = False
) -> Iterator[str]:
    """Yields a temporary path for Keras to write to, and then renames the complete file to `filepath`.

    Args:
        filepath: The final path.
        model: The model that is written.
        overwrite: Whether to replace an existing file.
        is_folder: Whether Keras writes a folder instead of a file.

    Raises:
        UserError: If the file exists and `overwrite` is False, it cannot be written, or a folder's name ends in .keras.
    """
    path = os.fspath(filepath)
    if not overwrite and files.exists(path):
        raise UserError(f"{path} already exists; pass another path, or overwrite=True")
    if is_folder:
        if path.endswith(".keras"):
            raise UserError(f"{path} ends in .keras, but zipped=False writes a folder; remove the ending")
        writer = files.write_folder_atomically(path)
    elif path.endswith((*_LEGACY, ".weights.json")):
        optimizer = getattr(model, "optimizer", None)  # None if the model was never compiled.
        writer = hdf5.write_atomically(path, [*model.variables, *(optimizer.variables if optimizer else ())])
    else:
        writer = files.write_atomically(path)
    with writer as temporary_path:
        yield temporary_path


def load(filepath: Any, model_class: type, expected: str) -> Any:
    """Loads a model from a file that Keras wrote.

    Args:
        filepath: Path of the file, or of the folder that save(zipped=False) wrote.
        model_class: Required class of the model.
        expected: Description of that class, for the error message.

    Raises:
        UserError: If the file does not exist, is a folder that Keras did not write, is damaged, has Keras' legacy
            format, was written by another program, or contains another model.
    """
    path = os.fspath(filepath)
    if not files.exists(path):
        raise UserError(f"{path} does not exist")
    if path.endswith(_LEGACY):
        raise UserError(f"{path} is not a .keras file; create the model and call load_weights, or save it as .keras")
    if files.is_folder(path) and not files.exists(os.path.join(path, "metadata.json")):
        raise UserError(f"{path} is a folder that save did not write. For a folder of weights, use from_checkpoint")
    try:
        model = keras.models.load_model(files.local_copy(path))
    except UserError:
        raise
    except Exception as error:  # A damaged file can cause any exception in Keras.
        message = str(error).splitlines()[0] if str(error) else repr(error)
        if "File not found" in message:  # Keras also raises this if the file is not a zip archive.
            message = "it is not a complete .keras file"
        elif isinstance(error, KeyError | RecursionError):
            message = repr(error)
        raise UserError(
            f"{path} is damaged or was written by another program: {message[:300]}; restore it from a copy"
        ) from error
    if not isinstance(model, model_class):
        raise UserError(f"{path} contains a {type(model).__name__}; expected {expected}")
    return model
