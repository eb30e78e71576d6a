"""Parquet files, and streams of Arrow's record batches, which Hugging Face's `save_to_disk` writes into a folder."""

import contextlib
import io
import os
from collections.abc import Iterator, Sequence
from typing import Any

from official_bert.errors import UserError
from official_bert.utils import files

_ROWS_AT_ONCE = 64  # of a batch, as Python's values
_END = b"\xff\xff\xff\xff\0\0\0\0"  # of a stream
_BUFFER = 1 << 18  # bytes read at once

_STATE, _DICT, _FILES = "state.json", "dataset_dict.json", "_data_files"

Range = tuple[int, int | None]
Rows = Iterator[tuple[str, dict[str, Any]]]


def is_dataset(folder: str) -> bool:
    """Whether a local folder was written by `save_to_disk`."""
    return any(os.path.isfile(os.path.join(folder, name)) for name in (_STATE, _DICT))


def files_of_dataset(folder: str) -> list[str]:
    """Returns the files of a folder that `save_to_disk` wrote, in order.

    Raises:
        UserError: the folder has several splits, or is damaged.
    """
    described = os.path.join(folder, _DICT)
    if os.path.isfile(described):
        splits = files.read_json_object(described).get("splits", [])
        names = ", ".join(os.path.join(folder, str(name)) for name in splits)
        raise UserError(f"{folder} has several splits; give those that you mean: {names}")
    state = files.read_json_object(os.path.join(folder, _STATE))
    try:
        paths = [os.path.join(folder, each["filename"]) for each in state[_FILES]]
    except (KeyError, TypeError) as error:
        raise UserError(f"{os.path.join(folder, _STATE)} does not name the files of the data set") from error
    if state.get("_indices_files") or state.get("_indices_data_files"):
        raise UserError(f"{folder} holds a selection of rows, by an old release of datasets; save it by a newer one")
    for path in paths:
        if not os.path.isfile(path):
            raise UserError(f"there is no file {path}, which {os.path.join(folder, _STATE)} names; copy it again")
    return paths


def parquet_ranges(path: str, size: int) -> list[Range]:
    """Returns ranges of row groups, of about `size` bytes each."""
    with _opened(path, mapped=False) as source, _parquet(source) as parquet:
        starts, passed = [0], 0
        for number in range(parquet.num_row_groups):
            if passed >= size:
                starts.append(number)
                passed = 0
            passed += parquet.metadata.row_group(number).total_byte_size
    return list(zip(starts, [*starts[1:], None], strict=True))


def parquet_rows(path: str, columns: Sequence[str] | None, part: Range) -> Rows:
    """As row_files.read_rows, with texts as bytes."""
    with _opened(path, mapped=False) as source, _parquet(source) as parquet:
        _check_columns(path, parquet.schema_arrow, columns)
        start, end = part[0], parquet.num_row_groups if part[1] is None else part[1]
        number = sum(parquet.metadata.row_group(group).num_rows for group in range(start))
        batches = parquet.iter_batches(_ROWS_AT_ONCE, list(range(start, end)), columns, use_threads=False)
        yield from _rows_of(batches, columns, number)


def arrow_ranges(path: str, size: int) -> list[Range]:
    """Returns ranges of bytes of whole batches, of about `size` bytes each; one where batches share dictionaries."""
    import pyarrow as pa

    with _opened(path, mapped=True) as source:
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
    """As row_files.read_rows, with texts as bytes."""
    import pyarrow as pa

    start, end = part
    with _opened(path, mapped=True) as source:
        # Arrow takes a stream that was cut between two batches for whole.
        source.seek(max(0, source.size() - len(_END)))
        if source.read(len(_END)) != _END:
            raise UserError(f"{path} is not whole, or damaged: it has no end mark; copy or download it again")
        source.seek(0)
        if part == (0, None):
            stream = pa.ipc.open_stream(source)
            _check_columns(path, stream.schema, columns)
            yield from _rows_of(stream, columns, 0)
            return
        schema = pa.ipc.read_schema(pa.ipc.MessageReader.open_stream(source).read_next_message())
        _check_columns(path, schema, columns)
        if start:
            source.seek(start)
        yield from _rows_of(_batches(source, schema, end), columns, 0)


def _batches(source: Any, schema: Any, end: int | None) -> Iterator[Any]:
    import pyarrow as pa

    messages = pa.ipc.MessageReader.open_stream(source)
    with contextlib.suppress(StopIteration):
        while end is None or source.tell() < end:
            yield pa.ipc.read_record_batch(messages.read_next_message(), schema)


@contextlib.contextmanager
def _opened(path: str, mapped: bool) -> Iterator[Any]:
    """Yields a file as Arrow reads it; what goes wrong within the context is a UserError that names it.

    A local file is mapped into memory on request, so that what is passed over is not read.
    """
    import pyarrow as pa

    with contextlib.ExitStack() as stack:
        stack.enter_context(files.explain_read_errors(path))
        try:
            if files.is_remote(path):
                reader = stack.enter_context(files.open_bytes(path))
                yield stack.enter_context(pa.PythonFile(_Remote(reader), "r"))
            else:
                yield stack.enter_context(pa.memory_map(path) if mapped else pa.OSFile(path))
        except (pa.ArrowException, EOFError, OSError, UnicodeDecodeError) as error:
            if isinstance(error, OSError) and error.errno:  # the file system's; Arrow's own have none
                raise
            first = (str(error).splitlines() or [type(error).__name__])[0]
            raise UserError(f"{path} is not whole, or damaged: {first}; copy or download it again") from error


class _Remote(io.RawIOBase):
    """A remote file as Python's, with what Arrow asks of those and TensorFlow's has not."""

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
def _parquet(source: Any) -> Iterator[Any]:
    import pyarrow.parquet

    # Pages are read as they are needed, not whole row groups.
    with pyarrow.parquet.ParquetFile(source, buffer_size=_BUFFER, pre_buffer=False) as parquet:
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
    import pyarrow.types as kinds

    if kinds.is_dictionary(type):
        return _is_text(type.value_type)
    tests = (
        kinds.is_string, kinds.is_large_string, kinds.is_string_view, kinds.is_binary, kinds.is_large_binary,
        kinds.is_binary_view, kinds.is_null,
    )  # fmt: skip
    return any(test(type) for test in tests)


def _rows_of(batches: Any, columns: Sequence[str] | None, number: int) -> Rows:
    """Yields the rows of batches, the first of which is behind so many."""
    for batch in batches:
        names = batch.schema.names if columns is None else columns
        for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
            some = batch.slice(start, _ROWS_AT_ONCE)
            for values in zip(*(_values(some.column(name)) for name in names), strict=True):
                number += 1
                yield f"row {number}", dict(zip(names, values, strict=True))


def _values(array: Any) -> list[Any]:
    """Returns Python's values; texts as bytes, so that what is not UTF-8 can be named or dropped."""
    import pyarrow as pa
    import pyarrow.types as kinds

    if kinds.is_dictionary(array.type):
        array.validate(full=True)
        array = array.dictionary_decode()
    if _is_text(array.type) and not kinds.is_null(array.type):
        array = array.cast(pa.large_binary())
    array.validate(full=True)  # of a damaged file Arrow believes each position
    return array.to_pylist()
