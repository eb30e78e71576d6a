"""Which records of a file are damaged, or differ from the schema."""

import itertools
from collections.abc import Sequence

from official_bert.data import record_codec, record_reader
from official_bert.data.dataset_options import make_dataset_options
from official_bert.data.record_schema import INT64, Schema
from official_bert.errors import UserError
from official_bert.utils import files

_RECORDS_AT_ONCE = 1000
_MOST_NAMED = 20

# Of each file, the records to read: the first of each range (from 0) and how many.
RecordRanges = list[list[tuple[int, int]]]


def find_readable_ranges(paths: Sequence[str], schema: Schema) -> tuple[RecordRanges, int]:
    """Reads all files through and returns the ranges of whole records of each file, and the number of damaged records.

    A warning names the records that are left out. Where the length of a record is damaged, the rest of its file cannot
    be found.
    """
    ranges: RecordRanges = []
    number = 0
    progress = record_reader.track_reading("looking for damaged records", paths)
    for path in paths:
        damaged, end = _damaged_records(path, schema)
        progress(files.size(path))
        edges = [-1, *damaged, end]
        ranges.append([(low + 1, high - low - 1) for low, high in itertools.pairwise(edges) if high - low > 1])
        number += len(damaged)
        if damaged:
            some = ", ".join(map(str, damaged[:_MOST_NAMED])) + ", ..." * (len(damaged) > _MOST_NAMED)
            rest = " (and all after it)" if damaged[-1] == end else ""
            print(f"warning: {path}: {len(damaged)} damaged records are left out: {some}{rest}")
    return ranges, number


def _damaged_records(path: str, schema: Schema) -> tuple[list[int], int]:
    """Returns the numbers of damaged records, ascending, and the number of the first that is missing or unreachable."""
    import tensorflow as tf

    record_reader.check_is_tfrecord(path)
    data = tf.data.TFRecordDataset(path, record_reader.get_compression([path]))
    data = data.with_options(make_dataset_options())
    damaged: list[int] = []
    start, previous_error = 0, None
    while True:
        try:
            for batch in data.skip(start).batch(_RECORDS_AT_ONCE).as_numpy_iterator():
                damaged += _mismatched_records(batch, schema, start)
                start += len(batch)
            return damaged, start
        except tf.errors.DataLossError:
            # A batch that holds a damaged record is lost as a whole: its whole records are read one by one.
            whole, error_message = [], None
            try:
                for record in data.skip(start).take(_RECORDS_AT_ONCE).as_numpy_iterator():
                    whole.append(record)
            except tf.errors.DataLossError as error:
                error_message = error.message
            damaged += _mismatched_records(whole, schema, start)
            start += len(whole)
            if error_message is None:
                continue
            if error_message == previous_error:  # the damaged record could not be skipped: its length is damaged
                return damaged, start - 1
            damaged.append(start)
            start, previous_error = start + 1, error_message


def _mismatched_records(batch: Sequence[bytes], schema: Schema, start: int) -> list[int]:
    import tensorflow as tf

    if not len(batch):
        return []
    try:
        record_codec.parse(tf.constant(batch), schema)
        return []
    except tf.errors.InvalidArgumentError:
        return [number for number, record in enumerate(batch, start) if describe_mismatch(record, schema)]


def describe_first_damage(paths: Sequence[str], schema: Schema) -> str | None:
    """Reads all records and returns what is wrong with the first bad one, or None."""
    for path in paths:
        try:
            for number, record in enumerate(record_reader.read_file(path)):
                if problem := describe_mismatch(record, schema):
                    return f"{path}: record {number} (from 0): {problem}"
        except UserError as error:
            return str(error)
    return None


def describe_mismatch(serialized: bytes, schema: Schema) -> str | None:
    """Returns how a serialized record differs from the schema, in words, or None if it does not."""
    import tensorflow as tf

    example = tf.train.Example()
    try:
        example.ParseFromString(serialized)
    except Exception:  # protobuf's DecodeError moves between its releases
        return "it is not a tf.train.Example"
    for name, feature in schema.items():
        if name not in example.features.feature:
            held = ", ".join(sorted(example.features.feature)) or "nothing"
            return f"it has no feature {name}; it holds {held}"
        kind = "int64_list" if feature.dtype == INT64 else "float_list"
        value = example.features.feature[name]
        if value.WhichOneof("kind") != kind:
            return f"{name} is stored as {value.WhichOneof('kind')}; expected {kind}"
        values = getattr(value, kind).value
        if len(values) != feature.shape[0]:
            return f"{name} has {len(values)} values; expected {feature.shape[0]}"
        if feature.limit is not None and not 0 <= min(values) <= max(values) < feature.limit:
            outside = next(value for value in values if not 0 <= value < feature.limit)
            return f"{name} holds {outside}; expected 0 to {feature.limit - 1}"
    return None
