"""From text files to record files, by either algorithm."""

import json
import pathlib

import pytest

from data_gen.pipelines import one_machine, outputs
from official_bert.data import record_reader
from official_bert.errors import UserError
from official_bert.tokenization.exact import SPECIAL_TOKENS
from tests.data_gen.samples import contents, options_for, parsed, short_options, unmasked


def test_shards_of_another_run_are_not_mixed_with_these(corpus: tuple[list[str], str], tmp_path: pathlib.Path):
    one_machine.create_pretraining_data(options_for(corpus, tmp_path))
    before = contents(tmp_path)
    with pytest.raises(UserError, match=r"out.manifest.json describes records made from other flags; remove it"):
        one_machine.create_pretraining_data(options_for(corpus, tmp_path, random_seed=5))
    (tmp_path / "out.work" / "another").mkdir(parents=True)
    (tmp_path / "out.manifest.json").unlink()
    with pytest.raises(UserError, match=r"out.work holds the unfinished work of another run"):
        one_machine.create_pretraining_data(options_for(corpus, tmp_path))
    assert {name: value for name, value in before.items() if "manifest" not in name} == {
        path.name: path.read_bytes() for path in tmp_path.glob("*.tfrecord")
    }


def test_a_complete_run_is_not_done_again(
    corpus: tuple[list[str], str], tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
):
    first = one_machine.create_pretraining_data(options_for(corpus, tmp_path))
    times = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert one_machine.create_pretraining_data(options_for(corpus, tmp_path)) == first
    assert "complete already" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == times
    next(iter(tmp_path.glob("*.tfrecord"))).unlink()  # a shard that is gone is made again
    one_machine.create_pretraining_data(options_for(corpus, tmp_path))
    assert len(list(tmp_path.glob("*.tfrecord"))) == 3


def test_manifest_describes_what_was_made(corpus: tuple[list[str], str], tmp_path: pathlib.Path):
    summary = one_machine.create_pretraining_data(options_for(corpus, tmp_path))
    described = json.loads((tmp_path / "out.manifest.json").read_text())
    assert str(tmp_path) not in json.dumps(described)
    assert sum(shard["records"] for shard in described["shards"]) == summary.instances
    for shard in described["shards"]:
        content = (tmp_path / shard["file"]).read_bytes()
        assert len(content) == shard["bytes"]
        assert record_reader.count(str(tmp_path / shard["file"])) == shard["records"]
    lines = outputs.describe_outputs(options_for(corpus, tmp_path)).splitlines()
    assert lines == [f"records: {tmp_path}/out-*-of-00003.tfrecord", f"manifest: {tmp_path}/out.manifest.json"]
    batch = parsed(sorted(tmp_path.glob("*.tfrecord")))
    assert int(batch["input_mask"].sum()) == summary.tokens
    assert int(batch["masked_lm_weights"].sum()) == summary.predictions
    assert int(batch["next_sentence_labels"].sum()) == summary.random_next


def test_one_sentence_is_enough(corpus: tuple[list[str], str], tmp_path: pathlib.Path):
    path = tmp_path / "one.txt"
    path.write_text("return the value of the object.\n")
    summary = one_machine.create_pretraining_data(options_for(([str(path)], corpus[1]), tmp_path / "out"))
    assert (summary.text_documents, summary.instances, summary.random_next) == (1, 2, 2)


def test_empty_text_is_refused(vocab_file: str, tmp_path: pathlib.Path):
    path = tmp_path / "empty.txt"
    path.write_text("\n \n\n")
    with pytest.raises(UserError, match="the input holds no text"):
        one_machine.create_pretraining_data(short_options([str(path)], vocab_file, tmp_path))


@pytest.mark.parametrize("algorithm", ["reference", "fast"])
def test_a_text_file_that_cannot_be_read_is_named(algorithm: str, vocab_file: str, tmp_path: pathlib.Path):
    options = short_options(["/proc/self/mem"], vocab_file, tmp_path, algorithm=algorithm)
    with pytest.raises(UserError, match="cannot read /proc/self/mem: Input/output error"):
        one_machine.create_pretraining_data(options)


@pytest.mark.parametrize("algorithm", ["fast", "reference"])
def test_records_keep_accents_on_request_and_their_manifest_says_so(algorithm: str, tmp_path: pathlib.Path):
    text, vocab = tmp_path / "text.txt", tmp_path / "vocab.txt"
    text.write_text("Über uns\nund über euch\n\nuber alles\n", encoding="utf-8")
    vocab.write_text("\n".join([*SPECIAL_TOKENS, "uber", "über"]) + "\n", encoding="utf-8")
    recorded, ids = {}, {}
    for name, changes in {"default": {}, "true": {"strip_accents": True}, "false": {"strip_accents": False}}.items():
        flags = {"algorithm": algorithm, "num_shards": 1, "dupe_factor": 1, **changes}
        one_machine.create_pretraining_data(options_for(([str(text)], str(vocab)), tmp_path / name, **flags))
        recorded[name] = json.loads((tmp_path / name / "out.manifest.json").read_text())["source"]["flags"]
        ids[name] = set(unmasked(parsed([tmp_path / name / "out.tfrecord"])).ravel().tolist())
    assert "strip_accents" not in recorded["default"]
    assert recorded["true"] == recorded["default"]
    assert recorded["false"] == recorded["default"] | {"strip_accents": False}
    assert 6 not in ids["default"]
    assert {5, 6} <= ids["false"]
