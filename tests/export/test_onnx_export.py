"""Exports for ONNX Runtime: their answers, the file layout, and rejected conversions."""

import json
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from official_bert.checkpoints import finetuned
from official_bert.checkpoints.loading import open_model
from official_bert.errors import UserError
from official_bert.export.options import DYNAMIC_INT8, ONNX, SAVED_MODEL
from official_bert.inference import exports, loading
from official_bert.inference.onnx_model import OnnxPredictor
from official_bert.kinds.names import CLASSIFICATION, QUESTION_ANSWERING, TAGGING
from official_bert.tokenization.casing import UNCASED
from tests.conftest import slow_after
from tests.export.exported_models import (
    BILSTM,
    CONFIG,
    LABELS,
    TEXTS,
    build_model,
    export,
    make_task_spec,
    save_finetuned,
    save_run,
)
from tests.export.test_litert import write_examples
from tests.make import VOCAB, refusal
from tests.tokenization.test_exact import ACCENTED

ONNX_PAGE = pathlib.Path(__file__).parents[2] / "docs" / "guides" / "onnx.md"


def test_long_texts_are_read_in_windows_and_pairs_too(tmp_path: pathlib.Path):
    model_dir = save_finetuned(tmp_path / "model", CLASSIFICATION, doc_stride=5, pair=True, **BILSTM.to_dict())
    folder = export(model_dir, tmp_path / "exports", ONNX)
    answers = OnnxPredictor(folder, threads=1).run(exports.to_columns({"text": TEXTS, "text_pair": TEXTS[::-1]}))
    assert answers["probabilities"].shape == (len(TEXTS), 3)


@pytest.fixture
def classifier(export_kind: Callable[[str, str], str]) -> str:
    """The folder of an exported classifier."""
    return export_kind(CLASSIFICATION, ONNX)


