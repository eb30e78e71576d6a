"""The flags of export."""

import dataclasses

from official_bert.errors import UserError
from official_bert.utils.flags import ValidatedOptions, option

SAVED_MODEL, ONNX, LITERT = FORMATS = ("saved_model", "onnx", "litert")
FLOAT32, DYNAMIC_INT8 = "float32", "dynamic_int8"

# The formats that each of these flags applies to: at least one of them must be exported.
_FORMATS_BY_FLAG = {
    "version": (SAVED_MODEL, ONNX),
    "quantization": (ONNX, LITERT),
    "max_loss": (ONNX, LITERT),
    "for_serving": (SAVED_MODEL,),
}


@dataclasses.dataclass(frozen=True)
class ExportOptions(ValidatedOptions):
    """The flags of export.

    Raises:
        UserError: If a format is unknown, or a flag does not apply to any of the chosen formats.
    """

    model_dir: str = option(dataclasses.MISSING, "A fine-tuned model's folder, or a checkpoint of any format.")
    export_dir: str = option(
        dataclasses.MISSING,
        "Folder to write to. saved_model and onnx add a version folder (1, 2, ...), and litert needs a new or empty "
        "folder. If you list several formats, each is written to a subfolder with its name.",
    )
    format: list[str] = option(
        [SAVED_MODEL],
        "Formats to write: saved_model takes text (serve, predict, TensorFlow Serving), onnx takes text (serve and "
        "predict without TensorFlow), litert takes token ids (phones).",
        FORMATS,
    )
    version: int | None = option(
        None, "Version number for saved_model and onnx. Defaults to the next unused number.", min=1
    )
    encoder: bool = option(False, "Export the encoder's outputs instead of the head's answers (saved_model only).")
    max_seq_length: int | None = option(
        None,
        "Maximum sequence length in tokens. Defaults to the length used in fine-tuning, or the model's maximum.",
        min=1,
    )
    eval_file: str | None = option(
        None,
        "Labelled examples in the layout that the model was trained on: a table (*.csv, *.tsv, *.jsonl, Parquet) with "
        "the columns of training, or text (and text_pair) and label; GLUE's *.tsv; CoNLL; SQuAD's JSON; SWAG or CODAH. "
        "Required for litert and for "
        "--quantization=dynamic_int8, which are scored on them. Some of its texts also verify the export, and are "
        "stored next to the model with their answers.",
    )
    quantization: str = option(
        FLOAT32, "Keep matrices in float32, or quantize them to 8 bits (onnx and litert).", (FLOAT32, DYNAMIC_INT8)
    )
    max_loss: float = option(
        0.01,
        "Largest drop of the task's score on --eval_file, as a share of the best possible score (onnx and litert).",
    )
    for_serving: str | None = option(
        None, "Reject the export if this TensorFlow Serving release, such as 2.19, lacks an operation (saved_model)."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        given = ",".join(self.format)
        if not self.format:
            raise UserError(f"--format is empty; pass one or more of {', '.join(FORMATS)}, separated by commas.")
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        for name, formats in _FORMATS_BY_FLAG.items():
            if getattr(self, name) != defaults[name] and not {*formats} & {*self.format}:
                raise UserError(
                    f"--{name} does not apply to --format={given}, only to {' and '.join(formats)}; remove it"
                )
        if self.encoder and {*self.format} != {SAVED_MODEL}:
            raise UserError(f"--encoder does not apply to --format={given}, only to {SAVED_MODEL}; remove one of them")
