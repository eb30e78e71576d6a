"""Loads an export with the backend of its format."""

from official_bert.inference import exports
from official_bert.inference.predictor import Predictor
from official_bert.utils import extras


def load(folder: str, threads: int | None = None, num_workers: int = 1, verify: bool = True) -> Predictor:
    """Loads one version of an export. TensorFlow is imported only for a SavedModel.

    Args:
        folder: The version's folder.
        threads: Number of threads that compute a batch in ONNX Runtime. Defaults to the number of cores.
        num_workers: Number of batches that `run` computes at a time in ONNX Runtime.
        verify: Whether to compare the files with their checksums.

    Raises:
        UserError: If the export is damaged, or a package is missing.
    """
    if exports.is_onnx(folder):
        from official_bert.inference.onnx_model import OnnxPredictor

        return OnnxPredictor(folder, threads, num_workers, verify)
    try:
        from official_bert.inference.saved_model import SavedModelPredictor
    except ModuleNotFoundError as error:
        raise extras.explain_missing_package(error, "serve") or error from error
    return SavedModelPredictor(folder, verify)
