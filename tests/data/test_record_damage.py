import os

import pytest
import tensorflow as tf

from official_bert.data import record_damage, record_schema
from tests.data_gen.inspection.record_samples import LENGTH, PREDICTIONS, good, serialize
from tests.make import assert_mentions, flip_bits

SCHEMA = record_schema.pretraining_schema(LENGTH, PREDICTIONS, vocab_size=100, type_vocab_size=2)


@pytest.mark.parametrize(("change", "names"), [
    ({"input_ids": [1] * 7}, ["input_ids", 7, 10]),
    ({"input_ids": [100] * 10}, ["input_ids", 100, 0, 99]),
    ({"masked_lm_ids": [-1, 0, 0]}, ["masked_lm_ids", -1, 0, 99]),
    ({"segment_ids": [2] * 10}, ["segment_ids", 2, 0, 1]),
    ({"next_sentence_labels": [2]}, ["next_sentence_labels", 2, 0, 1]),
    ({"masked_lm_positions": [10, 0, 0]}, ["masked_lm_positions", 10, 0, 9]),
    ({}, ["None"]),
])  # fmt: skip
def test_errors_describe_damaged_records(change, names):
    assert_mentions(str(record_damage.describe_mismatch(serialize(good(**change)), SCHEMA)), *names)


def test_errors_describe_data_that_are_not_records():
    assert_mentions(record_damage.describe_mismatch(b"no proto", SCHEMA), "tf.train.Example")
    example = tf.train.Example()
    example.features.feature["text"].bytes_list.value.append(b"x")
    assert_mentions(record_damage.describe_mismatch(example.SerializeToString(), SCHEMA), "input_ids", "text")
    for name in SCHEMA:
        example.features.feature[name].float_list.value.append(1.0)
    told = record_damage.describe_mismatch(example.SerializeToString(), SCHEMA)
    assert_mentions(told, "input_ids", "float_list", "int64_list")


def test_a_flipped_byte_is_detected_and_located(shards):
    frame = os.path.getsize(shards[2]) // 9
    flip_bits(shards[2], frame + 40)
    found = record_damage.describe_first_damage(shards, SCHEMA)
    assert_mentions(found, shards[2], "record 1", f"byte {frame + 12}")


def test_a_single_record_between_corrupted_ones_is_kept(shards):
    frame = os.path.getsize(shards[2]) // 9
    for number in (1, 3):
        flip_bits(shards[2], number * frame + 40)
    assert record_damage.find_readable_ranges(shards[2:3], SCHEMA) == ([[(0, 1), (2, 1), (4, 5)]], 2)


@pytest.mark.parametrize("bytes_cut", [1, 60])
def test_a_truncated_record_counts_once(shards, bytes_cut, capsys):
    os.truncate(shards[2], os.path.getsize(shards[2]) - bytes_cut)
    assert record_damage.find_readable_ranges(shards[2:3], SCHEMA) == ([[(0, 8)]], 1)
    assert_mentions(capsys.readouterr().out, shards[2], 1, 8)
