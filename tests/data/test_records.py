import gzip
import pathlib
import random
import struct

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from official_bert.data import record_codec, record_damage, record_reader, record_schema
from official_bert.data.input_pipeline import evaluation_batches, training_batches
from official_bert.errors import UserError

SCHEMA = record_schema.pretraining_schema(8, 2, vocab_size=100, type_vocab_size=2)


def values(number: int) -> dict[str, list[float]]:
    return {
        "input_ids": [number, 1, 2, 3, 4, 0, 0, 0],
        "input_mask": [1, 1, 1, 1, 1, 0, 0, 0],
        "segment_ids": [0, 0, 0, 1, 1, 0, 0, 0],
        "masked_lm_positions": [1, 0],
        "masked_lm_ids": [7, 0],
        "masked_lm_weights": [1.0, 0.0],
        "next_sentence_labels": [1],
    }


def encoded(record: dict[str, list[float]], schema: record_schema.Schema) -> bytes:
    return record_codec.encode({name: np.array([value]) for name, value in record.items()}, schema)[0]


def write(path: pathlib.Path, numbers: range) -> str:
    with tf.io.TFRecordWriter(str(path)) as writer:
        for number in numbers:
            writer.write(encoded(values(number), SCHEMA))
    return str(path)


@pytest.fixture
def shards(tmp_path: pathlib.Path) -> list[str]:
    return [write(tmp_path / f"{i}.tfrecord", range(10 * i, 10 * i + 7 + i)) for i in range(5)]


ALL = [10 * i + k for i in range(5) for k in range(7 + i)]


def first_ids(batches: tf.data.Dataset, count: int) -> list[list[int]]:
    return [batch["input_ids"][:, 0].numpy().tolist() for batch in batches.take(count)]


def test_record_comes_back_as_it_was_written_with_int32():
    batch = record_codec.parse(tf.constant([encoded(values(5), SCHEMA)]), SCHEMA)
    assert batch.keys() == SCHEMA.keys()
    for name, tensor in batch.items():
        np.testing.assert_array_equal(tensor[0], values(5)[name])
        assert tensor.dtype == (tf.float32 if name == "masked_lm_weights" else tf.int32)


