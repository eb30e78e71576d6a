"""The problems that verify-records reports, and the records it attributes them to."""

import gzip
import hashlib
import json
import pathlib
import random
import re

import pytest

from data_gen.commands import VERIFY_RECORDS
from data_gen.inspection import batches
from data_gen.pipelines import writer
from official_bert.data import manifest
from official_bert.utils import files
from tests import make
from tests.data_gen.inspection import record_samples
from tests.data_gen.inspection.record_samples import LENGTH, MASK, THE, check, good, problems, write
from tests.make import WORDS, assert_mentions, assert_rejected, flip_bits, write_text, write_vocab


def write_manifest(counts: dict[str, int], vocab_file: str, **changes: object) -> str:
    """Writes the manifest `out` for files in one folder, given the number of records in each, and returns its path."""
    flags = {"max_seq_length": LENGTH, "max_predictions_per_seq": record_samples.PREDICTIONS, **changes}
    stem = pathlib.Path(next(iter(counts))).with_name("out")
    make.write_manifest(stem, counts, vocab_file, **flags)
    return f"{stem}.manifest.json"


@pytest.fixture
def shards(tmp_path) -> list[str]:
    """Three files of five valid records."""
    return [write(tmp_path / f"out-{number:05}-of-00003.tfrecord", [good()] * 5) for number in range(3)]


@pytest.fixture
def described(shards, vocab_file) -> str:
    """The manifest of the three files."""
    return write_manifest(dict.fromkeys(shards, 5), vocab_file)


def config_file(folder: pathlib.Path, **changes: int) -> str:
    sizes = {"vocab_size": len(WORDS), "max_position_embeddings": LENGTH, **changes}
    return write_text(folder / "config.json", json.dumps(sizes))


def test_good_files_are_checked_against_everything(described, vocab_file, tmp_path):
    options = {"vocab_file": vocab_file, "bert_config_file": config_file(tmp_path)}
    for chosen in ({"input_file": [str(tmp_path / "*.tfrecord")]}, {"manifest": described}):
        found = check(**chosen, **options)
        assert (found.files, found.records, found.problems, found.notes) == (3, 15, [], [])
        checked = " ".join(found.checked)
        for words in (f"ids below {len(WORDS)}", "[CLS], [SEP]", "sha256", "the vocabulary's", "max_position_emb"):
            assert words in checked


def test_record_with_a_flipped_byte_is_reported(shards, described):
    rng, path = random.Random(0), pathlib.Path(shards[1])
    content = path.read_bytes()
    for offset in [0, len(content) - 1, *(rng.randrange(len(content)) for _ in range(4))]:
        path.write_bytes(content)
        flip_bits(path, offset, 1 << rng.randrange(8))
        (told,) = problems(manifest=described)
        record = f"record {5 * offset // len(content)}"  # all records are equally long
        assert_mentions(told, path, record, "corrupted", "rerun")


