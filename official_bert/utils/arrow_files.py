"""Reads Parquet files, and the Arrow stream files in folders that Hugging Face's `save_to_disk` wrote."""

import contextlib
import io
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from official_bert.errors import UserError
from official_bert.utils import files

_ROWS_AT_ONCE = 64  # rows that are converted to Python values at a time
_END_MARKER = b"\xff\xff\xff\xff\0\0\0\0"  # the end of a stream
_BUFFER_SIZE = 1 << 18  # bytes

_STATE, _SPLITS = "state.json", "dataset_dict.json"  # files in Hugging Face's folders

Range = tuple[int, int | None]
Rows = Iterator[tuple[str, dict[str, Any]]]


def is_dataset(folder: str) -> bool:
    """Returns whether `folder` is a local folder that Hugging Face's `save_to_disk` wrote."""
    return any(os.path.isfile(os.path.join(folder, name)) for name in (_STATE, _SPLITS))


def list_files(folder: str) -> list[str]:
    """Returns the data files of a folder that `save_to_disk` wrote, in order.

    Raises:
        UserError: If the folder has several splits or is corrupt.
    """
    split_file, state_file = os.path.join(folder, _SPLITS), os.path.join(folder, _STATE)
    if os.path.isfile(split_file):
        splits = files.read_json_object(split_file).get("splits", [])
        names = ", ".join(os.path.join(folder, str(name)) for name in splits)
        raise UserError(f"{folder} has several splits; pass one or more of them: {names}")
    state = files.read_json_object(state_file)
    try:
        paths = [os.path.join(folder, file["filename"]) for file in state["_data_files"]]
    except (KeyError, TypeError) as error:
        raise UserError(f"{state_file} does not name the files of the data set") from error
    if state.get("_indices_files") or state.get("_indices_data_files"):
        raise UserError(
            f"{folder} contains a selection of rows in the format of an old release of datasets. Save it with a newer "
            "release."
        )
    for path in paths:
        if not os.path.isfile(path):
            raise UserError(f"{path} is missing, although {state_file} lists it. Copy the folder again.")
    return paths


def parquet_ranges(path: str, size: int) -> list[Range]:
    """Splits a Parquet file into ranges of row groups of about `size` bytes each."""
    with _open_parquet(path) as parquet:
        groups = map(parquet.metadata.row_group, range(parquet.num_row_groups))
        return _make_ranges((group.total_byte_size for group in groups), size)


def parquet_rows(path: str, columns: Sequence[str] | None, part: Range) -> Rows:
    """Yields the position and the values of each row in a range of row groups. See row_files.read_rows.

    Text values are bytes.
    """
    with _open_parquet(path) as parquet:
        _check_columns(path, parquet.schema_arrow, columns)
        start, end = part[0], parquet.num_row_groups if part[1] is None else part[1]
        rows_before = sum(parquet.metadata.row_group(index).num_rows for index in range(start))
        batches = parquet.iter_batches(_ROWS_AT_ONCE, list(range(start, end)), columns, use_threads=False)
        yield from _read_batches(batches, columns, rows_before)


def arrow_ranges(path: str, size: int) -> list[Range]:
    """Splits an Arrow stream file into ranges of record batches of about `size` bytes each."""
    with _open_stream(path) as batches:
        return _make_ranges((batch.get_total_buffer_size() for batch in batches), size)


def arrow_rows(path: str, columns: Sequence[str] | None, part: Range) -> Rows:
    """Yields the position and the values of each row in a range of record batches. See row_files.read_rows.

    Text values are bytes.
    """
    start, end = part
    with _open_stream(path) as batches:
        _check_columns(path, batches.schema, columns)
        rows_before = sum(batch.num_rows for batch in itertools.islice(batches, start))
        wanted = itertools.islice(batches, None if end is None else end - start)
        yield from _read_batches(wanted, columns, rows_before)


def _make_ranges(sizes: Iterable[int], range_size: int) -> list[Range]:
    """Groups consecutive parts of a file into ranges of about `range_size` bytes.

    Args:
        sizes: The size of each part (row group or record batch) in bytes.
        range_size: The wanted size of a range in bytes.
    """
    starts, length = [0], 0
    for index, size in enumerate(sizes):
        if length >= range_size:
            starts.append(index)
            length = 0
        length += size
    return list(zip(starts, [*starts[1:], None], strict=True))


