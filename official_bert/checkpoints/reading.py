"""A checkpoint of any format: find out which one it is, and read it."""

import glob
import os

from official_bert.checkpoints import bundle, named_models
from official_bert.checkpoints.checkpoint import Checkpoint, LoadOverrides
from official_bert.checkpoints.formats import hugging_face_files, keras_hub
from official_bert.checkpoints.formats.all_formats import FORMATS
from official_bert.checkpoints.formats.format import CheckpointPath, Format
from official_bert.errors import UserError
from official_bert.utils import files

_EXPORT_FILE = os.path.join("assets.extra", "official_bert.json")  # in each version of an export


def _detect_format(path: str) -> Format:
    """Returns a checkpoint's format; a UserError says that it is none that is known."""
    candidate = CheckpointPath(path)
    if any(files.glob(os.path.join(glob.escape(path), *folder, _EXPORT_FILE)) for folder in ((), ("[0-9]*",))):
        raise UserError(f"{path} is an export, for predict and serve. Pass the folder of the model it was made from.")
    for each in FORMATS.values():
        if each.detect(candidate):
            return each
    if path.endswith(".keras") and files.exists(path):
        raise UserError(
            f"{path} is a file of Keras': from_checkpoint of TextClassifier and its siblings takes it; their "
            "save_checkpoint(FOLDER) writes what is taken here"
        )
    source = candidate.bundle
    if not isinstance(source, UserError):
        raise UserError(
            f"{source.path} holds {len(source.shapes)} tensors, but no word embeddings under a name of Google's, of "
            "model garden's or of ours"
        )
    if files.exists(path) and not bundle.is_bundle(path):
        raise UserError(
            f"{path} holds no checkpoint of a known format; expected a folder with *.index and *.data files, "
            f"{hugging_face_files.SAFETENSORS_FILE} or {keras_hub.MODEL_WEIGHTS_FILE}"
        ) from source
    raise named_models.unknown_name(path) or source


def read(path: str, overrides: LoadOverrides | None = None) -> tuple[Format, Checkpoint]:
    """Returns the format of a checkpoint and what it holds.

    Args:
        path: a folder, or one of the checkpoint's files; a TensorFlow checkpoint also without .index; or a name as of
            `named_models`.
        overrides: what the checkpoint does not say itself.

    Raises:
        UserError: its format is unknown, or something is missing, left over, damaged, or does not fit together.
    """
    path = named_models.local_folder(path)
    overrides = overrides or LoadOverrides()
    checkpoint_format = _detect_format(path)
    if overrides.bert_config_file and checkpoint_format.holds_config:
        raise UserError(f"--bert_config_file is for checkpoints without a configuration; {path} has its own")
    return checkpoint_format, checkpoint_format.read(path, overrides)
