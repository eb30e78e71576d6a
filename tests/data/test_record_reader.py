import gzip
import pathlib
import random

import pytest

from official_bert.data import record_reader
from official_bert.data.input_pipeline import evaluation_batches, training_batches
from official_bert.errors import UserError
from tests.data.record_samples import ALL, SCHEMA, first_ids
from tests.make import assert_refused, write_text


def test_records_are_counted_without_reading_them(shards: list[str]):
    assert [record_reader.count_records(path) for path in shards] == [7, 8, 9, 10, 11]


def test_compressed_files_are_read_alike(shards: list[str]):
    zipped = [write_text(pathlib.Path(f"{path}.gz"), gzip.compress(pathlib.Path(path).read_bytes())) for path in shards]
    assert [record_reader.count_records(path) for path in zipped] == [
        record_reader.count_records(path) for path in shards
    ]
    for batches in (training_batches(zipped, 5, SCHEMA, 1), evaluation_batches(zipped, 5, SCHEMA)):
        assert sorted(number for batch in first_ids(batches, 9) for number in batch) == ALL
    with pytest.raises(UserError, match="0.tfrecord.gz is compressed.*1.tfrecord is not"):
        record_reader.get_compression([zipped[0], shards[1]])


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
        assert_refused(r"ends within record \d \(from 0\)", record_reader.count_records, str(path))
        assert_refused("is corrupted", list, record_reader.read_file(str(path)))


def test_missing_file_is_named():
    assert_refused(r"there is no file none.tfrecord", list, record_reader.read_file("none.tfrecord"))
