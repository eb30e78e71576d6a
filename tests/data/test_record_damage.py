import pathlib
import struct

import pytest
import tensorflow as tf

from official_bert.data import record_damage, record_schema
from tests.data.record_samples import SCHEMA, encoded, values
from tests.make import flip_bits


@pytest.mark.parametrize(("change", "message"), [
    ({"input_ids": [1] * 7}, "input_ids has 7 values; expected 8"),
    ({"input_ids": [100] * 8}, "input_ids contains 100; expected 0 to 99"),
    ({"masked_lm_ids": [-1, 0]}, "masked_lm_ids contains -1; expected 0 to 99"),
    ({"segment_ids": [2] * 8}, "segment_ids contains 2; expected 0 to 1"),
    ({"masked_lm_positions": [8, 0]}, "masked_lm_positions contains 8; expected 0 to 7"),
])  # fmt: skip
def test_bad_records_are_described(change: dict[str, list[int]], message: str):
    wide = {name: record_schema.Feature((len({**values(0), **change}[name]),), f.dtype) for name, f in SCHEMA.items()}
    assert record_damage.describe_mismatch(encoded({**values(0), **change}, wide), SCHEMA) == message
    assert record_damage.describe_mismatch(encoded(values(0), SCHEMA), SCHEMA) is None


def test_other_data_are_described():
    assert record_damage.describe_mismatch(b"no proto", SCHEMA) == "it is not a tf.train.Example"
    example = tf.train.Example()
    example.features.feature["text"].bytes_list.value.append(b"x")
    told = record_damage.describe_mismatch(example.SerializeToString(), SCHEMA)
    assert "no feature input_ids" in told
    assert "text" in told
    for name in SCHEMA:
        example.features.feature[name].float_list.value.append(1.0)
    told = record_damage.describe_mismatch(example.SerializeToString(), SCHEMA)
    assert "input_ids is stored as float_list; expected int64_list" in str(told)


def test_flipped_byte_is_found_and_placed(shards: list[str]):
    (length,) = struct.unpack("<Q", pathlib.Path(shards[2]).read_bytes()[:8])
    flip_bits(shards[2], 16 + length + 12 + 40)  # within the second record
    damage = record_damage.describe_first_damage(shards, SCHEMA)
    assert damage is not None
    frame = 16 + length
    assert f"{shards[2]}: record 1 (from 0), near byte {frame + 12}, is corrupted" in damage
