"""TFRecord files to batches: shuffled and endless for training, in order and finite for evaluation.

B batch, W records of a window
"""

import tensorflow as tf

from official_bert.data import record_codec, record_reader
from official_bert.data.dataset_options import make_dataset_options
from official_bert.data.dynamic_masking import DynamicMasking, make_record_keys
from official_bert.data.next_token_targets import NextTokenTargets
from official_bert.data.packing import Packing, choose_packing, count_rows, group_size, pack
from official_bert.data.record_damage import RecordRanges
from official_bert.data.record_schema import Schema

_FILES_AT_ONCE = 4
_WINDOW = 10_000  # records shuffled with each other; the original's buffer was 100; a record takes about a kilobyte
_MEASURED = 10_000  # records whose packing is tried before the first step
_FILE_BITS = 40  # a record's id is the file's number, shifted by these bits, plus the record's number in the file


def training_batches(
    paths: list[str],
    batch_size: int,
    schema: Schema,
    seed: int,
    skipped_records: int = 0,
    record_ranges: RecordRanges | None = None,
    masking: DynamicMasking | NextTokenTargets | None = None,
    packing: Packing | None = None,
    compression: str | None = None,
) -> tf.data.Dataset:
    """Returns an endless data set of batches, features by name as [B, *shape].

    Each epoch reads every record once. The order depends on the seed and the epoch alone: the files are read in a
    random order, four at a time with their records in turn, and each window of 10,000 records is shuffled. A run that
    stopped therefore continues exactly, with `skipped_records`. Skipping is cheap: it reads the records' lengths in at
    most four files and the records of one window (compressed files are decompressed up to that point).

    Args:
        paths: TFRecord files.
        batch_size: B, over all replicas.
        schema: of the records in the files.
        seed: of the order.
        skipped_records: how many records to leave out at the beginning of the endless sequence.
        record_ranges: the records to read of each file; None for all of them, which are counted if some are skipped.
        masking: masks the tokens of records that were written without masks, differently in each epoch; or makes
            predictions of all tokens, from left to right.
        packing: the shapes of packed batches; None for a record in each row.
        compression: of all files, as `record_reader.get_compression` returns it; None to look at each.
    """
    batches = _training_batches(paths, batch_size, schema, seed, skipped_records, record_ranges, masking, compression)
    if packing:
        batches = batches.map(lambda batch: pack(batch, packing), num_parallel_calls=tf.data.AUTOTUNE)
    # TensorFlow cannot infer that this data set is endless. Without the assertion, several workers would ask each other
    # before each step whether there is another batch, and the static batch size would be lost.
    return _for_replicas(batches.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)))