def test_every_epoch_has_every_record_once_in_another_order(shards: list[str]):
    batches = first_ids(training_batches(shards, 5, SCHEMA, seed=1), 27)  # three epochs of 45
    ids = [number for batch in batches for number in batch]
    epochs = [ids[start : start + 45] for start in (0, 45, 90)]
    assert all(sorted(epoch) == ALL for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert epochs[0] != ALL


def test_order_depends_on_the_seed_alone(shards: list[str]):
    first, again, other = (first_ids(training_batches(shards, 5, SCHEMA, seed), 20) for seed in (1, 1, 2))
    assert first == again != other


def test_skipping_goes_on_where_another_run_stopped(shards: list[str]):
    whole = first_ids(training_batches(shards, 5, SCHEMA, seed=3), 30)
    for batches in (0, 1, 8, 9, 13, 25):
        rest = first_ids(training_batches(shards, 5, SCHEMA, seed=3, skipped_records=5 * batches), 30 - batches)
        assert rest == whole[batches:], batches


def test_evaluation_reads_each_record_once_and_fills_the_last_batch_with_zeros(shards: list[str]):
    batches = list(evaluation_batches(shards, 8, SCHEMA))
    assert all(batch[name].shape == (8, *SCHEMA[name].shape) for batch in batches for name in SCHEMA)
    real = [batch["input_ids"][row, 0].numpy() for batch in batches for row in range(8) if batch["input_mask"][row, 0]]
    assert real == ALL
    assert sum(int(tf.reduce_sum(batch["masked_lm_weights"])) for batch in batches) == len(ALL)


def test_records_are_counted_without_reading_them(shards: list[str]):
    assert [record_reader.count(path) for path in shards] == [7, 8, 9, 10, 11]


@pytest.mark.parametrize(("change", "message"), [
    ({"input_ids": [1] * 7}, "input_ids has 7 values; expected 8"),
    ({"input_ids": [100] * 8}, "input_ids holds 100; expected 0 to 99"),
    ({"masked_lm_ids": [-1, 0]}, "masked_lm_ids holds -1; expected 0 to 99"),
    ({"segment_ids": [2] * 8}, "segment_ids holds 2; expected 0 to 1"),
    ({"masked_lm_positions": [8, 0]}, "masked_lm_positions holds 8; expected 0 to 7"),
])  # fmt: skip
def test_bad_records_are_described(change: dict[str, list[int]], message: str):
    wide = {name: record_schema.Feature((len({**values(0), **change}[name]),), f.dtype) for name, f in SCHEMA.items()}
    assert record_damage.describe_mismatch(encoded({**values(0), **change}, wide), SCHEMA) == message
    assert record_damage.describe_mismatch(encoded(values(0), SCHEMA), SCHEMA) is None


def test_other_data_are_described():
    assert record_damage.describe_mismatch(b"no proto", SCHEMA) == "it is not a tf.train.Example"
    example = tf.train.Example()
    example.features.feature["text"].bytes_list.value.append(b"x")
    assert (
        record_damage.describe_mismatch(example.SerializeToString(), SCHEMA)
        == "it has no feature input_ids; it holds text"
    )
    for name in SCHEMA:
        example.features.feature[name].float_list.value.append(1.0)
    assert "input_ids is stored as float_list; expected int64_list" in str(
        record_damage.describe_mismatch(example.SerializeToString(), SCHEMA)
    )


def test_wrong_number_of_values_is_not_written():
    with pytest.raises(ValueError, match=r"input_ids has shape \(1,\); the schema says \(8,\)"):
        encoded({**values(0), "input_ids": [1]}, SCHEMA)


@given(st.lists(st.integers(0, 2**63 - 1) | st.integers(0, 300), min_size=8, max_size=8), st.floats(width=32))
def test_records_are_encoded_as_protocol_buffers_are(ids: list[int], weight: float):
    record = {**values(0), "input_ids": ids, "masked_lm_weights": [weight, 1.0]}
    features = tf.train.Example.FromString(encoded(record, SCHEMA)).features.feature
    assert features.keys() == SCHEMA.keys()
    for name, feature in SCHEMA.items():
        kind = features[name].float_list if feature.dtype == record_schema.FLOAT else features[name].int64_list
        np.testing.assert_array_equal(kind.value, record[name])


def test_compressed_files_are_read_alike(shards: list[str], tmp_path: pathlib.Path):
    zipped = []
    for path in shards:
        zipped.append(f"{path}.gz")
        pathlib.Path(zipped[-1]).write_bytes(gzip.compress(pathlib.Path(path).read_bytes()))
    assert [record_reader.count(path) for path in zipped] == [record_reader.count(path) for path in shards]
    for read in (
        lambda paths: training_batches(paths, 5, SCHEMA, 1),
        lambda paths: evaluation_batches(paths, 5, SCHEMA),
    ):
        ids = [number for batch in first_ids(read(zipped), 9) for number in batch]
        assert sorted(ids) == ALL
    with pytest.raises(UserError, match="0.tfrecord.gz is compressed and .*1.tfrecord is not"):
        record_reader.compression([zipped[0], shards[1]])


def test_flipped_byte_is_found_and_placed(shards: list[str]):
    content = bytearray(pathlib.Path(shards[2]).read_bytes())
    (length,) = struct.unpack("<Q", content[:8])
    content[16 + length + 12 + 40] ^= 1  # within the second record
    pathlib.Path(shards[2]).write_bytes(content)
    damage = record_damage.describe_first_damage(shards, SCHEMA)
    assert damage is not None
    frame = 16 + length
    assert f"{shards[2]}: record 1 (from 0), near byte {frame + 12}, is damaged" in damage


def test_any_cut_is_found(shards: list[str]):
    path = pathlib.Path(shards[0])
    content = path.read_bytes()
    rng = random.Random(0)
    ends = {0, *(len(content) * k // 7 for k in range(8))}  # records are of equal length
    for _ in range(30):
        cut = rng.randrange(1, len(content))
        if cut in ends:
            continue
        path.write_bytes(content[:cut])
        with pytest.raises(UserError, match=r"ends within record \d \(from 0\)"):
            record_reader.count(str(path))
        with pytest.raises(UserError, match="is damaged"):
            list(record_reader.read_file(str(path)))


def test_missing_file_is_named():
    with pytest.raises(UserError, match=r"there is no file none.tfrecord"):
        list(record_reader.read_file("none.tfrecord"))
