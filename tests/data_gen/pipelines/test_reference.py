"""The reference algorithm makes the same records as the original and writes them in TensorFlow's format."""

import ast
import os
import pathlib
import unittest.mock

import pytest
import tensorflow as tf

from data_gen.options import RecordOptions
from data_gen.pipelines import one_machine, writer
from data_gen.text import documents
from official_bert.data import record_codec
from tests.data_gen.samples import contents
from tests.make import ROOT, assert_rejected, write_text

ORIGINAL = ROOT / "tests" / "golden" / "original" / "records"
FLAGS = dict(line.split(" ", 1) for line in (ORIGINAL / "flags.txt").read_text().splitlines())


def read_records(path: str, compression: str = "") -> list[dict[str, list[float]]]:
    """Reads the records of a file as plain values."""
    serialized = tf.data.TFRecordDataset(path, compression).as_numpy_iterator()
    records = [tf.train.Example.FromString(each).features.feature.items() for each in serialized]
    return [{name: list(each.float_list.value or each.int64_list.value) for name, each in record} for record in records]


def written(options: RecordOptions) -> list[list[dict[str, list[float]]]]:
    """Returns the records of each output file."""
    one_machine.create_pretraining_data(options)
    return list(map(read_records, options.output_file))


@pytest.mark.parametrize("name", FLAGS)
def test_records_equal_those_of_the_original(name: str, tmp_path: pathlib.Path):
    flags = dict(flag.removeprefix("--").split("=") for flag in FLAGS[name].split())
    paths = [str(ORIGINAL / "text.txt")], [str(tmp_path / "out.tfrecord")], str(ORIGINAL / "vocab.txt")
    settings = {flag: ast.literal_eval(value) for flag, value in flags.items()}
    (found,) = written(RecordOptions(*paths, algorithm="reference", **settings))
    expected = read_records(str(ORIGINAL / f"{name}.tfrecord.gz"), "GZIP")
    assert len(found) == len(expected) > 500
    assert found == expected


def test_files_are_read_as_one_text_and_records_are_written_to_the_outputs_in_turn(
    short_texts, short_options, tmp_path, monkeypatch
):
    """The original also treats several files as one text and writes records to the outputs in turn."""
    monkeypatch.setattr(writer, "_RECORDS_AT_ONCE", 7)
    second = pathlib.Path(short_texts[1])
    write_text(second, f"\ufeff\n{second.read_text()}")  # A line with a byte order mark does not end a document.
    three = written(short_options(output_file=[f"{tmp_path}/{name}.tfrecord" for name in "abc"]))
    whole = write_text(tmp_path / "whole.txt", "".join(pathlib.Path(path).read_text() for path in short_texts))
    (one,) = written(short_options(input_file=[whole], output_file=[f"{tmp_path}/one.tfrecord"]))
    assert len(one) > 30
    assert [one[start::3] for start in range(3)] == three


def test_change_of_the_text_during_the_run_is_detected(short_texts, short_options, monkeypatch):
    read_corpus = documents.read_corpus

    def read_and_change(*arguments):
        corpus = read_corpus(*arguments)
        write_text(pathlib.Path(short_texts[0]), "the cat sat\n")
        return corpus

    monkeypatch.setattr(documents, "read_corpus", read_and_change)
    assert_rejected((short_texts[0], "changed"), one_machine.create_pretraining_data, short_options())


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(short_options, tmp_path, monkeypatch):
    one_machine.create_pretraining_data(short_options())
    (tmp_path / "b.tfrecord").unlink()
    before, error = contents(tmp_path), OSError(28, os.strerror(28))
    monkeypatch.setattr(record_codec, "encode", unittest.mock.Mock(side_effect=error))
    assert_rejected((tmp_path / "b.tfrecord", os.strerror(28)), one_machine.create_pretraining_data, short_options())
    assert contents(tmp_path) == before
