"""Reads batches from TFRecord files: shuffled and endless for training, in order and finite for evaluation.

B batch, W records per window
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable

import tensorflow as tf

from official_bert.data import record_codec, record_reader
from official_bert.data.dataset_options import make_dataset_options
from official_bert.data.dynamic_masking import make_record_keys
from official_bert.data.packing import Packing, choose_packing, count_rows, get_group_size, pack
from official_bert.data.record_damage import RecordRanges
from official_bert.data.record_schema import Schema

_CYCLE_LENGTH = 4  # Files that are read at the same time.
_WINDOW = 10_000  # Records that are shuffled together, about a kilobyte each. The original's buffer holds 100.
_PACKING_SAMPLE = 10_000  # Records that are packed before the first step to choose the shapes.
_FILE_BITS = 40  # The id of a record is the index of its file, shifted by these bits, plus its index in the file.

# AutoGraph would only make tracing slower.
_without_autograph = tf.autograph.experimental.do_not_convert

Features = dict[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class RecordSource:
    """Record files, and how to read and mask their records.

    Attributes:
        paths: TFRecord files.
        schema: Schema of the records in the files.
        masking: Function that masks the tokens of unmasked records, differently in each epoch, or adds next-token
            targets: DynamicMasking.mask or add_next_token_targets. If None, the records must be masked already.
        readable: Records to read of each file. If None, reads all records.
        compression: Compression of all files (see `record_reader.get_compression`). None to detect it.
    """

    paths: list[str]
    schema: Schema
    masking: Callable[[Features, tf.Tensor], Features] | None = None
    readable: RecordRanges | None = None
    compression: str | None = None

    @_without_autograph
    def training_batches(
        self, batch_size: int, seed: int, skipped_records: int = 0, packing: Packing | None = None
    ) -> tf.data.Dataset:
        """Returns an endless dataset of batches. An element maps feature names to [B, *shape].

        Each epoch reads every record once. The order depends only on the seed and the epoch: files are read in random
        order, four at a time with one record of each in turn, and each window of 10,000 records is shuffled. A resumed
        run can therefore continue exactly, by passing `skipped_records`. Skipping is fast: it reads only the lengths of
        the records in at most four files, and the records of one shuffle window. Compressed files are decompressed up
        to that point.

        Args:
            batch_size: Number of records per batch over all replicas, B.
            seed: Random seed of the order.
            skipped_records: Number of records to skip at the start of the endless sequence.
            packing: Shapes of packed batches, in which several records share a row. If None, each row has one record.
        """
        batches = self._masked_batches(batch_size, seed, skipped_records)
        if packing:
            batches = batches.map(lambda batch: pack(batch, packing), num_parallel_calls=tf.data.AUTOTUNE)
        # TensorFlow cannot infer that this dataset is endless. Without the assertion, several workers would synchronize
        # before each step to find out whether there is another batch, and the static batch size would be lost.
        return _distribute(batches.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)))

    @_without_autograph
    def choose_packing(self, batch_size: int, seed: int, replicas: int, micro_batches: int) -> Packing:
        """Chooses the shapes of packed batches by packing the first 10,000 records of the first epoch.

        Args:
            batch_size: Number of records per batch over all replicas.
            seed: Random seed of the order.
            replicas: Number of replicas that share a batch.
            micro_batches: Number of gradient accumulation steps.
        """
        size = get_group_size(batch_size)
        rows = self._masked_batches(size, seed, 0).map(count_rows, num_parallel_calls=tf.data.AUTOTUNE)
        rows = rows.take(-(-_PACKING_SAMPLE // size)).with_options(make_dataset_options())
        return choose_packing(list(rows.as_numpy_iterator()), batch_size, replicas, micro_batches)

    @_without_autograph
    def locate_records(self, seed: int, skipped_records: int, number: int) -> list[tuple[str, int]]:
        """Returns where the first `number` records are that `training_batches` reads after the skipped ones.

        Returns:
            The file of each record and its index in the file, counted from 0.
        """
        locations: list[tuple[str, int]] = []
        records = self._shuffled_records(seed, skipped_records)
        for _, record_ids, _ in records.with_options(make_dataset_options()):
            needed = record_ids.numpy()[: number - len(locations)].tolist()
            locations += [(self.paths[each >> _FILE_BITS], each & (1 << _FILE_BITS) - 1) for each in needed]
            if len(locations) == number:
                break
        return locations

    @_without_autograph
    def evaluation_batches(self, batch_size: int) -> tf.data.Dataset:
        """Returns a dataset of batches with each record once, in order. The last batch is padded with records of zeros.

        The original instead repeats the records endlessly and drops an incomplete batch. The same tokens are masked
        each time.
        """

        def parse(serialized: tf.Tensor, record_id: tf.Tensor) -> Features:
            padded = {}
            for name, values in self._parse(serialized, 0, tf.zeros_like(record_id), record_id).items():
                missing = batch_size - tf.shape(values)[0]
                padded[name] = tf.pad(values, [[0, missing]] + [[0, 0]] * (values.shape.rank - 1))
                padded[name] = tf.ensure_shape(padded[name], (batch_size, *values.shape[1:]))
            return padded

        data = self._read_files(tf.range(len(self.paths), dtype=tf.int64), self.readable, cycle_length=1)
        return _distribute(data.batch(batch_size).map(parse, num_parallel_calls=tf.data.AUTOTUNE))

    def count_records(self, path: str) -> int:
        """Returns the number of records in one of the files. It is needed only to skip records."""
        return record_reader.count_records(path)

    @functools.cached_property
    def _compression(self) -> str:
        return record_reader.get_compression(self.paths) if self.compression is None else self.compression

    def _parse(self, serialized: tf.Tensor, seed: int, epoch: tf.Tensor, record_id: tf.Tensor) -> Features:
        parsed = record_codec.parse(serialized, self.schema)
        return self.masking(parsed, make_record_keys(seed, epoch, record_id)) if self.masking else parsed

    def _masked_batches(self, batch_size: int, seed: int, skipped_records: int) -> tf.data.Dataset:
        """Returns the batches of `training_batches` before they are packed and distributed to replicas."""

        def parse(serialized: tf.Tensor, record_id: tf.Tensor, epoch: tf.Tensor) -> Features:
            return self._parse(serialized, seed, epoch, record_id)

        batches = self._shuffled_records(seed, skipped_records).rebatch(batch_size, drop_remainder=True)
        return batches.map(parse, num_parallel_calls=tf.data.AUTOTUNE)

    def _shuffled_records(self, seed: int, skipped_records: int) -> tf.data.Dataset:
        """Returns an endless dataset of windows of shuffled records.

        An element has serialized records [W], their ids [W] int64 and their epochs [W] int64.
        """

        def order(epoch: tf.Tensor) -> tf.Tensor:
            key = tf.stack([tf.constant(seed, tf.int64), epoch])
            return tf.random.experimental.stateless_shuffle(tf.range(len(self.paths), dtype=tf.int64), seed=key)

        def shuffle_windows(data: tf.data.Dataset, epoch: tf.Tensor, first: int) -> tf.data.Dataset:
            def shuffle(window: tf.Tensor, batch: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, ...]:
                serialized, record_id = batch
                key = tf.stack([seed + epoch * 2**32, window])
                permutation = tf.random.experimental.stateless_shuffle(tf.range(tf.shape(record_id)[0]), seed=key)
                epochs = tf.fill(tf.shape(record_id), epoch)
                return tf.gather(serialized, permutation), tf.gather(record_id, permutation), epochs

            return data.batch(_WINDOW).enumerate(first).map(shuffle)

        def read_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
            return shuffle_windows(self._read_files(order(epoch), ranges), epoch, 0)

        ranges = self.readable
        if not skipped_records:
            return tf.data.Dataset.range(tf.int64.max).flat_map(read_epoch)
        ranges = ranges or [[(0, self.count_records(path))] for path in self.paths]
        epoch_index, rest = divmod(skipped_records, sum(map(_count_records, ranges)))
        epoch = tf.constant(epoch_index, tf.int64)
        window = rest // _WINDOW
        data = self._skip_records(order(epoch).numpy().tolist(), ranges, window * _WINDOW)
        data = shuffle_windows(data, epoch, window)
        skipped = rest - window * _WINDOW
        first = data.take(1).map(lambda *values: tuple(value[skipped:] for value in values))
        later = tf.data.Dataset.range(epoch_index + 1, tf.int64.max).flat_map(read_epoch)
        return first.concatenate(data.skip(1)).concatenate(later)

    def _skip_records(self, order: list[int], ranges: RecordRanges, skipped: int) -> tf.data.Dataset:
        """Returns a dataset of the records of some files, without the first ones.

        Args:
            order: Indices of the files to read, in order.
            ranges: Records to read of each file.
            skipped: Number of records to leave out.
        """
        counts = list(map(_count_records, ranges))
        start = 0
        while skipped >= (group_count := sum(counts[file] for file in order[start : start + _CYCLE_LENGTH])):
            skipped -= group_count
            start += _CYCLE_LENGTH
        group = order[start : start + _CYCLE_LENGTH]
        # The files of a group yield one record each in turn. After r full rounds, a file has yielded r records, or all
        # of its records if it has fewer. Find the largest number of rounds within the records to skip.
        low, high = 0, max(counts[file] for file in group)
        while low < high:
            rounds = (low + high + 1) // 2
            fits = sum(min(rounds, counts[file]) for file in group) <= skipped
            low, high = (rounds, high) if fits else (low, rounds - 1)
        remaining = list(ranges)
        for file in group:
            yielded = min(low, counts[file])
            skipped -= yielded
            remaining[file] = _drop_records(ranges[file], yielded)
        first_group, later = (tf.constant(part, tf.int64) for part in (group, order[start + _CYCLE_LENGTH :]))
        return self._read_files(first_group, remaining).skip(skipped).concatenate(self._read_files(later, ranges))

    def _read_files(
        self, order: tf.Tensor, ranges: RecordRanges | None, cycle_length: int = _CYCLE_LENGTH
    ) -> tf.data.Dataset:
        """Returns a dataset of serialized records and their ids.

        Groups of files are read one after the other. The files of a group contribute one record each in turn.

        Args:
            order: Indices of the files to read, in order.
            ranges: Records to read of each file. If None, reads all records.
            cycle_length: Number of files per group.
        """
        ranges = ranges or [[(0, -1)]] * len(self.paths)  # take(-1) takes all records.
        all_ranges = list(itertools.chain.from_iterable(ranges))
        with tf.init_scope():  # As constants of the graph, the names of many files would cost seconds.
            names = tf.constant(self.paths)
            table = tf.constant(all_ranges, tf.int64, (len(all_ranges), 2))
            ends = tf.cumsum(tf.constant([0, *map(len, ranges)], tf.int64))

        def read_file(file: tf.Tensor) -> tf.data.Dataset:
            def read_range(first_and_count: tf.Tensor) -> tf.data.Dataset:
                first, count = first_and_count[0], first_and_count[1]
                data = tf.data.TFRecordDataset(names[file], self._compression).skip(first).take(count)
                return tf.data.Dataset.zip((data, tf.data.Dataset.range(file * 2**_FILE_BITS + first, tf.int64.max)))

            return tf.data.Dataset.from_tensor_slices(table[ends[file] : ends[file + 1]]).flat_map(read_range)

        def read_group(start: tf.Tensor) -> tf.data.Dataset:
            return tf.data.Dataset.from_tensor_slices(order[start : start + cycle_length]).interleave(
                read_file, cycle_length=cycle_length, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
            )

        return tf.data.Dataset.range(0, tf.cast(tf.shape(order)[0], tf.int64), cycle_length).flat_map(read_group)


def _count_records(ranges: list[tuple[int, int]]) -> int:
    return sum(number for _, number in ranges)


def _drop_records(ranges: list[tuple[int, int]], number: int) -> list[tuple[int, int]]:
    """Removes the first `number` records from ranges, which are pairs of first record and number of records."""
    remaining = []
    for first, count in ranges:
        dropped = min(number, count)
        number -= dropped
        if count > dropped:
            remaining.append((first + dropped, count - dropped))
    return remaining


def _distribute(batches: tf.data.Dataset) -> tf.data.Dataset:
    # Several workers share the records. Sharing by file, the default, would need a file for each worker.
    options = make_dataset_options(tf.data.experimental.AutoShardPolicy.DATA)
    return batches.with_options(options).prefetch(tf.data.AUTOTUNE)
