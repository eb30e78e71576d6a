"""One command for all formats: where it writes, and what it rejects. LiteRT models: their answers and the report."""

import dataclasses
import json
import logging
import pathlib
from unittest import mock

import numpy as np
import onnx
import pytest
import tokenizers

from official_bert import commands, errors
from official_bert.export import formats, litert, verification
from official_bert.export.options import DYNAMIC_INT8, FLOAT32, LITERT, ONNX, SAVED_MODEL, ExportOptions
from official_bert.inference import exports, onnx_model, reference_answers
from official_bert.kinds import names
from official_bert.kinds.classification.spec import ClassificationSpec
from official_bert.tokenization.casing import UNCASED
from tests.export import exported_models as samples
from tests.export.exported_models import BILSTM, ROWS, answer_in_python, export, make_source, write_labels
from tests.make import VOCAB, assert_rejected


@pytest.fixture
def options(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> ExportOptions:
    """Options for writers that write a single empty file."""
    model_files = {SAVED_MODEL: exports.GRAPH_FILE, ONNX: exports.ONNX_FILE, LITERT: litert.MODEL_FILE}
    for key, name in model_files.items():
        monkeypatch.setitem(formats._WRITERS, key, lambda _, folder, __, name=name: pathlib.Path(folder, name).touch())
    return ExportOptions("a model", str(tmp_path / "out"), eval_file="examples")


def files_in(options: ExportOptions) -> list[str]:
    folder = pathlib.Path(options.export_dir)
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


FILES = {SAVED_MODEL: ["1/saved_model.pb", "2/saved_model.pb"], ONNX: ["1/model.onnx", "2/model.onnx"]}


@pytest.mark.parametrize(("format_name", "files"), [*FILES.items(), (LITERT, ["model.tflite"])])
def test_one_format_is_written_to_the_folder_itself(format_name: str, files: list[str], options: ExportOptions):
    given = dataclasses.replace(options, format=[format_name] * 2)
    for file in files:
        path = formats.write(make_source(names.CLASSIFICATION), given)[format_name]
        assert str(pathlib.Path(given.export_dir, file).parent) == path
    assert files_in(given) == files


def test_several_formats_are_written_to_a_subfolder_each(options: ExportOptions):
    source, given = make_source(names.CLASSIFICATION), dataclasses.replace(options, format=[LITERT, ONNX, SAVED_MODEL])
    assert list(formats.write(source, given)) == given.format
    assert files_in(given) == ["litert/model.tflite", "onnx/1/model.onnx", "saved_model/1/saved_model.pb"]
    assert_rejected((f"{given.export_dir}/litert", "exists"), formats.write, source, given)
    formats.write(source, dataclasses.replace(given, format=[SAVED_MODEL, ONNX], version=7))
    graphs = [f"{name}/saved_model.pb" for name in ("saved_model/1", "saved_model/7")]
    assert files_in(given)[1:] == ["onnx/1/model.onnx", "onnx/7/model.onnx", *graphs]


def test_failing_format_removes_the_others(options: ExportOptions, monkeypatch: pytest.MonkeyPatch):
    def fail(source: object, folder: str, options: ExportOptions) -> None:
        pathlib.Path(folder, exports.ONNX_FILE).touch()
        raise OSError(28, "full")

    monkeypatch.setitem(formats._WRITERS, ONNX, fail)
    given = dataclasses.replace(options, format=[SAVED_MODEL, ONNX])
    assert_rejected((f"{given.export_dir}/onnx/1", "full"), formats.write, make_source(names.CLASSIFICATION), given)
    assert files_in(options) == []


def test_versions_are_numbered_and_never_overwritten(options: ExportOptions):
    folder = pathlib.Path(options.export_dir)
    assert formats.next_version(options.export_dir) == 1
    for name in ("2", "11", "12.writing-5", "notes"):
        (folder / name).mkdir(parents=True)
    (folder / "11" / "saved_model.pb").touch()
    assert formats.next_version(options.export_dir) == 12
    again = dataclasses.replace(options, version=11)
    assert_rejected((folder / "11", "exists"), formats.write, make_source(names.CLASSIFICATION), again)
    version = dataclasses.replace(options, export_dir=str(folder / "11"))
    assert_rejected((f"--export_dir={folder}/11", "version"), formats.write, make_source(names.CLASSIFICATION), version)


MEAN = {"pooling": "mean"}


@pytest.mark.parametrize(("kind", "settings", "options", "expected"), [
    (names.FILL_MASK, {}, {"format": [SAVED_MODEL, ONNX]}, ["--format=onnx", "a model", "fill_mask", SAVED_MODEL]),
    (names.FILL_MASK, {}, {"format": [SAVED_MODEL, LITERT]}, ["--format=litert", "a model", "fill_mask", SAVED_MODEL]),
    (names.VECTORS, MEAN, {"format": [LITERT]}, ["--format=litert", "vectors", "onnx"]),
    (names.VECTORS, MEAN, {"format": [ONNX], "quantization": DYNAMIC_INT8}, ["vectors", "--quantization"]),
    (names.CLASSIFICATION, BILSTM.to_dict(), {"format": [LITERT], "eval_file": "e"}, ["a model", "--format=onnx"]),
    (names.CLASSIFICATION, {}, {"format": [LITERT]}, ["--format=litert", "--eval_file"]),
    (names.CLASSIFICATION, {}, {"format": [ONNX], "quantization": DYNAMIC_INT8}, ["dynamic_int8", "--eval_file"]),
    (names.CLASSIFICATION, {}, {"format": [ONNX], "eval_file": "no.csv"}, ["no.csv"]),
])  # fmt: skip
def test_models_that_cannot_be_exported_are_rejected_before_writing(kind, settings, options, expected, tmp_path):
    given = (make_source(kind, **settings), ExportOptions("a model", str(tmp_path / "out"), **options))
    assert_rejected((*expected,), formats.write, *given)
    assert not list(tmp_path.glob("out/*"))


def test_a_flag_may_apply_to_one_of_several_formats():
    given = "--format=saved_model,onnx,litert --quantization=dynamic_int8 --for_serving=2.19 --version=3"
    (options,) = commands.EXPORT.parse(["--model_dir=m", "--export_dir=e", *given.split()])
    assert options.format == [SAVED_MODEL, ONNX, LITERT]


@pytest.mark.parametrize("format_name", [ONNX, LITERT])
def test_a_model_that_loses_too_much_is_not_written(format_name: str, tmp_path: pathlib.Path, monkeypatch, capsys):
    source = make_source(names.CLASSIFICATION, thresholds=[0.0, 0.0, 0.72])
    compute = onnx_model.OnnxPredictor.compute_outputs
    monkeypatch.setattr(onnx_model.OnnxPredictor, "compute_outputs", lambda *given: [-each for each in compute(*given)])
    monkeypatch.setattr(litert, "convert", lambda source, quantized: b"")
    monkeypatch.setattr(litert, "load", lambda path: lambda features: {"logits": -source.model(features).numpy()})
    right = answer_in_python(source, {"text": ROWS})["label"].tolist()
    assert right == ["yes", "no", "yes", "perhaps"]  # Without the thresholds, all of them would be "yes".
    given = {"format_name": format_name, "eval_file": write_labels(tmp_path, right), "quantization": DYNAMIC_INT8}
    expected = ("1.0000", "0.0000", given["eval_file"], "--max_loss=0.99")
    assert_rejected(expected, export, source, tmp_path / "out", **given, max_loss=0.99)
    assert not list(tmp_path.glob("out/*"))
    folder = export(source, tmp_path / "out", **given, max_loss=1.0)
    if format_name == ONNX:
        expected = {"metric": "accuracy", "before": 1.0, "after": 0.0, "examples": 4}
        metadata = exports.read_metadata(folder)
        assert (metadata["score"], metadata["quantization"]) == (expected, DYNAMIC_INT8)
        assert metadata["decoding"] == source.spec.decoding
        assert reference_answers.read(folder).tolerance == 0.1
        stored = onnx.load(pathlib.Path(folder) / exports.ONNX_FILE).graph.initializer
        tensors = {each.name: onnx.numpy_helper.to_array(each) for each in stored}
        scales, matrix = tensors["pooler/kernel_scale"], tensors["pooler/kernel_quantized"]
        assert (scales.shape, np.abs(matrix).max()) == ((8,), 64)  # a scale for each column, 7 bits
        assert logging.root.manager.disable == logging.NOTSET
    told = f"dynamic_int8 {format_name} model: accuracy 1.0000 before, 0.0000 after, on 4 examples"
    assert told in capsys.readouterr().out.splitlines()
    monkeypatch.setattr(ClassificationSpec, "best_possible_score", 100.0)  # as of scores in percent
    assert export(source, tmp_path / "percent", **given, max_loss=0.01)
    given["eval_file"] = write_labels(tmp_path, ["never"] * 4)
    assert_rejected((given["eval_file"], "'never'"), export, source, tmp_path / "other", **given)


def test_a_program_can_tokenize_and_decode_with_the_files(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path):
    changes = {"casing": UNCASED._replace(strip_accents=False), "table": {"text_column": "title"}}
    source = make_source(names.QUESTION_ANSWERING, version_2=True, **changes)
    results = ((litert, "convert", b"x"), (litert, "load", None), (verification, "compare_scores", {}))
    for module, name, result in results:
        monkeypatch.setattr(module, name, mock.Mock(return_value=result))
    litert.write(source, str(tmp_path), ExportOptions("", "", [LITERT], eval_file="a", quantization=DYNAMIC_INT8))
    report = json.loads((tmp_path / litert.REPORT_FILE).read_text())
    assert (report["task_spec"], report["strip_accents"]) == (source.task_spec, False)
    assert report["table"] == changes["table"]
    assert "max_answer_length" in report["decoding"]
    inputs = dict.fromkeys(("input_ids", "input_mask", "segment_ids"), "int32 [1, S]")
    expected = {"inputs": inputs, "bytes": 1, "quantization": DYNAMIC_INT8, "reads_windows": True}
    assert report.items() >= {**expected, "null_score_diff_threshold": 0.0}.items()
    assert (tmp_path / exports.VOCAB_FILE).read_text() == VOCAB
    assert tokenizers.Tokenizer.from_file(str(tmp_path / exports.TOKENIZER_FILE)).token_to_id("[CLS]") == 2
    dataclasses.replace(source, vocab=VOCAB.replace("\ndog\n", "\ncat\n")).write_tokenizer(str(tmp_path / "equal"))
    assert [path.name for path in (tmp_path / "equal" / "assets").iterdir()] == ["vocab.txt"]
    # Without quantization, answers must be equal, too.
    none = reference_answers.ReferenceAnswers({}, {}, (), [], 0.0)
    monkeypatch.setattr(verification, "record_answers", mock.Mock(return_value=none))
    monkeypatch.setattr(verification, "check_answers", mock.Mock(side_effect=errors.UserError("different")))
    assert_rejected("different", litert.write, source, str(tmp_path), ExportOptions("", "", [LITERT], eval_file="a"))


ACTIVATIONS = dict.fromkeys(names.KINDS, "gelu")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the converter's warnings about itself
@pytest.mark.parametrize("quantization", [FLOAT32, DYNAMIC_INT8])
@pytest.mark.parametrize(("kind", "activation"), [*ACTIVATIONS.items(), (names.CLASSIFICATION, "gelu_exact")])
def test_converted_models_give_nearly_the_same_answers(kind: str, activation: str, quantization: str, tmp_path):
    smaller_or_larger = samples.LARGER if quantization == DYNAMIC_INT8 else samples.CONFIG
    config = dataclasses.replace(smaller_or_larger, hidden_act=activation)
    decisions = {"temperature": 2.0} if kind in (names.CLASSIFICATION, names.MULTI_LABEL) else {}
    source = make_source(kind, config, **decisions)
    flags = {"eval_file": samples.write_examples(tmp_path, kind), "quantization": quantization}
    # With four examples, rounding changes a correlation by a few percent.
    folder = pathlib.Path(export(source, tmp_path / "litert", LITERT, max_loss=0.1, **flags))
    report = json.loads((folder / litert.REPORT_FILE).read_text())
    assert report["examples"] == (3 if kind == names.QUESTION_ANSWERING else 4)
    assert report["reads_windows"] == (kind in (names.QUESTION_ANSWERING, names.TAGGING))
    labels = samples.LABELS if kind in (names.CLASSIFICATION, names.MULTI_LABEL, names.TAGGING) else None
    assert report.items() >= {"task_spec": source.task_spec, "labels": labels, **decisions}.items()
    shape = f"[1, {samples.CHOICES}, S]" if kind == names.MULTIPLE_CHOICE else "[1, S]"
    assert report["inputs"] == dict.fromkeys(("input_ids", "input_mask", "segment_ids"), f"int32 {shape}")
    path = folder / litert.MODEL_FILE
    assert report["bytes"] == path.stat().st_size
    if quantization == FLOAT32:
        assert report["before"] == pytest.approx(report["after"], abs=1e-4)
    elif kind == names.CLASSIFICATION:  # the number of bytes saved does not depend on the head
        assert report["bytes"] < 0.85 * len(litert.convert(source, quantized=False))
    # Compares every logit, for rows of several lengths.
    error = samples.relative_error(source.model, kind, litert.load(str(path)))
    assert error < (1e-5 if quantization == FLOAT32 else 0.1)
