"""Warm-up files are written and read in the serialization of tensorflow-serving-api 2.21."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf

from official_bert.inference import warmup

TEXT = b"b" * 140  # long enough for two-byte lengths
# A PredictionLog with one text for serving_default.
PLAIN = (
    b"2\xb9\x01\n\xb6\x01\n\x11\x1a\x0fserving_default\x12\xa0\x01\n\x04text"
    b"\x12\x97\x01\x08\x07\x12\x04\x12\x02\x08\x01B\x8c\x01" + TEXT
)
# For serving_ids: input_ids [[0, 1, 2]] and texts ["a", b"\xff", TEXT]. It also has fields that are skipped: a sampling
# rate (of fixed length), the model's name and version, and an output filter.
FULL = (
    b"\n\x0b\x12\t\t\x00\x00\x00\x00\x00\x00\xe0?2\xf5\x01\n\xf2\x01\n\x15\n\x01m\x12\x03\x08\xac\x02\x1a\x0bserving_ids"
    b"\x12'\n\tinput_ids\x12\x1a\x08\x03\x12\x08\x12\x02\x08\x01\x12\x02\x08\x03\"\x0c"
    b"\x00\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00\x12\xa7\x01\n\x05texts\x12\x9d\x01\x08\x07\x12\x04\x12\x02\x08\x03"
    b"B\x01aB\x01\xffB\x8c\x01" + TEXT + b"\x1a\x06logits"
)
# A PredictRequest and a ClassifyRequest that only name the model.
EMPTY, CLASSIFY = b"2\x07\n\x05\n\x03\n\x01m", b"\x12\x07\n\x05\n\x03\n\x01m"


def test_requests_of_other_tools_are_read(tmp_path: pathlib.Path):
    path = str(tmp_path / "requests")
    with tf.io.TFRecordWriter(path) as writer:
        for message in (FULL, CLASSIFY, EMPTY):
            writer.write(message)
    first, second = warmup.read_requests(path)
    assert first[0] == "serving_ids"
    expected = {"input_ids": np.arange(3, dtype=np.int32)[None], "texts": np.array([b"a", b"\xff", TEXT], object)}
    assert first[1].keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(first[1][name], value)
    assert second == ("serving_default", {})


def test_requests_are_written_as_tensorflow_serving_reads_them(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(warmup, "EXAMPLES", (TEXT,))
    path = tmp_path / "requests"
    path.write_bytes(warmup.warmup_requests({"text": tf.TensorSpec([None], tf.string)}))
    assert list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator()) == [PLAIN]
