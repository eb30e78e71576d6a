"""Making record files from text files with either algorithm."""

import json
import pathlib
from collections.abc import Callable

import pytest

from data_gen.options import RecordOptions
from data_gen.pipelines import one_machine, outputs
from official_bert.data import record_reader
from official_bert.tokenization.exact import SPECIAL_TOKENS
from tests.conftest import WORDS
from tests.data_gen.samples import Corpus, contents, make_options, make_records, parsed, unmasked
from tests.make import refusal, write_text, write_vocab


def test_shards_of_different_runs_are_not_mixed(corpus: Corpus, tmp_path: pathlib.Path):
    make_records(corpus, tmp_path)
    before = contents(tmp_path)
    told = refusal(make_records, corpus, tmp_path, random_seed=5)
    assert "out.manifest.json" in told
    assert "--random_seed was 12345 and is 5" in told
    assert told.count(" was ") == 1
    (tmp_path / "out.work" / "another").mkdir(parents=True)
    (tmp_path / "out.manifest.json").unlink()
    assert "out.work contains the unfinished work of a different run" in refusal(make_records, corpus, tmp_path)
    assert {name: value for name, value in before.items() if "manifest" not in name} == {
        path.name: path.read_bytes() for path in tmp_path.glob("*.tfrecord")
    }


def test_complete_run_is_not_repeated(corpus: Corpus, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]):
    first = make_records(corpus, tmp_path)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert make_records(corpus, tmp_path) == first
    assert "already complete" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == times
    next(iter(tmp_path.glob("*.tfrecord"))).unlink()  # a missing shard is made again
    make_records(corpus, tmp_path)
    assert len(list(tmp_path.glob("*.tfrecord"))) == 3


def test_manifest_describes_what_was_made(corpus: Corpus, tmp_path: pathlib.Path):
    summary = make_records(corpus, tmp_path)
    described = json.loads((tmp_path / "out.manifest.json").read_text())
    assert str(tmp_path) not in json.dumps(described)
    assert sum(shard["records"] for shard in described["shards"]) == summary.instances
    for shard in described["shards"]:
        content = (tmp_path / shard["file"]).read_bytes()
        assert len(content) == shard["bytes"]
        assert record_reader.count_records(str(tmp_path / shard["file"])) == shard["records"]
    lines = outputs.describe_outputs(make_options(corpus, tmp_path)).splitlines()
    assert lines == [f"records: {tmp_path}/out-*-of-00003.tfrecord", f"manifest: {tmp_path}/out.manifest.json"]
    batch = parsed(sorted(tmp_path.glob("*.tfrecord")))
    assert int(batch["input_mask"].sum()) == summary.tokens
    assert int(batch["masked_lm_weights"].sum()) == summary.predictions
    assert int(batch["next_sentence_labels"].sum()) == summary.random_next


def test_one_sentence_is_enough(corpus: Corpus, tmp_path: pathlib.Path):
    path = write_text(tmp_path / "one.txt", "return the value of the object.\n")
    summary = make_records(([path], corpus[1]), tmp_path / "out")
    assert (summary.text_documents, summary.instances, summary.random_next) == (1, 2, 2)


@pytest.mark.parametrize("content", ["\n \n\n", "\n\u200b\n\n"])
@pytest.mark.parametrize("algorithm", ["reference", "fast"])
def test_text_without_tokens_is_refused(
    algorithm: str, content: str, short_options: Callable[..., RecordOptions], tmp_path: pathlib.Path
):
    options = short_options(input_file=[write_text(tmp_path / "empty.txt", content)], algorithm=algorithm)
    assert "the input contains no text" in refusal(one_machine.create_pretraining_data, options)


@pytest.mark.parametrize("algorithm", ["reference", "fast"])
def test_a_text_file_that_cannot_be_read_is_named(algorithm: str, short_options: Callable[..., RecordOptions]):
    options = short_options(input_file=["/proc/self/mem"], algorithm=algorithm)
    assert "cannot read /proc/self/mem: Input/output" in refusal(one_machine.create_pretraining_data, options)


@pytest.mark.parametrize("algorithm", ["fast", "reference"])
def test_manifest_stores_that_records_keep_accents(algorithm: str, tmp_path: pathlib.Path):
    text = write_text(tmp_path / "text.txt", "Über uns\nund über euch\n\nuber alles\n")
    vocab = write_vocab(tmp_path / "vocab.txt", [*SPECIAL_TOKENS, "uber", "über"])
    recorded, ids = {}, {}
    for name, changes in {"default": {}, "true": {"strip_accents": True}, "false": {"strip_accents": False}}.items():
        flags = {"algorithm": algorithm, "num_shards": 1, "dupe_factor": 1, **changes}
        make_records(([text], vocab), tmp_path / name, **flags)
        recorded[name] = json.loads((tmp_path / name / "out.manifest.json").read_text())["source"]["flags"]
        ids[name] = set(unmasked(parsed([tmp_path / name / "out.tfrecord"])).ravel().tolist())
    assert "strip_accents" not in recorded["default"]
    assert recorded["true"] == recorded["default"]
    assert recorded["false"] == recorded["default"] | {"strip_accents": False}
    assert 6 not in ids["default"]
    assert {5, 6} <= ids["false"]


def test_a_vocabulary_of_the_other_casing_is_refused(corpus: Corpus, tmp_path: pathlib.Path):
    cased = write_vocab(tmp_path / "cased.txt", [*WORDS, "Anna", "Berlin"])
    told = refusal(make_records, (corpus[0], cased), tmp_path)
    assert all(part in told for part in ("cased.txt", "'Anna'", "--do_lower_case=false")), told
    told = refusal(make_records, corpus, tmp_path, do_lower_case=False)
    assert all(part in told for part in (corpus[1], "--do_lower_case=true")), told
    make_records((corpus[0], cased), tmp_path, do_lower_case=False)
