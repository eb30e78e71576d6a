"""Compares exports of every kind in a process without this package with the library, on text in many languages.

OFFICIAL_BERT_CLEAN_PYTHON is the interpreter of an environment that has only tensorflow and tensorflow-text. Without
it, the process uses this environment, but cannot import the package.
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

from official_bert.checkpoints import finetuned
from official_bert.kinds.names import (
    CLASSIFICATION,
    ENCODER,
    FILL_MASK,
    KINDS,
    MULTIPLE_CHOICE,
    QUESTION_ANSWERING,
    TAGGING,
)
from official_bert.tokenization.exact import FullTokenizer
from tests.export.answers_in_python import (
    answers_in_python,
    assert_answers,
    assert_words,
    create_model,
    question_windows,
)
from tests.export.exported_models import CHOICES, CONFIG, build_model, export, make_task_spec, pretraining_model
from tests.make import write_run

pytestmark = pytest.mark.slow

PAIR = "classification of pairs"
LENGTH = CONFIG.max_position_embeddings
NAMES = (*KINDS, PAIR, ENCODER, FILL_MASK)

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


def kind_and_spec(name: str) -> tuple[str, dict[str, Any]]:
    kind = CLASSIFICATION if name == PAIR else name
    questions = {"doc_stride": 16, "max_query_length": 12} if kind == QUESTION_ANSWERING else {}
    return kind, make_task_spec(kind, pair=name == PAIR, max_seq_length=LENGTH, **questions)


@dataclasses.dataclass
class Setting:
    """Inputs and settings for models with random weights and a released multilingual vocabulary."""

    tokenizer: FullTokenizer
    config: Any
    texts: dict[str, dict[str, Any]]  # by the export's name
    answers: dict[str, dict[str, Any]]  # in the clean process


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
    lengths = [len(tokenizer.tokenize(line)) for line in lines]
    assert max(lengths) > LENGTH
    assert sum(lengths) > 1000
    others = lines[1:] + lines[:1]
    texts = {
        **{kind: {"text": lines} for kind in (*KINDS, ENCODER)},
        FILL_MASK: {"text": [f"{line[:12]} [MASK] {line[12:24]} [MASK]" for line in lines]},
        PAIR: {"text": lines, "text_pair": others},
        QUESTION_ANSWERING: {"question": [line[:40] for line in others], "context": lines},
        MULTIPLE_CHOICE: {
            "prompt": lines,
            "endings": [[lines[(row + place) % len(lines)] for place in range(CHOICES)] for row in range(len(lines))],
        },
    }
    run = write_run(folder / "run", pretraining_model(config), config, str(vocab_file))
    asked = {}
    for name, given in texts.items():
        source = run
        if name not in (ENCODER, FILL_MASK):
            source = str(folder / "models" / name)
            kind, spec = kind_and_spec(name)
            finetuned.save(source, build_model(kind, config), spec, config, vocab_file.read_text(encoding="utf-8"))
        asked[name] = (export(source, folder / "exports" / name, encoder=name == ENCODER), given)
    (folder / "asked.json").write_text(json.dumps(asked))
    python = os.environ.get("OFFICIAL_BERT_CLEAN_PYTHON", sys.executable)
    command = [python, "-c", CLEAN_PROCESS, str(folder / "asked.json"), str(folder / "answers.json")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Setting(tokenizer, config, texts, json.loads((folder / "answers.json").read_text()))


@pytest.mark.parametrize("name", NAMES)
def test_a_clean_process_answers_as_the_library_does(name: str, setting: Setting):
    texts, found, (kind, spec) = setting.texts[name], setting.answers[name], kind_and_spec(name)
    expected = list(answers_in_python(kind, create_model(kind, setting.config), setting.tokenizer, texts, spec))
    assert_answers(found, expected, rtol=1e-5, atol=1e-5)
    numbers = {str(np.round(list(answer.values())[-1], 3)) for answer in expected}
    assert len(numbers) > 10  # so that the test can fail
    if kind == QUESTION_ANSWERING:
        questions, windows = question_windows(setting.tokenizer, texts, spec)
        assert len(windows) > 2 * len(questions)
    if kind == TAGGING:
        assert_words(found, texts["text"], setting.tokenizer)
        assert len({tag for answer in expected for tag in answer["tags"]}) > 1
