"""The problems that verify-records reports, and the records it attributes them to."""

import gzip
import hashlib
import json
import pathlib
import random
import re
import struct

import pytest

from data_gen.inspection.verification import verify
from data_gen.options import RecordOptions, VerificationOptions
from data_gen.pipelines import outputs, writer
from official_bert.data import manifest
from official_bert.errors import UserError
from official_bert.utils import files
from tests.conftest import WORDS
from tests.data_gen.inspection.record_samples import CAT, LENGTH, MASK, PREDICTIONS, THE, UNK, good, problems, write
from tests.make import flip_bits, refusal, run_python, write_text, write_vocab


def described(folder: pathlib.Path, names: list[str], vocab_file: str, *counts: int, **changes: object) -> None:
    """Writes the manifest of the files, given the number of records in each."""
    shards = [
        manifest.Shard(name, count, files.size(str(folder / name)), files.sha256(str(folder / name)))
        for name, count in zip(names, counts, strict=True)
    ]
    flags = {"max_seq_length": LENGTH, "max_predictions_per_seq": PREDICTIONS, **changes}
    contents = manifest.Manifest({"flags": flags, "vocabulary": files.sha256(vocab_file)}, shards, {})
    manifest.write_manifests([str(folder / name) for name in names], str(folder / "out"), contents)


@pytest.fixture
def shards(tmp_path: pathlib.Path, vocab_file: str) -> list[str]:
    """Three files of five valid records, and their manifest."""
    names = [f"out-{number:05}-of-00003.tfrecord" for number in range(3)]
    paths = [write(tmp_path / name, [good()] * 5) for name in names]
    described(tmp_path, names, vocab_file, 5, 5, 5)
    return paths


def config_file(folder: pathlib.Path, **changes: int) -> str:
    sizes = {"vocab_size": len(WORDS), "max_position_embeddings": LENGTH, **changes}
    return write_text(folder / "config.json", json.dumps(sizes))


def test_good_files_are_checked_against_everything(shards: list[str], vocab_file: str, tmp_path: pathlib.Path):
    options = {"vocab_file": vocab_file, "bert_config_file": config_file(tmp_path)}
    for chosen in ({"input_file": [str(tmp_path / "*.tfrecord")]}, {"manifest": str(tmp_path / "out.manifest.json")}):
        found = verify(VerificationOptions(**chosen, **options))
        assert (found.files, found.records, found.problems, found.notes) == (3, 15, [], [])
        told = " ".join(found.checked)
        assert f"ids below {len(WORDS)}" in told
        for words in ("[CLS], [SEP] and the pieces", "sha256", "the vocabulary's", "max_position_emb"):
            assert words in told


def find_record_index(content: bytes, offset: int) -> int:
    """Returns the index of the record whose frame contains the byte at the offset."""
    number = start = 0
    while True:
        start += 16 + struct.unpack("<Q", content[start : start + 8])[0]
        if offset < start:
            return number
        number += 1


def test_record_with_a_flipped_byte_is_reported(shards: list[str], tmp_path: pathlib.Path):
    rng = random.Random(0)
    path = pathlib.Path(shards[1])
    content = path.read_bytes()
    for offset in [0, len(content) - 1, *(rng.randrange(len(content)) for _ in range(12))]:
        path.write_bytes(content)
        flip_bits(path, offset, 1 << rng.randrange(8))
        (told,) = problems(manifest=str(tmp_path / "out.manifest.json"))
        assert f"{path}: record {find_record_index(content, offset)} (from 0)" in told
        assert "is corrupted" in told


