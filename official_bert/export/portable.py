"""A fine-tuned model for other runtimes: LiteRT (phones) and ONNX, with a report of what the conversion costs.

Only the part from ids to logits is converted: the runtimes have no tokenizer. No file is written without the task's
score before and after, on an evaluation file, and none that loses more than it may; none in float32 that answers texts
otherwise than predict (see replay.py).

B batch, N choices, S sequence
"""

import json
import os
from collections.abc import Callable
from typing import Any

import numpy.typing as npt
import tensorflow as tf

from official_bert.errors import UserError
from official_bert.export import lost_score, replay
from official_bert.export.options import DYNAMIC_INT8, LITERT, ONNX, PortableOptions
from official_bert.export.source import Source, read_source
from official_bert.learning.predictor import predict
from official_bert.modeling.head_input import HeadInput
from official_bert.tasks.evaluation_files import read_evaluation_file
from official_bert.tasks.heads.all_heads import HEADS
from official_bert.tasks.heads.features import Features, Outputs
from official_bert.tokenization.fast import FastTokenizer
from official_bert.utils import extras, files
from official_bert.utils.counting import counted

Array = npt.NDArray[Any]
Run = Callable[[dict[str, Array]], dict[str, Array]]

MODEL_FILES = {LITERT: "model.tflite", ONNX: "model.onnx"}
REPORT_FILE = "report.json"

_INPUTS, _LOGITS = ("input_ids", "input_mask", "segment_ids"), "logits"


def export(options: PortableOptions) -> str:
    """Converts as the options say; returns a line with the score before and after.

    Raises:
        UserError: the model is not fine-tuned, a package is missing, or more is lost than may be.
    """
    source = read_source(options.model_dir)
    if source.kind not in HEADS:
        raise UserError(f"{options.model_dir} is a {source.kind} model; expected a fine-tuned one")
    if options.format == LITERT and not HeadInput.from_dict(source.task_spec).is_encoder:
        raise UserError(
            f"{options.model_dir} has a recurrent head, which LiteRT's converter rejects; pass --format={ONNX}"
        )
    task, examples = read_evaluation_file(source.task_spec, options.eval_file)
    length = source.task_spec["max_seq_length"]
    features = task.head.featurize(examples, FastTokenizer.of(source.tokenizer), length)

    def outputs_of(run: Run, features: Features) -> Outputs:
        def forward(inputs: dict[str, tf.Tensor]) -> Any:
            outputs = run({name: each.numpy() for name, each in inputs.items()})
            return outputs.get(_LOGITS, outputs)

        return predict(forward, features, 1, length)

    def score(run: Run) -> float:
        outputs = outputs_of(run, features)
        return task.metrics(task.head.decode(outputs, features, examples), examples)[task.best_metric]

    name = MODEL_FILES[options.format]
    with files.folder_written_whole(options.output_dir) as folder:
        path = os.path.join(folder, name)
        convert(source, options.format, options.quantization == DYNAMIC_INT8, path)
        call = _traced(source)
        before = score(lambda features: call(**features))
        converted = RUNNERS[options.format](path)
        after = score(converted)
        what = f"{options.quantization} {options.format} model"
        lost_score.check(before, after, task.head.perfect, options.max_loss, what, options.eval_file)
        if options.quantization != DYNAMIC_INT8:
            texts = replay.make(source, options.eval_file)
            answers, _, _ = replay.answers_of_head(
                texts.texts, source.tokenizer, source.task_spec, lambda each: outputs_of(converted, each)
            )
            replay.prove(texts, [dict(zip(answers, row, strict=True)) for row in zip(*answers.values(), strict=True)])
        inner = list(call.input_signature[0].shape[1:-1])  # N for multiple choice
        shape = str([1 if options.format == LITERT else "B", *inner, "S"]).replace("'", "")
        report = {
            "metric": task.best_metric,
            "before": before,
            "after": after,
            "examples": len(examples),
            "bytes": files.size(path),
            "quantization": options.quantization,
            "inputs": dict.fromkeys(_INPUTS, f"int32 {shape}"),
            "max_seq_length": length,
            "labels": source.task_spec["labels"],
            "reads_windows": task.head.reads_windows,  # which the model's caller makes of a longer text, a row each
        }
        files.write_text(os.path.join(folder, REPORT_FILE), json.dumps(report, indent=1, ensure_ascii=False) + "\n")
        line = f"{task.best_metric} {before:.4f} before, {after:.4f} after, on {counted(len(examples), 'example')}"
        if task.head.reads_windows:
            line += (
                f"; it reads {length} tokens at once: of longer texts its caller makes windows and joins their answers"
            )
    return f"written {os.path.join(options.output_dir, name)}: {line}"


def convert(source: Source, format_name: str, quantized: bool, path: str) -> None:
    """Writes the model, from input_ids, input_mask and segment_ids to logits by name, as one file.

    Raises:
        UserError: the package of the format is missing.
    """
    if format_name == LITERT:
        module = tf.Module()
        module.model_variables = [variable.value for variable in source.model.variables]
        function = _traced(source).get_concrete_function()
        converter = tf.lite.TFLiteConverter.from_concrete_functions([function], module)
        if quantized:
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        files.write_bytes(path, converter.convert())
        return
    try:
        from official_bert.export import onnx_graph
    except ModuleNotFoundError as error:
        raise extras.missing(error, "portable") or error from error
    onnx_graph.write(onnx_graph.onnx_model(source.model), path, quantized)


def _traced(source: Source) -> Any:
    """The part that is converted, as a function of TensorFlow: int32 [1, S] or [1, N, S] to logits."""

    def call(input_ids: Any, input_mask: Any, segment_ids: Any) -> dict[str, Any]:
        features = {"input_ids": input_ids, "input_mask": input_mask, "segment_ids": segment_ids}
        outputs = source.model(features, training=False)
        return outputs if isinstance(outputs, dict) else {_LOGITS: outputs}

    choices = source.task_spec["num_choices"]
    shape = [1, None] if choices is None else [1, choices, None]
    return tf.function(call, input_signature=[tf.TensorSpec(shape, tf.int32, name=name) for name in _INPUTS])


def _litert_runner(path: str) -> Run:
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ModuleNotFoundError as error:
        raise extras.missing(error) or error from error
    runner = Interpreter(model_path=path).get_signature_runner()
    return lambda features: runner(**features)


def _onnx_runner(path: str) -> Run:
    import onnxruntime

    try:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a class for each kind of failure, without a common parent
        raise UserError(f"the model cannot be converted to ONNX: {error}") from error
    names = [output.name for output in session.get_outputs()]
    return lambda features: dict(zip(names, session.run(names, features), strict=True))


# From a model's file to a function of one row's features, int32 [1, S] or [1, N, S], that returns its logits by name.
RUNNERS: dict[str, Callable[[str], Run]] = {LITERT: _litert_runner, ONNX: _onnx_runner}
