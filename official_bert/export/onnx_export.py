"""Writes a trained model for ONNX Runtime, in the same folder layout as a SavedModel (see inference/exports.py).

The ONNX graph computes logits from token ids. inference/onnx_model.py does everything else. For programs that do not
use this package, the folder also has a tokenizer.json for Hugging Face's tokenizers.
"""

import dataclasses
import os

from official_bert.errors import UserError
from official_bert.export import verification
from official_bert.export.options import DYNAMIC_INT8, FLOAT32, ONNX, ExportOptions
from official_bert.export.saved_model import write_checksums, write_metadata
from official_bert.export.source import ExportSource
from official_bert.inference import exports, reference_answers
from official_bert.inference.onnx_model import OnnxPredictor
from official_bert.utils import extras

# The largest difference with 8-bit matrices. Quantization depends on the other texts in a batch.
_INT8_TOLERANCE = 0.1


def check(source: ExportSource, options: ExportOptions) -> None:
    """Checks that the model can be exported to ONNX, and that there are examples to score it on if it is quantized.

    Raises:
        UserError: If the model has no head, or is to be quantized without --eval_file.
    """
    if source.spec is None:
        raise UserError(
            f"--format={ONNX} needs a fine-tuned model, but the kind of {options.model_dir} is {source.kind}; export "
            f"it as saved_model, or fine-tune it"
        )
    if options.quantization == FLOAT32:
        return
    if not source.spec.has_head:
        raise UserError("vectors have no score that shows the loss of 8-bit matrices; remove --quantization")
    if options.eval_file is None:
        raise UserError(f"--quantization={options.quantization} is scored on labelled examples; pass --eval_file")


def write(source: ExportSource, folder: str, options: ExportOptions) -> None:
    """Writes the folder of one version of an ONNX export.

    Raises:
        UserError: If a package is missing, the answers differ from the answers of predict, or the score of the
            quantized model is worse than allowed.
    """
    try:
        from official_bert.export import onnx_graph
    except ModuleNotFoundError as error:
        raise extras.explain_missing_package(error, "portable") or error from error
    assert source.spec
    quantized = options.quantization == DYNAMIC_INT8
    pooling = {name: source.task_spec[name] for name in ("pooling", "layers", "normalize") if name in source.task_spec}
    graph = onnx_graph.onnx_model(source.model, **pooling)
    onnx_graph.write(graph, os.path.join(folder, exports.ONNX_FILE), quantized)
    source.write_tokenizer(folder)
    metadata = source.metadata(source.spec.text_inputs) | {
        "decoding": source.spec.decoding,
        "quantization": options.quantization,
    }
    write_metadata(folder, metadata)
    model = OnnxPredictor(folder)
    if quantized:
        score = verification.compare_scores(source, options, model.compute_outputs, ONNX)
        write_metadata(folder, metadata | {"score": score})
    reference = verification.record_answers(source, options.eval_file)
    alone, together = reference_answers.compute_answers(model.run, reference.rows())
    if quantized:  # The score was checked instead. Later checks compare with these answers.
        answers = {name: [row[name] for row in alone] for name in reference.answers}
        reference = dataclasses.replace(reference, answers=answers, tolerance=_INT8_TOLERANCE)
    verification.check_answers(reference, alone, together)
    reference.write(folder)
    write_checksums(folder)