@pytest.mark.slow
def test_a_flipped_byte_of_a_compressed_file_is_found(vocab_file: str, tmp_path: pathlib.Path):
    varied = [good() for _ in range(300)]
    rng = random.Random(0)
    for instance in varied:
        instance["input_ids"][1] = rng.randrange(UNK + 10, len(WORDS))
    path = pathlib.Path(write(tmp_path / "0.gz", varied))
    described(tmp_path, ["0.gz"], vocab_file, 300)
    content = path.read_bytes()
    assert problems(input_file=[str(path)]) == []
    for offset in [len(content) // 2, *(rng.randrange(10, len(content)) for _ in range(10))]:
        path.write_bytes(content)
        flip_bits(path, offset, 1 << rng.randrange(8))
        (told,) = problems(input_file=[str(path)])
        assert str(path) in told
    path.write_bytes(gzip.compress(gzip.decompress(content)[:-1]))
    assert "record 299 (from 0) or one after it is corrupted" in problems(input_file=[str(path)])[0]


@pytest.mark.parametrize(("damaged", "lawless", "words"), [
    (2, 4, "record 2 (from 0), near byte"),
    (4, 2, "record 2 (from 0): the first id is"),
])  # fmt: skip
def test_first_of_two_damaged_records_is_reported(
    damaged: int, lawless: int, words: str, vocab_file: str, tmp_path: pathlib.Path
):
    instances = [good() for _ in range(6)]
    instances[lawless]["input_ids"][0] = THE
    path = write(tmp_path / "x", instances)
    content = pathlib.Path(path).read_bytes()
    flip_bits(path, 40 + next(at for at in range(len(content)) if find_record_index(content, at) == damaged))
    (told,) = problems(input_file=[path], vocab_file=vocab_file)
    assert words in told


def test_removed_damaged_file_is_written_again(shards: list[str], tmp_path: pathlib.Path):
    flip_bits(shards[1], -20)
    path = str(tmp_path / "out.manifest.json")
    source = manifest.Manifest.read(path).source
    (told,) = problems(manifest=path)
    assert told.endswith("remove it and rerun the command that made it, or restore it from a copy")
    options = RecordOptions(input_file=[], output_file=[str(tmp_path / "out.tfrecord")], vocab_file="")
    assert outputs.read_completed(options, source) is not None
    pathlib.Path(shards[1]).unlink()
    assert outputs.read_completed(options, source) is None


@pytest.mark.parametrize("name", ["plain", "[ab]*?"])
def test_manifests_are_found_however_the_files_are_spelled(
    name: str, vocab_file: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    folder = tmp_path / name
    folder.mkdir()
    write(folder / "a.tfrecord", [good()])
    described(folder, ["a.tfrecord"], vocab_file, 1)
    monkeypatch.chdir(tmp_path)
    spelled = [f"{name}//a.tfrecord", f"./{name}/a.tfrecord", f"{folder}/../{name}/a.tfrecord"]
    assert list(manifest.find_shards(spelled)) == spelled
    for path in spelled:
        assert any("sha256 as in" in told for told in verify(VerificationOptions(input_file=[path])).checked)


def test_each_bad_file_is_reported(shards: list[str], tmp_path: pathlib.Path):
    paths = list(map(pathlib.Path, shards))
    content = [path.read_bytes() for path in paths]
    frame = len(content[0]) // 5
    paths[0].write_bytes(content[0][:-frame])  # exactly one record is missing, which only the manifest reveals
    paths[1].write_bytes(content[1][:-10])
    other = {**good(), "next_sentence_labels": [0]}
    write(paths[2], [good(), other, *[good()] * 3])
    told = problems(manifest=str(tmp_path / "out.manifest.json"))
    assert len(told) == 3
    assert f"{paths[0]} has {4 * frame:,} bytes; expected {5 * frame:,} by its manifest" in told[0]
    assert f"{paths[1]}: record 4 (from 0), near byte" in told[1]
    assert f"{paths[2]}: all records are valid, but the file differs from its manifest" in told[2]
    assert hashlib.sha256(paths[2].read_bytes()).hexdigest() in told[2]


def test_missing_and_unlisted_files_are_reported(shards: list[str], tmp_path: pathlib.Path):
    left_over = write(tmp_path / "out-00000-of-00009.tfrecord", [good()])
    pathlib.Path(shards[2]).unlink()
    for options in ({"manifest": str(tmp_path / "out.manifest.json")}, {"input_file": [f"{tmp_path}//*.tfrecord"]}):
        told = problems(**options)
        assert len(told) == 2
        assert told[0].startswith(f"{shards[2]} is missing")
        assert told[1].startswith(f"{left_over} is not listed in")


def test_unchecked_files_are_noted(shards: list[str]):
    findings = verify(VerificationOptions(input_file=[shards[1]]))
    assert findings.problems == []
    assert any(f"2 more files of {shards[1][:-24]}" in note and note.endswith(shards[0]) for note in findings.notes)


def test_records_of_two_runs_are_each_checked_by_their_own_manifest(
    shards: list[str], vocab_file: str, tmp_path: pathlib.Path
):
    (tmp_path / "other").mkdir()
    write(tmp_path / "other" / "out.tfrecord", [good()] * 2)
    described(tmp_path / "other", ["out.tfrecord"], vocab_file, 3)
    (told,) = problems(input_file=[*shards, str(tmp_path / "other" / "*.tfrecord")])
    assert told == f"{tmp_path}/other/out.tfrecord has 2 records; expected 3 by its manifest"


def test_different_vocabulary_is_reported_and_not_used(shards: list[str], vocab_file: str, tmp_path: pathlib.Path):
    other = write_vocab(tmp_path / "other.txt", WORDS[:5])
    (told,) = problems(input_file=shards, vocab_file=other)
    assert f"{other} is not the vocabulary that the records were made with" in told
    assert files.sha256(vocab_file) in told


@pytest.mark.parametrize(("changes", "words"), [
    ({"vocab_size": CAT}, f"has {len(WORDS)} tokens, but"),
    ({"max_position_embeddings": LENGTH - 1}, "the records have 10 positions, but"),
    ({"type_vocab_size": 1}, "has type_vocab_size 1"),
])  # fmt: skip
def test_a_model_that_cannot_read_the_records_is_reported(
    changes: dict[str, int], words: str, shards: list[str], vocab_file: str, tmp_path: pathlib.Path
):
    told = problems(input_file=shards, vocab_file=vocab_file, bert_config_file=config_file(tmp_path, **changes))
    assert words in told[0]


def test_without_a_vocabulary_ids_are_checked_against_the_model(shards: list[str], tmp_path: pathlib.Path):
    told = problems(input_file=shards, bert_config_file=config_file(tmp_path, vocab_size=MASK))
    assert len(told) == 3
    assert all(f"record 0 (from 0): input_ids contains {THE}; expected 0 to {MASK - 1}" in each for each in told)


def test_lengths_that_differ_from_the_manifest_are_reported(shards: list[str], tmp_path: pathlib.Path):
    path = tmp_path / "out.manifest.json"
    values = json.loads(path.read_text())
    values["source"]["flags"]["max_seq_length"] = 12
    path.write_text(json.dumps(values))
    assert "record 0 (from 0): input_ids has 10 values; expected 12" in problems(manifest=str(path))[0]
    del values["source"]["flags"]
    path.write_text(json.dumps(values))
    assert "it has no 'flags'" in refusal(problems, manifest=str(path))


@pytest.mark.parametrize(("change", "words"), [
    ({"source": []}, "list indices must be integers"),
    ({"source": {"flags": {}}}, "it has no 'vocabulary'"),
    ({"shards": [{"file": "a"}]}, "missing 3 required positional arguments"),
    ({"shards": 5}, "not iterable"),
])  # fmt: skip
def test_invalid_manifest_is_rejected(change: dict[str, object], words: str, shards: list[str], tmp_path: pathlib.Path):
    path = tmp_path / "out.manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    for told in (refusal(manifest.find_shards, shards), refusal(problems, manifest=str(path))):
        assert re.search(f"out.manifest.json is not a manifest of records, or is corrupted: .*{words}", told)


def test_records_of_different_lengths_are_reported(tmp_path: pathlib.Path):
    longer = {name: [*values, 0] if len(values) == LENGTH else values for name, values in good().items()}
    (told,) = problems(input_file=[write(tmp_path / "x", [good(), longer])])
    assert "record 1 (from 0): input_ids has 11 values; expected 10" in told


def test_files_of_other_formats_are_reported(tmp_path: pathlib.Path):
    text, empty = write_text(tmp_path / "text", "This is text, not records.\n"), write_text(tmp_path / "empty", "")
    assert f"{text} is text, not a TFRecord file; official-bert make-records" in problems(input_file=[text])[0]
    assert "no records in" in problems(input_file=[empty])[0]
    with writer.open_shard(str(tmp_path / "other"), gzip=False) as shard:
        shard.write(writer.frame_records([b"not a message"]))
    assert "record 0 (from 0): it is not a tf.train.Example" in problems(input_file=[str(tmp_path / "other")])[0]
    path = write(tmp_path / "task", [good()], ["input_ids", "input_mask"])
    assert "no feature segment_ids (its features: input_ids, input_mask" in problems(input_file=[path])[0]


@pytest.mark.parametrize("options", [{}, {"input_file": ["x"], "manifest": "y"}])
def test_files_and_manifest_exclude_each_other(options: dict[str, object]):
    with pytest.raises(UserError, match="pass either --input_file"):
        VerificationOptions(**options)  # type: ignore[arg-type]


def test_command_names_the_record_and_ends_with_1(shards: list[str]):
    flip_bits(shards[2], -20)
    done = run_python("-m", "official_bert_cli", "verify-records", f"--input_file={','.join(shards)}")
    assert done.returncode == 1
    assert f"\nerror: {shards[2]}: record 4 (from 0), near byte" in f"\n{done.stderr}"
    assert done.stdout.splitlines()[-1] == "files 3, records read 14, errors 1"


def test_records_with_a_different_casing_are_reported(shards: list[str], tmp_path: pathlib.Path):
    cased = write_vocab(tmp_path / "cased.txt", [*WORDS, "Anna", "Berlin"])
    names = [pathlib.Path(path).name for path in shards]
    described(tmp_path, names, cased, 5, 5, 5, do_lower_case=False)
    assert problems(input_file=shards, vocab_file=cased) == []
    described(tmp_path, names, cased, 5, 5, 5, do_lower_case=True)
    (told,) = problems(input_file=shards, vocab_file=cased)
    assert all(part in told for part in ("cased.txt", "'Anna'", "--do_lower_case=false")), told
    (tmp_path / "out.manifest.json").unlink()
    found = verify(VerificationOptions(input_file=shards, vocab_file=cased))
    assert found.problems == []
    assert any("'Anna'" in note and "--do_lower_case=false" in note for note in found.notes)
    capital = write_vocab(tmp_path / "capital.txt", ["The" if word == "the" else word for word in WORDS])
    found = verify(VerificationOptions(input_file=shards, vocab_file=capital))
    assert "do_lower_case" not in "".join(found.notes)
