"""Exports a trained model in one or more formats.

A single format is written to EXPORT_DIR itself. Several formats are written to one subfolder each:
EXPORT_DIR/saved_model, EXPORT_DIR/onnx and EXPORT_DIR/litert. saved_model and onnx add a version folder (1, 2, ...), as
TensorFlow Serving expects. All folders appear together, after every format has been written and verified.
"""

import contextlib
import os

from official_bert.export import litert, onnx_export, saved_model
from official_bert.export.options import LITERT, ONNX, SAVED_MODEL, ExportOptions
from official_bert.export.source import Source, read_source
from official_bert.inference import exports
from official_bert.utils import files

_CHECKS = {ONNX: onnx_export.check, LITERT: litert.check}
_WRITERS = {SAVED_MODEL: saved_model.write, ONNX: onnx_export.write, LITERT: litert.write}


def export(options: ExportOptions) -> dict[str, str]:
    """Reads the model of the options and exports it: see `write`."""
    return write(read_source(options.model_dir, options.encoder, options.max_seq_length), options)


def write(source: Source, options: ExportOptions) -> dict[str, str]:
    """Exports a model.

    Args:
        source: The model.
        options: The formats, where to write them, and how. `model_dir` is used in messages only.

    Returns:
        The folder of each format, by the format's name.

    Raises:
        UserError: If a format does not support the model, a folder exists already, or an export answers differently
            from predict.
    """
    for name in options.format:
        if name in _CHECKS:
            _CHECKS[name](source, options)
    folders = {name: _folder(options, name) for name in options.format}
    with contextlib.ExitStack() as stack:
        unfinished = {name: stack.enter_context(files.write_folder_atomically(path)) for name, path in folders.items()}
        for name, folder in unfinished.items():
            _WRITERS[name](source, folder, options)
    return folders


def _folder(options: ExportOptions, name: str) -> str:
    """Returns the folder that a format is written to."""
    parent = os.path.join(options.export_dir, name) if len({*options.format}) > 1 else options.export_dir
    if name == LITERT:
        return parent
    return os.path.join(parent, str(options.version or next_version(parent)))


def next_version(export_dir: str) -> int:
    """Returns the highest version number in an export folder plus 1, or 1 if the folder has no versions."""
    return 1 + max(exports.list_versions(export_dir), default=0)
