"""The ONNX Runtime backend: answers texts with an exported ONNX model, without TensorFlow or Keras."""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from official_bert.errors import UserError
from official_bert.inference import exports
from official_bert.inference.predictor import PARALLEL_BATCHES, STRING, Signature, SpecPredictor, Tensor
from official_bert.kinds.all_kinds import create_spec
from official_bert.kinds.features import (
    Array,
    Features,
    Outputs,
    batches_by_length,
    collect_outputs,
    padded_inputs,
    row_lengths,
)
from official_bert.kinds.names import DEFAULT_SIGNATURE
from official_bert.tokenization.casing import Casing
from official_bert.tokenization.fast import FastTokenizer
from official_bert.utils import extras, files

# Maximum number of tokens in a batch, with padding: larger batches are not faster, and need more memory and padding.
_MAX_TOKENS = 512
_QUICK_BYTES = 512


class OnnxPredictor(SpecPredictor):
    """A predictor for one version of an ONNX export. It tokenizes and decodes in Python.

    Args:
        folder: The folder of the version.
        threads: Number of threads that compute a batch. None means the number of cores.
        num_workers: Number of batches that `run` computes at a time.

    Raises:
        UserError: If a file is damaged or missing, or onnxruntime is not installed.
    """

    has_even_speed = True

    def __init__(self, folder: str, threads: int | None = None, num_workers: int = 1) -> None:
        self.metadata = exports.read_metadata(folder)
        try:
            spec, length = create_spec(self.metadata["task_spec"]), int(self.metadata["max_seq_length"])
            casing = Casing.from_settings(self.metadata)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{os.path.join(folder, exports.METADATA_FILE)} does not describe a model for ONNX Runtime "
                f"({error!r}); export the model again"
            ) from error
        tokenizer = FastTokenizer(os.path.join(folder, exports.VOCAB_FILE), *casing)
        super().__init__(spec, tokenizer, length)
        self.quick_bytes = min(_QUICK_BYTES, length) if spec.reads_windows else _QUICK_BYTES
        self._pool = ThreadPoolExecutor(num_workers) if num_workers > 1 else None
        self._session = _start_session(os.path.join(folder, exports.ONNX_FILE), threads)
        self._inputs = [each.name for each in self._session.get_inputs()]
        self._outputs = [each.name for each in self._session.get_outputs()]
        try:
            self.signatures = self._describe_signatures()
        except KeyError as error:
            raise UserError(
                f"{os.path.join(folder, exports.ONNX_FILE)} has the outputs {', '.join(self._outputs)}, but a model of "
                f"the kind {spec.kind} needs {error.args[0]}. Export the model again."
            ) from error
        # Two batches on the same cores would slow each other down.
        cores = len(os.sched_getaffinity(0))
        self.parallel_batches = min(PARALLEL_BATCHES, max(1, cores // (threads or cores)))

    def compute_outputs(self, features: Features, batch_size: int | None = None) -> Outputs:
        batches = list(batches_by_length(row_lengths(features) * features.choices, batch_size, _MAX_TOKENS))
        map_batches = map if self._pool is None or len(batches) == 1 else self._pool.map
        inputs = [padded_inputs(features, batch, self.max_seq_length, multiple=1) for batch in batches]
        return collect_outputs(features, zip(batches, map_batches(self._run_session, inputs), strict=True))

    def _describe_signatures(self) -> dict[str, Signature]:
        """Returns the inputs and outputs of the only signature. An example text is answered to find the outputs."""
        choices = self.spec.num_choices
        inputs = {
            name: Tensor(STRING, (None, choices) if name == "endings" else (None,))
            for name in sorted(self.spec.text_inputs)
        }
        example = {
            name: np.full([size or 1 for size in each.shape or ()], "a", object) for name, each in inputs.items()
        }
        outputs = {
            name: Tensor(STRING if value.dtype == object else value.dtype.name, (None,) * value.ndim)
            for name, value in self.run(example).items()
        }
        return {DEFAULT_SIGNATURE: Signature(inputs, outputs)}

    def _run_session(self, inputs: dict[str, Array]) -> Any:
        values = self._session.run(self._outputs, {name: inputs[name].astype(np.int64) for name in self._inputs})
        return values[0] if len(self._outputs) == 1 else dict(zip(self._outputs, values, strict=True))


def disable_telemetry() -> None:
    """Disables the telemetry that ONNX Runtime sends to its vendor by default. Call it before onnxruntime is imported.

    If the environment variable is set already, its value stays.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def _start_session(path: str, threads: int | None) -> Any:
    disable_telemetry()
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise extras.explain_missing_package(error, "serve-onnx") or error from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or len(os.sched_getaffinity(0))
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors only
    # Spinning threads would almost double the processor time, and slow down the server's other work.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        model = files.read_bytes(path) if files.is_remote(path) else path
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has an exception class per failure, without a common base class
        raise UserError(f"{path} cannot be loaded: {error}; export the model again") from error
