import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from official_bert.data import record_codec, record_schema
from tests.data_gen.inspection.record_samples import SCHEMA, good, serialize


def test_decoded_records_equal_the_written_ones_as_int32():
    batch = record_codec.parse(tf.constant([serialize(good())]), SCHEMA)
    assert batch.keys() == SCHEMA.keys()
    for name, tensor in batch.items():
        np.testing.assert_array_equal(tensor[0], good()[name])
        assert tensor.dtype == (tf.float32 if name == "masked_lm_weights" else tf.int32)


def test_a_feature_with_the_wrong_length_is_rejected():
    with pytest.raises(ValueError, match=r"input_ids .*\(1,\).*\(10,\)"):
        record_codec.encode({name: np.ones([1, 1]) for name in SCHEMA}, SCHEMA)


@given(st.lists(st.integers(0, 2**63 - 1) | st.integers(0, 300), min_size=8, max_size=8), st.floats(width=32))
def test_records_have_the_bytes_of_protocol_buffers(ids: list[int], weight: float):
    record = good(input_ids=ids, masked_lm_weights=[weight, 1.0])
    features = tf.train.Example.FromString(serialize(record)).features.feature
    assert features.keys() == SCHEMA.keys()
    for name, feature in SCHEMA.items():
        kind = features[name].float_list if feature.dtype == record_schema.FLOAT else features[name].int64_list
        np.testing.assert_array_equal(kind.value, record[name])
