"""The folder layout of an export, and the conversion between rows of JSON values and arrays. Needs no TensorFlow.

EXPORT_DIR/<version>/ contains a SavedModel, or an ONNX file with the vocabulary and a tokenizer.json in assets/. Its
folder assets.extra contains the metadata, the reference inputs with their answers (see reference_answers.py) and, for a
SavedModel, the warm-up requests of TensorFlow Serving.

B texts, W words, masks or word pieces of a text
"""

import glob
import itertools
import os
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from official_bert.errors import UserError
from official_bert.kinds.names import IS_TRUNCATED
from official_bert.utils import files, tables

GRAPH_FILE, ONNX_FILE, LITERT_FILE = "saved_model.pb", "model.onnx", "model.tflite"
VOCAB_FILE = os.path.join("assets", "vocab.txt")
TOKENIZER_FILE = os.path.join("assets", "tokenizer.json")
METADATA_FILE = os.path.join("assets.extra", "official_bert.json")
REPLAY_FILE = os.path.join("assets.extra", "replay.json")
WARMUP_FILE = os.path.join("assets.extra", "tf_serving_warmup_requests")

ID = "id"  # Input column that is copied to the answers.

# Inputs, and the metadata keys of the table columns that they were trained on.
_TABLE_KEYS = {"text": "text_column", "text_pair": "text_pair_column"}

# Outputs [B, W, ...] that are "" or 0 only in padding, so that they show the number of words, masks or word pieces.
_COUNTED_OUTPUTS = ("words", "tokens", "input_mask")
# Outputs [B, ...] with one value per text, next to counted outputs.
_WHOLE_TEXT_OUTPUTS = ("pooled_output", IS_TRUNCATED)
# Outputs that are padded with -1 instead of "" or 0.
_OFFSET_OUTPUTS = ("starts", "ends")

Columns = dict[str, npt.NDArray[Any]]  # Texts are strings in arrays of objects.


class RefusedTextsError(Exception):
    """Raised if the model cannot answer one of the given texts. The message gives the reason."""


def find_graph(folder: str) -> str | None:
    """Returns the path of the SavedModel or ONNX file in the folder of a version, or None if it contains neither."""
    paths = (os.path.join(folder, name) for name in (GRAPH_FILE, ONNX_FILE))
    return next((path for path in paths if files.exists(path)), None)


def is_onnx(folder: str) -> bool:
    """Returns whether the folder of an export, such as exports/mine/1, contains an ONNX model."""
    return os.path.basename(find_graph(folder) or "") == ONNX_FILE


def list_versions(export_dir: str) -> dict[int, str]:
    """Returns the folders of all versions of an export, by version number.

    As in TensorFlow Serving, a folder 009 is version 9, unless a folder 9 exists too. Incomplete remote folders are
    left out.

    Raises:
        UserError: If `export_dir` is a file.
    """
    if files.exists(export_dir) and not files.is_folder(export_dir):
        raise UserError(f"{export_dir} is a file; pass the folder of an export")
    versions: dict[int, str] = {}
    for name in files.list_folder(export_dir) if files.exists(export_dir) else []:
        if not re.fullmatch("[0-9]{1,18}", name):  # TensorFlow Serving's versions have 64 bits.
            continue
        if int(name) not in versions or name == str(int(name)):
            versions[int(name)] = os.path.join(export_dir, name)
    return {number: folder for number, folder in versions.items() if not files.is_unfinished(folder)}


def find_newest_version(export_dir: str) -> str:
    """Returns the folder of the newest version of an export.

    If `export_dir` is itself the folder of a version, returns it.

    Raises:
        UserError: If the folder contains no version.
    """
    if find_graph(export_dir):
        return export_dir
    versions = list_versions(export_dir)
    if not versions:
        raise explain_missing_export(export_dir)
    return versions[max(versions)]


def explain_missing_export(folder: str) -> UserError:
    """Returns the error for a folder that contains no export for predict and serve, with advice on what to do."""
    if files.exists(os.path.join(folder, LITERT_FILE)):
        return UserError(
            f"{folder} is an export for LiteRT, which takes token ids in a program of your own. For predict and serve, "
            "export the model with official-bert export --format=saved_model or --format=onnx."
        )
    graphs = [files.glob(os.path.join(glob.escape(folder), "*", "[0-9]*", name)) for name in (GRAPH_FILE, ONNX_FILE)]
    found = [os.path.dirname(os.path.dirname(path)) for path in itertools.chain(*graphs)]
    advice = f"Pass {found[0]}." if found else "Create one with official-bert export."
    return UserError(
        f"{folder} holds no export (folders named by a number, with a {GRAPH_FILE} or {ONNX_FILE}). {advice}"
    )


def list_model_files(folder: str) -> list[str]:
    """Returns the paths of those files of a version that determine its answers.

    Args:
        folder: The folder of one version of an export.
    """
    paths = [os.path.join(folder, name) for name in (GRAPH_FILE, ONNX_FILE, METADATA_FILE, REPLAY_FILE)]
    for inner in ("variables", "assets"):
        within = os.path.join(folder, inner)
        paths += [os.path.join(within, name) for name in files.list_folder(within)] if files.exists(within) else []
    return [path for path in paths if files.exists(path)]


