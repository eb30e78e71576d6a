"""The schema of the TFRecord files: name, shape and type of each feature, for writing and for reading.

Writing needs NumPy alone; TensorFlow is imported where records are read, so that processes that only write do without.
"""

import contextlib
import dataclasses
import functools
import itertools
import re
import struct
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from official_bert import files
from official_bert.errors import UserError
from official_bert.progress import Progress

if TYPE_CHECKING:
    import tensorflow as tf

INT64, FLOAT = "int64", "float32"

_RECORDS_AT_ONCE = 1000
_MOST_NAMED = 20
_BYTES_AT_ONCE = 1 << 14

# A command that finds all its files, at their full length, does not make them again.
MEND = "remove it and run the command that made it again, or restore it from a copy"


@dataclasses.dataclass(frozen=True)
class Feature:
    """A feature's shape, its type in the file, and its range.

    Attributes:
        shape: of one record, without the batch.
        dtype: in the file, INT64 or FLOAT; the format has no other numbers.
        limit: integers are from 0 up to, not including, this; None where it is not known.
    """

    shape: tuple[int, ...]
    dtype: str
    limit: int | None = None


Schema = Mapping[str, Feature]


def pretraining_schema(
    max_seq_length: int,
    max_predictions_per_seq: int,
    vocab_size: int | None = None,
    type_vocab_size: int | None = None,
) -> dict[str, Feature]:
    """Returns the features of a pre-training record, the original's.

    - input_ids: ids after masking, padded with 0.
    - input_mask: 1 for a token, 0 for padding.
    - segment_ids: 0 for [CLS] a [SEP], 1 for b [SEP], 0 for padding.
    - masked_lm_positions: where a token is to be predicted, ascending, padded with 0.
    - masked_lm_ids: the ids that stood there before masking, padded with 0.
    - masked_lm_weights: 1.0 for a prediction, 0.0 for padding.
    - next_sentence_labels: 0 where b follows a in the text, 1 where it comes from elsewhere.

    Args:
        max_seq_length: positions of a record.
        max_predictions_per_seq: predictions of a record.
        vocab_size: the number of ids, if known.
        type_vocab_size: the number of segment ids, if known.
    """
    sequence, predictions = (max_seq_length,), (max_predictions_per_seq,)
    return {
        "input_ids": Feature(sequence, INT64, vocab_size),
        "input_mask": Feature(sequence, INT64, 2),
        "segment_ids": Feature(sequence, INT64, type_vocab_size),
        "masked_lm_positions": Feature(predictions, INT64, max_seq_length),
        "masked_lm_ids": Feature(predictions, INT64, vocab_size),
        "masked_lm_weights": Feature(predictions, FLOAT),
        "next_sentence_labels": Feature((1,), INT64, 2),
    }


def unmasked_schema(
    max_seq_length: int, vocab_size: int | None = None, type_vocab_size: int | None = None
) -> dict[str, Feature]:
    """Returns the features of a record whose tokens are to be hidden while training: those that are not about that.

    Args:
        max_seq_length: positions of a record.
        vocab_size: the number of ids, if known.
        type_vocab_size: the number of segment ids, if known.
    """
    masked = pretraining_schema(max_seq_length, 0, vocab_size, type_vocab_size)
    return {name: feature for name, feature in masked.items() if not name.startswith("masked_lm_")}


def encode(values: Mapping[str, np.ndarray], schema: Schema) -> list[bytes]:
    """Returns a batch of records as serialized tf.train.Examples.

    Args:
        values: feature by name, [B, *shape].
        schema: which features, and their types.

    Raises:
        ValueError: a feature has another shape than the schema says.
    """
    columns: list[list[bytes]] = []  # pieces of the records, by record
    alike: list[np.ndarray] = []  # the fields since, of as many bytes in all records, [B, bytes] each
    for name, feature in schema.items():
        array = np.asarray(values[name])
        if array.shape[1:] != feature.shape:
            raise ValueError(f"{name} has shape {array.shape[1:]}; the schema says {feature.shape}")
        flat = array.reshape(len(array), -1)
        packed = _packed_integers(flat) if feature.dtype == INT64 else np.ascontiguousarray(flat, "<f4").view(np.uint8)
        if isinstance(packed, np.ndarray):
            start = np.frombuffer(_field_start(name, feature.dtype, packed.shape[1]), np.uint8)
            alike += [np.broadcast_to(start, (len(array), len(start))), packed]
            continue
        if alike:
            columns.append(_rows(np.concatenate(alike, axis=1)))
            alike = []
        columns.append([_field_start(name, feature.dtype, len(data)) + data for data in packed])
    if alike:
        columns.append(_rows(np.concatenate(alike, axis=1)))
    return [_tagged(1, len(body)) + body for body in map(b"".join, zip(*columns, strict=True))]


def _rows(array: np.ndarray) -> list[bytes]:
    count, width = array.shape
    data = array.tobytes()
    return [data[row * width : (row + 1) * width] for row in range(count)]


