"""Exports for ONNX Runtime: their answers, the file layout, and damaged exports."""

import json
import pathlib
import re
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import tokenizers

from official_bert.export.options import ONNX
from official_bert.inference import backends, exports
from official_bert.inference.onnx_model import OnnxPredictor
from official_bert.kinds.names import CLASSIFICATION, QUESTION_ANSWERING, TAGGING
from official_bert.tokenization.added_tokens import AddedToken
from official_bert.tokenization.casing import UNCASED
from tests.conftest import ROOT, slow_after
from tests.export.exported_models import LABELS, SETTINGS, TEXTS, answer_in_python, assert_answers, export, make_source
from tests.make import VOCAB, assert_rejected, run_python

Export = Callable[[str, str], str]


def test_answers_have_the_types_of_saved_models(export_kind: Export):
    model = OnnxPredictor(export_kind(CLASSIFICATION, ONNX), threads=1, num_workers=2)
    answers = model.run(exports.to_columns({"text": TEXTS * 40}))
    assert answers["label"].dtype == object
    assert set(answers["label"].tolist()) <= {*LABELS, ""}
    assert answers["probabilities"].shape == (5 * 40, 3)
    assert answers["probabilities"].dtype == "float32"
    assert answers["is_truncated"].tolist() == [False, False, False, True, False] * 40


def run_documented_program(folder: str, block: int, example: str, inputs: list[str]) -> list[str]:
    """Runs a program of docs/guides/onnx.md for each input without this package, and returns the printed lines.

    Args:
        folder: The folder of the exported version.
        block: The number of the program's code block on the page. The first one begins every program.
        example: The expression in the program that each of the inputs replaces.
        inputs: Python expressions.
    """
    page = (ROOT / "docs" / "guides" / "onnx.md").read_text()
    first, *others = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert example in others[block - 1]
    blocked = "import sys\nsys.modules.update(official_bert=None, data_gen=None, tensorflow=None)\n"
    program = first.replace("exports/sst2-onnx/1", folder)
    program += "".join(others[block - 1].replace(example, each) for each in inputs)
    done = run_python("-c", blocked + program)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("settings", slow_after(1, [None, {}, {"doc_stride": 5, "temperature": 0.5}]))
def test_documented_program_classifies_without_this_package(
    settings: dict[str, Any] | None, export_kind: Export, tmp_path: pathlib.Path
):
    source = make_source(CLASSIFICATION, **(SETTINGS[CLASSIFICATION] if settings is None else settings))
    folder = export_kind(CLASSIFICATION, ONNX) if settings is None else export(source, tmp_path, ONNX)
    texts = [*TEXTS, "a [SEP] cat [MASK]"]
    answers = answer_in_python(source, {"text": texts})
    lines = run_documented_program(folder, 1, '"A film to see twice"', list(map(repr, texts)))
    labels, _, probabilities = zip(*(line.partition(" ") for line in lines), strict=True)
    assert list(labels) == answers["label"].tolist()
    np.testing.assert_allclose(list(map(json.loads, probabilities)), answers["probabilities"], atol=1e-6)


@pytest.mark.parametrize("settings", slow_after(1, [{}, {"doc_stride": 5, "temperature": 0.5}]))
def test_documented_program_classifies_pairs_without_this_package(settings: dict[str, Any], tmp_path: pathlib.Path):
    source = make_source(CLASSIFICATION, pair=True, **settings)
    folder = export(source, tmp_path, ONNX)
    rows = [(first, second) for first in TEXTS for second in TEXTS]
    answers = answer_in_python(source, dict(zip(("text", "text_pair"), zip(*rows, strict=True), strict=True)))
    lines = run_documented_program(folder, 2, '"A film", "to see twice"', [f"{a!r}, {b!r}" for a, b in rows])
    np.testing.assert_allclose(list(map(json.loads, lines)), answers["probabilities"], atol=1e-6)