def read_metadata(folder: str) -> dict[str, Any]:
    """Returns the metadata of an export (kind, inputs, labels, ...), or an empty dict for a SavedModel of another tool.

    Args:
        folder: The folder of one version of an export.
    """
    path = os.path.join(folder, METADATA_FILE)
    return files.read_json_object(path) if files.exists(path) else {}


def list_trained_columns(table: Mapping[str, Any]) -> list[str]:
    """Returns the names of the table columns that a model reads its texts from.

    Args:
        table: "table" of the export's metadata.
    """
    return [column for key in _TABLE_KEYS.values() for column in (table.get(key) or "").split(",") if column]


def _list_columns(name: str, row: Collection[str], table: Mapping[str, Any]) -> list[str]:
    """Returns the columns that an input was trained on, or its name. They are joined if there are several."""
    trained = table.get(_TABLE_KEYS.get(name, "")) or name
    return [trained] if trained in row else trained.split(",")


def find_column(name: str, row: Collection[str], table: Mapping[str, Any]) -> tuple[str, bool]:
    """Returns the column that an input is read from, for messages, and whether the row has the column.

    Args:
        name: Name of the input.
        row: The columns of the row.
        table: "table" of the export's metadata. Empty if the model was not trained on a table.
    """
    columns = _list_columns(name, row, table)
    absent = [column for column in columns if column not in row]
    if not absent:
        return ",".join(columns), True
    is_trained_row = name not in row and any(column in row for column in list_trained_columns(table))
    return (absent[0], False) if is_trained_row else (name, name in row)


def read_row(row: Mapping[str, Any], inputs: Collection[str], table: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Returns the values of a model's inputs, given a row of a table or a JSON object.

    A text is read from the columns that the model was trained on, which are joined as in fine-tuning. If the row lacks
    these columns, it may instead have columns named like the model's inputs, but then no other columns except for an id
    and a label.

    Args:
        row: Values by column.
        inputs: Names of the model's inputs.
        table: "table" of the export's metadata. Empty if the model was not trained on a table.

    Returns:
        The values by input (inputs that the row lacks are missing), and a description of a problem with the row, or "".
    """
    values, used, is_unclear = {}, {*_TABLE_KEYS, ID, table.get("label_column")}, False
    for name in inputs:
        columns = _list_columns(name, row, table)
        if not all(column in row for column in columns):
            columns, is_unclear = [name], is_unclear or name in row
        if len(columns) > 1:
            if problem := tables.find_text_problem(row, columns):
                return {}, problem
            values[name] = tables.join_texts(row, columns)
        elif columns[0] in row:
            values[name] = row[columns[0]]
        used.update(columns)
    if is_unclear and values.keys() >= set(inputs) and not set(row) <= used:
        trained_columns = ", ".join(list_trained_columns(table))
        return {}, (
            f"the columns are {', '.join(row)[:300]}; the model was trained on {trained_columns}. Rename the columns, "
            "or pass the model's inputs without other columns"
        )
    return values, ""


def split_rows(outputs: Mapping[str, npt.NDArray[Any]]) -> list[Columns]:
    """Splits arrays [B, ...] into one dict of arrays [1, ...] per text, and removes the padding of each text."""
    count = len(next(iter(outputs.values())))
    rows = [{name: value[i : i + 1] for name, value in outputs.items()} for i in range(count)]
    counted = next((name for name in _COUNTED_OUTPUTS if name in outputs), None)
    return [_remove_padding(row, row[counted]) for row in rows] if counted else rows


def _remove_padding(row: Columns, counted_output: npt.NDArray[Any]) -> Columns:
    is_real = counted_output[0] != ("" if counted_output.dtype == object else 0)  # [W, ...]
    real = np.flatnonzero(is_real.any(axis=tuple(range(1, is_real.ndim))))
    width = int(real[-1]) + 1 if len(real) else 0
    return {name: value if name in _WHOLE_TEXT_OUTPUTS else value[:, :width] for name, value in row.items()}


def join_rows(rows: Sequence[Columns]) -> Columns:
    """Concatenates arrays [B1, ...], [B2, ...] and so on to [B, ...], padded to the largest size.

    Args:
        rows: A dict of arrays by name for each part.
    """
    if len(rows) == 1:
        return rows[0]
    joined = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        widest = np.max([value.shape[1:] for value in values], axis=0)
        padding: Any = "" if values[0].dtype == object else -1 if name in _OFFSET_OUTPUTS else 0
        joined[name] = np.concatenate([
            value if value.shape[1:] == tuple(widest) else np.pad(
                value, [(0, 0), *((0, int(most) - size) for most, size in zip(widest, value.shape[1:], strict=True))],
                constant_values=padding,
            )
            for value in values
        ])  # fmt: skip
    return joined


def to_columns(texts: Mapping[str, Sequence[Any]]) -> Columns:
    """Converts lists of texts to arrays of objects: [B], or [B, N] for lists of lists."""
    return {name: np.array(column, object) for name, column in texts.items()}


def to_rows(columns: Columns) -> list[dict[str, Any]]:
    """Converts answers to one dict of JSON values per text, without padding.

    Of an encoder's outputs, only the pooled output is kept.

    Args:
        columns: Arrays [B, ...] by output name.
    """
    if "pooled_output" in columns:
        columns = {name: columns[name] for name in ("pooled_output", IS_TRUNCATED) if name in columns}
    return [{name: row[name].tolist()[0] for name in sorted(row)} for row in split_rows(columns)]
