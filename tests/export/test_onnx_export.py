"""Exports for ONNX Runtime: what they answer, in which layout, and what is refused."""

import dataclasses
import json
import pathlib
import shutil

import pytest

from official_bert.checkpoints import finetuned
from official_bert.errors import UserError
from official_bert.export import lost_score, saved_model
from official_bert.export.options import DYNAMIC_INT8, ONNX_RUNTIME, TENSORFLOW, SavedModelOptions
from official_bert.inference import exports, replays
from official_bert.inference.onnx_model import OnnxModel
from official_bert.inference.saved_model import SavedModel
from official_bert.modeling.task_models import CLASSIFICATION, KINDS
from official_bert.tokenization.casing import UNCASED
from tests.export.exported_models import (
    BILSTM,
    CONFIG,
    LABELS,
    TEXTS,
    VOCAB,
    model_of,
    save_finetuned,
    save_run,
    task_spec_of,
)
from tests.export.test_portable import write_examples
from tests.tokenization.test_exact import ACCENTED


def options_of(folder: pathlib.Path, kind: str, **changes: object) -> SavedModelOptions:
    model_dir = save_finetuned(folder / "model", kind, **changes)
    return SavedModelOptions(model_dir, str(folder / "exports"), engine=ONNX_RUNTIME)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != CLASSIFICATION])
def test_every_kind_answers_as_predict_does(kind: str, tmp_path: pathlib.Path):
    path = saved_model.export(options_of(tmp_path, kind))  # which proves it, or fails
    assert len(replays.read(path)) > 10
    assert exports.is_onnx(path)
    assert exports.newest_version(str(tmp_path / "exports")) == path
    assert exports.read_metadata(path)["kind"] == kind


def test_long_texts_are_read_in_windows_and_pairs_too(tmp_path: pathlib.Path):
    saved_model.export(options_of(tmp_path, CLASSIFICATION, doc_stride=5, pair=True, **BILSTM.to_dict()))


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of an exported classifier."""
    return saved_model.export(options_of(tmp_path_factory.mktemp("classifier"), CLASSIFICATION))


def test_answers_are_arrays_as_those_of_saved_models(classifier: str):
    model = OnnxModel(classifier, threads=1, parallel_batches=2)
    answers = model.answers({"text": TEXTS * 40})
    assert answers["label"].dtype == object
    assert set(answers["label"].tolist()) <= {label.encode() for label in LABELS}
    assert answers["probabilities"].shape == (5 * 40, 3)
    assert answers["probabilities"].dtype == "float32"
    assert answers["is_truncated"].tolist() == [False, False, False, True, False] * 40


def test_8_bits_are_measured_before_they_are_written(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    given = dataclasses.replace(options_of(tmp_path, CLASSIFICATION), quantization=DYNAMIC_INT8)
    with pytest.raises(UserError, match="--quantization=dynamic_int8 is measured on labelled examples; name them by"):
        saved_model.export(given)
    given = dataclasses.replace(given, eval_file=write_examples(tmp_path, CLASSIFICATION), max_loss=1.0)
    path = saved_model.export(given)
    score = exports.read_metadata(path)["score"]
    assert (score["metric"], score["examples"]) == ("accuracy", 4)
    assert 0 <= score["after"] <= 1
    with pytest.raises(UserError, match=r"loses 0.2000 \(from 0.9000 to 0.7000\) on dev.csv, more than --max_loss=0.1"):
        lost_score.check(0.9, 0.7, 1.0, 0.1, "dynamic_int8 model", "dev.csv")


def test_what_onnx_runtime_cannot_answer_is_refused(tmp_path: pathlib.Path):
    run = save_run(tmp_path / "run")
    given = SavedModelOptions(run, str(tmp_path / "exports"), engine=ONNX_RUNTIME)
    with pytest.raises(UserError, match="is a fill_mask model; ONNX Runtime's exports answer as a head"):
        saved_model.export(given)
    with pytest.raises(UserError, match="is a encoder model"):
        saved_model.export(dataclasses.replace(given, encoder=True))
    with pytest.raises(UserError, match="--quantization=dynamic_int8 goes with --engine=onnxruntime"):
        saved_model.export(SavedModelOptions(run, str(tmp_path / "exports"), quantization=DYNAMIC_INT8))
    assert not exports.version_folders(str(tmp_path / "exports"))


def test_damage_is_one_line(classifier: str, tmp_path: pathlib.Path):
    path = pathlib.Path(shutil.copytree(classifier, tmp_path / "1"))
    graph, metadata = path / exports.ONNX_FILE, path / exports.METADATA_FILE
    whole = graph.read_bytes()
    graph.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"model.onnx is not as it was written; restore the folder"):
        OnnxModel(str(path))
    (path / "checksums.json").unlink()
    with pytest.raises(UserError, match=r"model.onnx cannot be loaded: .*make the export anew"):
        OnnxModel(str(path))
    graph.write_bytes(whole)
    metadata.write_text(json.dumps({"kind": "classification"}))
    with pytest.raises(UserError, match=r"official_bert.json does not describe a model for ONNX Runtime"):
        OnnxModel(str(path))


@pytest.mark.parametrize("engine", [ONNX_RUNTIME, pytest.param(TENSORFLOW, marks=pytest.mark.slow)])
def test_accents_that_a_model_keeps_are_kept_in_its_exports(engine: str, tmp_path: pathlib.Path):
    vocab = VOCAB.replace("\nsun\n", "\nsün\n")
    accented = {"casing": ACCENTED, "folder": str(tmp_path / "accented")}
    for given in (accented, {"casing": UNCASED, "folder": str(tmp_path / "plain")}):
        model = model_of(CLASSIFICATION)
        finetuned.save(model=model, task_spec=task_spec_of(CLASSIFICATION), config=CONFIG, vocab=vocab, **given)
    assert finetuned.load(accented["folder"]).tokenizer.tokenize("SÜN") == ["sün"]
    answers = {}
    for name in ("accented", "plain"):
        path = saved_model.export(SavedModelOptions(str(tmp_path / name), str(tmp_path / "to" / name), engine=engine))
        assert exports.read_metadata(path).get("strip_accents") == (False if name == "accented" else None)
        loaded = OnnxModel(path) if engine == ONNX_RUNTIME else SavedModel(path)
        answers[name] = loaded.answers({"text": ["SÜN", "SUN", "sün"]})["probabilities"].tolist()
    first, second, third = answers["accented"]
    assert first == pytest.approx(third)
    assert first != pytest.approx(second, abs=1e-4)
    assert answers["plain"][0] == pytest.approx(answers["plain"][1])
