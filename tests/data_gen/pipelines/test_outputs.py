"""The record files of a run, their manifests, and the refusal to overwrite an input."""

import os
import pathlib
import shutil
import unittest.mock

import pytest

from data_gen.pipelines import outputs
from official_bert.data import manifest
from official_bert.runs.locks import lock_file
from tests.data_gen.inspection.record_samples import check
from tests.data_gen.samples import contents, create_records, make_records
from tests.make import assert_rejected, write_text


def test_concurrent_runs_on_the_same_output_are_rejected(corpus, tmp_path):
    (tmp_path / "other").mkdir()
    several = [str(tmp_path / "other" / "b.tfrecord"), str(tmp_path / "out.tfrecord")]
    for file, changes in (
        ("out.manifest.json", {}),
        ("out.manifest.json", {"num_shards": 1, "algorithm": "reference", "input_format": "sentences"}),
        ("out.tfrecord", {"num_shards": 1, "output_file": several}),
    ):
        with lock_file(str(tmp_path / file), "output_file"):
            assert_rejected(("--output_file", tmp_path / file, "process"), make_records, corpus, tmp_path, **changes)
    assert not contents(tmp_path, "*.tfrecord*")
    assert make_records(corpus, tmp_path)["instances"]
    assert not contents(tmp_path, ".*")


def test_the_number_of_files_is_the_one_nearest_to_the_wanted_size(short_options):
    options = short_options(output_file=["a.tfrecord"], algorithm="fast", shard_size_mb=1)
    sizes = (0.1e6, 1.4e6, 1.6e6, 2.6e6)
    assert [len(outputs.make_shard_names(options, size)) for size in sizes] == [1, 1, 2, 3]


def test_one_output_in_two_spellings_is_refused(short_options, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "b.tfrecord").symlink_to(tmp_path / "a.tfrecord")
    for other in (f"{tmp_path}/./a.tfrecord", f"{tmp_path}/link/a.tfrecord", f"{tmp_path}/b.tfrecord"):
        options = short_options(output_file=[f"{tmp_path}/a.tfrecord", other])
        assert_rejected(("--output_file", tmp_path / "a.tfrecord", other), create_records, options)
    assert not (tmp_path / "a.tfrecord").exists()


INPUT_NAMES = [
    ("a.tfrecord", {}),
    ("a.tfrecord", {"algorithm": "reference"}),
    ("a.manifest.json", {}),
    ("a.work/text.txt", {}),
    ("a-00001-of-00002.tfrecord", {"num_shards": 2}),
    ("a-00001-of-00002.tfrecord", {"shard_size_mb": 1}),
    ("a.tfrecord", {"shard_size_mb": 1}),
]


@pytest.mark.parametrize(("name", "flags"), INPUT_NAMES)
def test_no_output_and_no_working_folder_destroys_an_input(name, flags, short_texts, short_options, tmp_path):
    flags = {"output_file": [str(tmp_path / "a.tfrecord")], "algorithm": "fast", **flags}
    content = "a-text-of-twenty-characters\n"
    text = write_text(tmp_path / name, content)
    inputs = [{"input_file": [short_texts[0], text]}, {"vocab_file": text}]
    inputs.append({"word_boundaries": text, "do_whole_word_mask": True})
    if "json" not in name:
        inputs.append({"exclude_texts": [text]})
    for each in inputs:
        assert_rejected(("--output_file", text, "input"), create_records, short_options(**each, **flags))
    if name.endswith("tfrecord"):
        write_text(tmp_path / "a.work" / "mine" / "options.json", "{}")  # not of make-records
        assert_rejected(("--output_file", text, "replace"), create_records, short_options(**flags))
    assert pathlib.Path(text).read_text() == content
    if "work" not in name:
        pathlib.Path(text).unlink()
        pathlib.Path(text).symlink_to(short_texts[1])
        assert_rejected(("--output_file", text, "input", short_texts[1]), create_records, short_options(**flags))


@pytest.mark.parametrize("algorithm", ["reference", "fast"])
def test_records_in_several_folders_have_a_manifest_in_each(algorithm, short_options, tmp_path, capsys, monkeypatch):
    paths = [str(tmp_path / name) for name in ("one/a.tfrecord", "two/b.tfrecord", "one/c.tfrecord", "two/d.tfrecord")]
    options = short_options(output_file=paths, algorithm=algorithm)
    names = ["a.tfrecord", "two/b.tfrecord", "./c.tfrecord", "two/d.tfrecord"]
    assert manifest.plan_manifests(names, "out") == {"out.manifest.json": [0, 2], "two/b.manifest.json": [1, 3]}
    with monkeypatch.context() as patch:
        patch.setattr(manifest, "write_manifests", unittest.mock.Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            create_records(options)
    first = create_records(options)
    assert not [*tmp_path.glob("*/*.work")]
    described = manifest.find_shards(paths)
    assert [shard.file for _, shard in described.values()] == ["a.tfrecord", "c.tfrecord", "b.tfrecord", "d.tfrecord"]
    assert outputs.describe_outputs(options).startswith(f"records: {', '.join(paths)}\n")
    found = check(input_file=paths)
    assert (found.problems, found.files, found.records) == ([], 4, first["instances"])
    path = pathlib.Path(paths[1])
    whole = path.read_bytes()
    for spoil in (path.exists, path.unlink, lambda: path.write_bytes(whole[:-1]), lambda: shutil.rmtree(path.parent)):
        spoil()
        assert create_records(options) == first
        assert ("already complete" in capsys.readouterr().out) == (spoil == path.exists)
        assert path.read_bytes() == whole
    path.with_name("b.manifest.json").unlink()
    assert_rejected(("--output_file", paths[1], "replace"), create_records, options)


def test_a_different_number_of_shards_does_not_replace_files(short_options, tmp_path):
    folder = tmp_path / "run[1]"  # The names contain special characters of patterns.
    names = ("--output_file", write_text(folder / "a+[b]-00000-of-00003.tf[d]", ""), "replace")
    flags = {"output_file": [write_text(folder / "a+[b].tf[d]", "")], "algorithm": "fast"}
    outputs.check_outputs(short_options(num_shards=2, **flags), [])
    assert_rejected(names, outputs.check_outputs, short_options(num_shards=3, **flags), [])
    write_text(folder / "a+[b].work" / ("0" * 16) / outputs.OPTIONS, "{}")  # an unfinished run
    outputs.check_outputs(short_options(num_shards=3, **flags), [])
    os.mkfifo(tmp_path / "pipe")
    options = short_options(algorithm="fast", output_file=[str(tmp_path / "pipe")])
    assert_rejected((tmp_path / "pipe", "regular"), outputs.check_outputs, options, [])
