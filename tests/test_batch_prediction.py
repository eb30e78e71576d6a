import json
import pathlib
from typing import Any

import pytest
import tensorflow as tf

from official_bert import batch_prediction
from official_bert.batch_prediction import Options, newest_version, predict, read_rows
from official_bert.errors import UserError


class Lengths(tf.Module):
    """A model that says how long each text is, and fails at the number of calls that it is told."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def lengths(self, text: Any) -> dict[str, Any]:
        tf.debugging.assert_none_equal(text, "fail")
        return {"length": tf.strings.length(text, "UTF8_CHAR"), "text": text}


@pytest.fixture(scope="module")
def export_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("exports")
    for version in ("2", "10"):
        module = Lengths()
        tf.saved_model.save(module, str(folder / version), signatures=module.lengths)
        (folder / version / "assets.extra").mkdir()
        (folder / version / "assets.extra" / "official_bert.json").write_text('{"inputs": ["text"]}')
    return str(folder)


def answers_of(path: pathlib.Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_answers_come_in_the_order_of_the_texts(export_dir: str, tmp_path: pathlib.Path):
    texts = ["é" * (number * 7 % 50) + "\u2028中" for number in range(100)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text, "id": 1}) + "\n" for text in texts))
    told = predict(Options(export_dir, str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"), batch_size=3))
    assert told.endswith("out.jsonl: 100 answers")
    # Not by splitlines, which knows more line ends than JSON lines do.
    lines = (tmp_path / "out.jsonl").read_text(encoding="utf-8").split("\n")
    assert [json.loads(line) for line in lines[:-1]] == [{"length": len(text), "text": text} for text in texts]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


def test_tables_are_read_with_quotes_and_line_ends_in_them(export_dir: str, tmp_path: pathlib.Path):
    (tmp_path / "in.csv").write_text('id,text\n1,"a, ""b""\nc"\n2,d\n')
    predict(Options(export_dir, str(tmp_path / "in.csv"), str(tmp_path / "out.jsonl")))
    assert [answer["text"] for answer in answers_of(tmp_path / "out.jsonl")] == ['a, "b"\nc', "d"]


def test_a_run_that_stopped_goes_on(export_dir: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(batch_prediction, "_BATCHES_AT_ONCE", 1)
    texts = ["a" * number for number in range(8)]
    lines = [json.dumps({"text": text}) + "\n" for text in texts]
    options = Options(export_dir, str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"), batch_size=2)
    (tmp_path / "in.jsonl").write_text("".join([*lines[:5], json.dumps({"text": "fail"}) + "\n", *lines[6:]]))
    with pytest.raises(tf.errors.InvalidArgumentError):
        predict(options)
    part = tmp_path / "out.jsonl.part"
    assert len(answers_of(part)) == 4
    with open(part, "a") as file:
        file.write('{"length": 4, "te')  # the machine stopped while it wrote
    (tmp_path / "in.jsonl").write_text("".join([*lines[:5], json.dumps({"text": "mend"}) + "\n", *lines[6:]]))
    assert predict(options).endswith("8 answers, 4 of them from an earlier run")
    assert [answer["text"] for answer in answers_of(tmp_path / "out.jsonl")] == [*texts[:5], "mend", *texts[6:]]


def test_the_part_of_another_run_is_not_gone_on_with(export_dir: str, tmp_path: pathlib.Path):
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "out.jsonl.part").write_text('{"text": "b"}\n')
    with pytest.raises(UserError, match="is of another run"):
        predict(Options(export_dir, str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl")))
    assert (tmp_path / "out.jsonl.part").read_text() == '{"text": "b"}\n'


@pytest.mark.parametrize(("name", "content", "message"), [
    ("in.jsonl", '{"text": "a"}\n\n{"txt": "b"}\n', "line 3: 'text' is nothing; expected a text"),
    ("in.jsonl", '{"text": 5}\n', "line 1: 'text' is 5; expected a text"),
    ("in.jsonl", '{"text": "a"\n', "line 1: not valid JSON"),
    ("in.csv", "txt\na\n", "line 2: 'text' is nothing"),
])  # fmt: skip
def test_rows_that_lack_an_input_are_named_before_anything_is_written(
    name: str, content: str, message: str, export_dir: str, tmp_path: pathlib.Path
):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message):
        predict(Options(export_dir, str(tmp_path / name), str(tmp_path / "out.jsonl")))
    assert not (tmp_path / "out.jsonl").exists()


def test_endings_are_a_list_or_columns_of_their_own(tmp_path: pathlib.Path):
    (tmp_path / "in.tsv").write_text("prompt\tending0\tending1\nwho\ta\tb\n")
    (tmp_path / "in.jsonl").write_text('{"prompt": "who", "endings": ["a", "b"]}\n')
    for name in ("in.tsv", "in.jsonl"):
        rows = list(read_rows(str(tmp_path / name), ["prompt", "endings"]))
        assert rows == [{"prompt": "who", "endings": ["a", "b"]}]


def test_newest_version_is_taken_by_number(export_dir: str, tmp_path: pathlib.Path):
    assert pathlib.Path(newest_version(export_dir)).name == "10"
    assert newest_version(f"{export_dir}/2") == f"{export_dir}/2"
    with pytest.raises(UserError, match="holds no export"):
        newest_version(str(tmp_path))
