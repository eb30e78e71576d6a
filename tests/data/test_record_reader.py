import gzip
import pathlib
import random

from official_bert.data import record_reader
from official_bert.data.input_pipeline import RecordSource
from tests.data_gen.inspection.record_samples import SCHEMA
from tests.make import assert_rejected, write_text


def test_plain_and_compressed_files_give_the_same_records_and_counts(shards):
    zipped = [write_text(pathlib.Path(f"{path}.gz"), gzip.compress(pathlib.Path(path).read_bytes())) for path in shards]
    for paths in (shards, zipped):
        assert [record_reader.count_records(path) for path in paths] == [7, 8, 9, 10, 11]
        (batch,) = RecordSource(paths, SCHEMA).evaluation_batches(45).as_numpy_iterator()
        assert batch["input_ids"][:, 0].tolist() == [10 * i + k for i in range(5) for k in range(7 + i)]
    assert_rejected((zipped[0], shards[1]), record_reader.get_compression, [zipped[0], shards[1]])


def test_truncation_at_any_byte_is_detected(shards):
    path = pathlib.Path(shards[0])
    content, rng = path.read_bytes(), random.Random(0)
    frame = len(content) // 7
    for _ in range(30):
        number, kept = rng.randrange(7), rng.choice([*range(1, 12), *rng.choices(range(12, frame), k=11)])
        path.write_bytes(content[: frame * number + kept])
        assert_rejected((path, f"record {number}"), record_reader.count_records, str(path))
        assert_rejected((path, f"record {number}"), list, record_reader.read_file(str(path)))


def test_missing_file_is_named():
    assert_rejected("none.tfrecord", list, record_reader.read_file("none.tfrecord"))
