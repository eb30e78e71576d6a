"""A SavedModel that has been loaded: its signatures, its metadata, and its answers."""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  (its operations are in exported models)
from google.protobuf import json_format
from tensorflow.core.protobuf import saved_model_pb2

from official_bert.checkpoints import checksums
from official_bert.errors import UserError
from official_bert.export import warmup
from official_bert.inference import exports
from official_bert.inference.exports import DEFAULT_SIGNATURE
from official_bert.serving.served_model import PARALLEL_BATCHES, Prepared, Row, check_replay
from official_bert.serving.signatures import Signature, Tensor, Tensors
from official_bert.utils import files

_WARM_UP_TEXT = "a text to warm up with , "


def _signature(definition: Any) -> Signature:
    return Signature(
        {name: _tensor(info) for name, info in sorted(definition.inputs.items())},
        {name: _tensor(info) for name, info in sorted(definition.outputs.items())},
    )


def _tensor(info: Any) -> Tensor:
    shape = tf.TensorShape(info.tensor_shape)
    return Tensor(tf.as_dtype(info.dtype).name, None if shape.rank is None else tuple(shape))


class SavedModel:
    """Loads one version of a model from the folder that holds saved_model.pb.

    Raises:
        UserError: it cannot be loaded.
    """

    takes_even_time = False
    parallel_batches = PARALLEL_BATCHES  # the second one keeps the cores busy where the first cannot

    def __init__(self, folder: str) -> None:
        self.folder = folder
        path = os.path.join(folder, exports.GRAPH_FILE)
        try:
            checksums.check_files(folder)
            proto = saved_model_pb2.SavedModel.FromString(files.read_bytes(path))
            self._loaded = exports.load_saved_model(folder)
        except UserError:
            raise
        except Exception as error:  # TensorFlow raises many kinds for files that are cut short or damaged
            raise UserError(f"{folder} cannot be loaded: {error}") from error
        self._functions = dict(self._loaded.signatures)
        definitions = proto.meta_graphs[0].signature_def
        self._definitions = {name: definitions[name] for name in sorted(self._functions)}
        self.signatures = {name: _signature(definition) for name, definition in self._definitions.items()}
        if not self.signatures:
            raise UserError(f"{folder} has no signatures; make the SavedModel with official-bert export")
        self.export_metadata = exports.read_metadata(folder)  # empty for a SavedModel that another tool wrote
        tokenize = self.signatures.get(exports.TOKENIZE_SIGNATURE)
        reads_windows = bool(tokenize and "text_index" in tokenize.outputs)
        self.quick_bytes = int(self.export_metadata["max_seq_length"]) if reads_windows else sys.maxsize

    def divides(self, signature: str) -> bool:
        # Only the texts of serving_default, and numbers of one shape: what padding does to other outputs is not known.
        is_known = signature == DEFAULT_SIGNATURE or not self.signatures[signature].takes_texts_alone
        return is_known and bool(self.export_metadata)

    def prepare(self, signature: str, inputs: Tensors) -> list[Prepared]:
        tokens = self._count_tokens(signature, inputs)
        if not self.divides(signature):
            return [Prepared(signature, len(tokens), inputs, [sum(tokens)], None)]
        group = (signature, tuple(value.shape[1:] for value in inputs.values()))
        rows = [{name: value[i : i + 1] for name, value in inputs.items()} for i in range(len(tokens))]
        return [Prepared(signature, 1, row, [count], group) for row, count in zip(rows, tokens, strict=True)]

    def compute(self, rows: Sequence[Row]) -> list[Any]:
        first = rows[0][0]
        outputs = self.run(
            first.signature, {name: np.concatenate([row.content[name] for row, _ in rows]) for name in first.content}
        )
        return exports.split_rows(outputs) if first.group else [outputs]

    def finish(self, prepared: Prepared, outputs: Sequence[Any]) -> Tensors:
        (answer,) = outputs
        return answer

    def _count_tokens(self, signature: str, inputs: Tensors) -> list[int]:
        """Returns the most tokens that each instance can have, in all windows; 0 for the model of another tool."""
        count = len(next(iter(inputs.values())))
        choices = max(value.size for value in inputs.values()) // count
        if not self.export_metadata:
            return [0] * count
        if not self.signatures[signature].takes_texts_alone:
            return [choices] * count  # ids
        columns = [[sum(map(len, texts.flat)) for texts in np.split(value, count)] for value in inputs.values()]
        num_bytes = [sum(row) for row in zip(*columns, strict=True)]
        if max(num_bytes) > self.quick_bytes:
            windows = self.run(exports.TOKENIZE_SIGNATURE, inputs)
            per_window = windows["input_ids"].shape[1]
            return [int(each) * per_window for each in np.bincount(windows["text_index"], minlength=count)]
        longest = self.export_metadata["max_seq_length"]
        return [min(each, longest) * choices for each in num_bytes]

    @property
    def kind(self) -> str:
        """What the model does: classification, fill_mask, ...; "other" where it does not say."""
        return str(self.export_metadata.get("kind", "other"))

    def run(self, signature: str, inputs: Mapping[str, np.ndarray]) -> Tensors:
        """Returns the outputs for inputs of the right types and shapes.

        Raises:
            RefusedTextsError: the model refuses one of them.
        """
        specs = self.signatures[signature].inputs
        tensors = {name: tf.constant(value, specs[name].dtype) for name, value in inputs.items()}
        try:
            return {name: value.numpy() for name, value in sorted(self._functions[signature](**tensors).items())}
        except tf.errors.InvalidArgumentError as error:
            raise exports.RefusedTextsError(_gist(error.message)) from error

    def metadata(self) -> dict[str, Any]:
        """Returns the signatures in TensorFlow Serving's JSON."""
        return {
            name: json_format.MessageToDict(
                definition, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
            )
            for name, definition in self._definitions.items()
        }

    def warm_up(self, max_batch_size: int) -> None:
        """Runs a few requests, so that the first one to come is not slow.

        They are those of the export's own warm-up file; without one some texts are made up, and a model that does not
        take texts is left cold.

        Raises:
            UserError: the file cannot be read, or the model cannot answer what stands there: as TensorFlow Serving, the
                server does not take up such a version.
        """
        path = os.path.join(self.folder, exports.WARMUP_FILE)
        if files.exists(path):
            for number, (signature, inputs) in enumerate(warmup.read_requests(path), start=1):
                try:
                    self.run(signature, inputs)
                except Exception as error:  # TensorFlow raises many kinds
                    raise UserError(
                        f"{self.folder} cannot answer request {number} of its {exports.WARMUP_FILE}, to {signature}: "
                        f"{type(error).__name__} {error}"
                    ) from error
        else:
            self._warm_up_by_texts(max_batch_size)
        check_replay(self.folder, self)

    @property
    def inputs(self) -> list[str]:
        """The names of the texts of an example."""
        return list(self.signatures[DEFAULT_SIGNATURE].inputs)

    def answers(self, texts: Mapping[str, Sequence[Any]]) -> Tensors:
        """Returns the answers to texts, a column for each input."""
        return self.run(DEFAULT_SIGNATURE, {name: np.array(_encoded(column), object) for name, column in texts.items()})

    def _warm_up_by_texts(self, max_batch_size: int) -> None:
        signature = self.signatures.get(DEFAULT_SIGNATURE)
        if not (signature and signature.takes_rows and signature.takes_texts_alone):
            return
        for count, repeats in ((1, 1), (1, 20), (min(8, max_batch_size), 3)):
            text = (_WARM_UP_TEXT * repeats).encode()
            inputs = {}
            for name, spec in signature.inputs.items():
                inputs[name] = np.empty([count, *(each or 1 for each in (spec.shape or ())[1:])], object)
                inputs[name][:] = text
            try:
                self.run(DEFAULT_SIGNATURE, inputs)
            except exports.RefusedTextsError:
                return  # it wants other texts, with [MASK] say


def _encoded(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else [_encoded(each) for each in value]


def _gist(message: str) -> str:
    """TensorFlow's message without its positions in the graph."""
    noise = ("Graph execution error", "Detected at node", "<stack traces", "\t", " ")
    lines = [line.split(" [Op:")[0] for line in message.splitlines() if line and not line.startswith(noise)]
    return "; ".join(lines) or message
