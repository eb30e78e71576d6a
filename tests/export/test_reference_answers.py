import dataclasses
import pathlib
import types
from typing import Any

import keras
import pytest
import tensorflow as tf

from official_bert.export import operations, verification
from official_bert.export.source import ExportSource
from official_bert.export.verification import record_answers, synthetic_texts
from official_bert.inference import exports as layout
from official_bert.inference import reference_answers
from official_bert.inference.predictor import Signature, Tensor
from official_bert.inference.reference_answers import ReferenceAnswers
from official_bert.kinds import graph_inputs
from official_bert.kinds.names import CLASSIFICATION, ENCODER, FILL_MASK, MULTIPLE_CHOICE, QUESTION_ANSWERING
from official_bert.tokenization.exact import FullTokenizer
from tests.export.exported_models import CONFIG, export, make_source, make_task_spec
from tests.make import VOCAB, assert_mentions, assert_rejected, refusal

LENGTH = 20
REFERENCE = ReferenceAnswers(
    {"text": ["a", "b"]},
    {"label": ["yes", "no"], "probability": [0.9, 0.5003], "starts": [[0, 4], []]},
    ("label",),
    [0.8, 0.0006],
    5e-4,
)
ANSWERS = [
    {"label": "yes", "probability": 0.9001, "starts": [0, 4], "logits": [1.0]},
    {"label": "yes", "probability": 0.5001, "starts": []},
]
TOKENIZER = FullTokenizer.from_vocab(VOCAB)


def make_texts(kind: str, **changes: Any) -> dict[str, list[Any]]:
    """Returns the synthetic texts for a model of a kind. This needs no weights."""
    return synthetic_texts(ExportSource(keras.Model(), CONFIG, TOKENIZER, "", kind, make_task_spec(kind, **changes)))


def lengths(texts: list[str]) -> list[int]:
    return [len(TOKENIZER.tokenize(text)) for text in texts]


