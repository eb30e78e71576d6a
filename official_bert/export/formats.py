"""Exports a trained model in one or more formats.

A single format is written to EXPORT_DIR itself. Several formats are written to one subfolder each:
EXPORT_DIR/saved_model, EXPORT_DIR/onnx and EXPORT_DIR/litert. saved_model and onnx add a version folder (1, 2, ...), as
TensorFlow Serving expects. All folders appear together, after every format has been written and verified.
"""

import contextlib
import os

from official_bert.errors import UserError
from official_bert.export import litert, onnx_export, saved_model
from official_bert.export.options import LITERT, ONNX, SAVED_MODEL, ExportOptions
from official_bert.export.source import ExportSource, read_source
from official_bert.inference import exports
from official_bert.utils import files

_CHECKS = {ONNX: onnx_export.check, LITERT: litert.check}
_WRITERS = {SAVED_MODEL: saved_model.write, ONNX: onnx_export.write, LITERT: litert.write}


def export(options: ExportOptions) -> dict[str, str]:
    """Reads the model that the options name and exports it (see `write`)."""
    return write(read_source(options.model_dir, options.encoder, options.max_seq_length), options)


def write(source: ExportSource, options: ExportOptions) -> dict[str, str]:
    """Exports a model in one or more formats.

    Args:
        source: The model.
        options: The formats, the folder, and so on. Its `model_dir` is used only in messages.

    Returns:
        The folder of each format, by the format's name.

    Raises:
        UserError: If a format does not support the model, a folder exists already, or the answers of an export differ
            from the answers of predict.
    """
    for name in options.format:
        if name in _CHECKS:
            _CHECKS[name](source, options)
    folders = {name: _get_output_folder(options, name) for name in options.format}
    with contextlib.ExitStack() as stack:
        unfinished = {name: stack.enter_context(files.write_folder_atomically(path)) for name, path in folders.items()}
        for name, folder in unfinished.items():
            _WRITERS[name](source, folder, options)
    return folders


def _get_output_folder(options: ExportOptions, name: str) -> str:
    """Returns the path of the folder that the format `name` is written to."""
    parent = os.path.join(options.export_dir, name) if len({*options.format}) > 1 else options.export_dir
    if name == LITERT:
        return parent
    if exports.find_graph(parent):
        raise UserError(f"--export_dir={parent} is a version of an export; pass the folder that contains it.")
    return os.path.join(parent, str(options.version or next_version(parent)))


def next_version(export_dir: str) -> int:
    """Returns the number of the next version in an export folder: the highest present number plus 1, or else 1."""
    return 1 + max(exports.list_versions(export_dir), default=0)
