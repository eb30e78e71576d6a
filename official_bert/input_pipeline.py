"""TFRecord files to batches: shuffled and endless for training, in order and finite for evaluation.

B batch, W records of a window
"""

import tensorflow as tf

from official_bert import records
from official_bert.dynamic_masking import DynamicMasking, record_keys

_FILES_AT_ONCE = 4
_WINDOW = 10_000  # records shuffled with each other; the original's buffer was 100; a record takes about a kilobyte
_FILE_BITS = 40  # a record's number: the file's number above, its place in the file below these bits

Stretches = list[list[tuple[int, int]]]


def training_batches(
    paths: list[str],
    batch_size: int,
    schema: records.Schema,
    seed: int,
    skipped_records: int = 0,
    stretches: Stretches | None = None,
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
        stretches: of each file, the records to read, as first record and number; None for all of them, which then are
            counted where there are records to skip.
        masking: hides tokens of records that were written without, another way each epoch.
    """
    batches = _numbered(paths, seed, skipped_records, stretches).rebatch(batch_size, drop_remainder=True)

    def parse(serialized: tf.Tensor, number: tf.Tensor, epoch: tf.Tensor) -> dict[str, tf.Tensor]:
        parsed = records.parse(serialized, schema)
        return masking.mask(parsed, record_keys(seed, epoch, number)) if masking else parsed

    batches = batches.map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    # Said, because it is not found out: several workers else ask before each step whether there is a batch, and lose B.
    return _for_replicas(batches.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)))


def places(
    paths: list[str], seed: int, skipped_records: int, number: int, stretches: Stretches | None = None
) -> list[tuple[str, int]]:
    """Returns file and number (from 0) of records that training_batches yields after the skipped ones."""
    found: list[tuple[str, int]] = []
    for _, numbers, _ in _numbered(paths, seed, skipped_records, stretches):
        some = numbers.numpy()[: number - len(found)].tolist()
        found += [(paths[value >> _FILE_BITS], value & (1 << _FILE_BITS) - 1) for value in some]
        if len(found) == number:
            break
    return found


def evaluation_batches(
    paths: list[str],
    batch_size: int,
    schema: records.Schema,
    stretches: Stretches | None = None,
    masking: DynamicMasking | None = None,
) -> tf.data.Dataset:
    """Returns each record once, in the files' order; the last batch is filled up with records of zeros.

    (The original repeats the records endlessly and drops what does not fill a batch.)

    Args:
        paths: TFRecord files.
        batch_size: B, over all replicas.
        schema: of the records in the files.
        stretches: of each file, the records to read, as first record and number; None for all of them.
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

    order = tf.range(len(paths), dtype=tf.int64)
    data = _of_files(paths, records.compression(paths), order, stretches, at_once=1)
    return _for_replicas(data.batch(batch_size).map(parse, num_parallel_calls=tf.data.AUTOTUNE))


def _numbered(paths: list[str], seed: int, skipped_records: int, stretches: Stretches | None) -> tf.data.Dataset:
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
        return in_windows(_of_files(paths, compression, order(epoch), stretches, _FILES_AT_ONCE), epoch, 0)

    if not skipped_records:
        return tf.data.Dataset.range(tf.int64.max).flat_map(one_epoch)
    stretches = stretches or [[(0, records.count(path))] for path in paths]
    number_of_epoch, rest = divmod(skipped_records, sum(map(_count, stretches)))
    epoch = tf.constant(number_of_epoch, tf.int64)
    window = rest // _WINDOW
    in_order = order(epoch).numpy().tolist()
    data = in_windows(_skipped(paths, compression, in_order, stretches, window * _WINDOW), epoch, window)
    skipped = rest - window * _WINDOW
    first = data.take(1).map(lambda *values: tuple(value[skipped:] for value in values))
    later = tf.data.Dataset.range(number_of_epoch + 1, tf.int64.max).flat_map(one_epoch)
    return first.concatenate(data.skip(1)).concatenate(later)


def _count(stretches: list[tuple[int, int]]) -> int:
    return sum(number for _, number in stretches)


def _skipped(
    paths: list[str], compression: str, order: list[int], stretches: Stretches, skipped: int
) -> tf.data.Dataset:
    """The records of files in this order, without the first `skipped`."""
    counts = list(map(_count, stretches))
    start = 0
    while skipped >= (of_group := sum(counts[file] for file in order[start : start + _FILES_AT_ONCE])):
        skipped -= of_group
        start += _FILES_AT_ONCE
    group = order[start : start + _FILES_AT_ONCE]
    # The files of a group take turns: after so many whole rounds each has given as many, or all that it has.
    low, high = 0, max(counts[file] for file in group)
    while low < high:
        rounds = (low + high + 1) // 2
        fits = sum(min(rounds, counts[file]) for file in group) <= skipped
        low, high = (rounds, high) if fits else (low, rounds - 1)
    rest = list(stretches)
    for file in group:
        given = min(low, counts[file])
        skipped -= given
        rest[file] = _without_first(stretches[file], given)
    some, others = (tf.constant(part, tf.int64) for part in (group, order[start + _FILES_AT_ONCE :]))
    first = _of_files(paths, compression, some, rest, _FILES_AT_ONCE)
    return first.skip(skipped).concatenate(_of_files(paths, compression, others, stretches, _FILES_AT_ONCE))


def _without_first(stretches: list[tuple[int, int]], number: int) -> list[tuple[int, int]]:
    rest = []
    for first, count in stretches:
        gone = min(number, count)
        number -= gone
        if count > gone:
            rest.append((first + gone, count - gone))
    return rest


def _of_files(
    paths: list[str], compression: str, order: tf.Tensor, stretches: Stretches | None, at_once: int
) -> tf.data.Dataset:
    """Records and their numbers, from groups of files one after the other, from the files of a group in turn.

    Args:
        paths: all files.
        compression: of the files.
        order: numbers of the files to read.
        stretches: of all files, the records to read; None for all.
        at_once: files in a group.
    """
    names = tf.constant(paths)
    stretches = stretches or [[(0, -1)]] * len(paths)  # take(-1) takes all
    table = tf.constant([each for of_file in stretches for each in of_file], tf.int64, (sum(map(len, stretches)), 2))
    ends = tf.cumsum(tf.constant([0, *map(len, stretches)], tf.int64))

    def records_of(file: tf.Tensor) -> tf.data.Dataset:
        def stretch(place: tf.Tensor) -> tf.data.Dataset:
            data = tf.data.TFRecordDataset(names[file], compression).skip(place[0]).take(place[1])
            return tf.data.Dataset.zip((data, tf.data.Dataset.range(file * 2**_FILE_BITS + place[0], tf.int64.max)))

        return tf.data.Dataset.from_tensor_slices(table[ends[file] : ends[file + 1]]).flat_map(stretch)

    def group_from(start: tf.Tensor) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(order[start : start + at_once]).interleave(
            records_of, cycle_length=at_once, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        )

    return tf.data.Dataset.range(0, tf.cast(tf.shape(order)[0], tf.int64), at_once).flat_map(group_from)


def _for_replicas(batches: tf.data.Dataset) -> tf.data.Dataset:
    options = tf.data.Options()
    # Several workers share the records one by one; by files, the default, would need a file for each.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return batches.with_options(options).prefetch(tf.data.AUTOTUNE)
