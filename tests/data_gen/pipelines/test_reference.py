"""The reference algorithm gives the original's records."""

import gzip
import json
import pathlib

import pytest
import tensorflow as tf

from data_gen.options import RecordOptions
from data_gen.pipelines import one_machine
from data_gen.rules import masking
from official_bert.errors import UserError
from official_bert.tokenization.exact import load_vocab
from tests.data_gen.samples import short_options
from tests.golden import make_pretraining_records

GOLDEN = json.loads(make_pretraining_records.GOLDEN_FILE.read_text())


def written(options: RecordOptions) -> list[list[dict[str, list[float]]]]:
    """The records of each output file, as plain values."""
    one_machine.create_pretraining_data(options)
    files = []
    for path in options.output_file:
        records = []
        for serialized in tf.data.TFRecordDataset(path).as_numpy_iterator():
            features = tf.train.Example.FromString(serialized).features.feature
            records.append({
                name: list(value.float_list.value or value.int64_list.value) for name, value in features.items()
            })  # fmt: skip
        files.append(records)
    return files


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["name"])
def test_records_equal_those_of_the_original_algorithm(
    case: dict[str, object], short_texts: list[str], vocab_file: str, tmp_path: pathlib.Path
):
    options = short_options(short_texts, vocab_file, tmp_path, **case["options"])
    files = written(options)
    assert [len(records) for records in files] == case["records"]
    assert files[0][0] == case["first"]
    assert [make_pretraining_records.digest(records) for records in files] == case["digests"]


@pytest.mark.parametrize("case", GOLDEN["real"], ids=lambda case: case["name"])
def test_records_of_real_text_equal_those_of_the_original_algorithm(
    case: dict[str, object], test_data: pathlib.Path, tmp_path: pathlib.Path
):
    options = RecordOptions(
        input_file=[str(test_data / "text" / name) for name in case["text"]],
        output_file=[str(tmp_path / "a.tfrecord"), str(tmp_path / "b.tfrecord")],
        vocab_file=str(test_data / "vocab" / case["vocab"]),
        algorithm="reference",
        **case["options"],
    )
    files = written(options)
    assert [len(records) for records in files] == case["records"]
    assert [make_pretraining_records.digest(records) for records in files] == case["digests"]


def test_same_seed_gives_the_same_bytes_and_another_seed_others(
    short_texts: list[str], vocab_file: str, tmp_path: pathlib.Path
):
    contents = []
    for number, seed in enumerate((1, 1, 2)):
        (tmp_path / str(number)).mkdir()
        options = short_options(short_texts, vocab_file, tmp_path / str(number), random_seed=seed)
        one_machine.create_pretraining_data(options)
        contents.append([pathlib.Path(path).read_bytes() for path in options.output_file])
    assert contents[0] == contents[1] != contents[2]


def test_records_are_what_the_schema_says(short_texts: list[str], vocab_file: str, tmp_path: pathlib.Path):
    vocab = load_vocab(vocab_file)
    for record in [
        record for records in written(short_options(short_texts, vocab_file, tmp_path)) for record in records
    ]:
        ids, mask, segments = record["input_ids"], record["input_mask"], record["segment_ids"]
        positions, labels, weights = (record[f"masked_lm_{name}"] for name in ("positions", "ids", "weights"))
        assert len(ids) == len(mask) == len(segments) == 24
        assert len(positions) == len(labels) == len(weights) == 4
        length = sum(mask)
        assert mask == [1] * length + [0] * (24 - length)
        assert ids[length:] == segments[length:] == [0] * (24 - length)
        assert ids[0] == vocab["[CLS]"]
        first_sep = next(i for i in range(length) if ids[i] == vocab["[SEP]"] and i not in positions)
        assert segments[:length] == [0] * (first_sep + 1) + [1] * (length - first_sep - 1)
        assert ids[length - 1] == vocab["[SEP]"]
        count = int(sum(weights))
        assert count == masking.number_to_predict(length, 0.15, 4)
        assert weights == [1.0] * count + [0.0] * (4 - count)
        assert positions[:count] == sorted(set(positions[:count]))
        assert positions[count:] == labels[count:] == [0] * (4 - count)
        assert record["next_sentence_labels"] in ([0], [1])


def test_the_reference_algorithm_names_the_other_one_for_compressed_text(vocab_file: str, tmp_path: pathlib.Path):
    path = tmp_path / "text.txt.gz"
    path.write_bytes(gzip.compress(b"the cat sat\n"))
    with pytest.raises(UserError, match="text.txt.gz is compressed, .* or take --algorithm=fast"):
        one_machine.create_pretraining_data(short_options([str(path)], vocab_file, tmp_path))


def test_bytes_that_are_not_utf8_are_named_or_dropped(vocab_file: str, tmp_path: pathlib.Path):
    path = tmp_path / "latin1.txt"
    path.write_bytes(b"the cat sat\nthe \xe9 dog\nthe sun\n")
    with pytest.raises(UserError, match=r"latin1.txt, line 2: byte 0xe9 at column 5 is not UTF-8"):
        one_machine.create_pretraining_data(short_options([str(path)], vocab_file, tmp_path))
    assert not list(tmp_path.glob("*.tfrecord*"))
    options = short_options([str(path)], vocab_file, tmp_path, drop_invalid_utf8=True)
    summary = one_machine.create_pretraining_data(options)
    assert summary.text_tokens == 3 + 2 + 2
