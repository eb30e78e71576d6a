"""A fine-tuned model for other runtimes: LiteRT (phones) and ONNX, with a report of what the conversion costs.

Only the part from ids to logits is converted: the runtimes have no tokenizer. No file is written without the metric
before and after, on an evaluation file, and none that loses more than it may.

B batch, S sequence, C classes
"""

import dataclasses
import json
import os
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from official_bert import files
from official_bert.batch_prediction import read_rows
from official_bert.command_line import option
from official_bert.errors import UserError
from official_bert.export import Source, read_source
from official_bert.progress import Progress
from official_bert.task_models import CLASSIFICATION, REGRESSION
from official_bert.text_models import TextModel

Array = npt.NDArray[Any]

LITERT, ONNX = "litert", "onnx"
FLOAT32, DYNAMIC_INT8 = "float32", "dynamic_int8"
MODEL_FILES = {LITERT: "model.tflite", ONNX: "model.onnx"}
REPORT_FILE = "report.json"

_INPUTS = ("input_ids", "input_mask", "segment_ids")
_ONNX_OPSET = 18


@dataclasses.dataclass(frozen=True)
class Options:
    """What export_portable is told."""

    model_dir: str = option(dataclasses.MISSING, "The folder of a model fine-tuned for classification or regression.")
    output_dir: str = option(dataclasses.MISSING, "The folder to write; it must be new or empty.")
    eval_file: str = option(
        dataclasses.MISSING, "Examples to measure on: *.jsonl, *.csv or *.tsv with the model's inputs and a label."
    )
    format: str = option(LITERT, "The format to write.", (LITERT, ONNX))
    quantization: str = option(FLOAT32, "Matrices as they are, or as integers of 8 bits.", (FLOAT32, DYNAMIC_INT8))
    max_loss: float = option(0.01, "How much of the metric may be lost (accuracy or correlation, 0 to 1).")


def export(options: Options) -> str:
    """Converts as the options say; returns a line with the metric before and after.

    Raises:
        UserError: the model is of another kind, a package is missing, or more is lost than may be.
    """
    source = read_source(options.model_dir)
    if source.kind not in (CLASSIFICATION, REGRESSION):
        raise UserError(f"{options.model_dir} is a {source.kind} model; expected classification or regression")
    features, labels = _examples(options.eval_file, source)
    name = MODEL_FILES[options.format]
    with files.folder_written_whole(options.output_dir) as folder:
        path = os.path.join(folder, name)
        convert(source, options.format, options.quantization == DYNAMIC_INT8, path)
        call = _traced(source, batch=1)
        before = metric(source.kind, _outputs(lambda given: call(**given)["logits"].numpy(), features), labels)
        after = metric(source.kind, _outputs(RUNNERS[options.format](path), features), labels)
        if before - after > options.max_loss:
            raise UserError(
                f"the {options.quantization} {options.format} model loses {before - after:.4f} (from {before:.4f} to "
                f"{after:.4f}) on {options.eval_file}, more than --max_loss={options.max_loss}; nothing is written"
            )
        report = {
            "metric": "accuracy" if source.kind == CLASSIFICATION else "correlation",
            "before": before,
            "after": after,
            "examples": len(labels),
            "bytes": files.size(path),
            "quantization": options.quantization,
            "inputs": dict.fromkeys(_INPUTS, "int32 [1, S]" if options.format == LITERT else "int32 [B, S]"),
            "max_seq_length": source.description["max_seq_length"],
            "labels": source.description["labels"],
        }
        files.write_text(os.path.join(folder, REPORT_FILE), json.dumps(report, indent=1, ensure_ascii=False) + "\n")
        line = f"{report['metric']} {before:.4f} before, {after:.4f} after, on {len(labels)} examples"
    return f"written {os.path.join(options.output_dir, name)}: {line}"


