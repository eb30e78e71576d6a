"""Exports of every kind on text of every language, in a process without this package, against the library in Python.

OFFICIAL_BERT_CLEAN_PYTHON names the interpreter of an environment that has tensorflow and tensorflow-text alone.
Without it the process is of this environment, and cannot import the package.
"""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from official_bert.checkpoints import finetuned, model_files, run_checkpoints
from official_bert.export.text_models import ENCODER, FILL_MASK, TOP_K
from official_bert.inference.fill_mask import fill_mask
from official_bert.modeling.pretraining_model import encoder_of
from official_bert.modeling.task_models import (
    CLASSIFICATION,
    MULTI_LABEL,
    MULTIPLE_CHOICE,
    QUESTION_ANSWERING,
    REGRESSION,
    TAGGING,
)
from official_bert.tasks.heads import candidates, tagging
from official_bert.tasks.heads import questions as questions_module
from official_bert.tokenization.exact import FullTokenizer
from tests.export.exported_models import CHOICES, CONFIG, LABELS, export, model_of, pretraining_model, task_spec_of
from tests.export.test_text_models import joined, outputs_of_rows, probabilities_of_choices

pytestmark = pytest.mark.slow

PAIR = "classification of pairs"
LENGTH = CONFIG.max_position_embeddings
QUESTIONS = {"max_seq_length": LENGTH, "doc_stride": 16, "max_query_length": 12}
CLOSE = {"rtol": 1e-5, "atol": 1e-5}

CLEAN_PROCESS = """
import json, sys
sys.modules["official_bert"] = None
import tensorflow as tf
import tensorflow_text

answers = {}
for name, (folder, texts) in json.load(open(sys.argv[1])).items():
    serve = tf.saved_model.load(folder).signatures["serving_default"]
    found = serve(**{key: tf.constant(values) for key, values in texts.items()})
    answers[name] = {key: value.numpy().tolist() for key, value in found.items()}
json.dump(answers, open(sys.argv[2], "w"), default=bytes.decode)
"""


@dataclasses.dataclass
class Setting:
    """What is asked of models with random weights and a released vocabulary of many languages."""

    tokenizer: FullTokenizer
    config: Any
    texts: dict[str, dict[str, Any]]  # by the export's name
    answers: dict[str, dict[str, Any]]  # of the clean process


