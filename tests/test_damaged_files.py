"""A damaged file of any format is read correctly, or refused with a short UserError that names it or its folder."""

import json
import os
import pathlib
import re
import shutil
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from data_gen.text import formats
from official_bert.checkpoints import checkpoint, checksums, loading
from official_bert.checkpoints.formats import finetuned
from official_bert.data import record_reader
from official_bert.errors import UserError
from official_bert.inference import exports, reference_answers
from official_bert.modeling.config import BertConfig
from official_bert.modeling.encoder import build_encoder
from official_bert.runs.run_file import read_run_file
from official_bert.tasks import all_tasks, conll, multiple_choice, squad
from official_bert.tasks.options import GlueOptions, TableOptions
from official_bert.tokenization.exact import FullTokenizer, check_special_tokens, load_vocab
from official_bert.utils import files, row_files
from official_bert.utils.bad_rows import SKIP, STOP, BadRows
from tests import stored_texts
from tests.checkpoints.checkpoint_samples import SAMPLE_CONFIG, assert_fits, unpacked, write_sample
from tests.data_gen.inspection import record_samples
from tests.make import VOCAB, WORDS, build_task_model, slow_after, write_text
from tests.odd_inputs import odd_json, odd_text

_MAX_MESSAGE = 10_100  # characters
_RECORDS = [record_samples.good(input_ids=[number] * record_samples.LENGTH) for number in range(9)]
_TEXT_FILES = {".json", ".jsonl", ".txt", ".csv", ".tsv", ""}


class Format(NamedTuple):
    write: Callable[[pathlib.Path], object]  # writes valid files into a new folder
    read: Callable[[pathlib.Path, BadRows], object]  # reads the folder, checks the result, and returns what to compare
    has_checksums: bool = False  # whether any damage is found


def file_format(name: str, content: str, read: Callable[[str, BadRows], object]) -> Format:
    return Format(lambda folder: write_text(folder / name, content), lambda folder, bad: read(str(folder / name), bad))


def read_checkpoint(folder: pathlib.Path, _: BadRows) -> object:
    has_slots = folder.name.startswith(("tf1", "official_bert"))
    found = loading.open_model(str(folder), checkpoint.LoadOverrides(optimizer=has_slots))
    assert_fits(found)
    tensors = {name: value.tobytes() for name, value in {**found.weights, **found.slots}.items()}
    return tensors, found.config, found.vocab, found.casing, found.labels, found.task_spec, has_slots and found.step


def write_without_checksums(folder: pathlib.Path) -> None:
    write_sample(folder.name.removesuffix(" of others"), folder)
    (folder / checksums.CHECKSUM_FILE).unlink()


def write_finetuned(folder: pathlib.Path) -> None:
    model = build_task_model("classification", build_encoder(SAMPLE_CONFIG, seed=1), 2, seed=1)
    finetuned.save(str(folder), model, _TASK, SAMPLE_CONFIG, VOCAB)


def copy_model(library: str, model: str) -> Callable[[pathlib.Path], object]:
    def copy(folder: pathlib.Path) -> None:
        source, ignored = unpacked(library, folder.parent / "libraries") / model, shutil.ignore_patterns("*.npz")
        shutil.copytree(source, folder, ignore=ignored, dirs_exist_ok=True)

    return copy


def read_records(folder: pathlib.Path, _: BadRows) -> None:
    path = str(folder / "0.tfrecord")
    records = list(record_reader.read_file(path))
    # A file that ends after a record is complete.
    assert records == list(map(record_samples.serialize, _RECORDS))[: len(records)]
    assert sum(16 + len(record) for record in records) == files.size(path)
    assert record_reader.count_records(path) == len(records)


def read_rows(folder: pathlib.Path, _: BadRows) -> object:
    rows = []
    for path in row_files.expand([str(folder / "dataset") if folder.name == "arrow" else f"{folder}/*"], "input_file"):
        row_files.detect_kind(path)
        for parts in ([row_files.WHOLE], row_files.find_ranges(path, folder.name, 300)):
            rows += [row for part in parts for _, row in row_files.read_rows(path, folder.name, ["text"], part)]
    # A changed bit may turn a value into null, because these files have no checksums.
    assert all(isinstance(row["text"], str | None) for row in rows)
    return rows


def read_task(name: str, options: Any, bad_rows: BadRows) -> object:
    task = all_tasks.make_task(name, options)
    return task.read(task.train_split, bad_rows)


def read_table(label_kind: str, **options: str) -> Callable[[str, BadRows], object]:
    given = {"label_kind": label_kind, **options}
    return lambda path, bad: read_task("table", TableOptions(train_file=path, eval_file=path, **given), bad)


