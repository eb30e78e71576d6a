"""TFRecord files to batches: shuffled and endless for training, in order and finite for evaluation.

B batch
"""

import tensorflow as tf

from official_bert import records

_FILES_AT_ONCE = 4
_SHUFFLED_RECORDS = 10_000  # the original's buffer was 100; a record takes about a kilobyte


def training_batches(
    paths: list[str], batch_size: int, schema: records.Schema, seed: int, skipped_records: int = 0
) -> tf.data.Dataset:
    """Returns an endless data set of batches, features by name as [B, *shape].

    Each epoch reads every record once, in an order that depends on the seed and the epoch alone. So a run that stopped
    goes on where it was, with `skipped_records`: past epochs cost nothing, only the current one is read through.

    Args:
        paths: TFRecord files.
        batch_size: B, over all replicas.
        schema: of the records.
        seed: of the order.
        skipped_records: how many records of the endless sequence to leave out at its beginning.
    """
    compression = records.compression(paths)
    first_epoch, rest = divmod(skipped_records, sum(map(records.count, paths))) if skipped_records else (0, 0)

    def one_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
        order = tf.random.experimental.stateless_shuffle(paths, seed=tf.stack([tf.constant(seed, tf.int64), epoch]))
        data = tf.data.Dataset.from_tensor_slices(order).interleave(
            lambda path: tf.data.TFRecordDataset(path, compression),
            cycle_length=min(_FILES_AT_ONCE, len(paths)),
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
        return data.shuffle(_SHUFFLED_RECORDS, seed=seed + epoch)

    data = tf.data.Dataset.range(first_epoch, tf.int64.max).flat_map(one_epoch).skip(rest)
    return _parsed(data.batch(batch_size, drop_remainder=True), schema)


def evaluation_batches(paths: list[str], batch_size: int, schema: records.Schema) -> tf.data.Dataset:
    """Returns each record once, in the files' order; the last batch is filled up with records of zeros.

    (The original repeats the records endlessly and drops what does not fill a batch.)

    Args:
        paths: TFRecord files.
        batch_size: B, over all replicas.
        schema: of the records.
    """

    def fill(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        filled = {}
        for name, values in batch.items():
            missing = batch_size - tf.shape(values)[0]
            values = tf.pad(values, [[0, missing]] + [[0, 0]] * (values.shape.rank - 1))
            filled[name] = tf.ensure_shape(values, (batch_size, *schema[name].shape))
        return filled

    return _parsed(tf.data.TFRecordDataset(paths, records.compression(paths)).batch(batch_size), schema).map(fill)


def _parsed(batches: tf.data.Dataset, schema: records.Schema) -> tf.data.Dataset:
    parsed = batches.map(lambda serialized: records.parse(serialized, schema), num_parallel_calls=tf.data.AUTOTUNE)
    options = tf.data.Options()
    # Several workers share the records one by one; by files, the default, would need a file for each.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return parsed.with_options(options).prefetch(tf.data.AUTOTUNE)
