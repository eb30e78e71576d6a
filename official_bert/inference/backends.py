"""Loads an export with the backend for its format: TensorFlow or ONNX Runtime."""

from official_bert.checkpoints import checksums
from official_bert.errors import UserError
from official_bert.inference import exports
from official_bert.inference.predictor import Predictor
from official_bert.utils import extras


def load_predictor(folder: str, threads: int | None = None, num_workers: int = 1, verify: bool = True) -> Predictor:
    """Loads one version of an export as a Predictor. TensorFlow is imported only if it is a SavedModel.

    Args:
        folder: The folder of the version.
        threads: Number of threads that compute a batch in ONNX Runtime. None means the number of cores.
        num_workers: Number of batches that `run` computes at a time in ONNX Runtime.
        verify: Whether to check the files against their checksums.

    Raises:
        UserError: If the export is damaged, or a package is missing.
    """
    if verify:
        checksums.check_files(folder)
    if exports.is_onnx(folder):
        from official_bert.inference.onnx_model import OnnxPredictor

        return OnnxPredictor(folder, threads, num_workers)
    try:
        from official_bert.inference.saved_model import SavedModelPredictor
    except ModuleNotFoundError as error:
        missing = extras.explain_missing_package(error, "serve")
        if missing is None:
            raise
        raise UserError(
            f"{folder} is a SavedModel: {missing}; or export the model with --format=onnx, which needs no TensorFlow"
        ) from error
    return SavedModelPredictor(folder)
