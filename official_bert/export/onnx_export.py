"""Saves a trained model for ONNX Runtime, in the same layout as a SavedModel: see inference/exports.py.

The graph has the part from ids to logits. All else is done by inference/onnx_model.py, which reads what is written.
"""

import dataclasses
import os

from official_bert.errors import UserError
from official_bert.export import conversion_score, replay
from official_bert.export.options import DYNAMIC_INT8, FLOAT32, ONNX, ExportOptions
from official_bert.export.saved_model import metadata_of, write_checksums, write_metadata
from official_bert.export.source import Source
from official_bert.inference import exports, replays
from official_bert.inference.onnx_model import OnnxPredictor
from official_bert.kinds.all_kinds import SPECS, create_spec
from official_bert.utils import extras, files

# How far the answers of 8-bit matrices may lie apart: the integers depend on what else is in a batch.
_INT8_TOLERANCE = 0.1


def check(source: Source, options: ExportOptions) -> None:
    """Checks that the model can be exported and, if it is quantized, measured.

    Raises:
        UserError: If the model has no head, or there is nothing to measure the quantized model with.
    """
    if source.kind not in SPECS:
        raise UserError(
            f"--format={ONNX} needs a fine-tuned model, but the kind of {options.model_dir} is {source.kind}; export "
            f"it as saved_model, or fine-tune it"
        )
    if options.quantization == FLOAT32:
        return
    if not SPECS[source.kind].has_head:
        raise UserError("vectors have no score by which to see what 8 bits lose; leave out --quantization")
    if options.eval_file is None:
        raise UserError(f"--quantization={options.quantization} is scored on labelled examples; pass --eval_file")


def write(source: Source, folder: str, options: ExportOptions) -> None:
    """Writes the model with all that belongs to it into a folder.

    Raises:
        UserError: If a package is missing, the export answers differently from predict, or 8 bits lose more of the
            score than allowed.
    """
    try:
        from official_bert.export import onnx_graph
    except ModuleNotFoundError as error:
        raise extras.missing(error, "portable") or error from error
    task_spec = {**source.task_spec, "kind": source.kind}
    spec = create_spec(task_spec)
    quantized = options.quantization == DYNAMIC_INT8
    graph = onnx_graph.onnx_model(source.model, **spec.pooling_settings)
    onnx_graph.write(graph, os.path.join(folder, exports.ONNX_FILE), quantized)
    files.write_text(os.path.join(folder, exports.VOCAB_FILE), source.vocab)
    metadata = metadata_of(source, spec.text_inputs) | {
        "task_spec": task_spec,
        "quantization": options.quantization,
    }
    write_metadata(folder, metadata)
    model = OnnxPredictor(folder)
    if quantized:
        score = conversion_score.measure(source, options, model.compute_outputs, ONNX)
        write_metadata(folder, metadata | {"score": score})
    texts = replay.make(source, options.eval_file)
    alone, together = replays.ask(model, texts.rows())
    if quantized:  # whose answers are proved by the score, and are asked for again as they are
        own = {name: [row[name] for row in alone] for name in texts.answers}
        texts = dataclasses.replace(texts, answers=own, tolerance=_INT8_TOLERANCE)
    replay.prove(texts, alone, together)
    texts.write(folder)
    write_checksums(folder)