def estimate_packing(
    paths: list[str],
    batch_size: int,
    schema: Schema,
    seed: int,
    record_ranges: RecordRanges | None,
    masking: DynamicMasking | NextTokenTargets | None,
    compression: str | None = None,
    *,
    replicas: int,
    micro_batches: int,
) -> Packing:
    """Returns how batches of `training_batches` are packed, from trying the first 10,000 records of the first epoch.

    Each batch is shared by some replicas, and each replica cuts its share into some micro-batches.
    """
    size = group_size(batch_size)
    groups = _training_batches(paths, size, schema, seed, 0, record_ranges, masking, compression)
    rows = groups.map(count_rows, num_parallel_calls=tf.data.AUTOTUNE).take(-(-_MEASURED // size))
    rows = rows.with_options(make_dataset_options())
    return choose_packing(list(rows.as_numpy_iterator()), batch_size, replicas, micro_batches)


def record_locations(
    paths: list[str],
    seed: int,
    skipped_records: int,
    number: int,
    record_ranges: RecordRanges | None = None,
    compression: str | None = None,
) -> list[tuple[str, int]]:
    """Returns the file, and the number in it (from 0), of the `number` records after the skipped ones."""
    locations: list[tuple[str, int]] = []
    records = _shuffled_records(paths, seed, skipped_records, record_ranges, compression)
    for _, record_ids, _ in records.with_options(make_dataset_options()):
        some = record_ids.numpy()[: number - len(locations)].tolist()
        locations += [(paths[record_id >> _FILE_BITS], record_id & (1 << _FILE_BITS) - 1) for record_id in some]
        if len(locations) == number:
            break
    return locations


def evaluation_batches(
    paths: list[str],
    batch_size: int,
    schema: Schema,
    record_ranges: RecordRanges | None = None,
    masking: DynamicMasking | NextTokenTargets | None = None,
    compression: str | None = None,
) -> tf.data.Dataset:
    """Returns each record once, in the files' order; the last batch is filled up with records of zeros.

    (The original repeats the records endlessly and drops what does not fill a batch.) Arguments are as for
    `training_batches`, but that tokens are masked the same way each time.
    """

    def parse(serialized: tf.Tensor, record_id: tf.Tensor) -> dict[str, tf.Tensor]:
        parsed = record_codec.parse(serialized, schema)
        if masking:
            parsed = masking.mask(parsed, make_record_keys(0, tf.zeros_like(record_id), record_id))
        filled = {}
        for name, values in parsed.items():
            missing = batch_size - tf.shape(values)[0]
            filled[name] = tf.pad(values, [[0, missing]] + [[0, 0]] * (values.shape.rank - 1))
            filled[name] = tf.ensure_shape(filled[name], (batch_size, *values.shape[1:]))
        return filled

    order = tf.range(len(paths), dtype=tf.int64)
    data = _of_files(paths, _known(compression, paths), order, record_ranges, at_once=1)
    return _for_replicas(data.batch(batch_size).map(parse, num_parallel_calls=tf.data.AUTOTUNE))


def _training_batches(
    paths: list[str],
    batch_size: int,
    schema: Schema,
    seed: int,
    skipped_records: int,
    record_ranges: RecordRanges | None,
    masking: DynamicMasking | NextTokenTargets | None,
    compression: str | None,
) -> tf.data.Dataset:
    """What `training_batches` returns, unpacked, on this machine."""

    def parse(serialized: tf.Tensor, record_id: tf.Tensor, epoch: tf.Tensor) -> dict[str, tf.Tensor]:
        parsed = record_codec.parse(serialized, schema)
        return masking.mask(parsed, make_record_keys(seed, epoch, record_id)) if masking else parsed

    records = _shuffled_records(paths, seed, skipped_records, record_ranges, compression)
    batches = records.rebatch(batch_size, drop_remainder=True)
    return batches.map(parse, num_parallel_calls=tf.data.AUTOTUNE)


def _known(compression: str | None, paths: list[str]) -> str:
    return record_reader.get_compression(paths) if compression is None else compression


def _shuffled_records(
    paths: list[str],
    seed: int,
    skipped_records: int,
    record_ranges: RecordRanges | None,
    compression: str | None,
) -> tf.data.Dataset:
    """Returns endless windows of shuffled records: serialized [W], record id [W] int64 and epoch [W] int64."""
    compression = _known(compression, paths)

    def order(epoch: tf.Tensor) -> tf.Tensor:
        key = tf.stack([tf.constant(seed, tf.int64), epoch])
        return tf.random.experimental.stateless_shuffle(tf.range(len(paths), dtype=tf.int64), seed=key)

    def in_windows(data: tf.data.Dataset, epoch: tf.Tensor, first: int) -> tf.data.Dataset:
        def shuffled(window: tf.Tensor, batch: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, ...]:
            serialized, record_id = batch
            key = tf.stack([seed + epoch * 2**32, window])
            permutation = tf.random.experimental.stateless_shuffle(tf.range(tf.shape(record_id)[0]), seed=key)
            epochs = tf.fill(tf.shape(record_id), epoch)
            return tf.gather(serialized, permutation), tf.gather(record_id, permutation), epochs

        return data.batch(_WINDOW).enumerate(first).map(shuffled)

    def one_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
        return in_windows(_of_files(paths, compression, order(epoch), record_ranges, _FILES_AT_ONCE), epoch, 0)

    if not skipped_records:
        return tf.data.Dataset.range(tf.int64.max).flat_map(one_epoch)
    record_ranges = record_ranges or [[(0, record_reader.count_records(path))] for path in paths]
    number_of_epoch, rest = divmod(skipped_records, sum(map(_count, record_ranges)))
    epoch = tf.constant(number_of_epoch, tf.int64)
    window = rest // _WINDOW
    in_order = order(epoch).numpy().tolist()
    data = in_windows(_skipped(paths, compression, in_order, record_ranges, window * _WINDOW), epoch, window)
    skipped = rest - window * _WINDOW
    first = data.take(1).map(lambda *values: tuple(value[skipped:] for value in values))
    later = tf.data.Dataset.range(number_of_epoch + 1, tf.int64.max).flat_map(one_epoch)
    return first.concatenate(data.skip(1)).concatenate(later)


def _count(ranges: list[tuple[int, int]]) -> int:
    return sum(number for _, number in ranges)


def _skipped(
    paths: list[str], compression: str, order: list[int], record_ranges: RecordRanges, skipped: int
) -> tf.data.Dataset:
    """Returns the records of the files in this order, without the first `skipped` ones."""
    counts = list(map(_count, record_ranges))
    start = 0
    while skipped >= (of_group := sum(counts[file] for file in order[start : start + _FILES_AT_ONCE])):
        skipped -= of_group
        start += _FILES_AT_ONCE
    group = order[start : start + _FILES_AT_ONCE]
    # The files of a group yield a record each in turn. After r whole rounds, a file has yielded r records, or all of
    # its records if it has fewer. Search for the most rounds that lie within the records to skip.
    low, high = 0, max(counts[file] for file in group)
    while low < high:
        rounds = (low + high + 1) // 2
        fits = sum(min(rounds, counts[file]) for file in group) <= skipped
        low, high = (rounds, high) if fits else (low, rounds - 1)
    remaining = list(record_ranges)
    for file in group:
        yielded = min(low, counts[file])
        skipped -= yielded
        remaining[file] = _without_first(record_ranges[file], yielded)
    first_group, later = (tf.constant(part, tf.int64) for part in (group, order[start + _FILES_AT_ONCE :]))
    first = _of_files(paths, compression, first_group, remaining, _FILES_AT_ONCE)
    return first.skip(skipped).concatenate(_of_files(paths, compression, later, record_ranges, _FILES_AT_ONCE))


def _without_first(ranges: list[tuple[int, int]], number: int) -> list[tuple[int, int]]:
    """Returns the ranges without their first `number` records."""
    remaining = []
    for first, count in ranges:
        dropped = min(number, count)
        number -= dropped
        if count > dropped:
            remaining.append((first + dropped, count - dropped))
    return remaining


def _of_files(
    paths: list[str], compression: str, order: tf.Tensor, record_ranges: RecordRanges | None, at_once: int
) -> tf.data.Dataset:
    """Returns records and their ids: groups of files one after the other, the records of a group's files in turn.

    The files are those numbered in `order`; a group has `at_once` of them.
    """
    record_ranges = record_ranges or [[(0, -1)]] * len(paths)  # take(-1) takes all
    all_ranges = [each for of_file in record_ranges for each in of_file]
    with tf.init_scope():  # as constants of the graph, the names of many files would cost seconds
        names = tf.constant(paths)
        table = tf.constant(all_ranges, tf.int64, (len(all_ranges), 2))
        ends = tf.cumsum(tf.constant([0, *map(len, record_ranges)], tf.int64))

    def records_of(file: tf.Tensor) -> tf.data.Dataset:
        def records_of_range(first_and_count: tf.Tensor) -> tf.data.Dataset:
            first, count = first_and_count[0], first_and_count[1]
            data = tf.data.TFRecordDataset(names[file], compression).skip(first).take(count)
            return tf.data.Dataset.zip((data, tf.data.Dataset.range(file * 2**_FILE_BITS + first, tf.int64.max)))

        return tf.data.Dataset.from_tensor_slices(table[ends[file] : ends[file + 1]]).flat_map(records_of_range)

    def group_from(start: tf.Tensor) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(order[start : start + at_once]).interleave(
            records_of, cycle_length=at_once, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        )

    return tf.data.Dataset.range(0, tf.cast(tf.shape(order)[0], tf.int64), at_once).flat_map(group_from)


def _for_replicas(batches: tf.data.Dataset) -> tf.data.Dataset:
    # Several workers share the records one by one; by files, the default, would need a file for each.
    options = make_dataset_options(tf.data.experimental.AutoShardPolicy.DATA)
    return batches.with_options(options).prefetch(tf.data.AUTOTUNE)
