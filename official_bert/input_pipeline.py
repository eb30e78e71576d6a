"""TFRecord files to batches: shuffled and endless for training, in order and finite for evaluation.

B batch, W records of a window
"""

import tensorflow as tf

from official_bert import records
from official_bert.dynamic_masking import DynamicMasking, record_keys

_FILES_AT_ONCE = 4
_WINDOW = 10_000  # records shuffled with each other; the original's buffer was 100; a record takes about a kilobyte
_FILE_BITS = 40  # a record's number: the file's number above, its place in the file below these bits


def training_batches(
    paths: list[str],
    batch_size: int,
    schema: records.Schema,
    seed: int,
    skipped_records: int = 0,
    counts: list[int] | None = None,
    masking: DynamicMasking | None = None,
) -> tf.data.Dataset:
    """Returns an endless data set of batches, features by name as [B, *shape].

    Each epoch reads every record once, in an order that depends on the seed and the epoch alone: the files in a random
    order, four of them in turn, and then the records of each window of 10,000 at random. So a run that stopped goes on
    where it was, with `skipped_records`: of what comes before, only the records' lengths in at most four files and the
    records of one window are read (compressed files are decompressed up to the place).

    Args:
        paths: TFRecord files.
        batch_size: B, over all replicas.
        schema: of the records in the files.
        seed: of the order.
        skipped_records: how many records of the endless sequence to leave out at its beginning.
        counts: how many records each file holds, if known; they are counted where that is needed.
        masking: hides tokens of records that were written without, another way each epoch.
    """
    batches = _numbered(paths, seed, skipped_records, counts).rebatch(batch_size, drop_remainder=True)

    def parse(serialized: tf.Tensor, number: tf.Tensor, epoch: tf.Tensor) -> dict[str, tf.Tensor]:
        parsed = records.parse(serialized, schema)
        return masking.mask(parsed, record_keys(seed, epoch, number)) if masking else parsed

    return _for_replicas(batches.map(parse, num_parallel_calls=tf.data.AUTOTUNE))


def places(
    paths: list[str], seed: int, skipped_records: int, number: int, counts: list[int] | None = None
) -> list[tuple[str, int]]:
    """Returns file and number (from 0) of records that training_batches yields after the skipped ones."""
    found: list[tuple[str, int]] = []
    for _, numbers, _ in _numbered(paths, seed, skipped_records, counts):
        found += [
            (paths[value >> _FILE_BITS], value & (1 << _FILE_BITS) - 1)
            for value in numbers.numpy()[: number - len(found)].tolist()
        ]
        if len(found) == number:
            break
    return found


def evaluation_batches(
    paths: list[str], batch_size: int, schema: records.Schema, masking: DynamicMasking | None = None
) -> tf.data.Dataset:
    """Returns each record once, in the files' order; the last batch is filled up with records of zeros.

    (The original repeats the records endlessly and drops what does not fill a batch.)

    Args:
        paths: TFRecord files.
        batch_size: B, over all replicas.
        schema: of the records in the files.
        masking: hides tokens of records that were written without, the same way each time.
    """

    def parse(serialized: tf.Tensor, number: tf.Tensor) -> dict[str, tf.Tensor]:
        parsed = records.parse(serialized, schema)
        if masking:
            parsed = masking.mask(parsed, record_keys(0, tf.zeros_like(number), number))
        filled = {}
        for name, values in parsed.items():
            missing = batch_size - tf.shape(values)[0]
            filled[name] = tf.pad(values, [[0, missing]] + [[0, 0]] * (values.shape.rank - 1))
            filled[name] = tf.ensure_shape(filled[name], (batch_size, *values.shape[1:]))
        return filled

    data = _of_files(paths, records.compression(paths), tf.range(len(paths), dtype=tf.int64), None, at_once=1)
    return _for_replicas(data.batch(batch_size).map(parse, num_parallel_calls=tf.data.AUTOTUNE))


