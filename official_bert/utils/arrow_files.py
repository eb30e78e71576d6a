"""Parquet files, and streams of Arrow record batches, which Hugging Face's `save_to_disk` writes into a folder."""

import contextlib
import io
import os
from collections.abc import Iterator, Sequence
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
    """Returns whether Hugging Face's `save_to_disk` wrote a local folder."""
    return any(os.path.isfile(os.path.join(folder, name)) for name in (_STATE, _SPLITS))


def list_files(folder: str) -> list[str]:
    """Returns the files of a folder that `save_to_disk` wrote, in order.

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
            raise UserError(f"there is no file {path}, although {state_file} names it; copy the folder again")
    return paths


def parquet_ranges(path: str, size: int) -> list[Range]:
    """Returns ranges of row groups of about `size` bytes each."""
    with _open_parquet(path) as parquet:
        starts, length = [0], 0
        for index in range(parquet.num_row_groups):
            if length >= size:
                starts.append(index)
                length = 0
            length += parquet.metadata.row_group(index).total_byte_size
    return list(zip(starts, [*starts[1:], None], strict=True))


def parquet_rows(path: str, columns: Sequence[str] | None, part: Range) -> Rows:
    """Reads as row_files.read_rows does, with texts as bytes."""
    with _open_parquet(path) as parquet:
        _check_columns(path, parquet.schema_arrow, columns)
        start, end = part[0], parquet.num_row_groups if part[1] is None else part[1]
        rows_before = sum(parquet.metadata.row_group(index).num_rows for index in range(start))
        batches = parquet.iter_batches(_ROWS_AT_ONCE, list(range(start, end)), columns, use_threads=False)
        yield from _read_batches(batches, columns, rows_before)


def arrow_ranges(path: str, size: int) -> list[Range]:
    """Returns byte ranges of whole batches of about `size` bytes each. Files with shared dictionaries are one range."""
    import pyarrow as pa

    with _open(path, use_memory_map=True) as source:
        messages = pa.ipc.MessageReader.open_stream(source)
        messages.read_next_message()  # the schema
        starts: list[int] = []
        position = source.tell()
        with contextlib.suppress(StopIteration):
            while True:
                message = messages.read_next_message()
                if message.type != "record batch":
                    return [(0, None)]
                if not starts or position >= starts[-1] + size:
                    starts.append(position)
                position = source.tell()
    starts[:1] = [0]
    return list(zip(starts, [*starts[1:], None], strict=True))


def arrow_rows(path: str, columns: Sequence[str] | None, part: Range) -> Rows:
    """Reads as row_files.read_rows does, with texts as bytes."""
    import pyarrow as pa

    start, end = part
    with _open(path, use_memory_map=True) as source:
        # Arrow does not notice when a stream was truncated between two batches.
        source.seek(max(0, source.size() - len(_END_MARKER)))
        if source.read(len(_END_MARKER)) != _END_MARKER:
            raise UserError(
                f"{path} is incomplete or corrupted (the end-of-file marker is missing). Copy or download it again."
            )
        source.seek(0)
        if part == (0, None):
            stream = pa.ipc.open_stream(source)
            _check_columns(path, stream.schema, columns)
            yield from _read_batches(stream, columns, 0)
            return
        schema = pa.ipc.read_schema(pa.ipc.MessageReader.open_stream(source).read_next_message())
        _check_columns(path, schema, columns)
        if start:
            source.seek(start)
        yield from _read_batches(_batches_before(end, source, schema), columns, 0)


def _batches_before(end: int | None, source: Any, schema: Any) -> Iterator[Any]:
    import pyarrow as pa

    messages = pa.ipc.MessageReader.open_stream(source)
    with contextlib.suppress(StopIteration):
        while end is None or source.tell() < end:
            yield pa.ipc.read_record_batch(messages.read_next_message(), schema)


@contextlib.contextmanager
def _open(path: str, use_memory_map: bool) -> Iterator[Any]:
    """Yields an Arrow file object. Errors within the context become UserErrors that name the file.

    A memory map avoids reading the parts of a local file that are skipped.
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
    """Adds the methods that Arrow needs to a remote file, since TensorFlow's file objects lack some."""

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
            raise UserError(
                f"{path}: there is {problem} {name!r}; the columns are {', '.join(map(repr, schema.names))}"
            )
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
    """Converts an Arrow array to Python values. Texts become bytes, so that invalid UTF-8 can be reported."""
    import pyarrow as pa
    import pyarrow.types as types

    if types.is_dictionary(array.type):
        array.validate(full=True)
        array = array.dictionary_decode()
    if _is_text(array.type) and not types.is_null(array.type):
        array = array.cast(pa.large_binary())
    array.validate(full=True)  # Arrow does not check positions in corrupt files by itself
    return array.to_pylist()
