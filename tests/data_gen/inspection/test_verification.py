"""The problems that verify-records reports, and the records it attributes them to."""

import gzip
import hashlib
import json
import pathlib
import random

import pytest

from data_gen.commands import VERIFY_RECORDS
from data_gen.inspection.verification import verify
from data_gen.options import RecordOptions, VerificationOptions
from data_gen.pipelines import outputs, writer
from official_bert.data import manifest
from official_bert.utils import files
from tests import make
from tests.conftest import WORDS
from tests.data_gen.inspection.record_samples import CAT, LENGTH, MASK, PREDICTIONS, THE, UNK, good, problems, write
from tests.make import assert_refused, flip_bits, write_text, write_vocab


def write_manifest(counts: dict[str, int], vocab_file: str, **changes: object) -> str:
    """Writes the manifest `out` for files in one folder, given the number of records in each, and returns its path."""
    flags = {"max_seq_length": LENGTH, "max_predictions_per_seq": PREDICTIONS, **changes}
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
        found = verify(VerificationOptions(**chosen, **options))
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
        assert f"{path}: record {5 * offset // len(content)} (from 0)" in told  # all records are equally long
        assert "is corrupted" in told


@pytest.mark.slow
def test_a_flipped_byte_of_a_compressed_file_is_found(vocab_file, tmp_path):
    rng, varied = random.Random(0), [good() for _ in range(300)]
    for instance in varied:
        instance["input_ids"][1] = rng.randrange(UNK + 10, len(WORDS))
    path = pathlib.Path(write(tmp_path / "0.gz", varied))
    write_manifest({str(path): 300}, vocab_file)
    content = path.read_bytes()
    assert problems(input_file=[str(path)]) == []
    for offset in [len(content) // 2, *(rng.randrange(10, len(content)) for _ in range(10))]:
        path.write_bytes(content)
        flip_bits(path, offset, 1 << rng.randrange(8))
        (told,) = problems(input_file=[str(path)])
        assert str(path) in told
    path.write_bytes(gzip.compress(gzip.decompress(content)[:-1]))
    assert "record 299 (from 0) or one after it is corrupted" in problems(input_file=[str(path)])[0]


@pytest.mark.parametrize(("damaged", "lawless", "words"), [(2, 4, ", near byte"), (4, 2, ": the first id is")])
def test_first_of_two_damaged_records_is_reported(damaged, lawless, words, vocab_file, tmp_path):
    instances = [good() for _ in range(6)]
    instances[lawless]["input_ids"][0] = THE
    path = write(tmp_path / "x", instances)
    flip_bits(path, files.size(path) // 6 * damaged + 40)
    (told,) = problems(input_file=[path], vocab_file=vocab_file)
    assert f"record 2 (from 0){words}" in told


def test_removed_damaged_file_is_written_again(shards, described, tmp_path):
    flip_bits(shards[1], -20)
    (told,) = problems(manifest=described)
    assert "remove it and rerun the command" in told
    options = RecordOptions(input_file=[], output_file=[str(tmp_path / "out.tfrecord")], vocab_file="")
    source = manifest.Manifest.read(described).source
    assert outputs.read_completed(options, source) is not None
    pathlib.Path(shards[1]).unlink()
    assert outputs.read_completed(options, source) is None


@pytest.mark.parametrize("name", ["plain", "[ab]*?"])
def test_manifests_are_found_however_the_files_are_spelled(name, vocab_file, tmp_path, monkeypatch):
    (tmp_path / name).mkdir()
    write_manifest({write(tmp_path / name / "a.tfrecord", [good()]): 1}, vocab_file)
    monkeypatch.chdir(tmp_path)
    spelled = [f"{name}//a.tfrecord", f"./{name}/a.tfrecord", f"{tmp_path}/{name}/../{name}/a.tfrecord"]
    assert list(manifest.find_shards(spelled)) == spelled
    for path in spelled:
        assert any("sha256 as in" in told for told in verify(VerificationOptions(input_file=[path])).checked)


def test_each_bad_file_is_reported(shards, described):
    paths = list(map(pathlib.Path, shards))
    content = paths[0].read_bytes()
    frame = len(content) // 5
    paths[0].write_bytes(content[:-frame])  # exactly one record is missing, which only the manifest reveals
    paths[1].write_bytes(content[:-10])
    write(paths[2], [good(), good(next_sentence_labels=[0]), *[good()] * 3])
    missing, cut, changed = problems(manifest=described)
    assert f"{paths[0]} has {4 * frame:,} bytes; expected {5 * frame:,} by its manifest" in missing
    assert f"{paths[1]}: record 4 (from 0), near byte" in cut
    assert f"{paths[2]}: all records are valid, but the file differs from its manifest" in changed
    assert hashlib.sha256(paths[2].read_bytes()).hexdigest() in changed
    for length in (3 * frame, 6 * frame):
        paths[0].write_bytes((content * 2)[:length])
        message = rf"{paths[0]} has {length:,} bytes, but its manifest {described} lists {5 * frame:,}"
        assert_refused(message, manifest.find_shards, shards[:1])


def test_missing_and_unlisted_files_are_reported(shards, described, tmp_path):
    left_over = write(tmp_path / "out-00000-of-00009.tfrecord", [good()])
    pathlib.Path(shards[2]).unlink()
    for options in ({"manifest": described}, {"input_file": [f"{tmp_path}//*.tfrecord"]}):
        missing, unlisted = problems(**options)
        assert missing.startswith(f"{shards[2]} is missing")
        assert unlisted.startswith(f"{left_over} is not listed in")


def test_unchecked_files_are_noted(shards, described):
    findings = verify(VerificationOptions(input_file=[shards[1]]))
    assert findings.problems == []
    assert any(f"2 more files of {described}" in note and shards[0] in note for note in findings.notes)


def test_records_of_two_runs_are_each_checked_by_their_own_manifest(shards, described, vocab_file, tmp_path):
    (tmp_path / "other").mkdir()
    other = write(tmp_path / "other" / "out.tfrecord", [good()] * 2)
    write_manifest({other: 3}, vocab_file)
    told = problems(input_file=[*shards, str(tmp_path / "other" / "*.tfrecord")])
    assert told == [f"{other} has 2 records; expected 3 by its manifest"]


def test_different_vocabulary_is_reported_and_not_used(shards, described, vocab_file, tmp_path):
    other = write_vocab(tmp_path / "other.txt", WORDS[:5])
    (told,) = problems(input_file=shards, vocab_file=other)
    assert f"{other} is not the vocabulary that the records were made with" in told
    assert files.sha256(vocab_file) in told


@pytest.mark.parametrize(("changes", "words"), [
    ({"vocab_size": CAT}, f"has {len(WORDS)} tokens, but"),
    ({"max_position_embeddings": LENGTH - 1}, "the records have 10 positions, but"),
    ({"type_vocab_size": 1}, "has type_vocab_size 1"),
])  # fmt: skip
def test_a_model_that_cannot_read_the_records_is_reported(changes, words, shards, vocab_file, tmp_path):
    told = problems(input_file=shards, vocab_file=vocab_file, bert_config_file=config_file(tmp_path, **changes))
    assert words in told[0]


def test_without_a_vocabulary_ids_are_checked_against_the_model(shards, tmp_path):
    told = problems(input_file=shards, bert_config_file=config_file(tmp_path, vocab_size=MASK))
    assert len(told) == 3
    assert all(f"record 0 (from 0): input_ids contains {THE}; expected 0 to {MASK - 1}" in each for each in told)


def test_lengths_that_differ_from_the_manifest_are_reported(shards, vocab_file, tmp_path):
    described = write_manifest(dict.fromkeys(shards, 5), vocab_file, max_seq_length=12)
    assert "record 0 (from 0): input_ids has 10 values; expected 12" in problems(manifest=described)[0]
    longer = {name: [*values, 0] if len(values) == LENGTH else values for name, values in good().items()}
    (told,) = problems(input_file=[write(tmp_path / "x", [good(), longer])])
    assert "record 1 (from 0): input_ids has 11 values; expected 10" in told


@pytest.mark.parametrize(("change", "words"), [
    ({"source": []}, "list indices must be integers"),
    ({"source": {"vocabulary": ""}}, "it has no 'flags'"),
    ({"source": {"flags": {}}}, "it has no 'vocabulary'"),
    ({"shards": [{"file": "a"}]}, "missing 3 required positional arguments"),
    ({"shards": 5}, "not iterable"),
])  # fmt: skip
def test_invalid_manifest_is_rejected(change, words, shards, described):
    write_text(pathlib.Path(described), json.dumps({**json.loads(pathlib.Path(described).read_text()), **change}))
    message = f"out.manifest.json is not a manifest of records, or is corrupted: .*{words}"
    assert_refused(message, manifest.find_shards, shards)
    assert_refused(message, problems, manifest=described)


@pytest.mark.parametrize(("content", "words"), [
    (b"This is text, not records.\n", "x is text, not a TFRecord file"),
    (b"", "no records in"),
    (writer.frame_records([b"not a message"]), "record 0 (from 0): it is not a tf.train.Example"),
])  # fmt: skip
def test_files_of_other_formats_are_reported(content, words, tmp_path):
    assert words in problems(input_file=[write_text(tmp_path / "x", content)])[0]


def test_records_of_another_task_are_reported(tmp_path):
    path = write(tmp_path / "task", [good()], ["input_ids", "input_mask"])
    assert "no feature segment_ids (its features: input_ids, input_mask" in problems(input_file=[path])[0]


@pytest.mark.parametrize("options", [{}, {"input_file": ["x"], "manifest": "y"}])
def test_files_and_manifest_exclude_each_other(options):
    assert_refused("pass either --input_file", VerificationOptions, **options)


def test_command_names_the_record_and_ends_with_1(shards, capsys):
    flip_bits(shards[2], -20)
    with pytest.raises(SystemExit, match="1"):
        VERIFY_RECORDS.run([f"--input_file={','.join(shards)}"])
    output = capsys.readouterr()
    assert f"\nerror: {shards[2]}: record 4 (from 0), near byte" in f"\n{output.err}"
    assert output.out.splitlines()[-1] == "files 3, records read 14, errors 1"


def test_records_with_a_different_casing_are_reported(shards, tmp_path):
    cased = write_vocab(tmp_path / "cased.txt", [*WORDS, "Anna", "Berlin"])
    write_manifest(dict.fromkeys(shards, 5), cased, do_lower_case=False)
    assert problems(input_file=shards, vocab_file=cased) == []
    described = write_manifest(dict.fromkeys(shards, 5), cased, do_lower_case=True)
    (told,) = problems(input_file=shards, vocab_file=cased)
    assert all(part in told for part in ("cased.txt", "'Anna'", "--do_lower_case=false")), told
    pathlib.Path(described).unlink()
    found = verify(VerificationOptions(input_file=shards, vocab_file=cased))
    assert found.problems == []
    assert any("'Anna'" in note and "--do_lower_case=false" in note for note in found.notes)
    capital = write_vocab(tmp_path / "capital.txt", ["The" if word == "the" else word for word in WORDS])
    found = verify(VerificationOptions(input_file=shards, vocab_file=capital))
    assert "do_lower_case" not in "".join(found.notes)
