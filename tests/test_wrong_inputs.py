"""Passing a file of one kind where a command expects another: the error names the file and what it is."""

import json

import pytest

from official_bert.inference import exports
from official_bert.utils import file_kinds
from official_bert_cli import load
from tests.data_gen.inspection import record_samples
from tests.make import VOCAB, assert_mentions, refusal, tiny_config, write_run, write_text

MANIFEST = {"source": {"flags": {}, "vocabulary": ""}, "shards": [], "statistics": {}}
TRAIN = "--do_train --max_seq_length=10 --max_predictions_per_seq=3 --num_train_steps=1 --output_dir={out}"
FINETUNE = "--do_train --output_dir={out} --max_seq_length=32"
# Commands in which the input X is of the wrong kind, and the kinds of files that they accept.
INPUTS = {
    "make-records --input_file=X --vocab_file={vocab} --output_file={out}": "text table json manifest vocab",
    "make-records --vocab_file=X --input_file={text} --output_file={out}": "vocab",
    "learn-vocabulary --input_file=X --vocab_file={out}": "text table json manifest vocab",
    "inspect-records --input_file=X --vocab_file={vocab}": "records",
    "inspect-records --vocab_file=X --input_file={records}": "vocab",
    "verify-records --manifest=X": "manifest",
    "verify-records --bert_config_file=X --input_file={records}": "json",
    f"pretrain --input_file=X --bert_config_file={{json}} {TRAIN}": "records",
    f"pretrain --bert_config_file=X --input_file={{records}} {TRAIN}": "json",
    f"pretrain --init_checkpoint=X --input_file={{records}} --bert_config_file={{json}} {TRAIN}": "checkpoint",
    "adapt --init=X --input_file={text} --output_dir={out}": "checkpoint",
    "adapt --input_file=X --init={checkpoint} --output_dir={out} --max_seq_length=32": "text table json manifest vocab",
    f"finetune --init=X --task=table --train_file={{table}} {FINETUNE}": "checkpoint json",
    f"finetune --vocab_file=X --task=table --init={{checkpoint}} --train_file={{table}} {FINETUNE}": "vocab",
    f"finetune --train_file=X --task=table --init={{checkpoint}} {FINETUNE}": "table",
    f"finetune --data_dir=X --task=sst-2 --init={{checkpoint}} {FINETUNE}": "",
    "convert --from=X --to={out}": "checkpoint",
    "convert --new_tokens_file=X --from={checkpoint} --to={out}": "text",
    "export --model_dir=X --export_dir={out}": "checkpoint",
    "predict --export_dir=X --input_file={table} --output_file={out}.jsonl": "export",
    "predict --input_file=X --export_dir={export} --output_file={out}.jsonl": "text table vocab",
    "features --init=X --input_file={text} --output_file={out}.npy": "checkpoint",
    "features --input_file=X --init={checkpoint} --output_file={out}.npy --layers=-1 --max_seq_length=32":
        "text table vocab",
    "fill-mask --model_dir=X [MASK]": "checkpoint", "check-export X": "export", "serve --model=X": "export",
}  # fmt: skip
# Text that must not occur in an error about an intact file of another kind.
MISLEADING = ("is corrupted; ", "iconv", "LATIN1", "Error(", "--on_", "Traceback")


@pytest.fixture(scope="module")
def sample_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Returns a path of each kind of file, by kind."""
    from official_bert.modeling.pretraining_model import build_pretraining_model  # here, since it imports TensorFlow

    folder, config = tmp_path_factory.mktemp("inputs"), tiny_config(num_hidden_layers=1)
    paths = {
        "vocab": write_text(folder / "vocab.txt", VOCAB),
        "json": write_text(folder / "bert_config.json", config.to_json()),
        "table": write_text(folder / "table.csv", "text,label\nthe cat,a\nthe dog,b\n"),
        "text": write_text(folder / "corpus.txt", "the cat sat .\n" * 9),
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


def run(line: str, paths: dict[str, str]) -> str:
    """Runs a command and returns its error message."""
    name, *arguments = line.split()
    command = load(name)
    return refusal(lambda: command.main(*command.parse([argument.format(**paths) for argument in arguments])))


@pytest.mark.parametrize(("line", "kinds"), INPUTS.items())
def test_a_file_of_another_kind_is_named(line: str, kinds: str, sample_files):
    for kind in sample_files.keys() - {*kinds.split(), "out"}:
        message = run(line.replace("X", f"{{{kind}}}"), sample_files)
        assert sample_files[kind] in message, (kind, message)
        assert not any(word in message for word in MISLEADING), (kind, message)


@pytest.mark.parametrize(("command", "kind", "names"), [
    (f"pretrain --input_file={{text}} --bert_config_file={{json}} {TRAIN}", "text",
     ["text", "TFRecord", "official-bert make-records"]),
    (f"pretrain --input_file={{zip}} --bert_config_file={{json}} {TRAIN} --on_corrupt_record=skip", "zip",
     ["zip", ".xlsx", "TFRecord"]),
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
    assert_mentions(run(command, sample_files), sample_files[kind], *names)


@pytest.mark.parametrize(("start", "kind"), [
    (b"PAR1", "a Parquet file"), (b"\xff\xff\xff\xff", "an Arrow file"), (b"%PDF-1.7", "a PDF document"),
    (b"\x1f\x8b\x08", "a compressed file"), (b"\n\0\0\0\0\0\0\0{\"bert", "a safetensors file"),
    (b"ARROW1\0\0", "an Arrow file"), (b"\x89HDF\r\n", "an HDF5 file"), (b"BZh91AY&SY", "a compressed file"),
    (b"\x50\0\0\0\0\0\0\0{]bert", "a TFRecord file"), (b"the cat sat on the mat", None), (b"", None),
])  # fmt: skip
def test_a_kind_is_recognized_by_the_first_bytes(start: bytes, kind: str | None):
    assert file_kinds.describe(start) == kind
