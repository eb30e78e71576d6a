"""Keras' files of a model, written so that one that is there stays until the new one is whole."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import keras

from official_bert.checkpoints import hdf5
from official_bert.errors import UserError
from official_bert.utils import files


@contextlib.contextmanager
def write_atomically(
    filepath: Any, model: keras.Model, overwrite: bool = True, is_folder: bool = False
) -> Iterator[str]:
    """Yields a path for Keras to write a model to, whose file becomes `filepath` when all of it is written.

    Raises:
        UserError: there is one already and it may not be overwritten, or the file system refuses the write.
    """
    path = os.fspath(filepath)
    if not overwrite and files.exists(path):
        raise UserError(f"{path} is there already; give another name, or overwrite=True")
    if is_folder:
        whole = files.write_folder_atomically(path)
    elif path.endswith((".h5", ".hdf5", ".weights.json")):
        optimizer = getattr(model, "optimizer", None)  # a model that was never compiled has none
        whole = hdf5.write_atomically(path, [*model.variables, *(optimizer.variables if optimizer else ())])
    else:
        whole = files.write_atomically(path)
    with whole as beside:
        yield beside


def load(filepath: Any, model_class: type, expected: str) -> Any:
    """Returns the model in a file that Keras wrote.

    Args:
        filepath: Path of the file.
        model_class: The class that the model must have.
        expected: Its description, for the message.

    Raises:
        UserError: If the file does not exist, is damaged, was written by another program, or holds another model.
    """
    path = os.fspath(filepath)
    if not files.exists(path):
        raise UserError(f"there is no file {path}")
    try:
        model = keras.models.load_model(files.local_copy(path))
    except UserError:
        raise
    except Exception as error:  # Keras raises whatever the parts of a damaged file lead to
        message = str(error).splitlines()[0] if str(error) else repr(error)
        if "File not found" in message:  # so Keras says of a file that is no zip, too
            message = "it is no whole .keras file"
        elif isinstance(error, KeyError | RecursionError):
            message = repr(error)
        raise UserError(
            f"{path} is damaged or of another program: {message[:300]}; restore the file from a copy"
        ) from error
    if not isinstance(model, model_class):
        raise UserError(f"{path} holds a {type(model).__name__}; expected {expected}")
    return model
