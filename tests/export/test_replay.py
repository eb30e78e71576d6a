import dataclasses
import pathlib
import re
from typing import Any

import keras
import pytest
import tensorflow as tf

from official_bert.errors import UserError
from official_bert.export import operations
from official_bert.export.proof import synthetic_texts
from official_bert.export.source import Source
from official_bert.inference import exports as layout
from official_bert.inference import replays
from official_bert.inference.replays import Replay
from official_bert.kinds import graph_inputs
from official_bert.kinds.names import CLASSIFICATION, FILL_MASK, MULTIPLE_CHOICE, QUESTION_ANSWERING
from official_bert.tokenization.exact import FullTokenizer
from tests.export.exported_models import CONFIG, export, make_task_spec, save_finetuned, save_run
from tests.make import VOCAB, refusal

LENGTH = 20
REPLAY = Replay(
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


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> FullTokenizer:
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text(VOCAB)
    return FullTokenizer(str(path))


def make_texts(tokenizer: FullTokenizer, kind: str, **changes: Any) -> dict[str, list[Any]]:
    """Returns the synthetic texts for a model of a kind. This needs no weights."""
    task_spec = make_task_spec(kind, max_seq_length=LENGTH, **changes)
    return synthetic_texts(Source(keras.Model(), CONFIG, tokenizer, "", kind, task_spec))


def lengths(tokenizer: FullTokenizer, texts: list[str]) -> set[int]:
    return {len(tokenizer.tokenize(text)) for text in texts}


def test_synthetic_texts_reach_the_limit_to_the_token(tokenizer: FullTokenizer):
    texts = make_texts(tokenizer, CLASSIFICATION)["text"]
    room = LENGTH - 2
    assert {0, 1, room - 1, room, room + 1, 5 * room // 2} <= lengths(tokenizer, texts)
    assert make_texts(tokenizer, CLASSIFICATION)["text"] == texts


def test_synthetic_pairs_reach_the_limit_to_the_token(tokenizer: FullTokenizer):
    pairs = make_texts(tokenizer, CLASSIFICATION, pair=True)
    counts = {
        tuple(len(tokenizer.tokenize(text)) for text in pair)
        for pair in zip(pairs["text"], pairs["text_pair"], strict=True)
    }
    room = LENGTH - 3
    assert {room, room + 1} <= {first + second for first, second in counts}
    assert {(0, 0), (0, room), (room, 1), (2 * room, 2 * room)} <= counts


def test_synthetic_questions_reach_both_limits_to_the_token(tokenizer: FullTokenizer):
    texts = make_texts(tokenizer, QUESTION_ANSWERING, max_query_length=6)
    assert {0, 1, 6, 7} <= lengths(tokenizer, texts["question"])
    room = LENGTH - 3 - 7
    assert {room - 1, room, room + 1} <= lengths(tokenizer, texts["context"])


def test_synthetic_choices_and_masks_have_the_requested_shape(tokenizer: FullTokenizer):
    choices = make_texts(tokenizer, MULTIPLE_CHOICE)
    assert {len(endings) for endings in choices["endings"]} == {4}
    masks = make_texts(tokenizer, FILL_MASK)["text"]
    assert all("[MASK]" in text for text in masks)
    fitting = {len(tokenizer.tokenize(text, special_tokens=True)) for text in masks}
    assert LENGTH - 2 in fitting
    assert max(fitting) == LENGTH - 2


def test_rounding_is_not_a_difference():
    assert not list(REPLAY.differences(ANSWERS, "it"))  # the probabilities of both labels are almost equal
    other = {**ANSWERS[0], "probability": 0.902}
    assert list(REPLAY.differences([other], "it")) == [
        'for {"text": "a"}, probability is 0.9 with predict, but 0.902 with it'
    ]
    nan = {"probability": float("nan")}
    for change in ({"label": "no"}, {"starts": [0, 5]}, {"starts": [0]}, {"probability": "0.9"}, nan):
        assert len(list(REPLAY.differences([{**ANSWERS[0], **change}], "it"))) == 1
    assert REPLAY.largest_difference([other]) == pytest.approx(0.002 / 1.9)
    less = {name: value for name, value in ANSWERS[0].items() if name != "starts"}
    assert list(REPLAY.differences([less], "it")) == [
        "it has no output starts for {\"text\": \"a\"}, only ['label', 'logits', 'probability']"
    ]


def test_a_replay_is_read_as_it_was_written_without_answers_that_are_too_long(tmp_path: pathlib.Path):
    (tmp_path / "assets.extra").mkdir()
    REPLAY.write(str(tmp_path))
    assert replays.read(str(tmp_path)) == REPLAY
    long = dataclasses.replace(REPLAY, answers={**REPLAY.answers, "starts": [[0.5] * 30_000, []]})
    long.write(str(tmp_path))
    assert replays.read(str(tmp_path)).texts == {"text": ["b"]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "has no replay file"),
        ("{}", "is not a replay file (KeyError"),
        ('{"texts": {"text": ["a"]}, "answers": {"label": []}, "decisions": [], "margins": [1], "tolerance": 0.1}',
         "is not a replay file (its columns differ in length"),
    ],
)  # fmt: skip
def test_invalid_replay_file_is_rejected(content: str | None, message: str, tmp_path: pathlib.Path):
    (tmp_path / "assets.extra").mkdir()
    if content is not None:
        (tmp_path / layout.REPLAY_FILE).write_text(content)
    assert message in refusal(replays.read, str(tmp_path))