def test_a_flipped_byte_of_a_compressed_file_is_found(vocab_file, tmp_path):
    rng, path = random.Random(0), pathlib.Path(write(tmp_path / "0.gz", [good()] * 100))
    write_manifest({str(path): 100}, vocab_file)
    content = path.read_bytes()
    assert problems(input_file=[str(path)]) == []
    for offset in (len(content) // 2, rng.randrange(10, len(content)), len(content) - 1):
        path.write_bytes(content)
        flip_bits(path, offset, 1 << rng.randrange(8))
        assert_mentions(*problems(input_file=[str(path)]), path)
    path.write_bytes(gzip.compress(gzip.decompress(content)[:-1]))
    assert_mentions(*problems(input_file=[str(path)]), path, "record 99", "corrupted")


@pytest.mark.parametrize(("damaged", "lawless", "name"), [(2, 4, "byte"), (4, 2, THE)])
def test_first_of_two_damaged_records_is_reported(damaged, lawless, name, vocab_file, tmp_path, monkeypatch):
    monkeypatch.setattr(batches, "_RECORDS_AT_ONCE", 2)
    instances = [good() for _ in range(6)]
    instances[lawless]["input_ids"][0] = THE
    path = write(tmp_path / "x", instances)
    flip_bits(path, files.size(path) // 6 * damaged + 40)
    paths = [write(tmp_path / "empty", []), path]
    found = check(input_file=paths, vocab_file=vocab_file)
    assert_mentions(*found.problems, path, "record 2", name)
    assert found.records == 2


@pytest.mark.parametrize("name", ["plain", "[ab]*?"])
def test_manifests_are_found_however_the_files_are_spelled(name, vocab_file, tmp_path, monkeypatch):
    (tmp_path / name).mkdir()
    write_manifest({write(tmp_path / name / "a.tfrecord", [good()]): 1}, vocab_file)
    monkeypatch.chdir(tmp_path)
    spelled = [f"{name}//a.tfrecord", f"./{name}/a.tfrecord", f"{tmp_path}/{name}/../{name}/a.tfrecord"]
    assert list(manifest.find_shards(spelled)) == spelled
    for path in spelled:
        assert any("sha256 as in" in told for told in check(input_file=[path]).checked)
    left_over = write(tmp_path / name / "out.tfrecord", [good()])
    (told,) = problems(manifest=f"{tmp_path}/{name}/out.manifest.json")
    assert_mentions(told, left_over)


def test_each_bad_file_is_reported(shards, described):
    paths = list(map(pathlib.Path, shards))
    content = paths[0].read_bytes()
    frame = len(content) // 5
    paths[0].write_bytes(content[:-frame])  # exactly one record is missing, which only the manifest reveals
    paths[1].write_bytes(content[:-10])
    write(paths[2], [good(), good(next_sentence_labels=[0]), *[good()] * 3])
    missing, cut, changed = problems(manifest=described)
    assert_mentions(missing, paths[0], f"{4 * frame:,}", f"{5 * frame:,}")
    assert_mentions(cut, paths[1], "record 4", "byte")
    assert_mentions(changed, paths[2], hashlib.sha256(paths[2].read_bytes()).hexdigest())
    for length in (3 * frame, 6 * frame):
        paths[0].write_bytes((content * 2)[:length])
        assert_rejected((paths[0], f"{length:,}", described, f"{5 * frame:,}"), manifest.find_shards, shards[:1])


def test_missing_and_unlisted_files_are_reported(shards, described, tmp_path):
    left_over = [write(tmp_path / f"out{part}.tfrecord", [good()]) for part in ("", "-00000-of-00009")]
    pathlib.Path(shards[2]).unlink()
    for options in ({"manifest": described}, {"input_file": [f"{tmp_path}//*.tfrecord"]}):
        missing, *unlisted = problems(**options)
        assert_mentions(missing, shards[2], "missing", described)
        for path, problem in zip(sorted(left_over), sorted(unlisted), strict=True):
            assert_mentions(problem, path, "listed")
    for path in tmp_path.glob("*.tfrecord"):
        path.unlink()
    assert len(problems(manifest=described)) == 3


def test_unchecked_files_are_noted(shards, described):
    found = check(input_file=[shards[1]])
    assert found.problems == []
    assert any(f"2 more files of {described}" in note and shards[0] in note for note in found.notes)
    assert_mentions(" ".join(found.notes), "--vocab_file", "--bert_config_file")
    assert not re.search(r"\[CLS\]|vocabulary", " ".join(found.checked))


def test_records_of_two_runs_are_each_checked_by_their_own_manifest(shards, described, vocab_file, tmp_path):
    (tmp_path / "other").mkdir()
    other = write(tmp_path / "other" / "out.tfrecord", [good()] * 2)
    write_manifest({other: 3}, vocab_file)
    found = check(input_file=[*shards, f"{tmp_path}/other/*.tfrecord"])
    assert_mentions(*found.problems, other, 2, 3)
    assert (found.files, found.records, len(found.checked)) == (4, 17, 4)


def test_different_vocabulary_is_reported_and_not_used(shards, described, vocab_file, tmp_path):
    other = write_vocab(tmp_path / "other.txt", WORDS[:5])
    (told,) = problems(input_file=shards, vocab_file=other)
    assert_mentions(told, other, files.sha256(other), files.sha256(vocab_file), described)


def test_a_model_that_cannot_read_the_records_is_reported(shards, vocab_file, tmp_path):
    limits = {"vocab_size": (70, len(WORDS)), "max_position_embeddings": (9, 10), "type_vocab_size": (1, "two")}
    for name, numbers in limits.items():
        config = config_file(tmp_path, **{name: numbers[0]})
        told = problems(input_file=shards, vocab_file=vocab_file, bert_config_file=config)
        assert_mentions(told[0], config, name, *numbers)


def test_ids_are_checked_against_the_model_and_the_vocabulary(shards, vocab_file, tmp_path):
    told = problems(input_file=shards, bert_config_file=config_file(tmp_path, vocab_size=MASK))
    for path, each in zip(shards, told, strict=True):
        assert_mentions(each, path, "record 0", "input_ids", THE, 0, MASK - 1)
    record, config = good(), config_file(tmp_path, vocab_size=len(WORDS) + 1)
    record["input_ids"][1] = len(WORDS)
    (told,) = problems(input_file=[write(tmp_path / "x", [record])], vocab_file=vocab_file, bert_config_file=config)
    assert_mentions(told, "record 0", "input_ids", len(WORDS), 0, len(WORDS) - 1)


def test_lengths_that_differ_from_the_manifest_are_reported(shards, vocab_file, tmp_path):
    described = write_manifest(dict.fromkeys(shards, 5), vocab_file, max_seq_length=12)
    assert_mentions(problems(manifest=described)[0], "record 0", "input_ids", 10, 12)
    described = write_manifest(dict.fromkeys(shards, 5), vocab_file, max_predictions_per_seq=4)
    assert_mentions(problems(manifest=described)[0], "record 0", "masked_lm_positions", 3, 4)
    longer = {name: [*values, 0] if len(values) == LENGTH else values for name, values in good().items()}
    (told,) = problems(input_file=[write(tmp_path / "x", [good(), longer])])
    assert_mentions(told, "record 1", "input_ids", 11, 10)


@pytest.mark.parametrize(("change", "name"), [
    ({"source": []}, "list"),
    ({"source": {"vocabulary": ""}}, "'flags'"),
    ({"source": {"flags": {}}}, "'vocabulary'"),
    ({"shards": [{"file": "a"}]}, "'sha256'"),
    ({"shards": 5}, "'int'"),
])  # fmt: skip
def test_invalid_manifest_is_rejected(change, name, shards, described):
    write_text(pathlib.Path(described), json.dumps({**json.loads(pathlib.Path(described).read_text()), **change}))
    assert_rejected((described, name), manifest.find_shards, shards)
    assert_rejected((described, name), problems, manifest=described)


@pytest.mark.parametrize(("content", "names"), [
    (b"This is text, not records.\n", ["x is text", "TFRecord"]),
    (gzip.compress(b"This is text, not records.\n", mtime=0), ["x is text", "TFRecord"]),
    (b"", ["no records"]),
    (writer.frame_records([b"not a message"]), ["record 0", "tf.train.Example"]),
    (writer.frame_records([record_samples.serialize(good(), ["input_ids"])]), ["input_mask", "input_ids"]),
])  # fmt: skip
def test_files_of_other_formats_and_tasks_are_reported(content, names, tmp_path):
    path = write_text(tmp_path / "x", content)
    assert_mentions(problems(input_file=[path])[0], path, *names)


def test_command_names_the_record_and_ends_with_1(shards, capsys):
    flip_bits(shards[2], -20)
    with pytest.raises(SystemExit, match="1"):
        VERIFY_RECORDS.run([f"--input_file={','.join(shards)}"])
    output = capsys.readouterr()
    assert_mentions(output.err, "error", shards[2], "record 4", "byte")
    assert output.out.splitlines()[-1] == "files 3, records read 14, errors 1"


def test_records_with_a_different_casing_are_reported(shards, tmp_path):
    cased = write_vocab(tmp_path / "cased.txt", [*WORDS, "Anna", "Berlin"])
    write_manifest(dict.fromkeys(shards, 5), cased, do_lower_case=False)
    assert problems(input_file=shards, vocab_file=cased) == []
    described = write_manifest(dict.fromkeys(shards, 5), cased, do_lower_case=True)
    (told,) = problems(input_file=shards, vocab_file=cased)
    assert_mentions(told, cased, "'Anna'", "--do_lower_case=false")
    pathlib.Path(described).unlink()
    found = check(input_file=shards, vocab_file=cased)
    assert found.problems == []
    assert any("'Anna'" in note and "--do_lower_case=false" in note for note in found.notes)


def test_records_without_a_manifest_and_without_capital_letters_may_have_been_lower_cased(tmp_path, monkeypatch):
    monkeypatch.setattr(batches, "_RECORDS_AT_ONCE", 1)
    vocab = write_vocab(tmp_path / "vocab.txt", ["The" if word == "the" else word for word in [*WORDS, "Anna"]])
    lower = good("[CLS] cat [MASK] [SEP] dog [UNK] [SEP]")
    unreadable = {**lower, "next_sentence_labels": [2]}
    for records, is_noted in (([good(), lower], False), ([lower], True), ([unreadable], False)):
        found = check(input_file=[write(tmp_path / "x", records)], vocab_file=vocab)
        assert ("do_lower_case" in "".join(found.notes)) == is_noted
