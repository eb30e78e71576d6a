"""Writing records to TFRecord files."""

import os

import tensorflow as tf

from data_gen.pipelines import one_machine, writer
from official_bert.data import record_codec
from tests.data_gen.samples import contents
from tests.make import assert_rejected


def test_frames_equal_those_of_tensorflow(tmp_path):
    contents = [b"", b"a", bytes(range(256)) * 20]
    with tf.io.TFRecordWriter(str(tmp_path / "theirs")) as theirs:
        for content in contents:
            theirs.write(content)
    assert (tmp_path / "theirs").read_bytes() == writer.frame_records(contents)


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(short_options, tmp_path, monkeypatch):
    one_machine.create_pretraining_data(short_options())
    (tmp_path / "b.tfrecord").unlink()
    before = contents(tmp_path)

    def fail(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(record_codec, "encode", fail)
    assert_rejected((tmp_path / "b.tfrecord", os.strerror(28)), one_machine.create_pretraining_data, short_options())
    assert contents(tmp_path) == before
