"""An export for ONNX Runtime as the server asks it: one signature, from texts to answers."""

import os
from collections.abc import Sequence
from typing import Any

from official_bert.inference import exports
from official_bert.inference.onnx_model import OnnxModel
from official_bert.kinds import rows
from official_bert.serving.served_model import PARALLEL_BATCHES, Prepared, Row, check_replay
from official_bert.serving.signatures import STRING, Signature, Tensor, Tensors

_TENSORFLOW_NAMES = {"object": STRING}


class OnnxServedModel:
    """Loads one version of a model; arguments, attributes and errors are those of served_model.load."""

    takes_even_time = True
    quick_bytes = 512

    def __init__(self, folder: str, threads: int | None) -> None:
        self._folder = folder
        self._model = OnnxModel(folder, threads)
        # Two on the same cores would disturb each other.
        cores = len(os.sched_getaffinity(0))
        self.parallel_batches = min(PARALLEL_BATCHES, max(1, cores // (threads or cores)))
        self.export_metadata = self._model.metadata
        choices = self._model.head.num_choices
        inputs = {
            name: Tensor(STRING, (None, choices) if name == "endings" else (None,))
            for name in sorted(self._model.inputs)
        }
        # What is answered is seen from an answer.
        example = {name: [["a"] * (choices or 0)] if name == "endings" else ["a"] for name in inputs}
        outputs = {
            name: Tensor(_TENSORFLOW_NAMES.get(value.dtype.name, value.dtype.name), (None,) * value.ndim)
            for name, value in sorted(self._model.answers(example).items())
        }
        self.signatures = {exports.DEFAULT_SIGNATURE: Signature(inputs, outputs)}

    @property
    def kind(self) -> str:
        """What the model does."""
        return self._model.head.kind

    def divides(self, signature: str) -> bool:
        return True

    def prepare(self, signature: str, inputs: Tensors) -> list[Prepared]:
        texts = {name: _decoded(values.tolist()) for name, values in inputs.items()}
        examples, features = self._model.prepare(texts)
        tokens = rows.row_lengths(features) * features.choices
        return [Prepared(signature, len(examples), (examples, features), tokens.tolist(), signature)]

    def compute(self, rows_to_compute: Sequence[Row]) -> list[Any]:
        features = rows.gather([(prepared.content[1], number) for prepared, number in rows_to_compute])
        outputs = self._model.outputs(features)
        if isinstance(outputs, dict):
            return [dict(zip(outputs, row, strict=True)) for row in zip(*outputs.values(), strict=True)]
        return list(outputs)

    def finish(self, prepared: Prepared, outputs: Sequence[Any]) -> Tensors:
        """Returns the answers, strings as bytes of UTF-8, in the order of their names."""
        is_structured = isinstance(outputs[0], dict)
        joined = {name: [row[name] for row in outputs] for name in outputs[0]} if is_structured else outputs
        examples, features = prepared.content
        return dict(sorted(self._model.decode(examples, features, joined).items()))

    def metadata(self) -> dict[str, Any]:
        """Returns the signature in TensorFlow Serving's JSON."""
        signature = self.signatures[exports.DEFAULT_SIGNATURE]
        return {
            exports.DEFAULT_SIGNATURE: {
                "inputs": {name: _as_json(name, tensor) for name, tensor in signature.inputs.items()},
                "outputs": {name: _as_json(name, tensor) for name, tensor in signature.outputs.items()},
                "method_name": "tensorflow/serving/predict",
                "defaults": {},
            }
        }

    def warm_up(self, max_batch_size: int) -> None:
        """Asks some of the texts that stand beside the model.

        Raises:
            UserError: it answers otherwise than what stands there.
        """
        check_replay(self._folder, self._model)


def _decoded(values: Any) -> Any:
    return [_decoded(each) for each in values] if isinstance(values, list) else values.decode()


def _as_json(name: str, tensor: Tensor) -> dict[str, Any]:
    sizes = [{"size": str(-1 if size is None else size), "name": ""} for size in tensor.shape or ()]
    kind = {"float32": "FLOAT"}.get(tensor.dtype, tensor.dtype.upper())
    return {"dtype": f"DT_{kind}", "tensor_shape": {"dim": sizes, "unknown_rank": False}, "name": name}
