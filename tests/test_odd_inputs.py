"""Malformed files are read, or rejected with a UserError that is short enough to print."""

import functools
import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from data_gen.text import formats
from official_bert.checkpoints import finetuned
from official_bert.checkpoints.loading import open_model
from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.tasks import conll, multiple_choice, squad
from official_bert.tasks.all_tasks import make_task
from official_bert.tasks.options import GlueOptions, TableOptions
from official_bert.tokenization.exact import FullTokenizer, check_special_tokens, load_vocab
from official_bert.utils.bad_rows import SKIP, STOP, BadRows
from tests.checkpoints.checkpoint_samples import assert_fits, write_sample
from tests.conftest import WORDS
from tests.odd_inputs import odd_json, odd_json_lines, odd_lines

_MAX_MESSAGE = 10_100  # characters
_TABLE = ["label,text", "a,the cat 1", "b,the cat 2", "a,the cat 3"]
_ENDINGS = {f"ending{number}": "a dog" for number in range(4)}
_QUESTION = {"id": "1", "question": "who", "answers": [{"text": "cat", "answer_start": 4}], "is_impossible": False}
_SQUAD = {"version": "1", "data": [{"title": "t", "paragraphs": [{"context": "the cat sat", "qas": [_QUESTION]}]}]}
_CONFIG = {"vocab_size": 78, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
_TASK: dict[str, Any] = {"task": "sst-2", "kind": "classification", "labels": ["0", "1"], "max_seq_length": 16}
_TASK |= {"pair": False, "num_choices": None}


def read_table(label_kind: str, path: str, bad_rows: BadRows) -> None:
    task = make_task("table", TableOptions(train_file=path, eval_file=path, label_kind=label_kind))
    task.read(task.train_split, bad_rows)


def read_glue(path: str, bad_rows: BadRows) -> None:
    task = make_task("sst-2", GlueOptions(data_dir=str(pathlib.Path(path).parent)))
    task.read(task.train_split, bad_rows)


def read_text(path: str, _: BadRows) -> None:
    for document in formats.read_documents(path):
        assert document
        assert all(document)


def read_vocabulary(path: str, _: BadRows) -> None:
    check_special_tokens(load_vocab(path), path)
    FullTokenizer(path, True).tokenize("the cat unaffable ünï")


# A valid file of each format, and the function that reads it.
READERS: dict[str, tuple[Any, Callable[[str, BadRows], Any]]] = {
    "table.csv": (_TABLE, functools.partial(read_table, "classification")),
    "table.tsv": (
        ["label\ttext", "a;b\tthe cat 1", "b\tthe cat 2", "a\tthe cat 3"],
        functools.partial(read_table, "multi_label"),
    ),
    "table.jsonl": ({"label": 0.5, "text": "the cat"}, functools.partial(read_table, "regression")),
    "swag.jsonl": ({"sent1": "the cat", "sent2": "sat", **_ENDINGS, "label": 1}, multiple_choice.read),
    "codah.tsv": (["i\tthe cat\ta\tb\tc\td\t1"] * 3, multiple_choice.read),
    "tags.txt": (["the O", "cat B-X", "", "a O", "dog B-X"], conll.read),
    "train.tsv": (["sentence\tlabel", "the cat\t1", "a dog\t0"], read_glue),
    "squad.json": (_SQUAD, lambda path, bad_rows: squad.read(path, True, True, bad_rows)),
    "text.txt": (["the cat sat .", "a dog ran .", "", "the sun"], read_text),
    "wiki.txt": (['<doc id="1" title="a">', "a", "", "the cat sat .", "</doc>"], read_text),
    "documents.jsonl": ({"text": "the cat sat . a dog ran ."}, read_text),
    "vocab.txt": (WORDS, read_vocabulary),
    "bert_config.json": (_CONFIG, lambda path, _: BertConfig.from_json_file(path)),
    "task.json": (_TASK, lambda path, _: finetuned.read_task(str(pathlib.Path(path).parent))),
}
_SEPARATORS = {".csv": ",", ".tsv": "\t", ".txt": " "}


def make_odd_content(path: pathlib.Path, valid: Any) -> st.SearchStrategy[bytes]:
    if path.suffix in _SEPARATORS:
        return odd_lines(valid, _SEPARATORS[path.suffix])
    return odd_json(valid) if path.suffix == ".json" else odd_json_lines(valid)


@pytest.mark.parametrize("name", READERS)
def test_a_valid_file_is_read(name: str, tmp_path: pathlib.Path):
    valid, read = READERS[name]
    (tmp_path / name).write_text("\n".join(valid) if isinstance(valid, list) else json.dumps(valid))
    read(str(tmp_path / name), BadRows(STOP))


def expect_result_or_short_error(read: Callable[..., Any], *arguments: Any) -> None:
    message = "read"
    try:
        read(*arguments)
    except UserError as error:
        message = str(error)
    assert 0 < len(message) < _MAX_MESSAGE


quick = settings(max_examples=25, phases=[Phase.generate], suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("name", READERS)
@quick
@given(data=st.data())
def test_a_malformed_file_is_read_or_refused(name: str, data: st.DataObject, tmp_path: pathlib.Path):
    valid, read = READERS[name]
    (tmp_path / name).write_bytes(data.draw(make_odd_content(tmp_path / name, valid)))
    for policy in (STOP, SKIP):
        expect_result_or_short_error(read, str(tmp_path / name), BadRows(policy, silent=True))


@pytest.mark.parametrize("format_name", ["hugging_face", "keras_hub", "tf1", "official_bert"])
@quick
@given(data=st.data())
def test_a_checkpoint_with_a_malformed_json_file_makes_a_model_or_is_refused(
    format_name: str, data: st.DataObject, tmp_path: pathlib.Path
):
    folder = tmp_path / "checkpoint"
    write_sample(format_name, folder)
    (folder / "checksums.json").unlink(missing_ok=True)
    path = data.draw(st.sampled_from(sorted(folder.rglob("*.json"))))
    path.write_bytes(data.draw(odd_json(json.loads(path.read_text()))))
    expect_result_or_short_error(lambda: assert_fits(open_model(str(folder))))
