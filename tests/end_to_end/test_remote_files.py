"""Every command reads and writes files in an object store."""

import os
import pathlib
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

from official_bert.inference import backends, reference_answers
from official_bert.keras_models.text_classifier import TextClassifier
from official_bert.kinds.names import CLASSIFICATION
from official_bert.serving.models import find_versions
from official_bert.utils import files
from tests.export.exported_models import save_finetuned
from tests.make import ROOT, assert_mentions, tiny_config, write_text

pytestmark = pytest.mark.slow
TEXT = "".join(f"the cat {word} on the mat .\na dog {word} in the sun .\n\n" for word in ("sat", "ran", "lay") * 20)
LENGTHS = ("--max_seq_length=32", "--max_predictions_per_seq=5")


def test_all_commands_work_on_object_storage(run, bucket: str, tmp_path: pathlib.Path, store):
    files.write_text(f"{bucket}/text.txt", TEXT)
    vocab = f"--vocab_file={bucket}/vocab.txt"
    run("learn-vocabulary", f"--input_file={bucket}/text.txt", vocab, "--vocab_size=100")
    flags = (f"--input_file={bucket}/text.txt", vocab, *LENGTHS, "--num_shards=3", "--num_workers=2", "--dupe_factor=2")
    made = run("make-records", f"--output_file={bucket}/records/all.tfrecord", *flags)
    assert f"records: {bucket}/records/all-*-of-00003.tfrecord" in made
    run("make-records", "--output_file=local.tfrecord", *flags)
    for number in range(3):
        name = f"{number:05}-of-00003.tfrecord"
        assert files.read_bytes(f"{bucket}/records/all-{name}") == (tmp_path / f"local-{name}").read_bytes()
    assert not [name for name in store.names(bucket) if "lock" in name or "writing" in name]
    assert not list(tmp_path.glob("*.work"))
    records = f"--input_file={bucket}/records/*.tfrecord"
    assert "errors 0" in run("verify-records", records, vocab)

    write_text(tmp_path / "config.json", tiny_config(num_hidden_layers=1).to_json())
    model = ("--bert_config_file=config.json", "--vocab_size_from_vocab", "--num_train_steps=4")
    train = ("pretrain", "--do_train", records, vocab, *LENGTHS, *model)
    assert_mentions(run(*train, f"--output_dir={bucket}/run", code=1), "--output_dir", f"{bucket}/run")
    run(*train, "--output_dir=run")

    for target in ("official_bert", "hugging_face", "tf1"):
        run("convert", "--from=run", f"--to={bucket}/{target}", f"--to_format={target}")
        run("convert", f"--from={bucket}/{target}", f"--to=again-{target}", "--to_format=official_bert")
    prefix = next(name for name in store.names(bucket) if name.startswith("tf1/") and name.endswith(".index"))
    assert "read" in run("convert", f"--from={bucket}/{prefix.removesuffix('.index')}", "--to=again", "--to_format=tf1")
    refused = run("convert", "--from=run", f"--to={bucket}/tf1", "--to_format=tf1", code=1)
    assert_mentions(refused, f"{bucket}/tf1", "exists")
    assert "%" in run("fill-mask", f"--model_dir={bucket}/official_bert", "the [MASK] sat on the mat .")

    files.write_text(f"{bucket}/texts.csv", "text\n" + "the cat sat on the mat .\n" * 3)
    texts, vectors = f"--input_file={bucket}/texts.csv", ("--pooling=mean", "--layers=-1", "--max_seq_length=32")
    for name in ("vectors.npy", "vectors.parquet", "vectors.jsonl"):
        run("features", f"--init={bucket}/hugging_face", texts, f"--output_file={bucket}/{name}", *vectors)
    assert np.load(files.local_copy(f"{bucket}/vectors.npy")).shape == (3, 1, 8)

    run("export", f"--model_dir={bucket}/official_bert", f"--export_dir={bucket}/exports", "--encoder")
    assert files.list_folder(f"{bucket}/exports") == ["1"]
    said = run("predict", f"--export_dir={bucket}/exports", texts, f"--output_file={bucket}/answers.jsonl")
    assert f"Wrote 3 answers to {bucket}/answers.jsonl" in said
    assert len(files.read_text(f"{bucket}/answers.jsonl").splitlines()) == 3
    assert not list(tmp_path.glob("*.part*"))


