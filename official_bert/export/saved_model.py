"""Saves a trained model as a SavedModel that takes text, in the layout that TensorFlow Serving watches.

EXPORT_DIR/<version>/ holds the SavedModel with its vocabulary in assets/vocab.txt, and in assets.extra the export's
metadata (official_bert.json) and the requests by which TensorFlow Serving warms up. It needs nothing but TensorFlow and
tensorflow-text where it is loaded, and may be moved.
"""

import json
import os
import tempfile
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from official_bert.checkpoints import checksums
from official_bert.checkpoints.checkpoint import VOCAB_FILE
from official_bert.errors import UserError
from official_bert.export import operations, plain_answers, replay
from official_bert.export.graph_models import build_graph_model
from official_bert.export.options import ExportOptions
from official_bert.export.source import Source
from official_bert.inference import exports, warmup
from official_bert.utils import files
from official_bert.utils.tensorflow_import import warnings_alone
from official_bert.version import __version__


def write(source: Source, folder: str, options: ExportOptions) -> None:
    """Writes the SavedModel with all that belongs to it into a folder.

    Raises:
        UserError: If what was written answers differently from predict, or uses an operation that the release of
            TensorFlow Serving in the options lacks.
    """
    functions = build_graph_model(source.model, source.tokenizer, source.kind, source.task_spec)
    module = tf.Module()
    # The bare variables: Keras' objects would want Keras where the export is loaded.
    module.model_variables = [variable.value for variable in source.model.variables]
    signatures = functions.signatures()
    with tempfile.TemporaryDirectory() as local:
        vocab_file = os.path.join(local, VOCAB_FILE)
        files.write_text(vocab_file, source.vocab)
        module.vocabulary = tf.saved_model.Asset(vocab_file)
        with warnings_alone():  # not where it wrote the assets: the folder gets another name
            tf.saved_model.save(module, folder, signatures=signatures)
    release = options.for_serving
    if release is not None and (missing := operations.lacking(folder, release)):
        raise UserError(
            f"TensorFlow Serving {release} lacks what the export uses: {', '.join(missing)}; export with that "
            "release of TensorFlow, or serve with a later one"
        )
    metadata = metadata_of(source, functions.inputs) | {
        "tensorflow_serving": operations.releases_for(folder),
    }
    write_metadata(folder, metadata)
    files.write_bytes(os.path.join(folder, exports.WARMUP_FILE), warmup.warmup_requests(functions.inputs))
    texts = replay.make(source, options.eval_file)
    replay.prove(texts, *plain_answers.answers(folder, texts.rows()))
    texts.write(folder)
    write_checksums(folder)


def metadata_of(source: Source, inputs: Iterable[str]) -> dict[str, Any]:
    """Returns what an export says of its model, whose texts have the names `inputs`."""
    labels = source.task_spec["labels"]
    return {
        # the columns that it was trained on, which batch prediction looks for too
        **({"table": source.task_spec["table"]} if "table" in source.task_spec else {}),
        "kind": source.kind,
        "task": source.task_spec["task"],
        "inputs": list(inputs),
        "labels": None if labels is None else list(labels),
        "max_seq_length": source.task_spec["max_seq_length"],
        **source.tokenizer.basic_tokenizer.casing.settings,
        "version_of_official_bert": __version__,
    }


def write_metadata(folder: str, metadata: dict[str, Any]) -> None:
    """Writes what an export says of its model."""
    text = json.dumps(metadata, indent=1, ensure_ascii=False) + "\n"
    files.write_text(os.path.join(folder, exports.METADATA_FILE), text)


def write_checksums(folder: str) -> None:
    """Writes the sums by which a whole export is told from a half-copied one; last of all."""
    checksums.write(folder, [os.path.relpath(path, folder) for path in exports.files_of(folder)], {})