def test_synthetic_texts_have_exactly_the_maximum_lengths():
    room = LENGTH - 2
    texts = make_texts(CLASSIFICATION)
    assert {0, 1, room - 1, room, room + 1, 5 * room // 2} <= {*lengths(texts["text"])}
    assert make_texts(CLASSIFICATION) == texts
    pairs = make_texts(CLASSIFICATION, pair=True)
    counts, room = set(zip(lengths(pairs["text"]), lengths(pairs["text_pair"]), strict=True)), LENGTH - 3
    assert {room, room + 1} <= {first + second for first, second in counts}
    assert {(0, 0), (0, room), (room, 1), (2 * room, 2 * room)} <= counts
    questions, room = make_texts(QUESTION_ANSWERING, max_query_length=6), LENGTH - 3 - 7
    assert {0, 1, 6, 7} <= {*lengths(questions["question"])}
    assert {room - 1, room, room + 1} <= {*lengths(questions["context"])}
    assert {len(endings) for endings in make_texts(MULTIPLE_CHOICE)["endings"]} == {4}
    masks = make_texts(FILL_MASK)["text"]
    assert all("[MASK]" in text for text in masks)
    assert max(len(TOKENIZER.tokenize(text, special_tokens=True)) for text in masks) == LENGTH - 2


def test_rounding_is_not_a_difference():
    assert not list(REFERENCE.differences(ANSWERS, "it"))  # the probabilities of both labels are almost equal
    other = {**ANSWERS[0], "probability": 0.902}
    (line,) = REFERENCE.differences([other], "it")
    assert_mentions(line, '{"text": "a"}', "probability", 0.9, 0.902)
    nan = {"probability": float("nan")}
    for change in ({"label": "no"}, {"starts": [0, 5]}, {"starts": [0]}, {"probability": "0.9"}, nan):
        assert len(list(REFERENCE.differences([{**ANSWERS[0], **change}], "it"))) == 1
    verification.check_answers(REFERENCE, ANSWERS, ANSWERS)
    assert "batch" not in refusal(verification.check_answers, REFERENCE, [other], ANSWERS)
    assert_rejected((0.902, "batch"), verification.check_answers, REFERENCE, ANSWERS, [other])
    assert REFERENCE.largest_difference([other]) == pytest.approx(0.002 / 1.9)
    (line,) = REFERENCE.differences([{"label": "yes", "probability": 0.9}], "it")
    assert_mentions(line, "starts", '{"text": "a"}')


def test_replay_files_are_read_back_without_overlong_answers(tmp_path: pathlib.Path):
    (tmp_path / "assets.extra").mkdir()
    REFERENCE.write(str(tmp_path))
    assert reference_answers.read(str(tmp_path)) == REFERENCE
    long = dataclasses.replace(REFERENCE, answers={**REFERENCE.answers, "starts": [[0.5] * 30_000, []]})
    long.write(str(tmp_path))
    assert reference_answers.read(str(tmp_path)).texts == {"text": ["b"]}
    dataclasses.replace(long, answers={"starts": [[0.5] * 30_000] * 2}).write(str(tmp_path))
    assert reference_answers.read(str(tmp_path)).texts == {"text": []}
    model = types.SimpleNamespace(
        signatures={"serving_default": Signature({"text": Tensor("string", (None,))}, {})},
        run=lambda columns: pytest.fail("no text is left to answer"),
    )
    reference_answers.check_answers(str(tmp_path), model)


def test_invalid_replay_file_is_rejected(tmp_path: pathlib.Path):
    assert_rejected((tmp_path, layout.REPLAY_FILE), reference_answers.read, str(tmp_path))
    (tmp_path / "assets.extra").mkdir()
    columns = '{"texts": {"text": ["a"]}, "answers": {"label": []}, "decisions": [], "margins": [1], "tolerance": 0.1}'
    for content, reason in (("{}", "'texts'"), (columns, "length")):
        (tmp_path / layout.REPLAY_FILE).write_text(content)
        assert_rejected((tmp_path / layout.REPLAY_FILE, reason), reference_answers.read, str(tmp_path))


@pytest.mark.slow
def test_export_with_another_truncation_is_not_written(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path):
    truncate = graph_inputs.truncate
    monkeypatch.setattr(graph_inputs, "truncate", lambda first, second, length: truncate(first, second, length - 1))
    assert_rejected(("predict", '{"text"'), export, make_source(CLASSIFICATION), tmp_path)
    assert not list(tmp_path.iterdir())


def test_texts_of_an_evaluation_file_become_reference_inputs(tmp_path: pathlib.Path):
    table = tmp_path / "dev.csv"
    table.write_text("text,label\n" + "".join(f"the cat {number},yes\n" for number in range(100)))
    path = export(make_source(CLASSIFICATION), tmp_path / "exports", "onnx", eval_file=str(table))
    texts, synthetic = reference_answers.read(path).texts["text"], make_texts(CLASSIFICATION)["text"]
    assert texts[: len(synthetic)] == synthetic
    assert texts[len(synthetic) :] == [f"the cat {number}" for number in range(0, 96, 3)]
    assert_rejected("--eval_file=dev.csv", record_answers, make_source(ENCODER), "dev.csv")


def test_missing_operations_of_a_release_are_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path):
    module = tf.Module()
    module.add = tf.function(lambda x: tf.nn.relu(x) + 1.0, input_signature=[tf.TensorSpec([None])])
    tf.saved_model.save(module, str(tmp_path))
    used = operations.find_used(str(tmp_path))
    assert "Relu" in used
    assert "PartitionedCall" in used or "StatefulPartitionedCall" in used
    assert not [name for name in used if name.startswith("__inference")]
    assert [*operations.find_missing(str(tmp_path)).values()] == [[]] * 5
    known = dict(operations._load_operations()["2.19"])
    known["AddV2"] = frozenset()
    del known["Relu"]
    monkeypatch.setattr(operations, "_load_operations", lambda: {"2.19": known})
    assert operations.find_missing(str(tmp_path)) == {"2.19": ["AddV2 with T", "Relu"]}


def test_no_operation_of_this_tensorflow_is_missing_in_the_list():
    release = ".".join(tf.__version__.split(".")[:2])
    public = {name for name in dir(tf.raw_ops) if name[0].isupper()}
    assert public - {"PyFunc", "PyFuncStateless", "EagerPyFunc"} <= set(operations._load_operations()[release])
