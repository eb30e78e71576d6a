"""Passing a file of one kind where a command expects another: the error names the file and what it is."""

import json

import pytest

from official_bert.inference import exports
from official_bert.utils import file_kinds
from official_bert_cli import load
from tests.data_gen.inspection import record_samples
from tests.make import VOCAB, assert_mentions, refusal, tiny_config, write_run, write_text

MANIFEST = {"source": {"flags": {}, "vocabulary": ""}, "shards": [], "statistics": {}}
TEXT = "the cat sat .\n"
TRAIN = "--do_train --max_seq_length=10 --max_predictions_per_seq=3 --num_train_steps=1 --output_dir={out}".split()
PRETRAIN = " ".join(["--bert_config_file={json}", *TRAIN])
FINETUNE = ["--task=table", "--do_train", "--output_dir={out}", "--max_seq_length=32"]
ANSWERS = "--output_file={out}.jsonl"
VECTORS = "--output_file={out}.npy"
TEXTS = ["--input_file={text}", "--output_file={out}"]
TOKENS = ["--from={checkpoint}", "--to={out}"]
# The input flag of a command ("" for a positional argument), its other flags, and the kinds of files it accepts.
INPUTS = [
    ("make-records", "input_file", ["--vocab_file={vocab}", "--output_file={out}"], "text table json manifest vocab"),
    ("make-records", "vocab_file", TEXTS, "vocab"),
    ("learn-vocabulary", "input_file", ["--vocab_file={out}"], "text table json manifest vocab"),
    ("inspect-records", "input_file", ["--vocab_file={vocab}"], "records"),
    ("inspect-records", "vocab_file", ["--input_file={records}"], "vocab"),
    ("verify-records", "manifest", [], "manifest"),
    ("verify-records", "bert_config_file", ["--input_file={records}"], "json"),
    ("pretrain", "input_file", ["--bert_config_file={json}", *TRAIN], "records"),
    ("pretrain", "bert_config_file", ["--input_file={records}", *TRAIN], "json"),
    ("pretrain", "init_checkpoint", ["--input_file={records}", "--bert_config_file={json}", *TRAIN], "checkpoint"),
    ("adapt", "init", ["--input_file={text}", "--output_dir={out}"], "checkpoint"),
    ("adapt", "input_file", ["--init={checkpoint}", "--output_dir={out}", "--max_seq_length=32"],
     "text table json manifest vocab"),
    ("finetune", "init", ["--train_file={table}", *FINETUNE], "checkpoint json"),
    ("finetune", "vocab_file", ["--init={checkpoint}", "--train_file={table}", *FINETUNE], "vocab"),
    ("finetune", "train_file", ["--init={checkpoint}", *FINETUNE], "table"),
    ("finetune", "data_dir", ["--task=sst-2", "--init={checkpoint}", *FINETUNE[1:]], ""),
    ("convert", "from", ["--to={out}"], "checkpoint"),
    ("convert", "new_tokens_file", TOKENS, "text"),
    ("export", "model_dir", ["--export_dir={out}"], "checkpoint"),
    ("predict", "export_dir", ["--input_file={table}", ANSWERS], "export"),
    ("predict", "input_file", ["--export_dir={export}", ANSWERS], "text table vocab"),
    ("features", "init", ["--input_file={text}", VECTORS], "checkpoint"),
    ("features", "input_file", ["--init={checkpoint}", VECTORS, "--layers=-1", "--max_seq_length=32"],
     "text table vocab"),
    ("fill-mask", "model_dir", ["the [MASK]"], "checkpoint"),
    ("check-export", "", [], "export"),
    ("serve", "model", [], "export"),
]  # fmt: skip
# Text that must not occur in an error about an intact file of another kind.
MISLEADING = ("is corrupted; ", "iconv", "LATIN1", "Error(", "--on_", "Traceback")


