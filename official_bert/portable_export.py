"""A fine-tuned model for other runtimes: LiteRT (phones) and ONNX, with a report of what the conversion costs.

Only the part from ids to logits is converted: the runtimes have no tokenizer. No file is written without the task's
score before and after, on an evaluation file, and none that loses more than it may.

B batch, N choices, S sequence
"""

import dataclasses
import json
import os
import tempfile
from collections.abc import Callable
from typing import Any

import numpy.typing as npt
import tensorflow as tf

from official_bert import files, task_models
from official_bert.command_line import option
from official_bert.errors import UserError
from official_bert.export import Source, read_source
from official_bert.fast_tokenization import FastTokenizer
from official_bert.finetuning_options import Options as FineTuningOptions
from official_bert.tasks import all_tasks, glue, multiple_choice, multiple_choice_task, squad, squad_task
from official_bert.tasks.bad_rows import BadRows
from official_bert.tasks.task import DEV, Task
from official_bert.tasks.trainer import predict

Array = npt.NDArray[Any]
Run = Callable[[dict[str, Array]], dict[str, Array]]

LITERT, ONNX = "litert", "onnx"
FLOAT32, DYNAMIC_INT8 = "float32", "dynamic_int8"
MODEL_FILES = {LITERT: "model.tflite", ONNX: "model.onnx"}
REPORT_FILE = "report.json"

_INPUTS, _LOGITS = ("input_ids", "input_mask", "segment_ids"), "logits"
_ONNX_OPSET = 18


@dataclasses.dataclass(frozen=True)
class Options:
    """What export_portable is told."""

    model_dir: str = option(dataclasses.MISSING, "The folder of a fine-tuned model.")
    output_dir: str = option(dataclasses.MISSING, "The folder to write; it must be new or empty.")
    eval_file: str = option(
        dataclasses.MISSING,
        "Labelled examples to measure on: *.jsonl, *.csv or *.tsv with the columns text (and text_pair) and label; for "
        "question answering SQuAD's JSON, for multiple choice a file of SWAG or CODAH.",
    )
    format: str = option(LITERT, "The format to write.", (LITERT, ONNX))
    quantization: str = option(FLOAT32, "Matrices as they are, or as integers of 8 bits.", (FLOAT32, DYNAMIC_INT8))
    max_loss: float = option(0.01, "How much of the task's score may be lost, as a share of a perfect one.")


def export(options: Options) -> str:
    """Converts as the options say; returns a line with the score before and after.

    Raises:
        UserError: the model is not fine-tuned, a package is missing, or more is lost than may be.
    """
    source = read_source(options.model_dir)
    if source.kind not in task_models.KINDS:
        raise UserError(f"{options.model_dir} is a {source.kind} model; expected a fine-tuned one")
    task, examples = _examples(options, source)
    length = source.description["max_seq_length"]
    features = task.featurize(examples, FastTokenizer.of(source.tokenizer), length)

    def score(run: Run) -> float:
        def forward(inputs: dict[str, tf.Tensor]) -> Any:
            outputs = run({name: each.numpy() for name, each in inputs.items()})
            return outputs.get(_LOGITS, outputs)

        outputs = predict(forward, features, 1, length)
        return task.metrics(task.decode(outputs, features, examples), examples)[task.best_metric]

    name = MODEL_FILES[options.format]
    with files.folder_written_whole(options.output_dir) as folder:
        path = os.path.join(folder, name)
        convert(source, options.format, options.quantization == DYNAMIC_INT8, path)
        call = _traced(source, batch=1)
        before = score(lambda given: call(**given))
        after = score(RUNNERS[options.format](path))
        if (before - after) / task.perfect > options.max_loss:
            raise UserError(
                f"the {options.quantization} {options.format} model loses {before - after:.4f} (from {before:.4f} to "
                f"{after:.4f}) on {options.eval_file}, more than --max_loss={options.max_loss}; nothing is written"
            )
        shape = str([1 if options.format == LITERT else "B", *_inner_shape(source), "S"]).replace("'", "")
        report = {
            "metric": task.best_metric,
            "before": before,
            "after": after,
            "examples": len(examples),
            "bytes": files.size(path),
            "quantization": options.quantization,
            "inputs": dict.fromkeys(_INPUTS, f"int32 {shape}"),
            "max_seq_length": length,
            "labels": source.description["labels"],
        }
        files.write_text(os.path.join(folder, REPORT_FILE), json.dumps(report, indent=1, ensure_ascii=False) + "\n")
        line = f"{task.best_metric} {before:.4f} before, {after:.4f} after, on {len(examples)} examples"
    return f"written {os.path.join(options.output_dir, name)}: {line}"


def _examples(options: Options, source: Source) -> tuple[Task, list[Any]]:
    """The task of the model, and the examples to measure it on."""
    told = source.description
    if source.kind == task_models.QUESTION_ANSWERING:
        settings = "version_2 doc_stride max_query_length n_best_size max_answer_length null_score_diff_threshold"
        task = squad_task.task(**{name: told[name] for name in settings.split()})
        return task, squad.read(options.eval_file, told["version_2"], for_training=False, bad_rows=BadRows())
    if source.kind == task_models.MULTIPLE_CHOICE:
        return multiple_choice_task.TASKS["codah"], multiple_choice.read(options.eval_file, BadRows())
    given = FineTuningOptions(
        task="table",
        init=options.model_dir,
        output_dir=options.model_dir,
        eval_file=options.eval_file,
        label_kind=source.kind,
        text_pair_column="text_pair" if told["pair"] else None,
        doc_stride=told.get("doc_stride"),
    )
    task = all_tasks.find_task(given)
    if told["task"] in glue.TASKS:
        theirs = glue.TASKS[told["task"]]
        task = dataclasses.replace(task, metrics=theirs.metrics, best_metric=theirs.best_metric)
    return task, task.read("", DEV, BadRows())


def convert(source: Source, format_name: str, quantized: bool, path: str) -> None:
    """Writes the model, from input_ids, input_mask and segment_ids to logits by name, as one file.

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


def _inner_shape(source: Source) -> list[int]:
    """What an input has between B and S."""
    return [source.description["num_choices"]] if source.kind == task_models.MULTIPLE_CHOICE else []


def _traced(source: Source, batch: int | None) -> Any:
    """The part that is converted, as a function of TensorFlow: int32 [batch, S], [batch, N, S] to logits."""

    def call(input_ids: Any, input_mask: Any, segment_ids: Any) -> dict[str, Any]:
        features = {"input_ids": input_ids, "input_mask": input_mask, "segment_ids": segment_ids}
        outputs = source.model(features, training=False)
        return outputs if isinstance(outputs, dict) else {_LOGITS: outputs}

    shape = [batch, *_inner_shape(source), None]
    return tf.function(call, input_signature=[tf.TensorSpec(shape, tf.int32, name=name) for name in _INPUTS])


def _litert_runner(path: str) -> Run:
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError as error:
        raise UserError("LiteRT needs ai-edge-litert: pip install -r requirements-portable.txt") from error
    runner = Interpreter(model_path=path).get_signature_runner()
    return lambda given: runner(**given)


def _onnx_runner(path: str) -> Run:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda given: dict(zip(names, session.run(names, given), strict=True))


# From a model's file to a function of one row's features, int32 [1, S] or [1, N, S], that returns its logits by name.
RUNNERS: dict[str, Callable[[str], Run]] = {LITERT: _litert_runner, ONNX: _onnx_runner}
