"""Encoding, reading and counting records, and finding damaged ones."""

import gzip
import os
import pathlib
import random

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given
from hypothesis import strategies as st

from official_bert.data import record_codec, record_damage, record_reader, record_schema
from official_bert.data.input_pipeline import RecordSource
from tests.data_gen.inspection.record_samples import LENGTH, PREDICTIONS, SCHEMA, good, serialize, write
from tests.make import assert_mentions, assert_rejected, flip_bits, write_text


@pytest.fixture
def shards(tmp_path) -> list[str]:
    """Five files of 7, 8, 9, 10 and 11 records. The first ids are 0 to 6, 10 to 17, and so on."""
    ids = [range(10 * number, 11 * number + 7) for number in range(5)]
    return [write(tmp_path / f"{each[0]}.tfrecord", [good(input_ids=[i] + [1] * 9) for i in each]) for each in ids]


def test_decoded_records_equal_the_written_ones_as_int32():
    batch = record_codec.parse(tf.constant([serialize(good())]), SCHEMA)
    assert {name: tensor[0].numpy().tolist() for name, tensor in batch.items()} == good()
    assert {name for name, tensor in batch.items() if tensor.dtype != tf.int32} == {"masked_lm_weights"}


def test_a_feature_with_the_wrong_length_is_rejected():
    with pytest.raises(ValueError, match=r"input_ids .*\(1,\).*\(10,\)"):
        record_codec.encode({name: np.ones([1, 1]) for name in SCHEMA}, SCHEMA)


@example([128] * 8, 0.5)
@example([1 << 16] * 8, 0.5)
@given(st.lists(st.integers(0, 2**63 - 1) | st.integers(0, 300), min_size=8, max_size=8), st.floats(width=32))
def test_records_have_the_bytes_of_protocol_buffers(ids: list[int], weight: float):
    record = good(input_ids=ids, masked_lm_weights=[weight, 1.0])
    features = tf.train.Example.FromString(serialize(record)).features.feature
    assert features.keys() == SCHEMA.keys()
    for name, feature in SCHEMA.items():
        kind = features[name].float_list if feature.dtype == record_schema.FLOAT else features[name].int64_list
        np.testing.assert_array_equal(kind.value, record[name])


def test_plain_and_compressed_files_give_the_same_records_and_counts(shards):
    zipped = [write_text(pathlib.Path(f"{path}.gz"), gzip.compress(pathlib.Path(path).read_bytes())) for path in shards]
    for paths in (shards, zipped):
        assert [record_reader.count_records(path) for path in paths] == [7, 8, 9, 10, 11]
        (batch,) = RecordSource(paths, SCHEMA).evaluation_batches(45).as_numpy_iterator()
        assert batch["input_ids"][:, 0].tolist() == [10 * i + k for i in range(5) for k in range(7 + i)]
    assert_rejected((zipped[0], shards[1]), record_reader.get_compression, [zipped[0], shards[1]])


def test_truncation_at_any_byte_and_a_missing_file_are_detected(shards):
    path = pathlib.Path(shards[0])
    content, rng = path.read_bytes(), random.Random(0)
    frame = len(content) // 7
    for _ in range(30):
        number, kept = rng.randrange(7), rng.choice([*range(1, 12), *rng.choices(range(12, frame), k=11)])
        path.write_bytes(content[: frame * number + kept])
        for read in (record_reader.count_records, lambda path: list(record_reader.read_file(path))):
            assert_rejected((path, f"record {number}"), read, str(path))
    assert_rejected("none.tfrecord", list, record_reader.read_file("none.tfrecord"))


LIMITED = record_schema.pretraining_schema(LENGTH, PREDICTIONS, vocab_size=100, type_vocab_size=2)


WRONG = [
    ("input_ids", [1] * 7, 7, 10),
    ("input_ids", [100] * 10, 100, 0, 99),
    ("masked_lm_ids", [-1, 0, 0], -1, 0, 99),
    ("segment_ids", [2] * 10, 2, 0, 1),
    ("next_sentence_labels", [2], 2, 0, 1),
    ("masked_lm_positions", [10, 0, 0], 10, 0, 9),
]


def test_errors_describe_damaged_records():
    record_codec.parse(tf.constant([serialize(good())]), LIMITED)
    assert record_damage.describe_mismatch(serialize(good()), LIMITED) is None
    for name, values, *limits in WRONG:
        record = serialize(good(**{name: values}))
        assert_mentions(record_damage.describe_mismatch(record, LIMITED), name, *limits)
        with pytest.raises(tf.errors.InvalidArgumentError):
            record_codec.parse(tf.constant([record]), LIMITED)
    assert_mentions(record_damage.describe_mismatch(b"no proto", LIMITED), "tf.train.Example")
    example = tf.train.Example()
    example.features.feature["text"].bytes_list.value.append(b"x")
    assert_mentions(record_damage.describe_mismatch(example.SerializeToString(), LIMITED), "input_ids", "text")
    for name in LIMITED:
        example.features.feature[name].float_list.value.append(1.0)
    told = record_damage.describe_mismatch(example.SerializeToString(), LIMITED)
    assert_mentions(told, "input_ids", "float_list", "int64_list")


def test_flipped_bytes_are_located_and_a_single_record_between_them_is_kept(shards, monkeypatch, capsys):
    monkeypatch.setattr(record_damage, "_MAX_LISTED", 2)
    frame = os.path.getsize(shards[2]) // 9
    for number in (1, 3):
        flip_bits(shards[2], number * frame + 40)
    found = record_damage.describe_first_damage(shards, LIMITED)
    assert_mentions(found, shards[2], "record 1", f"byte {frame + 12}")
    assert record_damage.find_readable_ranges(shards[2:4], LIMITED) == ([[(0, 1), (2, 1), (4, 5)], [(0, 10)]], 2)
    assert capsys.readouterr().out.endswith(": skipped 2 corrupted records: 1, 3\n")


@pytest.mark.parametrize("bytes_cut", [1, 60])
def test_a_truncated_record_counts_once(shards, bytes_cut, capsys):
    os.truncate(shards[2], os.path.getsize(shards[2]) - bytes_cut)
    assert record_damage.find_readable_ranges(shards[2:3], LIMITED) == ([[(0, 8)]], 1)
    assert_mentions(capsys.readouterr().out, shards[2], "1 corrupted record: 8 (and the rest of the file)")