@pytest.fixture(scope="module")
def setting(test_data: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> Setting:
    folder = tmp_path_factory.mktemp("round_trip")
    vocab_file = next((test_data / "vocab").glob("*multi*uncased*"))
    tokenizer = FullTokenizer(str(vocab_file), do_lower_case=True)
    config = dataclasses.replace(CONFIG, vocab_size=len(tokenizer.vocab))
    lines = []
    paths = sorted((test_data / "text").glob("*.txt"))
    assert len(paths) >= 7
    for path in paths:
        some = [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
        lines += [*some[:4], max(some[:300], key=len)]
    others = lines[1:] + lines[:1]
    texts = {
        ENCODER: {"text": lines},
        FILL_MASK: {"text": [f"{line[:12]} [MASK] {line[12:24]} [MASK]" for line in lines]},
        **{key: {"text": lines} for key in (CLASSIFICATION, MULTI_LABEL, REGRESSION, TAGGING)},
        PAIR: {"text": lines, "text_pair": others},
        QUESTION_ANSWERING: {"question": [line[:40] for line in others], "context": lines},
        MULTIPLE_CHOICE: {
            "prompt": lines,
            "endings": [[lines[(row + place) % len(lines)] for place in range(CHOICES)] for row in range(len(lines))],
        },
    }
    run = folder / "run"
    description = model_files.contents_of(config, str(vocab_file))
    model_files.write_contents(str(run), description)
    run_checkpoints.RunCheckpoints(str(run), {"model": pretraining_model(config).variables}, keep=1).save(0)
    asked = {}
    for name, given in texts.items():
        source = run
        if name not in (ENCODER, FILL_MASK):
            source = folder / "models" / name
            kind = CLASSIFICATION if name == PAIR else name
            of_kind = QUESTIONS if kind == QUESTION_ANSWERING else {"max_seq_length": LENGTH}
            model, told = model_of(kind, config), task_spec_of(kind, pair=name == PAIR, **of_kind)
            finetuned.save(str(source), model, told, config, vocab_file.read_text(encoding="utf-8"))
        asked[name] = (export(source, folder / "exports" / name, encoder=name == ENCODER), given)
    (folder / "asked.json").write_text(json.dumps(asked))
    python = os.environ.get("OFFICIAL_BERT_CLEAN_PYTHON", sys.executable)
    command = [python, "-c", CLEAN_PROCESS, str(folder / "asked.json"), str(folder / "answers.json")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Setting(tokenizer, config, texts, json.loads((folder / "answers.json").read_text()))


def assert_close(what: str, found: Any, expected: Any) -> None:
    """Compares within 1e-5, and prints how far off they are, for those who want to know."""
    found, expected = np.asarray(found), np.asarray(expected)
    print(f"{what}: {found.size} numbers, at most {np.max(np.abs(found - expected), initial=0.0):.1e} apart")
    np.testing.assert_allclose(found, expected, **CLOSE)


def outputs(setting: Setting, model: Any, texts: list[str], pairs: list[str] | None = None) -> Any:
    """What the model says of texts that the library's tokenizer has cut."""
    seconds: Any = pairs or [None] * len(texts)
    rows = [joined(setting.tokenizer, *both, LENGTH) for both in zip(texts, seconds, strict=True)]
    return outputs_of_rows(model, rows)


def test_encoder(setting: Setting):
    texts, found = setting.texts[ENCODER]["text"], setting.answers[ENCODER]
    expected = outputs(setting, encoder_of(pretraining_model(setting.config)), texts)
    assert_close("pooled_output", found["pooled_output"], expected["pooled_output"])
    mask = np.array(found["input_mask"])[..., None]
    assert mask.sum() > 1000
    assert_close("sequence_output", found["sequence_output"] * mask, expected["sequence_output"] * mask)


def test_fill_mask(setting: Setting):
    model, found = pretraining_model(setting.config), setting.answers[FILL_MASK]
    for row, text in enumerate(setting.texts[FILL_MASK]["text"]):
        expected = fill_mask(model, setting.tokenizer, setting.config, text, TOP_K)
        assert found["tokens"][row] == [[each.token for each in candidates] for candidates in expected]
        probabilities = [[each.probability for each in candidates] for candidates in expected]
        assert_close("probabilities", found["probabilities"][row], probabilities)


@pytest.mark.parametrize("name", [CLASSIFICATION, PAIR, MULTI_LABEL, REGRESSION])
def test_texts_and_pairs(name: str, setting: Setting):
    given, found = setting.texts[name], setting.answers[name]
    model = model_of(CLASSIFICATION if name == PAIR else name, setting.config)
    expected = outputs(setting, model, given["text"], given.get("text_pair"))
    if name == REGRESSION:
        assert_close("value", found["value"], expected)
        return
    probabilities = tf.nn.sigmoid(expected) if name == MULTI_LABEL else tf.nn.softmax(expected)
    assert_close("probabilities", found["probabilities"], probabilities)
    assert len(np.unique(np.round(found["probabilities"], 3), axis=0)) > 10  # or the test could not fail
    if name != MULTI_LABEL:
        assert found["label"] == [LABELS[best] for best in np.argmax(expected, -1)]


def test_multiple_choice(setting: Setting):
    given, found = setting.texts[MULTIPLE_CHOICE], setting.answers[MULTIPLE_CHOICE]
    model = model_of(MULTIPLE_CHOICE, setting.config)
    expected = [
        probabilities_of_choices(model, setting.tokenizer, prompt, endings, LENGTH)
        for prompt, endings in zip(given["prompt"], given["endings"], strict=True)
    ]
    assert_close("probabilities", found["probabilities"], expected)
    assert found["choice"] == np.argmax(expected, -1).tolist()


def test_question_answering(setting: Setting):
    given, found = setting.texts[QUESTION_ANSWERING], setting.answers[QUESTION_ANSWERING]
    told = task_spec_of(QUESTION_ANSWERING)
    both = zip(given["question"], given["context"], strict=True)
    questions = [questions_module.Question(str(number), *each, None) for number, each in enumerate(both)]
    cut = questions_module.cut_into_windows(questions, setting.tokenizer, questions_module.Limits(**QUESTIONS))
    assert len(cut) > 2 * len(questions)
    model = model_of(QUESTION_ANSWERING, setting.config)
    logits = outputs_of_rows(model, [(window.input_ids, window.segment_ids) for window in cut])
    starts, ends = (logits[name].numpy() for name in ("start_logits", "end_logits"))
    limits = {name: told[name] for name in ("n_best_size", "max_answer_length")}
    predictions = candidates.predict(questions, cut, starts, ends, version_2=False, **limits)
    answers = [prediction.answer(False, 0.0) for prediction in predictions]
    assert found["answer"] == [answer.text for answer in answers]
    assert found["start"] == [answer.start for answer in answers]
    assert found["end"] == [answer.end for answer in answers]
    assert_close("probability", found["probability"], [answer.probability for answer in answers])
    differences = [prediction.null_score_difference for prediction in predictions]
    assert_close("null_score_difference", found["null_score_difference"], differences)


def test_tagging(setting: Setting):
    texts, found = setting.texts[TAGGING]["text"], setting.answers[TAGGING]
    sentences = [setting.tokenizer.basic_tokenizer.tokenize(text) for text in texts]
    cut = tagging.cut_into_windows(sentences, setting.tokenizer, LENGTH)
    assert len(cut) > len(texts)
    model = model_of(TAGGING, setting.config)
    logits = outputs_of_rows(model, [(window.input_ids, [0] * len(window.input_ids)) for window in cut]).numpy()
    tags, probabilities = tagging.tags_from_logits([*map(len, sentences)], cut, logits, LABELS)
    assert len({tag for row in tags for tag in row}) > 1
    for row, text in enumerate(texts):
        count = len(sentences[row])
        assert found["tags"][row][:count] == tags[row]
        assert not any(found["tags"][row][count:])
        assert_close("probabilities", found["probabilities"][row][:count], probabilities[row])
        offsets = zip(found["starts"][row][:count], found["ends"][row][:count], strict=True)
        assert found["words"][row][:count] == [text[start:end] for start, end in offsets]