def test_documented_program_tags_without_this_package(export_kind: Export):
    texts = [TEXTS[0], TEXTS[4], "a [SEP] cat, unaffable"]
    answers = answer_in_python(make_source(TAGGING), {"text": texts})
    is_word = answers["starts"] >= 0
    starts, ends, tags, probabilities = (
        answers[name][is_word].tolist() for name in ("starts", "ends", "tags", "probabilities")
    )
    lines = run_documented_program(export_kind(TAGGING, ONNX), 3, '"A film by Agnes Varda"', list(map(repr, texts)))
    found, numbers = zip(*(line.rsplit(" ", 1) for line in lines), strict=True)
    assert list(found) == [f"({start}, {end}) {tag}" for start, end, tag in zip(starts, ends, tags, strict=True)]
    np.testing.assert_allclose(np.array(numbers, float), probabilities, atol=1e-6)


@pytest.mark.parametrize("settings", slow_after(1, [None, {}]))
def test_documented_program_answers_questions_without_this_package(
    settings: dict[str, Any] | None, export_kind: Export, tmp_path: pathlib.Path
):
    source = make_source(QUESTION_ANSWERING, **(SETTINGS[QUESTION_ANSWERING] if settings is None else settings))
    folder = export_kind(QUESTION_ANSWERING, ONNX) if settings is None else export(source, tmp_path, ONNX)
    rows = [(question, context) for question in ("a cat on the mat in the sun", "dog?") for context in TEXTS]
    answers = answer_in_python(source, dict(zip(("question", "context"), zip(*rows, strict=True), strict=True)))
    example = '"Who came twice?", "She came twice. He did not."'
    lines = run_documented_program(folder, 4, example, [f"{question!r}, {context!r}" for question, context in rows])
    probabilities, _, found = zip(*(line.partition(" ") for line in lines), strict=True)
    assert list(found) == answers["answer"].tolist()
    np.testing.assert_allclose(np.array(probabilities, float), answers["probability"], atol=1e-6)


def test_added_tokens_and_accents_are_kept(tmp_path: pathlib.Path):
    tokens = (AddedToken("[E1]", special=True, normalized=False), AddedToken("<user>"))
    vocab = VOCAB.replace("\na\nb\nc\n", "\n[E1]\n<user>\nsün\n")
    casing = UNCASED._replace(added_tokens=tokens, strip_accents=False)
    source = make_source(CLASSIFICATION, vocab=vocab, casing=casing)
    folder = export(source, tmp_path, ONNX)
    texts = ["the [E1] cat", "<USER>sat on the[E1].", "[e1] cat", "SÜN", "SUN"]
    assert source.tokenizer.tokenize(texts[1]) == ["<user>", "sat", "on", "the", "[E1]", "."]
    assert source.tokenizer.tokenize(texts[3]) == ["sün"]
    model = OnnxPredictor(folder)
    assert_answers(model.run(exports.to_columns({"text": texts})), answer_in_python(source, {"text": texts}))
    assert model.metadata["strip_accents"] is False
    theirs = tokenizers.Tokenizer.from_file(f"{folder}/assets/tokenizer.json")
    theirs.encode_special_tokens = True
    for text in texts:
        assert theirs.encode(text, add_special_tokens=False).tokens == source.tokenizer.tokenize(text)


def test_damage_is_reported_in_one_line(export_kind: Export, tmp_path: pathlib.Path):
    path = pathlib.Path(shutil.copytree(export_kind(QUESTION_ANSWERING, ONNX), tmp_path / "1"))
    graph, metadata = path / exports.ONNX_FILE, path / exports.METADATA_FILE
    whole = graph.read_bytes()
    graph.write_bytes(whole[: len(whole) // 2])
    assert_rejected((graph, path / "checksums.json"), backends.load_predictor, str(path))
    (path / "checksums.json").unlink()
    assert_rejected((graph, "INVALID_PROTOBUF"), OnnxPredictor, str(path))
    graph.write_bytes(whole)
    model = onnx.load(graph)
    for node in model.graph.node:
        node.output[:] = [name.replace("start_logits", "other_logits") for name in node.output]
    for output in model.graph.output:
        output.name = output.name.replace("start_logits", "other_logits")
    onnx.save(model, graph)
    assert_rejected((graph, "other_logits", "question_answering", "start_logits"), OnnxPredictor, str(path))
    metadata.write_text(json.dumps({"kind": "classification"}))
    assert_rejected((metadata, "'task_spec'"), OnnxPredictor, str(path))