@contextlib.contextmanager
def _open_stream(path: str) -> Iterator[Any]:
    """Yields the record batches of an Arrow stream file. Skipping batches of a local file reads only their headers.

    Raises:
        UserError: If the file is truncated.
    """
    import pyarrow as pa

    with _open(path, use_memory_map=True) as source:
        # Arrow does not notice when a stream was truncated between two batches.
        source.seek(max(0, source.size() - len(_END_MARKER)))
        if source.read(len(_END_MARKER)) != _END_MARKER:
            raise UserError(
                f"{path} is incomplete or corrupted (the end-of-file marker is missing). Copy or download it again."
            )
        source.seek(0)
        yield pa.ipc.open_stream(source)


@contextlib.contextmanager
def _open(path: str, use_memory_map: bool) -> Iterator[Any]:
    """Opens a file for Arrow. Errors within the context become UserErrors that name the file.

    With a memory map, skipped parts of a local file are not read.
    """
    import pyarrow as pa

    with contextlib.ExitStack() as stack:
        stack.enter_context(files.explain_read_errors(path))
        try:
            if files.is_remote(path):
                reader = stack.enter_context(files.open_bytes(path))
                yield stack.enter_context(pa.PythonFile(_RemoteFile(reader), "r"))
            else:
                yield stack.enter_context(pa.memory_map(path) if use_memory_map else pa.OSFile(path))
        except (pa.ArrowException, EOFError, OSError, UnicodeDecodeError) as error:
            if isinstance(error, OSError) and error.errno:  # from the file system; Arrow's own errors have no number
                raise
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise UserError(f"{path} is incomplete or corrupted: {reason}. Copy or download it again.") from error


class _RemoteFile(io.RawIOBase):
    """A remote file with all methods that Arrow needs. TensorFlow's file objects lack some of them."""

    def __init__(self, reader: Any) -> None:
        super().__init__()
        self._reader = reader

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return bytes(self._reader.read(size))

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._reader.seek(offset, whence)
        return self.tell()

    def tell(self) -> int:
        return int(self._reader.tell())


@contextlib.contextmanager
def _open_parquet(path: str) -> Iterator[Any]:
    import pyarrow.parquet

    # Without pre-buffering, pages are read when they are needed, instead of whole row groups.
    with (
        _open(path, use_memory_map=False) as source,
        pyarrow.parquet.ParquetFile(source, buffer_size=_BUFFER_SIZE, pre_buffer=False) as parquet,
    ):
        yield parquet


def _check_columns(path: str, schema: Any, columns: Sequence[str] | None) -> None:
    for name in columns or ():
        if schema.names.count(name) != 1:
            problem = "two columns" if name in schema.names else "no column"
            raise UserError(f"{path} has {problem} {name!r}; the columns are {', '.join(map(repr, schema.names))}")
        if not _is_text(schema.field(name).type):
            raise UserError(f"{path}: the column {name!r} is not text, but {schema.field(name).type}")


def _is_text(type: Any) -> bool:
    import pyarrow.types as types

    if types.is_dictionary(type):
        return _is_text(type.value_type)
    tests = (
        types.is_string, types.is_large_string, types.is_string_view, types.is_binary, types.is_large_binary,
        types.is_binary_view, types.is_null,
    )  # fmt: skip
    return any(test(type) for test in tests)


def _read_batches(batches: Any, columns: Sequence[str] | None, rows_before: int) -> Rows:
    number = rows_before
    for batch in batches:
        names = batch.schema.names if columns is None else columns
        for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
            rows = batch.slice(start, _ROWS_AT_ONCE)
            for values in zip(*(_to_python(rows.column(name)) for name in names), strict=True):
                number += 1
                yield f"row {number}", dict(zip(names, values, strict=True))


def _to_python(array: Any) -> list[Any]:
    """Converts an Arrow array to a list of Python values. Texts become bytes, so that invalid UTF-8 can be reported."""
    import pyarrow as pa
    import pyarrow.types as types

    if types.is_dictionary(array.type):
        array.validate(full=True)
        array = array.dictionary_decode()
    if _is_text(array.type) and not types.is_null(array.type):
        array = array.cast(pa.large_binary())
    array.validate(full=True)  # Arrow does not check positions in corrupt files by itself
    return array.to_pylist()