def _examples(path: str, source: Source) -> tuple[list[dict[str, Array]], Array]:
    """Returns each example's inputs, int32 [1, S], and the labels."""
    text_model = TextModel(source.model, source.tokenizer, source.kind, source.description)
    names = list(text_model.inputs)
    rows = list(read_rows(path, [*names, "label"]))
    if not rows:
        raise UserError(f"{path} has no examples")
    known = source.description["labels"]
    values = [row["label"] for row in rows]
    try:
        labels = [float(value) if known is None else known.index(value) for value in values]
    except ValueError as error:
        raise UserError(f"{path} has a label that is none of {known or 'numbers'}: {error}") from error
    tokenize = tf.function(text_model.tokenize)
    features = []
    for row in rows:
        given = tokenize(**{name: tf.constant([row[name]]) for name in names})
        features.append({name: given[name].numpy() for name in _INPUTS})
    return features, np.array(labels)


def convert(source: Source, format_name: str, quantized: bool, path: str) -> None:
    """Writes the model, from input_ids, input_mask and segment_ids to logits, as one file.

    Raises:
        UserError: the package of the format is missing.
    """
    function = _traced(source, batch=1 if format_name == LITERT else None)
    if format_name == LITERT:
        module = tf.Module()
        module.model_variables = [variable.value for variable in source.model.variables]
        converter = tf.lite.TFLiteConverter.from_concrete_functions([function.get_concrete_function()], module)
        if quantized:
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        files.write_bytes(path, converter.convert())
        return
    try:
        import tf2onnx
    except ImportError as error:
        raise UserError("ONNX needs tf2onnx: pip install -r requirements-portable.txt") from error
    tf2onnx.convert.from_function(function, function.input_signature, opset=_ONNX_OPSET, output_path=path)
    if quantized:
        from onnxruntime.quantization import QuantType, quantize_dynamic

        with tempfile.TemporaryDirectory() as folder:
            smaller = os.path.join(folder, "model.onnx")
            quantize_dynamic(path, smaller, weight_type=QuantType.QInt8)
            files.copy(smaller, path)


def _traced(source: Source, batch: int | None) -> Any:
    """The part that is converted, as a function of TensorFlow: int32 [batch, S] to logits."""

    def call(input_ids: Any, input_mask: Any, segment_ids: Any) -> dict[str, Any]:
        features = {"input_ids": input_ids, "input_mask": input_mask, "segment_ids": segment_ids}
        return {"logits": source.model(features, training=False)}

    return tf.function(call, input_signature=[tf.TensorSpec([batch, None], tf.int32, name=name) for name in _INPUTS])


def _litert_runner(path: str) -> Callable[[dict[str, Array]], Array]:
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError as error:
        raise UserError("LiteRT needs ai-edge-litert: pip install -r requirements-portable.txt") from error
    interpreter = Interpreter(model_path=path)
    inputs = {
        name: next(detail["index"] for detail in interpreter.get_input_details() if name in detail["name"])
        for name in _INPUTS
    }

    def run(given: dict[str, Array]) -> Array:
        for name, index in inputs.items():
            interpreter.resize_tensor_input(index, given[name].shape)
        interpreter.allocate_tensors()
        for name, index in inputs.items():
            interpreter.set_tensor(index, given[name])
        interpreter.invoke()
        return np.array(interpreter.get_tensor(interpreter.get_output_details()[0]["index"]))

    return run


def _onnx_runner(path: str) -> Callable[[dict[str, Array]], Array]:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda given: np.asarray(session.run(["logits"], given)[0])


# From a model's file to a function of one example's features, int32 [1, S], that returns the model's output, [1, ...].
RUNNERS = {LITERT: _litert_runner, ONNX: _onnx_runner}


def _outputs(run: Callable[[dict[str, Array]], Array], features: list[dict[str, Array]]) -> Array:
    progress = Progress("evaluating", len(features), "examples")
    found = []
    for number, given in enumerate(features, start=1):
        found.append(run(given)[0])
        progress.update(number)
    return np.stack(found)


def metric(kind: str, outputs: Array, labels: Array) -> float:
    """Returns the accuracy of classification's logits [B, C], or the correlation of regression's values [B]."""
    if kind == CLASSIFICATION:
        return float(np.mean(np.argmax(outputs, axis=-1) == labels))
    return float(np.corrcoef(outputs, labels)[0, 1])