def kill_while_storing(store, pattern: str, command: str, *arguments: str) -> None:
    """Runs a command in its own process group, and kills it when it uploads a file whose name matches."""
    os.makedirs("temporary", exist_ok=True)  # leftovers are removed together with the test's folder
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": os.path.abspath("temporary")}
    program = [sys.executable, "-m", "official_bert_cli", command, *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with store.before_storing(pattern, lambda: os.killpg(process.pid, signal.SIGKILL)):
        process = subprocess.Popen(program, env=environment, start_new_session=True, **pipes)
        output, _ = process.communicate()
    assert process.returncode == -signal.SIGKILL, output


def test_killed_record_generation_leaves_complete_files_and_is_resumed(run, bucket, store, tmp_path, vocab_file):
    write_text(tmp_path / "text.txt", TEXT)
    flags = ("--input_file=text.txt", f"--vocab_file={vocab_file}", *LENGTHS, "--num_shards=3", "--num_workers=1")
    run("make-records", "--output_file=local.tfrecord", *flags)
    expected = {path.name.replace("local", "all"): path.read_bytes() for path in tmp_path.glob("local-*.tfrecord")}
    to_store = (f"--output_file={bucket}/all.tfrecord", *flags)
    for pattern in (r"all-00001-.*", r"all\.manifest\.json"):
        kill_while_storing(store, pattern, "make-records", *to_store)
        shards = set(store.names(bucket)) - {".all.manifest.json.lock"}
        assert shards < {*expected, "all.manifest.json"}
        assert all(files.read_bytes(f"{bucket}/{name}") == expected[name] for name in shards)
    assert "resuming the unfinished work" in run("make-records", *to_store)
    assert set(store.names(bucket)) == {*expected, "all.manifest.json"}
    assert all(files.read_bytes(f"{bucket}/{name}") == content for name, content in expected.items())
    assert not list(tmp_path.glob("*.work"))


def test_an_export_that_was_killed_during_a_write_is_rejected_and_replaced(run, bucket: str, store, tmp_path):
    trained = save_finetuned(tmp_path / "model", CLASSIFICATION)
    export = ("export", f"--model_dir={trained}", f"--export_dir={bucket}/exports")
    files.write_text(f"{bucket}/texts.csv", "text\nthe cat\n")
    texts = (f"--input_file={bucket}/texts.csv", f"--output_file={bucket}/answers.jsonl")
    kill_while_storing(store, r"exports/1/variables/.*", *export)
    assert "exports/1/saved_model.pb" in store.names(bucket)  # only some of the files
    for folder, name in (("exports", "saved_model.pb"), ("exports/1", "complete")):
        assert_mentions(run("predict", f"--export_dir={bucket}/{folder}", *texts, code=1), f"{bucket}/{folder}", name)
    assert f"{bucket}/exports/1" in run(*export)
    assert not [name for name in store.names(bucket) if "writing" in name]
    run("predict", f"--export_dir={bucket}/exports", *texts)
    assert len(files.read_text(f"{bucket}/answers.jsonl").splitlines()) == 1
    assert [*find_versions(f"{bucket}/exports")] == [1]
    model = backends.load_predictor(f"{bucket}/exports/1", threads=1)
    reference_answers.check_answers(f"{bucket}/exports/1", model)
    assert model.kind == CLASSIFICATION


@pytest.mark.parametrize("command", [
    "learn-vocabulary --input_file=text.txt --vocab_file={}/vocab.txt --vocab_size=100",
    "make-records --vocab_file=vocab.txt --input_file=text.txt --output_file={}/all.tfrecord",
    "make-records --vocab_file=vocab.txt --input_file={}/text.txt --output_file=all.tfrecord",
    "predict --export_dir={}/exports --input_file=text.txt --output_file=answers.jsonl",
    "convert --from={}/model --to=model --to_format=tf1",
])  # fmt: skip
@pytest.mark.usefixtures("vocab_file")
def test_a_bucket_without_permission_is_reported_in_one_line_and_leaves_no_files(command, run, bucket, store, tmp_path):
    write_text(tmp_path / "text.txt", TEXT)
    for name in ("text.txt", "exports/1/saved_model.pb", "model/bert_config.json"):
        files.write_text(f"{bucket}/{name}", "{}")
    before, local = store.names(bucket), sorted(tmp_path.iterdir())
    store.refuse(bucket)
    (said,) = re.findall("^error: .*", run(*command.format(bucket).split(), code=1), re.MULTILINE)
    assert re.search(f"{bucket}/.*(Forbidden|Denied)", said)
    assert store.names(bucket) == before
    assert sorted(tmp_path.iterdir()) == local


def test_a_keras_file_is_saved_to_and_loaded_from_object_storage(bucket: str, vocab_file: str):
    classifier = TextClassifier(tiny_config(), files.read_text(vocab_file), labels=["a", "b"])
    expected = classifier.predict(["the cat"])
    classifier.save(f"{bucket}/model.keras")
    np.testing.assert_array_equal(TextClassifier.load(f"{bucket}/model.keras").predict(["the cat"]), expected)
    classifier.save_checkpoint(f"{bucket}/checkpoint")
    np.testing.assert_array_equal(TextClassifier.from_checkpoint(f"{bucket}/checkpoint").predict(["the cat"]), expected)
