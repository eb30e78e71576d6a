"""An export for ONNX Runtime that has been loaded: from texts to answers without TensorFlow or Keras.

Tokens, windows and decoding are those of the model's head, as in fine-tuning and prediction; the graph has the part
from ids to logits.

B texts, S sequence
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from official_bert.checkpoints import checksums
from official_bert.errors import UserError
from official_bert.inference import exports
from official_bert.kinds import rows
from official_bert.kinds.all_kinds import create_spec
from official_bert.kinds.features import Array, Features, Outputs
from official_bert.tokenization.caching import CachingTokenizer
from official_bert.tokenization.casing import casing_of
from official_bert.tokenization.exact import FullTokenizer
from official_bert.utils import extras, files

# Tokens that are computed at once, with padding: more are not computed faster, and need more memory and padding.
_TOKENS_AT_ONCE = 512

# The types of answers, of which TensorFlow Serving's JSON and its clients know the names.
_TYPES: dict[str, Any] = {
    "label": object, "labels": object, "words": object, "tags": object, "answer": object,
    "probability": np.float32, "probabilities": np.float32, "value": np.float32, "vector": np.float32,
    "null_score_difference": np.float32,
    "choice": np.int32, "start": np.int32, "end": np.int32, "starts": np.int32, "ends": np.int32,
    "predicted": np.bool_, exports.IS_TRUNCATED: np.bool_,
}  # fmt: skip


class OnnxModel:
    """One version of a model, from its folder. Its methods may be called by several threads.

    Args:
        folder: of the version.
        threads: by how many a batch is computed; None for one on each core.
        parallel_batches: how many batches of one call are computed at a time, each by so many threads.

    Attributes:
        metadata: what the export says of itself.
        head: what stands on the encoder.
        max_seq_length: the longest sequence.
        makes_batches: whether it cuts texts into batches itself.

    Raises:
        UserError: a file is damaged or lacks, or onnxruntime is not installed.
    """

    makes_batches = True

    def __init__(self, folder: str, threads: int | None = None, parallel_batches: int = 1) -> None:
        checksums.check_files(folder)
        self.metadata = exports.read_metadata(folder)
        try:
            self.head = create_spec(self.metadata["task_spec"])
            self.max_seq_length = int(self.metadata["max_seq_length"])
            casing = casing_of(self.metadata["do_lower_case"], self.metadata.get("strip_accents"))
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{os.path.join(folder, exports.METADATA_FILE)} does not describe a model for ONNX Runtime "
                f"({error!r}); make the export anew"
            ) from error
        self._tokenizer = CachingTokenizer(FullTokenizer(os.path.join(folder, exports.VOCAB_FILE), *casing))
        self._session = _session(os.path.join(folder, exports.ONNX_FILE), threads)
        self._inputs = [each.name for each in self._session.get_inputs()]
        self._outputs = [each.name for each in self._session.get_outputs()]
        self._pool = ThreadPoolExecutor(parallel_batches) if parallel_batches > 1 else None

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the texts of an example."""
        return self.head.text_inputs

    def answers(self, texts: Mapping[str, Sequence[Any]]) -> exports.Outputs:
        """Returns the answers to texts as a SavedModel gives them: arrays [B, ...] by name, strings as bytes.

        Args:
            texts: a column for each of `inputs`, strings; of endings, lists of strings.
        """
        examples, features = self.prepare(texts)
        return self.decode(examples, features, self.outputs(features))

    def prepare(self, texts: Mapping[str, Sequence[Any]]) -> tuple[Sequence[Any], Features]:
        """Returns the examples and features of texts, given as for `answers`."""
        examples = self.head.examples_of(texts, self._tokenizer.exact)
        return examples, self.head.featurize(examples, self._tokenizer, self.max_seq_length)

    def decode(self, examples: Sequence[Any], features: Features, outputs: Outputs) -> exports.Outputs:
        """Returns the answers to examples from the outputs of their features."""
        answers = self.head.named_answers(self.head.decode(outputs, features, examples), examples)
        answers[exports.IS_TRUNCATED] = features.is_cut.tolist()
        return {name: _as_array(name, column) for name, column in answers.items()}

    def outputs(self, features: Features) -> Outputs:
        """Returns the outputs for rows, in order and without padding."""
        batches = list(_batches(rows.row_lengths(features) * features.choices))
        if self._pool is None or len(batches) == 1:
            return rows.predict(self._run, features, batches, self.max_seq_length, multiple=1)
        inputs = [rows.padded_inputs(features, batch, self.max_seq_length, multiple=1) for batch in batches]
        outputs = self._pool.map(self._run, inputs)
        return rows.predict(lambda _: next(outputs), features, batches, self.max_seq_length, multiple=1)

    def _run(self, inputs: dict[str, Array]) -> Any:
        values = self._session.run(self._outputs, {name: inputs[name] for name in self._inputs})
        return values[0] if len(self._outputs) == 1 else dict(zip(self._outputs, values, strict=True))


def _session(path: str, threads: int | None) -> Any:
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise extras.missing(error, "serve-onnx") or error from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or len(os.sched_getaffinity(0))
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors alone
    # Threads that wait keep a core busy while there is a batch, from one operation to the next, but not after it.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    try:
        model = files.read_bytes(path) if files.is_remote(path) else path
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a class for each kind of failure, without a common parent
        raise UserError(f"{path} cannot be loaded: {error}; make the export anew") from error


def _batches(tokens: Array) -> Iterator[Array]:
    """Yields the numbers of rows of about the same length, as many as may be computed at once."""
    order = np.argsort(tokens, kind="stable")
    start = 0
    while start < len(order):
        end = start + 1
        while end < len(order) and tokens[order[end]] * (end + 1 - start) <= _TOKENS_AT_ONCE:
            end += 1
        yield order[start:end]
        start = end


def _as_array(name: str, column: Sequence[Any]) -> Array:
    """Answers as an array, [B, ...], padded where texts have several: strings by "", positions by -1, numbers by 0."""
    dtype = _TYPES[name]
    if column and isinstance(column[0], list):
        widest = max(map(len, column))
        values = np.full((len(column), widest), exports.padding_of(name, dtype is object), dtype)
        for row, elements in zip(values, column, strict=True):
            row[: len(elements)] = [each.encode() for each in elements] if dtype is object else elements
        return values
    return np.array([each.encode() for each in column] if dtype is object else column, dtype)