def test_answers_have_the_types_of_saved_models(classifier: str):
    model = OnnxPredictor(classifier, threads=1, num_workers=2)
    answers = model.run(exports.to_columns({"text": TEXTS * 40}))
    assert answers["label"].dtype == object
    assert set(answers["label"].tolist()) <= {*LABELS}
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
    first, *others = re.findall(r"```python\n(.*?)```", ONNX_PAGE.read_text(), re.DOTALL)
    assert example in others[block - 1]
    blocked = "import sys\nsys.modules.update(official_bert=None, data_gen=None, tensorflow=None)\n"
    program = first.replace("exports/sst2-onnx/1", folder)
    program += "".join(others[block - 1].replace(example, each) for each in inputs)
    done = subprocess.run([sys.executable, "-c", blocked + program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    "settings",
    slow_after(
        1,
        [
            {"temperature": 2.5, "thresholds": [0.1, 0.6, 0.3], "min_confidence": 0.4},
            {},
            {"doc_stride": 5, "temperature": 0.5},
        ],
    ),
)
def test_documented_program_classifies_without_this_package(settings: dict[str, Any], tmp_path: pathlib.Path):
    model_dir = save_finetuned(tmp_path / "model", CLASSIFICATION, **settings)
    folder = export(model_dir, tmp_path / "exports", ONNX)
    texts = [*TEXTS, "a [SEP] cat [MASK]"]
    answers = OnnxPredictor(folder).run(exports.to_columns({"text": texts}))
    lines = run_documented_program(folder, 1, '"A film to see twice"', list(map(repr, texts)))
    for line, label, expected in zip(lines, answers["label"], answers["probabilities"], strict=True):
        found, _, probabilities = line.partition(" ")
        assert found == label
        np.testing.assert_allclose(json.loads(probabilities), expected, atol=1e-6)


def test_documented_program_tags_without_this_package(export_kind: Callable[[str, str], str]):
    folder = export_kind(TAGGING, ONNX)
    texts = [TEXTS[0], TEXTS[4], "a [SEP] cat, unaffable"]
    answers = OnnxPredictor(folder).run(exports.to_columns({"text": texts}))
    words = [
        (f"({start}, {end}) {tag}", probability)
        for row in zip(answers["starts"], answers["ends"], answers["tags"], answers["probabilities"], strict=True)
        for start, end, tag, probability in zip(*row, strict=True)
        if start >= 0
    ]
    lines = run_documented_program(folder, 2, '"A film by Agnes Varda"', list(map(repr, texts)))
    assert [line.rpartition(" ")[0] for line in lines] == [word for word, _ in words]
    np.testing.assert_allclose(
        [float(line.rpartition(" ")[2]) for line in lines], [each for _, each in words], atol=1e-6
    )


@pytest.mark.parametrize("settings", slow_after(1, [{"version_2": True, "null_score_diff_threshold": 0.5}, {}]))
def test_documented_program_answers_questions_without_this_package(settings: dict[str, Any], tmp_path: pathlib.Path):
    model_dir = save_finetuned(tmp_path / "model", QUESTION_ANSWERING, **settings)
    folder = export(model_dir, tmp_path / "exports", ONNX)
    rows = [(question, context) for question in ("a cat on the mat in the sun", "dog?") for context in TEXTS]
    columns = dict(zip(("question", "context"), map(list, zip(*rows, strict=True)), strict=True))
    answers = OnnxPredictor(folder).run(exports.to_columns(columns))
    example = '"Who came twice?", "She came twice. He did not."'
    lines = run_documented_program(folder, 3, example, [f"{question!r}, {context!r}" for question, context in rows])
    for line, answer, expected in zip(lines, answers["answer"], answers["probability"], strict=True):
        probability, _, found = line.partition(" ")
        assert found == answer
        assert float(probability) == pytest.approx(expected, abs=1e-6)


def test_quantized_model_is_scored_before_it_is_written(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    model_dir = save_finetuned(tmp_path / "model", CLASSIFICATION)
    examples = write_examples(tmp_path, CLASSIFICATION)
    given = {"export_dir": tmp_path / "exports", "format_name": ONNX, "quantization": DYNAMIC_INT8}
    message = refusal(export, model_dir, **given)
    assert "--quantization=dynamic_int8 is scored on labelled examples; pass --eval_file" in message
    path = export(model_dir, **given, eval_file=examples, max_loss=1.0)
    score = exports.read_metadata(path)["score"]
    assert (score["metric"], score["examples"]) == ("accuracy", 4)
    assert 0 <= score["after"] <= 1
    # A model that predicts a wrong class for every text.
    wrong = {"yes": "no", "no": "perhaps", "perhaps": "yes"}
    answers = OnnxPredictor(path).run(exports.to_columns({"text": TEXTS}))["label"]
    rows = [{"text": text, "label": label} for text, label in zip(TEXTS, answers, strict=True) if text]
    pathlib.Path(examples).write_text("".join(json.dumps(row) + "\n" for row in rows))
    outputs = OnnxPredictor.compute_outputs
    order = [LABELS.index(wrong[label]) for label in LABELS]
    monkeypatch.setattr(
        OnnxPredictor, "compute_outputs", lambda self, *given: [each[order] for each in outputs(self, *given)]
    )
    with pytest.raises(UserError, match=r"loses .* on .*, more than --max_loss=0.1"):
        export(model_dir, **given, eval_file=examples, max_loss=0.1)
    assert list(exports.list_versions(str(tmp_path / "exports"))) == [1]


def test_model_without_a_head_is_rejected(tmp_path: pathlib.Path):
    run = save_run(tmp_path / "run")
    message = refusal(export, run, tmp_path / "exports", ONNX)
    assert re.search("--format=onnx needs a fine-tuned model, but the kind of .* is fill_mask; export", message)
    assert not exports.list_versions(str(tmp_path / "exports"))


def test_damage_is_reported_in_one_line(classifier: str, tmp_path: pathlib.Path):
    path = pathlib.Path(shutil.copytree(classifier, tmp_path / "1"))
    graph, metadata = path / exports.ONNX_FILE, path / exports.METADATA_FILE
    whole = graph.read_bytes()
    graph.write_bytes(whole[: len(whole) // 2])
    assert "model.onnx does not match its checksum; restore the folder" in refusal(OnnxPredictor, str(path))
    (path / "checksums.json").unlink()
    assert re.search("model.onnx cannot be loaded: .*export the model again", refusal(OnnxPredictor, str(path)))
    graph.write_bytes(whole)
    metadata.write_text(json.dumps({"kind": "classification"}))
    assert "official_bert.json does not describe a model for ONNX Runtime" in refusal(OnnxPredictor, str(path))


def test_unknown_output_is_reported_when_the_model_is_loaded(
    export_kind: Callable[[str, str], str], tmp_path: pathlib.Path
):
    folder = pathlib.Path(shutil.copytree(export_kind(QUESTION_ANSWERING, ONNX), tmp_path / "1"))
    (folder / "checksums.json").unlink()
    model = onnx.load(folder / exports.ONNX_FILE)
    for node in model.graph.node:
        node.output[:] = ["other_logits" if name == "start_logits" else name for name in node.output]
    for output in model.graph.output:
        output.name = "other_logits" if output.name == "start_logits" else output.name
    onnx.save(model, folder / exports.ONNX_FILE)
    message = refusal(OnnxPredictor, str(folder))
    assert "other_logits" in message
    assert "question_answering needs start_logits" in message


@pytest.mark.parametrize("format_name", [ONNX, pytest.param(SAVED_MODEL, marks=pytest.mark.slow)])
def test_exports_keep_accents_if_the_model_does(format_name: str, tmp_path: pathlib.Path):
    vocab = VOCAB.replace("\nsun\n", "\nsün\n")
    accented = {"casing": ACCENTED, "folder": str(tmp_path / "accented")}
    for given in (accented, {"casing": UNCASED, "folder": str(tmp_path / "plain")}):
        model = build_model(CLASSIFICATION)
        finetuned.save(model=model, task=make_task_spec(CLASSIFICATION), config=CONFIG, vocab=vocab, **given)
    assert open_model(accented["folder"]).tokenizer.tokenize("SÜN") == ["sün"]
    answers = {}
    for name in ("accented", "plain"):
        path = export(tmp_path / name, tmp_path / "to" / name, format_name)
        assert exports.read_metadata(path).get("strip_accents") == (False if name == "accented" else None)
        loaded = loading.load(path)
        answers[name] = loaded.run(exports.to_columns({"text": ["SÜN", "SUN", "sün"]}))["probabilities"].tolist()
    first, second, third = answers["accented"]
    assert first == pytest.approx(third)
    assert first != pytest.approx(second, abs=1e-4)
    assert answers["plain"][0] == pytest.approx(answers["plain"][1])
