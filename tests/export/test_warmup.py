"""Warm-up files are written in the serialization of tensorflow-serving-api 2.21."""

import pathlib

import pytest
import tensorflow as tf

from official_bert.export import warmup

TEXT = b"b" * 140  # long enough for two-byte lengths
# A PredictionLog with one text for serving_default.
PLAIN = (
    b"2\xb9\x01\n\xb6\x01\n\x11\x1a\x0fserving_default\x12\xa0\x01\n\x04text"
    b"\x12\x97\x01\x08\x07\x12\x04\x12\x02\x08\x01B\x8c\x01" + TEXT
)


def test_requests_are_written_as_tensorflow_serving_reads_them(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(warmup, "EXAMPLES", (TEXT,))
    path = tmp_path / "requests"
    warmup.write_requests(str(path), {"text": tf.TensorSpec([None], tf.string)})
    assert list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator()) == [PLAIN]
