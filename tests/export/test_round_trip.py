"""Compares exports of every kind in a process without this package with the library, on text in many languages.

OFFICIAL_BERT_CLEAN_PYTHON is the interpreter of an environment that has only tensorflow and tensorflow-text. Without
it, the process uses this environment, but cannot import the package.
"""

import dataclasses
import os
import pathlib
import sys
from typing import Any

import numpy as np
import pytest

from official_bert.inference import exports
from official_bert.kinds import names
from tests.export.exported_models import CHOICES, CONFIG, answer_in_python, assert_answers, export, make_source

pytestmark = pytest.mark.slow

PAIR = "classification of pairs"
LENGTH = CONFIG.max_position_embeddings
SETTINGS: dict[str, dict[str, Any]] = {
    PAIR: {"pair": True},
    names.QUESTION_ANSWERING: {"doc_stride": 16, "max_query_length": 12},
}


@pytest.fixture(scope="module")
def lines(test_data: pathlib.Path) -> list[str]:
    lines = []
    paths = sorted((test_data / "text").glob("*.txt"))
    assert len(paths) >= 7
    for path in paths:
        some = [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
        lines += [*some[:4], max(some[:300], key=len)]
    return lines


@pytest.mark.parametrize("name", [*names.KINDS, PAIR, names.ENCODER, names.FILL_MASK])
def test_an_environment_without_this_package_gives_the_same_answers(
    name: str, lines: list[str], test_data: pathlib.Path, tmp_path: pathlib.Path, run_separate_process, monkeypatch
):
    # Models with random weights and a released multilingual vocabulary.
    vocab = next((test_data / "vocab").glob("*multi*uncased*")).read_text(encoding="utf-8")
    config = dataclasses.replace(CONFIG, vocab_size=vocab.rstrip("\n").count("\n") + 1)
    settings = {"max_seq_length": LENGTH, **SETTINGS.get(name, {})}
    source = make_source(names.CLASSIFICATION if name == PAIR else name, config, vocab, **settings)
    lengths = [len(source.tokenizer.tokenize(line)) for line in lines]
    assert max(lengths) > LENGTH
    assert sum(lengths) > 1000
    others = lines[1:] + lines[:1]
    texts_by_name: dict[str, dict[str, Any]] = {
        names.FILL_MASK: {"text": [f"{line[:12]} [MASK] {line[12:24]} [MASK]" for line in lines]},
        PAIR: {"text": lines, "text_pair": others},
        names.QUESTION_ANSWERING: {"question": [line[:40] for line in others], "context": lines},
        names.MULTIPLE_CHOICE: {
            "prompt": lines,
            "endings": [[lines[(row + place) % len(lines)] for place in range(CHOICES)] for row in range(len(lines))],
        },
    }
    texts = texts_by_name.get(name, {"text": lines})
    rows = [dict(zip(texts, row, strict=True)) for row in zip(*texts.values(), strict=True)]
    path = export(source, tmp_path)
    monkeypatch.setattr(sys, "executable", os.environ.get("OFFICIAL_BERT_CLEAN_PYTHON", sys.executable))
    answers, _ = run_separate_process(path, rows)
    expected = answer_in_python(source, texts)
    found = [{key: np.array([value]) for key, value in answer.items()} for answer in answers]
    for answer, alone in zip(found, exports.split_rows(expected), strict=True):
        assert_answers(answer, alone, rtol=1e-5, atol=1e-5)
    assert len({str(answer) for answer in answers}) > 10  # so that the test can fail
    if name == names.TAGGING:
        assert len({*expected["tags"].ravel()}) > 2
