"""Writing records to TFRecord files."""

import pathlib
from collections.abc import Callable

import pytest
import tensorflow as tf

from data_gen.options import RecordOptions
from data_gen.pipelines import one_machine, writer
from official_bert.errors import UserError


def test_frames_equal_those_of_tensorflow(tmp_path: pathlib.Path):
    contents = [b"", b"a", bytes(range(256)) * 20]
    with tf.io.TFRecordWriter(str(tmp_path / "theirs")) as theirs:
        for content in contents:
            theirs.write(content)
    assert (tmp_path / "theirs").read_bytes() == writer.frame_records(contents)


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(
    short_options: Callable[..., RecordOptions], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    one_machine.create_pretraining_data(short_options())
    (tmp_path / "a.manifest.json").unlink()
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}

    def fail(*_: object) -> bytes:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("data_gen.pipelines.writer.record_codec.encode", fail)
    with pytest.raises(UserError, match="cannot write .*: No space left on device"):
        one_machine.create_pretraining_data(short_options(random_seed=9))
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