def _numbered(paths: list[str], seed: int, skipped_records: int, counts: list[int] | None) -> tf.data.Dataset:
    """Windows of shuffled records, without end: serialized [W], number [W] and epoch [W], int64."""
    compression = records.compression(paths)

    def order(epoch: tf.Tensor) -> tf.Tensor:
        key = tf.stack([tf.constant(seed, tf.int64), epoch])
        return tf.random.experimental.stateless_shuffle(tf.range(len(paths), dtype=tf.int64), seed=key)

    def in_windows(data: tf.data.Dataset, epoch: tf.Tensor, first: int) -> tf.data.Dataset:
        def shuffled(window: tf.Tensor, batch: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, ...]:
            serialized, number = batch
            key = tf.stack([seed + epoch * 2**32, window])
            places = tf.random.experimental.stateless_shuffle(tf.range(tf.shape(number)[0]), seed=key)
            return tf.gather(serialized, places), tf.gather(number, places), tf.fill(tf.shape(number), epoch)

        return data.batch(_WINDOW).enumerate(first).map(shuffled)

    def one_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
        return in_windows(_of_files(paths, compression, order(epoch), None, _FILES_AT_ONCE), epoch, 0)

    if not skipped_records:
        return tf.data.Dataset.range(tf.int64.max).flat_map(one_epoch)
    counts = counts or [records.count(path) for path in paths]
    number_of_epoch, rest = divmod(skipped_records, sum(counts))
    epoch = tf.constant(number_of_epoch, tf.int64)
    window = rest // _WINDOW
    files = order(epoch).numpy().tolist()
    data = in_windows(_skipped(paths, compression, files, counts, window * _WINDOW), epoch, window)
    skipped = rest - window * _WINDOW
    first = data.take(1).map(lambda *values: tuple(value[skipped:] for value in values))
    later = tf.data.Dataset.range(number_of_epoch + 1, tf.int64.max).flat_map(one_epoch)
    return first.concatenate(data.skip(1)).concatenate(later)


def _skipped(paths: list[str], compression: str, order: list[int], counts: list[int], skipped: int) -> tf.data.Dataset:
    """The records of files in this order, without the first `skipped`."""
    start = 0
    while start < len(order):
        group = [counts[file] for file in order[start : start + _FILES_AT_ONCE]]
        if skipped < sum(group):
            break
        skipped -= sum(group)
        start += _FILES_AT_ONCE
    else:
        group = []
    # The files of a group take turns: after so many whole rounds each has given as many, or all that it has.
    low, high = 0, max(group, default=0)
    while low < high:
        rounds = (low + high + 1) // 2
        low, high = (rounds, high) if sum(min(rounds, n) for n in group) <= skipped else (low, rounds - 1)
    given = [min(low, count) for count in group]
    end = start + len(group)
    first = _of_files(paths, compression, tf.constant(order[start:end], tf.int64), given, _FILES_AT_ONCE)
    later = _of_files(paths, compression, tf.constant(order[end:], tf.int64), None, _FILES_AT_ONCE)
    return first.skip(skipped - sum(given)).concatenate(later)


def _of_files(
    paths: list[str], compression: str, order: tf.Tensor, skipped: list[int] | None, at_once: int
) -> tf.data.Dataset:
    """Records and their numbers, from groups of files one after the other, from the files of a group in turn.

    Args:
        paths: all files.
        compression: of the files.
        order: numbers of the files to read.
        skipped: how many records of each of these to leave out.
        at_once: files in a group.
    """
    skips = tf.zeros_like(order) if skipped is None else tf.constant(skipped, tf.int64)
    names = tf.constant(paths)

    def records_of(file: tf.Tensor, skip: tf.Tensor) -> tf.data.Dataset:
        data = tf.data.TFRecordDataset(names[file], compression).skip(skip)
        return tf.data.Dataset.zip((data, tf.data.Dataset.range(file * 2**_FILE_BITS + skip, tf.int64.max)))

    def group_from(start: tf.Tensor) -> tf.data.Dataset:
        some = order[start : start + at_once], skips[start : start + at_once]
        return tf.data.Dataset.from_tensor_slices(some).interleave(
            records_of, cycle_length=at_once, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        )

    return tf.data.Dataset.range(0, tf.cast(tf.shape(order)[0], tf.int64), at_once).flat_map(group_from)


def _for_replicas(batches: tf.data.Dataset) -> tf.data.Dataset:
    options = tf.data.Options()
    # Several workers share the records one by one; by files, the default, would need a file for each.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return batches.with_options(options).prefetch(tf.data.AUTOTUNE)
