"""The flags of export and export-portable."""

import dataclasses

from official_bert.utils.flags import option

LITERT, ONNX = "litert", "onnx"
TENSORFLOW, ONNX_RUNTIME = "tensorflow", "onnxruntime"
FLOAT32, DYNAMIC_INT8 = "float32", "dynamic_int8"


@dataclasses.dataclass(frozen=True)
class SavedModelOptions:
    """The options of export."""

    model_dir: str = option(dataclasses.MISSING, "A fine-tuned model's folder, or a checkpoint of any format.")
    export_dir: str = option(dataclasses.MISSING, "Where the versions of the export stand; a new one is added.")
    version: int | None = option(None, "The new version's number; by default one more than the greatest there.")
    encoder: bool = option(False, "Whether the encoder's outputs are exported in place of the answers of its head.")
    max_seq_length: int | None = option(
        None, "The longest sequence in tokens; by default that of fine-tuning, else that of the model."
    )
    eval_file: str | None = option(
        None,
        "Labelled examples, as export-portable reads them; some of their texts are among those by which the export "
        "proves itself, and stand with their answers beside the model.",
    )
    engine: str = option(
        TENSORFLOW,
        "What computes the answers: TensorFlow, by a SavedModel that TensorFlow Serving reads as well, or ONNX "
        "Runtime, which serve and predict then run without TensorFlow.",
        (TENSORFLOW, ONNX_RUNTIME),
    )
    quantization: str = option(
        FLOAT32,
        "With --engine=onnxruntime: matrices as they are, or as integers of 8 bits, which needs --eval_file.",
        (FLOAT32, DYNAMIC_INT8),
    )
    max_loss: float = option(
        0.01, "How much of the task's score on --eval_file 8 bits may lose, as a share of a perfect one."
    )
    for_serving: str | None = option(
        None, "A release of TensorFlow Serving, such as 2.19, whose operations alone the export may use."
    )


@dataclasses.dataclass(frozen=True)
class PortableOptions:
    """The options of export-portable."""

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
