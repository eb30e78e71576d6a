"""Writes vectors of texts, text by text, to .npy, Parquet, JSON lines, or the format of extract_features.py.

T tokens of a text, L selected layers, H hidden size
"""

import contextlib
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np

from official_bert.errors import UserError
from official_bert.inference.feature_extractor import FeatureExtractor, TextVectors
from official_bert.inference.options import AUTO, JSONL, NONE, NPY, ORIGINAL, PARQUET
from official_bert.utils import files

_TOKENS_SUFFIX = ".tokens.jsonl"
_ROWS_AT_A_TIME = 256  # Number of rows in a row group of Parquet.


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
    """Returns the paths of the files that `write` writes: one file, or two for npy without pooling."""
    return [path, path + _TOKENS_SUFFIX] if format == NPY and pooling == NONE else [path]


def write(path: str, format: str, extractor: FeatureExtractor, vectors: Iterable[TextVectors], first: int = 0) -> None:
    """Writes the vectors of texts to a file, which appears when it is complete.

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
        vectors: The vectors of each text.
        first: Index of the first text in the whole input, for the "index" of JSON lines.

    Raises:
        UserError: If the format is "original" and vectors are pooled.
    """
    if format == ORIGINAL and extractor.pooling != NONE:
        raise UserError(f"--output_format={ORIGINAL} requires --pooling={NONE}, but --pooling is {extractor.pooling}.")
    if format == NPY:
        _write_npy(path, extractor, vectors)
    elif format == PARQUET:
        _write_parquet(path, extractor, vectors)
    else:
        make_row = _make_original_row if format == ORIGINAL else _make_row
        with _open_jsonl(path) as write_row:
            for number, each in enumerate(vectors, first):
                write_row(make_row(number, each, extractor.layers))


@contextlib.contextmanager
def _open_jsonl(path: str) -> Iterator[Callable[[dict[str, Any]], Any]]:
    with files.write_atomically(path) as local, open(local, "w", encoding="utf-8") as lines:
        yield lambda row: lines.write(json.dumps(row, ensure_ascii=False) + "\n")


def _write_npy(path: str, extractor: FeatureExtractor, vectors: Iterable[TextVectors]) -> None:
    rest = (len(extractor.layers), extractor.hidden_size)
    count = 0
    is_pooled = extractor.pooling != NONE
    tokens = contextlib.nullcontext(lambda _: None) if is_pooled else _open_jsonl(path + _TOKENS_SUFFIX)
    with files.write_atomically(path) as local, open(local, "wb") as output, tokens as write_tokens:
        _write_npy_header(output, (0, *rest))
        for each in vectors:
            values = each.values.reshape(-1, *rest)
            count += len(values)
            output.write(np.ascontiguousarray(values, "<f4").tobytes())
            write_tokens(_describe_tokens(each))
        # The header has room for a larger first axis.
        output.seek(0)
        _write_npy_header(output, (count, *rest))


def _write_npy_header(output: BinaryIO, shape: Sequence[int]) -> None:
    np.lib.format.write_array_header_1_0(output, {"descr": "<f4", "fortran_order": False, "shape": tuple(shape)})


def _write_parquet(path: str, extractor: FeatureExtractor, vectors: Iterable[TextVectors]) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    is_pooled = extractor.pooling != NONE
    vector = pa.list_(pa.float32(), extractor.hidden_size)
    offsets = pa.list_(pa.int32())
    token_columns = [("tokens", pa.list_(pa.string())), ("starts", offsets), ("ends", offsets)]
    schema = pa.schema([
        ("text", pa.string()),
        *([] if is_pooled else token_columns),
        *((f"layer_{layer}", vector if is_pooled else pa.list_(vector)) for layer in extractor.layers),
    ])  # fmt: skip

    def make_row(each: TextVectors) -> dict[str, Any]:
        row = {"text": each.text, **_describe_tokens(each)}
        for number, layer in enumerate(extractor.layers):
            values = each.values[..., number, :]
            row[f"layer_{layer}"] = values if is_pooled else list(values)
        return row

    rows = map(make_row, vectors)
    with files.write_atomically(path) as local, pa.parquet.ParquetWriter(local, schema) as output:
        while some := list(itertools.islice(rows, _ROWS_AT_A_TIME)):
            output.write_table(pa.Table.from_pylist(some, schema))


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
