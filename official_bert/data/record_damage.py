"""Finds records that are corrupted or differ from the schema."""

import itertools
import re
from collections.abc import Sequence

from official_bert.data import record_codec, record_reader
from official_bert.data.dataset_options import make_dataset_options
from official_bert.data.record_schema import INT64, Schema
from official_bert.errors import UserError
from official_bert.utils import files
from official_bert.utils.counting import pluralize

_BATCH_SIZE = 1000
_MAX_LISTED = 20

# The records to read of each file: pairs of the first record (from 0) and the number of records.
RecordRanges = list[list[tuple[int, int]]]


def find_readable_ranges(paths: Sequence[str], schema: Schema) -> tuple[RecordRanges, int]:
    """Reads all files to find the records that are intact.

    Prints a warning that lists the corrupted records. If the length of a record is corrupted, the rest of its file
    cannot be read.

    Returns:
        The ranges of intact records of each file, and the number of corrupted records.
    """
    ranges: RecordRanges = []
    number = 0
    progress = record_reader.track_reading("looking for corrupted records", paths)
    for path in paths:
        damaged, end = _find_damaged_records(path, schema)
        progress(files.size(path))
        edges = [-1, *damaged, end]
        ranges.append([(low + 1, high - low - 1) for low, high in itertools.pairwise(edges) if high - low > 1])
        number += len(damaged)
        if damaged:
            listed = ", ".join(map(str, damaged[:_MAX_LISTED])) + ", ..." * (len(damaged) > _MAX_LISTED)
            rest = " (and the rest of the file)" if damaged[-1] == end else ""
            print(f"warning: {path}: skipped {pluralize(len(damaged), 'corrupted record')}: {listed}{rest}")
    return ranges, number


def _find_damaged_records(path: str, schema: Schema) -> tuple[list[int], int]:
    """Finds the corrupted records in a file.

    Returns:
        The indices of corrupted records in ascending order, and the index at which reading ended: the number of
        records, or a record after which nothing can be read.
    """
    import tensorflow as tf

    record_reader.check_is_tfrecord(path)
    data = tf.data.TFRecordDataset(path, record_reader.get_compression([path]))
    data = data.with_options(make_dataset_options())
    start = 0
    try:
        for batch in data.batch(_BATCH_SIZE).as_numpy_iterator():
            record_codec.parse(tf.constant(batch), schema)
            start += len(batch)
        return [], start
    except (tf.errors.DataLossError, tf.errors.InvalidArgumentError):
        pass  # The other records are read one by one, because TensorFlow drops the batch of a corrupted one.
    damaged: list[int] = []
    previous_offset: object = None
    while True:
        try:
            for record in data.skip(start).as_numpy_iterator():
                if describe_mismatch(record, schema):
                    damaged.append(start)
                start += 1
            return damaged, start
        except tf.errors.DataLossError as error:
            offset = re.findall(r"at \d+", error.message) or error.message
            if offset == previous_offset:  # The record cannot be skipped: its length is corrupted, or the file ends.
                return damaged, start - 1
            damaged.append(start)
            start, previous_offset = start + 1, offset


def describe_first_damage(paths: Sequence[str], schema: Schema) -> str | None:
    """Reads all records. Returns a description of the first that is corrupted or differs from the schema, or None."""
    for path in paths:
        try:
            for number, record in enumerate(record_reader.read_file(path)):
                if problem := describe_mismatch(record, schema):
                    return f"{path}: record {number} (from 0): {problem}"
        except UserError as error:
            return str(error)
    return None


def describe_mismatch(serialized: bytes, schema: Schema) -> str | None:
    """Returns a description of how a serialized record differs from the schema, or None if it matches."""
    import tensorflow as tf

    example = tf.train.Example()
    try:
        example.ParseFromString(serialized)
    except Exception:  # The module of protobuf's DecodeError depends on its release.
        return "it is not a tf.train.Example"
    for name, feature in schema.items():
        if name not in example.features.feature:
            found = ", ".join(sorted(example.features.feature)) or "none"
            return f"it has no feature {name} (its features: {found})"
        kind = "int64_list" if feature.dtype == INT64 else "float_list"
        value = example.features.feature[name]
        if value.WhichOneof("kind") != kind:
            return f"{name} is stored as {value.WhichOneof('kind')}; expected {kind}"
        values = getattr(value, kind).value
        if len(values) != feature.shape[0]:
            return f"{name} has {len(values)} values; expected {feature.shape[0]}"
        if feature.limit is not None and not 0 <= min(values) <= max(values) < feature.limit:
            outside = next(value for value in values if not 0 <= value < feature.limit)
            return f"{name} contains {outside}; expected 0 to {feature.limit - 1}"
    return None
