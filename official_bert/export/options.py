"""The flags of export and export-portable."""

import dataclasses

from official_bert.utils.flags import option

LITERT, ONNX = "litert", "onnx"
FLOAT32, DYNAMIC_INT8 = "float32", "dynamic_int8"


@dataclasses.dataclass(frozen=True)
class SavedModelOptions:
    """The options of export."""

    model_dir: str = option(dataclasses.MISSING, "A fine-tuned model's folder, or a checkpoint of any format.")
    export_dir: str = option(dataclasses.MISSING, "Where the versions of the export stand; a new one is added.")
    version: int | None = option(None, "The new version's number; by default one more than the greatest there.")
    encoder: bool = option(False, "Whether the encoder's outputs are exported in place of the answers of its head.")
    hub: bool = option(False, "Whether the encoder and its preprocessing are exported by TensorFlow Hub's conventions.")
    max_seq_length: int | None = option(
        None, "The longest sequence in tokens; by default that of fine-tuning, else that of the model."
    )
    eval_file: str | None = option(
        None,
        "Labelled examples, as export-portable reads them; some of their texts are among those by which the export "
        "proves itself, and stand with their answers beside the model.",
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
