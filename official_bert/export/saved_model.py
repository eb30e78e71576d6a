"""Writes a trained model as a SavedModel that takes text, in the layout described in inference/exports.py.

Loading it requires only TensorFlow and tensorflow-text. The folder may be moved.
"""

import json
import os
import tempfile
from typing import Any

import tensorflow as tf

from official_bert.checkpoints import checksums
from official_bert.checkpoints.checkpoint import VOCAB_FILE
from official_bert.errors import UserError
from official_bert.export import operations, separate_process, verification, warmup
from official_bert.export.graph_models import build_graph_model
from official_bert.export.options import ExportOptions
from official_bert.export.source import ExportSource
from official_bert.inference import exports
from official_bert.utils import files
from official_bert.utils.tensorflow_import import show_warnings_only


def write(source: ExportSource, folder: str, options: ExportOptions) -> None:
    """Writes the folder of one version of a SavedModel export.

    Raises:
        UserError: If its answers differ from the answers of predict, or it uses an operation that the requested release
            of TensorFlow Serving lacks.
    """
    functions = build_graph_model(source)
    module = tf.Module()
    # Variables without their Keras objects, so that loading the export does not require Keras.
    module.model_variables = [variable.value for variable in source.model.variables]
    signatures = functions.signatures()
    with tempfile.TemporaryDirectory() as local:
        vocab_file = os.path.join(local, VOCAB_FILE)
        files.write_text(vocab_file, source.vocab)
        module.vocabulary = tf.saved_model.Asset(vocab_file)
        with show_warnings_only():  # TensorFlow would log the path of the assets in a folder that is renamed later.
            tf.saved_model.save(module, folder, signatures=signatures)
    missing, release = operations.find_missing(folder), options.for_serving
    if release is not None and release not in missing:
        raise UserError(f"the operations of TensorFlow {release} are not known; choose from {', '.join(missing)}")
    if release is not None and missing[release]:
        raise UserError(
            f"TensorFlow Serving {release} lacks operations of the export: {', '.join(missing[release])}. Export with "
            "that release of TensorFlow, or serve with a later one."
        )
    releases = [release for release, names in missing.items() if not names]
    write_metadata(folder, source.metadata(functions.inputs) | {"tensorflow_serving": releases})
    warmup.write_requests(os.path.join(folder, exports.WARMUP_FILE), functions.inputs)
    reference = verification.record_answers(source, options.eval_file)
    verification.check_answers(reference, *separate_process.answer_without_package(folder, reference.rows()))
    reference.write(folder)
    write_checksums(folder)


def write_metadata(folder: str, metadata: dict[str, Any]) -> None:
    """Writes the metadata of an export (see ExportSource.metadata) into its folder."""
    text = json.dumps(metadata, indent=1, ensure_ascii=False) + "\n"
    files.write_text(os.path.join(folder, exports.METADATA_FILE), text)


def write_checksums(folder: str) -> None:
    """Writes the checksums of an export's files into its folder.

    Call it last, because the checksums show that the export is complete.
    """
    checksums.write(folder, [os.path.relpath(path, folder) for path in exports.list_model_files(folder)], {})
