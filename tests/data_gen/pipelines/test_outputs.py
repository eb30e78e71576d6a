"""The record files of a run, their manifests, and the refusal to overwrite an input."""

import pathlib
import re
from collections.abc import Callable

import pytest

from data_gen.inspection import verification
from data_gen.options import RecordOptions, VerificationOptions
from data_gen.pipelines.one_machine import create_pretraining_data
from official_bert.data import manifest
from official_bert.errors import UserError
from official_bert.runs.locks import lock_file
from tests.data_gen.samples import Corpus, make_records
from tests.make import refusal

Options = Callable[..., RecordOptions]


def test_concurrent_runs_on_the_same_output_are_rejected(corpus: Corpus, tmp_path: pathlib.Path):
    several = [str(tmp_path / "other" / "b.tfrecord"), str(tmp_path / "out.tfrecord")]
    (tmp_path / "other").mkdir()
    with lock_file(str(tmp_path / "out.manifest.json"), "output_file"):
        for changes in ({}, {"num_shards": 1, "algorithm": "reference", "input_format": "sentences"}):
            assert "out.manifest.json is in use" in refusal(make_records, corpus, tmp_path, **changes)
    with lock_file(str(tmp_path / "out.tfrecord"), "output_file"):
        told = refusal(make_records, corpus, tmp_path, num_shards=1, output_file=several)
        assert re.search("--output_file: .*out.tfrecord is in use", told)
    assert not list(tmp_path.glob("*.tfrecord*"))
    assert make_records(corpus, tmp_path).instances
    assert not list(tmp_path.glob(".*"))


def test_an_input_is_never_overwritten(short_texts: list[str], vocab_file: str, short_options: Options):
    for path in (short_texts[0], vocab_file):
        told = refusal(create_pretraining_data, short_options(output_file=[path]))
        assert f"--output_file would write {path}, which is an input" in told


def test_one_output_in_two_spellings_is_refused(short_options: Options, tmp_path: pathlib.Path):
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "b.tfrecord").symlink_to(tmp_path / "a.tfrecord")
    for other in (f"{tmp_path}/./a.tfrecord", f"{tmp_path}/link/a.tfrecord", f"{tmp_path}/b.tfrecord"):
        told = refusal(create_pretraining_data, short_options(output_file=[f"{tmp_path}/a.tfrecord", other]))
        assert f"--output_file contains the same file twice: {tmp_path}/a.tfrecord and {other}" in told
    assert not (tmp_path / "a.tfrecord").exists()


@pytest.mark.parametrize("flags", [{"num_shards": 2}, {"shard_size_mb": 1}])
def test_an_input_with_the_name_of_a_shard_is_never_overwritten(
    flags: dict[str, int], short_texts: list[str], short_options: Options, tmp_path: pathlib.Path
):
    shard = tmp_path / "text-00001-of-00002.txt"
    inputs = [short_texts[0], str(shard)]
    flags = {"algorithm": "fast", "output_file": [str(tmp_path / "text.txt")], **flags}
    for make in (lambda: shard.write_text("the cat\n"), lambda: (shard.unlink(), shard.symlink_to(short_texts[1]))):
        make()
        for each in (inputs, [short_texts[1], str(shard)], short_texts):
            if each is short_texts and not shard.is_symlink():
                continue  # here the shard is not an input
            told = refusal(create_pretraining_data, short_options(input_file=each, **flags))
            assert f"would write {shard}, which is an input" in told
    assert shard.read_text() == pathlib.Path(short_texts[1]).read_text()


def test_manifest_and_working_folder_never_destroy_an_input(short_options: Options, tmp_path: pathlib.Path):
    for name in ("a.manifest.json", "a.work/text.txt"):
        text = tmp_path / name
        text.parent.mkdir(exist_ok=True)
        text.write_text("the cat sat\n")
        with pytest.raises(UserError, match=r"which is an input|is in the working folder"):
            create_pretraining_data(short_options(input_file=[str(text)], algorithm="fast"))
        assert text.read_text() == "the cat sat\n"


@pytest.mark.parametrize("algorithm", ["reference", "fast"])
def test_records_in_several_folders_have_a_manifest_in_each(
    algorithm: str, short_options: Options, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
    outputs = [str(tmp_path / name) for name in ("one/a.tfrecord", "two/b.tfrecord", "one/c.tfrecord")]
    options = short_options(output_file=outputs, algorithm=algorithm, num_workers=1)
    first = create_pretraining_data(options)
    described = manifest.find_shards(outputs)
    assert [shard.file for _, shard in described.values()] == ["a.tfrecord", "c.tfrecord", "b.tfrecord"]
    assert sum(shard.records for _, shard in described.values()) == first.instances
    findings = verification.verify(VerificationOptions(input_file=outputs))
    assert (findings.problems, findings.files) == ([], 3)
    assert create_pretraining_data(options) == first
    assert "already complete" in capsys.readouterr().out
    pathlib.Path(outputs[1]).unlink()
    assert create_pretraining_data(options) == first
    assert "already complete" not in capsys.readouterr().out
    assert pathlib.Path(outputs[1]).exists()