def _packed_integers(values: np.ndarray) -> np.ndarray | list[bytes]:
    """Each row of [B, numbers] as varints: seven bits a byte, the lowest first, the eighth bit set on all but the last.

    Rows of numbers that take a byte each are an array, [B, bytes].
    """
    if values.dtype.kind != "u":
        values = values.astype(np.int64).view(np.uint64)
    largest = int(values.max(initial=0))
    if largest < 1 << 7:
        return values.astype(np.uint8)
    if largest < 1 << 16:
        # By table: this is the most frequent work of all.
        table, presence = _varints_below_65536()
        bits, present = table.take(values).view(np.uint8), presence.take(values).view(bool)
        present = present.reshape(len(values), -1)
        lengths = present.sum(axis=1)
        data = bits.reshape(present.shape)[present].tobytes()
    else:
        all_bits, all_present = _varints(values, -(-largest.bit_length() // 7))
        lengths = all_present.sum(axis=(1, 2))
        data = all_bits[all_present].tobytes()
    ends = np.cumsum(lengths).tolist()
    return [data[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def _varints(values: np.ndarray, groups: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the bytes of varints, of as many bytes as the largest has, and which of them there are: [..., groups]."""
    bits = np.empty((*values.shape, groups), np.uint8)
    present = np.empty((*values.shape, groups), bool)
    for group in range(groups):
        rest = values >> np.uint64(7 * group)
        present[..., group] = (rest > 0) | (group == 0)
        bits[..., group] = (rest & np.uint64(0x7F)) | ((rest > 0x7F) * np.uint64(0x80))
    return bits, present


@functools.cache
def _varints_below_65536() -> tuple[np.ndarray, np.ndarray]:
    """`_varints` of these numbers, each one's four bytes (at most three are used) as one number."""
    bits, present = _varints(np.arange(1 << 16, dtype=np.uint64), 4)
    return bits.view("<u4")[:, 0], present.view("<u4")[:, 0]


@functools.cache
def _field_start(name: str, dtype: str, length: int) -> bytes:
    """What stands before the numbers of a feature: the nested messages' tags and lengths, and its name."""
    # Features.feature is a map: each entry holds the name (1) and a Feature (2); that holds a FloatList (2) or an
    # Int64List (3), and the list its packed values (1).
    values = _tagged(1, length)
    kind = _tagged(3 if dtype == INT64 else 2, len(values) + length)
    key = _tagged(1, len(name.encode())) + name.encode()
    value = _tagged(2, len(kind) + len(values) + length)
    return _tagged(1, len(key) + len(value) + len(kind) + len(values) + length) + key + value + kind + values


@functools.cache
def _tagged(number: int, length: int) -> bytes:
    """The start of a length-delimited field of a protocol buffer."""
    tag = bytes([number << 3 | 2])
    while length > 0x7F:
        tag += bytes([length & 0x7F | 0x80])
        length >>= 7
    return tag + bytes([length])


def parse(serialized: "tf.Tensor", schema: Schema) -> dict[str, "tf.Tensor"]:
    """Returns the features of a batch of serialized records, [B, *shape], integers as int32: TPUs have no int64."""
    import tensorflow as tf

    spec = {name: tf.io.FixedLenFeature(feature.shape, feature.dtype) for name, feature in schema.items()}
    parsed = tf.io.parse_example(serialized, spec)
    for name, feature in schema.items():
        if feature.limit is not None:
            # Here, since a GPU or TPU would read another row, silently, for an id that is out of range.
            tf.debugging.assert_non_negative(parsed[name], name)
            tf.debugging.assert_less(parsed[name], tf.constant(feature.limit, tf.int64), name)
    return {name: tf.cast(value, tf.int32) if value.dtype == tf.int64 else value for name, value in parsed.items()}


def compression(paths: Sequence[str]) -> str:
    """Returns how all of these files are compressed, as TensorFlow names it: "GZIP", or "" for not at all.

    Raises:
        UserError: one is missing, or some are compressed and others are not.
    """
    kinds = {}
    for path in paths:
        try:
            with files.open_bytes(path) as reader:
                # A record of 559,903 bytes would begin alike; those of BERT are far smaller.
                kinds[path] = "GZIP" if reader.read(3) == b"\x1f\x8b\x08" else ""
        except FileNotFoundError as error:
            raise UserError(f"there is no file {path}") from error
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    if len(set(kinds.values())) > 1:
        plain = next(path for path, kind in kinds.items() if not kind)
        zipped = next(path for path, kind in kinds.items() if kind)
        raise UserError(f"{zipped} is compressed and {plain} is not; give files of one kind")
    return next(iter(kinds.values()), "")


def read_file(path: str) -> Iterator[bytes]:
    """Yields the records of a TFRecord file, checking their checksums.

    Raises:
        UserError: the file is missing, cut short or damaged; the message gives the record's number and byte offset.
    """
    import tensorflow as tf

    number, near = 0, ""
    kind = compression([path])
    try:
        for record in tf.data.TFRecordDataset(path, kind).as_numpy_iterator():
            yield record
            number += 1
        return
    except tf.errors.NotFoundError as error:
        raise UserError(f"there is no file {path}") from error
    except tf.errors.DataLossError as error:
        place = re.search(r"at (\d+)", error.message)
        if place and not kind:
            near = f", near byte {place.group(1)},"
    if kind:
        # TensorFlow decompresses much at once, and then has lost the good records before the damage as well.
        with tempfile.NamedTemporaryFile() as plain, contextlib.suppress(tf.errors.DataLossError):
            for piece in _decompressed(path):
                plain.write(piece)
            plain.flush()
            for record in tf.data.TFRecordDataset(plain.name).skip(number).as_numpy_iterator():
                yield record
                number += 1
    raise UserError(f"{path}: record {number} (from 0){near} is damaged; {MEND}")


def _decompressed(path: str) -> Iterator[bytes]:
    """Yields what a gzip file holds, up to where it is damaged or ends."""
    reading = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    with files.open_bytes(path) as reader:
        while piece := reader.read(_BYTES_AT_ONCE):
            before = reading.copy()
            try:
                yield reading.decompress(piece)
                continue
            except zlib.error:
                pass  # what there is before the damage, byte by byte
            with contextlib.suppress(zlib.error):
                for byte in piece:
                    yield before.decompress(bytes([byte]))
            return


def count(path: str) -> int:
    """Returns the number of records in a TFRecord file; unless it is compressed, only the lengths are read.

    Raises:
        UserError: the file ends within a record.
    """
    if compression([path]):
        return sum(1 for _ in read_file(path))
    total, offset, end = 0, 0, files.size(path)
    with files.open_bytes(path) as reader:
        while offset < end:
            reader.seek(offset)
            header = reader.read(8)
            # A frame: length (8 bytes), its checksum (4), the record, its checksum (4).
            length = struct.unpack("<Q", header)[0] if len(header) == 8 else end
            offset += 8 + 4 + length + 4
            if offset > end:
                raise UserError(f"{path} ends within record {total} (from 0); {MEND}")
            total += 1
    return total


def readable(paths: Sequence[str], schema: Schema) -> tuple[list[list[tuple[int, int]]], int]:
    """Reads all files through and returns, of each, the stretches of whole records: first record (from 0) and number.

    Beside them it returns the number of damaged records. What is left out is said. Where the length of a record is
    damaged, the rest of its file cannot be found.
    """
    found = []
    number = 0
    progress = Progress("looking for damaged records", sum(map(files.size, paths)) / 1e6, "MB")
    done = 0.0
    for path in paths:
        damaged, end = _damaged(path, schema)
        done += files.size(path) / 1e6
        progress.update(done)
        edges = [-1, *damaged, end]
        found.append([(low + 1, high - low - 1) for low, high in itertools.pairwise(edges) if high - low > 1])
        number += len(damaged)
        if damaged:
            some = ", ".join(map(str, damaged[:_MOST_NAMED])) + ", ..." * (len(damaged) > _MOST_NAMED)
            rest = " (and all after it)" if damaged[-1] == end else ""
            print(f"warning: {path}: {len(damaged)} damaged records are left out: {some}{rest}")
    return found, number


def _damaged(path: str, schema: Schema) -> tuple[list[int], int]:
    """Returns the numbers of damaged records, ascending, and of the first that is not there or cannot be found."""
    import tensorflow as tf

    data = tf.data.TFRecordDataset(path, compression([path]))
    damaged: list[int] = []
    start, before = 0, None
    while True:
        try:
            for batch in data.skip(start).batch(_RECORDS_AT_ONCE).as_numpy_iterator():
                damaged += _mismatched(batch, schema, start)
                start += len(batch)
            return damaged, start
        except tf.errors.DataLossError:
            whole, place = [], None
            try:
                for record in data.skip(start).take(_RECORDS_AT_ONCE).as_numpy_iterator():
                    whole.append(record)
            except tf.errors.DataLossError as error:
                place = error.message
            damaged += _mismatched(whole, schema, start)
            start += len(whole)
            if place is None:
                continue
            if place == before:  # it could not even be passed over
                return damaged, start - 1
            damaged.append(start)
            start, before = start + 1, place


def _mismatched(batch: Sequence[bytes], schema: Schema, start: int) -> list[int]:
    import tensorflow as tf

    if not len(batch):
        return []
    try:
        parse(tf.constant(batch), schema)
        return []
    except tf.errors.InvalidArgumentError:
        return [number for number, record in enumerate(batch, start) if mismatch(record, schema)]


def find_damage(paths: Sequence[str], schema: Schema) -> str | None:
    """Reads all records and returns what is wrong with the first bad one, or None."""
    for path in paths:
        try:
            for number, record in enumerate(read_file(path)):
                problem = mismatch(record, schema)
                if problem:
                    return f"{path}: record {number} (from 0): {problem}"
        except UserError as error:
            return str(error)
    return None


def mismatch(serialized: bytes, schema: Schema) -> str | None:
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