def read_glue(path: str, bad_rows: BadRows) -> object:
    return read_task("sst-2", GlueOptions(data_dir=str(pathlib.Path(path).parent)), bad_rows)


def read_text(path: str, _: BadRows) -> object:
    documents = list(formats.read_documents(path))
    assert all(document and all(document) for document in documents)
    return documents


def read_vocabulary(path: str, _: BadRows) -> object:
    check_special_tokens(load_vocab(path), path)
    return FullTokenizer(path, True).tokenize("the cat unaffable ünï")


def read_settings(path: str, _: BadRows) -> object:
    return finetuned.read_task_spec(os.path.dirname(path))


def write_export(folder: pathlib.Path) -> None:
    write_text(folder / exports.METADATA_FILE, json.dumps({"kind": "classification", "labels": ["a", "b"]}))
    texts, answers = {"text": ["the cat", "a"]}, {"label": ["a", "b"]}
    reference_answers.ReferenceAnswers(texts, answers, ("label",), [0.5, 0.2], 1e-5).write(str(folder))


def read_export(folder: pathlib.Path, _: BadRows) -> object:
    return exports.read_metadata(str(folder)), vars(reference_answers.read(str(folder)))


_TEXTS = [f"Text number {number}, “quoted”." * (number % 4) for number in range(50)]
_QUESTION = {"id": "1", "question": "who", "answers": [{"text": "cat", "answer_start": 4}], "is_impossible": False}
_SQUAD = {"version": "1", "data": [{"title": "t", "paragraphs": [{"context": "the cat sat", "qas": [_QUESTION]}]}]}
_SWAG = {"sent1": "the cat", "sent2": "sat", **{f"ending{number}": "a dog" for number in range(4)}, "label": 1}
_TASK: dict[str, Any] = {"task": "sst-2", "kind": "classification", "labels": ["0", "1"], "max_seq_length": 16}
_TASK |= {"pair": False, "num_choices": None}
_CONFIG = {"vocab_size": 78, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
_WRITTEN = ("hugging_face", "official_bert", "tf1", "keras_hub", "model_garden")

FORMATS = {
    **{name: Format(lambda folder: write_sample(folder.name, folder), read_checkpoint, True) for name in _WRITTEN},
    **{f"{name} of others": Format(write_without_checksums, read_checkpoint) for name in _WRITTEN},
    "finetuned": Format(write_finetuned, read_checkpoint, True),
    "saved_model": Format(copy_model("tensorflow_hub", "hub"), read_checkpoint),
    "tf_model": Format(copy_model("transformers", "classifier"), read_checkpoint),
    "shards": Format(copy_model("transformers", "safetensors_shards"), read_checkpoint),
    "export": Format(write_export, read_export),
    "records": Format(lambda folder: record_samples.write(folder / "0.tfrecord", _RECORDS), read_records),
    "parquet": Format(lambda folder: stored_texts.parquet(folder, _TEXTS), read_rows),
    "arrow": Format(lambda folder: stored_texts.hugging_face(folder, _TEXTS), read_rows),
    "parquet table": Format(
        lambda folder: stored_texts.parquet(folder, ["the cat", "a dog"] * 9),
        lambda folder, bad: read_table("regression", label_column="number")(str(folder / "texts.parquet"), bad),
    ),
    "csv": file_format("a.csv", "label,text\na,the cat 1\nb,the cat 2\n", read_table("classification")),
    "tsv": file_format("a.tsv", "label\ttext\na;b\tthe cat 1\nb\tthe cat 2\n", read_table("multi_label")),
    "jsonl": file_format("a.jsonl", '{"label": 0.5, "text": "the cat"}\n' * 3, read_table("regression")),
    "glue": file_format("train.tsv", "sentence\tlabel\nthe cat\t1\na dog\t0\n", read_glue),
    "swag": file_format("swag.jsonl", (json.dumps(_SWAG) + "\n") * 3, multiple_choice.read),
    "codah": file_format("codah.tsv", "i\tthe cat\ta\tb\tc\td\t1\n" * 3, multiple_choice.read),
    "conll": file_format("tags.txt", "the O\ncat B-X\n\na O\ndog B-X\n", conll.read),
    "squad": file_format("squad.json", json.dumps(_SQUAD), lambda path, bad: squad.read(path, True, "train", bad)),
    "text": file_format("text.txt", "the cat sat .\na dog ran .\n\nthe sun\n", read_text),
    "wiki": file_format("wiki.txt", '<doc id="1" title="a">\na\n\nthe cat sat .\n</doc>\n', read_text),
    "documents": file_format("documents.jsonl", '{"text": "the cat sat . a dog ran ."}\n' * 3, read_text),
    "vocabulary": file_format("vocab.txt", "\n".join(WORDS) + "\n", read_vocabulary),
    "config": file_format("bert_config.json", json.dumps(_CONFIG), lambda path, _: BertConfig.from_json_file(path)),
    "task": file_format("task.json", json.dumps(_TASK), read_settings),
    "run": file_format("run.json", json.dumps({"options": {"seed": 1}}), lambda path, _: read_run_file(path)),
}


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("samples")
    for name, each in FORMATS.items():
        (folder / name).mkdir()
        each.write(folder / name)
    return folder


@st.composite
def damage(draw: st.DrawFn, path: pathlib.Path, others: list[bytes]) -> tuple[str, bytes | None]:
    """Draws a kind of damage and the damaged content. The content of a missing file is None."""
    content = path.read_bytes()
    start, end = sorted(draw(st.tuples(*[st.integers(0, len(content))] * 2)))
    kind = draw(st.sampled_from(["flip", "flip", "flip", "cut", "cut", "replace", "other", "empty", "missing"]))
    if path.suffix in _TEXT_FILES:
        kind = draw(st.sampled_from([kind, "odd"]))
    match kind:
        case "flip":
            place = min(start, len(content) - 1)
            content = content[:place] + bytes([content[place] ^ draw(st.integers(1, 255))]) + content[place + 1 :]
        case "cut":
            content = content[:start]
        case "replace":
            content = content[:start] + draw(st.binary(max_size=8) | st.just(bytes(end - start))) + content[end:]
        case "odd" if path.suffix.startswith(".json"):
            lines = content.split(b"\n") if path.suffix == ".jsonl" else [content]
            number = draw(st.integers(0, max(len(lines) - 2, 0)))
            lines[number] = draw(odd_json(json.loads(lines[number])))
            content = b"\n".join(lines)
        case "odd":
            cells = re.split(r"([,\t\n ;\"])", content.decode())
            number = draw(st.integers(0, len(cells) - 1))
            cells[number] = draw(odd_text | st.sampled_from(["", cells[number] * 300, "".join(cells)]))
            text = "".join(cells).replace("\n", draw(st.sampled_from(["\n", "\r\n", "\r"])))
            content = text.encode("utf-8", "surrogatepass")
        case "other":
            content = draw(st.sampled_from(others))
    return kind, None if kind == "missing" else b"" if kind == "empty" else content


@pytest.mark.parametrize("repetitions", slow_after(1, [1, 20]))
@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files_are_read_or_rejected_by_name(name: str, repetitions: int, samples: pathlib.Path, tmp_path):
    folder = pathlib.Path(shutil.copytree(samples / name, tmp_path / name))
    expected = FORMATS[name].read(folder, BadRows(STOP))
    paths = sorted(each for each in folder.rglob("*") if each.is_file() and each.stat().st_size)
    weights = max(paths, key=lambda path: path.stat().st_size)  # damaged as often as all other files together
    others = [each.read_bytes() for each in sorted(samples.rglob("*")) if each.is_file()]

    is_checkpoint = FORMATS[name].read is read_checkpoint
    num_examples = repetitions * (60 if FORMATS[name].has_checksums else 40 if is_checkpoint else 25)
    # The fast tests draw the same damage in each run.
    fixed = {"derandomize": repetitions == 1, "database": None, "phases": [Phase.generate]}

    @settings(max_examples=num_examples, suppress_health_check=list(HealthCheck), **fixed)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        path = data.draw(st.sampled_from([*paths, *[weights] * len(paths)]))
        content = path.read_bytes()
        kind, damaged = data.draw(damage(path, others))
        path.unlink()  # a new file, because HDF5 would take the same one for a file that it still has open
        if damaged is not None:
            path.write_bytes(damaged)
        message = str(path)
        try:
            found = FORMATS[name].read(folder, BadRows(data.draw(st.sampled_from([STOP, SKIP])), silent=True))
            # Without checksums, changed numbers and texts may go unnoticed, but not missing ones.
            if FORMATS[name].has_checksums or (path.suffix not in _TEXT_FILES and kind in ("cut", "empty")):
                assert found == expected
        except UserError as error:
            message = str(error)
        finally:
            path.unlink(missing_ok=True)
            path.write_bytes(content)
        assert (path.name if path == weights and kind == "cut" else str(tmp_path)) in message, (path.name, kind)
        assert len(message) < _MAX_MESSAGE

    check()