@pytest.fixture(scope="module")
def sample_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Returns a path of each kind of file, by kind."""
    from official_bert.modeling.pretraining_model import build_pretraining_model  # here, since it imports TensorFlow

    folder = tmp_path_factory.mktemp("inputs")
    config = tiny_config()
    paths = {
        "vocab": write_text(folder / "vocab.txt", VOCAB),
        "json": write_text(folder / "bert_config.json", config.to_json()),
        "table": write_text(folder / "table.csv", "text,label\nthe cat,a\nthe dog,b\n"),
        "text": write_text(folder / "corpus.txt", TEXT * 9),
        "manifest": write_text(folder / "manifests" / "a.manifest.json", json.dumps(MANIFEST)),
        "records": record_samples.write(folder / "records.tfrecord", [record_samples.good()]),
        "zip": write_text(folder / "table.xlsx", b"PK\x03\x04" + bytes(range(256))),
        "export": str(folder / "export"),
        "out": str(folder / "out"),
    }
    paths["checkpoint"] = write_run(folder / "run", build_pretraining_model(config, seed=0), config, paths["vocab"])
    write_text(folder / "export" / "1" / exports.METADATA_FILE, '{"inputs": ["text"]}')
    write_text(folder / "export" / "1" / exports.GRAPH_FILE, b"\x08\x01\x12\x00")
    return paths


def run(command: str, arguments: list[str], paths: dict[str, str]) -> str:
    """Runs a command and returns its error message."""
    loaded = load(command)
    return refusal(lambda: loaded.main(*loaded.parse([argument.format(**paths) for argument in arguments])))


@pytest.mark.parametrize(("command", "flag", "others", "kinds"), INPUTS)
def test_a_file_of_another_kind_is_named(command, flag, others, kinds, sample_files):
    for kind in sample_files.keys() - {*kinds.split(), "out"}:
        message = run(command, [f"--{flag}={{{kind}}}" if flag else f"{{{kind}}}", *others], sample_files)
        assert sample_files[kind] in message, (kind, message)
        assert not any(word in message for word in MISLEADING), (kind, message)


@pytest.mark.parametrize(("command", "kind", "names"), [
    (f"pretrain --input_file={{text}} {PRETRAIN}", "text", ["text", "TFRecord", "official-bert make-records"]),
    (f"pretrain --input_file={{zip}} {PRETRAIN} --on_corrupt_record=skip", "zip", ["zip", ".xlsx", "TFRecord"]),
    ("make-records --input_file={records} --vocab_file={vocab} --output_file={out}", "records", ["TFRecord"]),
    ("inspect-records --input_file={records} --vocab_file={records}", "records", ["TFRecord", "text"]),
    ("finetune --task=table --train_file={text} --do_train --init={checkpoint} --output_dir={out}", "text",
     [".txt", "'label'"]),
    ("finetune --task=table --train_file={table} --do_train --init={export} --output_dir={out}", "export",
     ["predict", "serve"]),
    ("predict --export_dir={checkpoint} --input_file={table} --output_file={out}", "checkpoint", ["saved_model.pb"]),
    ("predict --export_dir={export} --input_file={checkpoint} --output_file={out}", "checkpoint", ["folder"]),
])  # fmt: skip
def test_an_error_names_the_kind_of_the_file(command: str, kind: str, names: list, sample_files: dict[str, str]):
    name, *arguments = command.split()
    assert_mentions(run(name, arguments, sample_files), sample_files[kind], *names)


@pytest.mark.parametrize(("start", "kind"), [
    (b"PAR1", "a Parquet file"), (b"\xff\xff\xff\xff", "an Arrow file"), (b"%PDF-1.7", "a PDF document"),
    (b"\x1f\x8b\x08", "a compressed file"), (b"\n\0\0\0\0\0\0\0{\"bert", "a safetensors file"),
    (b"ARROW1\0\0", "an Arrow file"), (b"\x89HDF\r\n", "an HDF5 file"), (b"BZh91AY&SY", "a compressed file"),
    (b"\x50\0\0\0\0\0\0\0{]bert", "a TFRecord file"), (b"the cat sat on the mat", None), (b"", None),
])  # fmt: skip
def test_a_kind_is_recognized_by_the_first_bytes(start: bytes, kind: str | None):
    assert file_kinds.describe(start) == kind
