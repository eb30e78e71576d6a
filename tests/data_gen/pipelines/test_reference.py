"""The reference algorithm makes the same records as the original."""

import ast
import gzip
import itertools
import pathlib
from collections.abc import Callable

import pytest
import tensorflow as tf

from data_gen.options import RecordOptions
from data_gen.pipelines import one_machine
from data_gen.rules import masking
from official_bert.errors import UserError
from official_bert.tokenization.exact import load_vocab
from tests.conftest import ROOT
from tests.make import write_text

Options = Callable[..., RecordOptions]
ORIGINAL = ROOT / "tests" / "golden" / "original" / "records"
FLAGS = dict(line.split(" ", 1) for line in (ORIGINAL / "flags.txt").read_text().splitlines())


def read_records(path: str, compression: str = "") -> list[dict[str, list[float]]]:
    """Reads the records of a file as plain values."""
    records = []
    for serialized in tf.data.TFRecordDataset(path, compression).as_numpy_iterator():
        features = tf.train.Example.FromString(serialized).features.feature
        records.append({
            name: list(value.float_list.value or value.int64_list.value) for name, value in features.items()
        })  # fmt: skip
    return records


def written(options: RecordOptions) -> list[list[dict[str, list[float]]]]:
    """Returns the records of each output file."""
    one_machine.create_pretraining_data(options)
    return list(map(read_records, options.output_file))


@pytest.mark.parametrize("name", FLAGS)
def test_records_equal_those_of_the_original(name: str, tmp_path: pathlib.Path):
    settings = (flag.removeprefix("--").split("=") for flag in FLAGS[name].split())
    options = RecordOptions(
        input_file=[str(ORIGINAL / "text.txt")], output_file=[str(tmp_path / "out.tfrecord")],
        vocab_file=str(ORIGINAL / "vocab.txt"), algorithm="reference",
        **{setting: ast.literal_eval(value) for setting, value in settings},
    )  # fmt: skip
    (found,) = written(options)
    expected = read_records(str(ORIGINAL / f"{name}.tfrecord.gz"), "GZIP")
    assert len(found) == len(expected) > 500
    assert found == expected


def test_files_are_read_as_one_text_and_records_are_written_to_the_outputs_in_turn(
    short_texts: list[str], short_options: Options, tmp_path: pathlib.Path
):
    """The original also treats several files as one text and writes records to the outputs in turn."""
    two = written(short_options())
    whole = write_text(tmp_path / "whole.txt", "".join(pathlib.Path(path).read_text() for path in short_texts))
    (one,) = written(short_options(input_file=[whole], output_file=[f"{tmp_path}/one.tfrecord"]))
    assert (one[::2], one[1::2]) == (two[0], two[1])


def test_same_seed_gives_the_same_bytes_and_another_seed_others(short_options: Options, tmp_path: pathlib.Path):
    contents = []
    for number, seed in enumerate((1, 1, 2)):
        outputs = [str(tmp_path / f"{number}{name}.tfrecord") for name in "ab"]
        one_machine.create_pretraining_data(short_options(output_file=outputs, random_seed=seed))
        contents.append([pathlib.Path(path).read_bytes() for path in outputs])
    assert contents[0] == contents[1] != contents[2]


def test_records_are_what_the_schema_says(vocab_file: str, short_options: Options):
    vocab = load_vocab(vocab_file)
    for record in itertools.chain(*written(short_options())):
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


def test_reference_algorithm_recommends_fast_for_compressed_text(short_options: Options, tmp_path: pathlib.Path):
    path = write_text(tmp_path / "text.txt.gz", gzip.compress(b"the cat sat\n"))
    with pytest.raises(UserError, match="text.txt.gz is compressed, .* or pass --algorithm=fast"):
        one_machine.create_pretraining_data(short_options(input_file=[path]))


def test_bytes_that_are_not_utf8_are_named_or_dropped(short_options: Options, tmp_path: pathlib.Path):
    paths = [write_text(tmp_path / "latin1.txt", b"the cat sat\nthe \xe9 dog\nthe sun\n")]
    with pytest.raises(UserError, match=r"latin1.txt, line 2: byte 0xe9 at column 5 is not UTF-8"):
        one_machine.create_pretraining_data(short_options(input_file=paths))
    assert not list(tmp_path.glob("*.tfrecord*"))
    summary = one_machine.create_pretraining_data(short_options(input_file=paths, drop_invalid_utf8=True))
    assert summary.text_tokens == 3 + 2 + 2
