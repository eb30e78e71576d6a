"""Saves a trained model for ONNX Runtime, in the same layout as a SavedModel: see inference/exports.py.

The graph has the part from ids to logits. All else is done by inference/onnx_model.py, which reads what is written.
"""

import dataclasses
import os
from typing import Any

from official_bert.errors import UserError
from official_bert.export import lost_score, replay
from official_bert.export.options import DYNAMIC_INT8, FLOAT32, SavedModelOptions
from official_bert.export.saved_model import metadata_of, write_checksums, write_metadata
from official_bert.export.source import Source
from official_bert.inference import exports
from official_bert.inference.onnx_model import OnnxModel, replayed
from official_bert.learning.predictor import Predictor
from official_bert.modeling.choices import VECTORS
from official_bert.tasks.evaluation_files import read_evaluation_file
from official_bert.tasks.heads.all_heads import HEADS, head_of
from official_bert.tokenization.fast import FastTokenizer
from official_bert.utils import extras, files

# How far the answers of 8-bit matrices may lie apart: the integers depend on what else is in a batch.
_INT8_TOLERANCE = 0.1
_BATCH_SIZE = 32


def write(source: Source, folder: str, options: SavedModelOptions) -> None:
    """Writes the model with all that belongs to it into a folder.

    Raises:
        UserError: the model has no such head, a package is missing, the options do not fit, what was written answers
            otherwise than predict, or 8 bits lose more of the score than they may.
    """
    _check(source, options)
    try:
        from official_bert.export import onnx_graph
    except ModuleNotFoundError as error:
        raise extras.missing(error, "portable") or error from error
    names = ("pooling", "layers", "normalize") if source.kind == VECTORS else ()
    pooling = {name: source.task_spec[name] for name in names if name in source.task_spec}
    quantized = options.quantization == DYNAMIC_INT8
    onnx_graph.write(onnx_graph.onnx_model(source.model, **pooling), os.path.join(folder, exports.ONNX_FILE), quantized)
    files.write_text(os.path.join(folder, exports.VOCAB_FILE), source.vocab)
    task_spec = {**source.task_spec, "kind": source.kind}
    metadata = metadata_of(source, head_of(task_spec).text_inputs) | {
        "task_spec": task_spec,
        "quantization": options.quantization,
    }
    write_metadata(folder, metadata)
    model = OnnxModel(folder)
    if quantized:
        write_metadata(folder, metadata | {"score": _score(source, model, options)})
    texts = replay.make(source, options.eval_file)
    alone, together = replayed(model, texts.rows())
    if quantized:  # whose answers are proved by the score, and are asked for again as they are
        own = {name: [row[name] for row in alone] for name in texts.answers}
        texts = dataclasses.replace(texts, answers=own, tolerance=_INT8_TOLERANCE)
    replay.prove(texts, alone, together)
    texts.write(folder)
    write_checksums(folder)


def _check(source: Source, options: SavedModelOptions) -> None:
    if source.kind not in (*HEADS, VECTORS):
        raise UserError(
            f"{options.model_dir} is a {source.kind} model; ONNX Runtime's exports answer as a head that was "
            "fine-tuned: leave out --engine, or fine-tune"
        )
    if options.for_serving is not None:
        raise UserError("--for_serving is of TensorFlow Serving, which reads no ONNX; leave it or --engine out")
    if options.quantization == FLOAT32:
        return
    if source.kind == VECTORS:
        raise UserError("vectors have no score by which to see what 8 bits lose; leave out --quantization")
    if options.eval_file is None:
        raise UserError(
            f"--quantization={options.quantization} is measured on labelled examples; name them by --eval_file"
        )


def _score(source: Source, model: OnnxModel, options: SavedModelOptions) -> dict[str, Any]:
    """Returns the task's score before and after the quantization; raises a UserError if too much is lost."""
    assert options.eval_file
    task, examples = read_evaluation_file(source.task_spec, options.eval_file)
    length = source.task_spec["max_seq_length"]
    features = task.head.featurize(examples, FastTokenizer.of(source.tokenizer), length)
    before, after = (
        task.metrics(task.head.decode(outputs, features, examples), examples)[task.best_metric]
        for outputs in (
            Predictor(source.model, None, length).predict(features, _BATCH_SIZE),
            model.outputs(features),
        )
    )
    lost_score.check(
        before, after, task.head.perfect, options.max_loss, f"{options.quantization} model", options.eval_file
    )
    return {"metric": task.best_metric, "before": before, "after": after, "examples": len(examples)}