@pytest.mark.slow
def test_export_with_another_truncation_is_not_written(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path):
    def shorter(first: Any, second: Any, length: Any) -> Any:
        return truncate(first, second, length - 1)

    truncate = graph_inputs.truncate
    monkeypatch.setattr(graph_inputs, "truncate", shorter)
    model_dir = save_finetuned(tmp_path / "model", CLASSIFICATION)
    exports = tmp_path / "exports"
    message = r'not written: for \{"text": ".*"\}, \w+ is .* with predict, but .* with the export.*answers? differs?'
    assert re.search(message, refusal(export, model_dir, str(exports)))
    assert not exports.exists() or not list(exports.iterdir())


def test_texts_of_an_evaluation_file_are_replayed(tmp_path: pathlib.Path):
    model_dir = save_finetuned(tmp_path / "model", CLASSIFICATION)
    table = tmp_path / "dev.csv"
    table.write_text("text,label\n" + "".join(f"the cat {'sat ' * number},yes\n" for number in range(50)))
    path = export(model_dir, str(tmp_path / "exports"), eval_file=str(table))
    texts = replays.read(path).texts["text"]
    synthetic = make_texts(FullTokenizer(f"{model_dir}/vocab.txt"), CLASSIFICATION)["text"]
    assert texts[: len(synthetic)] == synthetic
    assert len(texts) == len(synthetic) + 32
    assert "nothing.csv" in refusal(export, model_dir, str(tmp_path / "exports"), eval_file="nothing.csv")


def test_a_model_without_a_task_has_no_evaluation_file(tmp_path: pathlib.Path):
    run = save_run(tmp_path / "run")
    assert "the model has no task to evaluate" in refusal(export, run, tmp_path / "exports", eval_file="dev.csv")


def test_missing_operations_of_a_release_are_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path):
    module = tf.Module()
    module.add = tf.function(lambda x: tf.nn.relu(x) + 1.0, input_signature=[tf.TensorSpec([None])])
    tf.saved_model.save(module, str(tmp_path))
    used = operations.find_used(str(tmp_path))
    assert "Relu" in used
    assert "PartitionedCall" in used or "StatefulPartitionedCall" in used
    assert not [name for name in used if name.startswith("__inference")]
    assert [operations.find_missing(str(tmp_path), release) for release in operations.releases()] == [[]] * 5
    known = dict(operations._load_operations()["2.19"])
    known["AddV2"] = frozenset()
    del known["Relu"]
    monkeypatch.setattr(operations, "_load_operations", lambda: {"2.19": known})
    assert operations.find_missing(str(tmp_path), "2.19") == ["AddV2 with T", "Relu"]
    message = refusal(operations.find_missing, str(tmp_path), "2.3")
    assert "TensorFlow 2.3" in message
    assert "2.19" in message


def test_an_export_for_a_release_that_lacks_its_operations_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(operations, "find_missing", lambda folder, release: ["Softmax"])
    model_dir = save_finetuned(tmp_path / "model", CLASSIFICATION)
    with pytest.raises(UserError, match=r"TensorFlow Serving 2\.19 lacks .*: Softmax"):
        export(model_dir, tmp_path / "x", for_serving="2.19")


def test_no_operation_of_this_tensorflow_is_missing_in_the_list():
    release = ".".join(tf.__version__.split(".")[:2])
    public = {name for name in dir(tf.raw_ops) if name[0].isupper()}
    assert public - {"PyFunc", "PyFuncStateless", "EagerPyFunc"} <= set(operations._load_operations()[release])
