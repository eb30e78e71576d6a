"""Writes vectors of texts, text by text, to .npy, Parquet, JSON lines, or the format of extract_features.py.

T tokens of a text, L selected layers, H hidden size
"""

import contextlib
import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np

from official_bert.errors import UserError
from official_bert.inference.feature_extractor import FeatureExtractor, TextVectors
from official_bert.inference.options import AUTO, JSONL, NONE, NPY, ORIGINAL, PARQUET
from official_bert.utils import files

_TOKENS_SUFFIX = ".tokens.jsonl"
_ROWS_AT_A_TIME = 256  # Number of rows in a row group of Parquet.

Add = Callable[[TextVectors], Any]


def detect_format(path: str, format: str = AUTO) -> str:
    """Returns the output format: `format` itself or, if it is "auto", the format of the path's extension.

    Raises:
        UserError: If the extension is unknown.
    """
    if format != AUTO:
        return format
    ending = os.path.splitext(path)[1].removeprefix(".")
    if ending in (NPY, PARQUET, JSONL):
        return ending
    raise UserError(f"The extension of {path} is unknown. Use .npy, .parquet or .jsonl, or pass --output_format.")


def list_output_files(path: str, format: str, pooling: str) -> list[str]:
    """Returns the paths of the files that `open_writer` writes: one file, or two for npy without pooling."""
    return [path, path + _TOKENS_SUFFIX] if format == NPY and pooling == NONE else [path]


def open_writer(
    path: str, format: str, extractor: FeatureExtractor, pooling: str, first: int = 0
) -> contextlib.AbstractContextManager[Add]:
    """Returns a context manager that yields a function, which appends the vectors of one text to the output file.

    The output file appears when it is complete.

    - npy: float32 [number of texts, L, H] with pooling. Otherwise [number of tokens of all texts, L, H], and a file
      <path>.tokens.jsonl with a line of tokens, starts and ends for each text.
    - parquet: A row per text with the columns text and layer_<number> (H numbers, or T lists of H numbers). Without
      pooling also tokens, starts and ends.
    - jsonl: The same values as JSON, with the vectors by layer in "layers".
    - original: The format of extract_features.py: linex_index, and the layers of each token, rounded to six digits.

    Args:
        path: The output file.
        format: One of the formats above.
        extractor: The extractor that computes the vectors.
        pooling: How the vectors of tokens are pooled, or "none".
        first: Index of the first text in the whole input, for the "index" of JSON lines.

    Raises:
        UserError: If the format is "original" and vectors are pooled.
    """
    if format == ORIGINAL and pooling != NONE:
        raise UserError(f"--output_format={ORIGINAL} requires --pooling={NONE}, but --pooling is {pooling}.")
    if format == NPY:
        return _open_npy(path, extractor, pooling != NONE)
    if format == PARQUET:
        return _open_parquet(path, extractor, pooling != NONE)
    numbers, row = itertools.count(first), _make_original_row if format == ORIGINAL else _make_row
    return _open_jsonl(path, lambda vectors: row(next(numbers), vectors, extractor.layers))


@contextlib.contextmanager
def _open_jsonl(path: str, make_row: Callable[[TextVectors], dict[str, Any]]) -> Iterator[Add]:
    with files.write_atomically(path) as local, open(local, "w", encoding="utf-8") as lines:
        yield lambda vectors: lines.write(json.dumps(make_row(vectors), ensure_ascii=False) + "\n")


@contextlib.contextmanager
def _open_npy(path: str, extractor: FeatureExtractor, is_pooled: bool) -> Iterator[Add]:
    rest = (len(extractor.layers), extractor.hidden_size)
    count = 0

    def add(vectors: TextVectors) -> None:
        nonlocal count
        values = vectors.values.reshape(-1, *rest)
        count += len(values)
        output.write(np.ascontiguousarray(values, "<f4").tobytes())
        add_tokens(vectors)

    no_tokens = contextlib.nullcontext(lambda _: None)
    tokens = no_tokens if is_pooled else _open_jsonl(path + _TOKENS_SUFFIX, _describe_tokens)
    with files.write_atomically(path) as local, open(local, "wb") as output, tokens as add_tokens:
        _write_npy_header(output, (0, *rest))
        yield add
        # The header has room for a larger first axis.
        output.seek(0)
        _write_npy_header(output, (count, *rest))


def _write_npy_header(output: BinaryIO, shape: Sequence[int]) -> None:
    np.lib.format.write_array_header_1_0(output, {"descr": "<f4", "fortran_order": False, "shape": tuple(shape)})


@contextlib.contextmanager
def _open_parquet(path: str, extractor: FeatureExtractor, is_pooled: bool) -> Iterator[Add]:
    import pyarrow as pa
    import pyarrow.parquet

    vector = pa.list_(pa.float32(), extractor.hidden_size)
    offsets = pa.list_(pa.int32())
    token_columns = [("tokens", pa.list_(pa.string())), ("starts", offsets), ("ends", offsets)]
    schema = pa.schema([
        ("text", pa.string()),
        *([] if is_pooled else token_columns),
        *((f"layer_{layer}", vector if is_pooled else pa.list_(vector)) for layer in extractor.layers),
    ])  # fmt: skip
    waiting: list[dict[str, Any]] = []

    def flush() -> None:
        output.write_table(pa.Table.from_pylist(waiting, schema))
        waiting.clear()

    def add(vectors: TextVectors) -> None:
        row = {"text": vectors.text, **_describe_tokens(vectors)}
        for number, layer in enumerate(extractor.layers):
            values = vectors.values[..., number, :]
            row[f"layer_{layer}"] = values if is_pooled else list(values)
        waiting.append(row)
        if len(waiting) == _ROWS_AT_A_TIME:
            flush()

    with files.write_atomically(path) as local, pa.parquet.ParquetWriter(local, schema) as output:
        yield add
        if waiting:
            flush()


def _describe_tokens(vectors: TextVectors) -> dict[str, Any]:
    return {"tokens": vectors.tokens, "starts": vectors.starts, "ends": vectors.ends}


def _make_row(number: int, vectors: TextVectors, layers: Sequence[int]) -> dict[str, Any]:
    row: dict[str, Any] = {"index": number, "text": vectors.text}
    if vectors.tokens or vectors.values.ndim == 3:
        row |= _describe_tokens(vectors)
    values = vectors.values.astype(float).round(6)
    row["layers"] = {str(layer): values[..., number, :].tolist() for number, layer in enumerate(layers)}
    return row


def _make_original_row(number: int, vectors: TextVectors, layers: Sequence[int]) -> dict[str, Any]:
    tokens = []
    for token, layer_values in zip(vectors.tokens, vectors.values.astype(float).round(6).tolist(), strict=True):
        in_layers = zip(layers, layer_values, strict=True)
        tokens.append({"token": token, "layers": [{"index": layer, "values": values} for layer, values in in_layers]})
    return {"linex_index": number, "features": tokens}
