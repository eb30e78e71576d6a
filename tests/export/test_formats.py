"""One command for all formats: where it writes, and which flags it rejects."""

import dataclasses
import pathlib
from typing import Any

import pytest

from official_bert.commands import EXPORT
from official_bert.errors import UserError
from official_bert.export import formats, litert
from official_bert.export.options import LITERT, ONNX, SAVED_MODEL, ExportOptions
from official_bert.inference import exports
from official_bert.kinds.names import CLASSIFICATION
from tests.export.exported_models import save_finetuned, save_run
from tests.export.test_litert import write_examples
from tests.make import refusal


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the real writers with ones that write a single empty file."""
    names = {SAVED_MODEL: exports.GRAPH_FILE, ONNX: exports.ONNX_FILE, LITERT: litert.MODEL_FILE}
    for format_name, name in names.items():
        monkeypatch.setitem(
            formats._WRITERS, format_name, lambda source, folder, options, name=name: pathlib.Path(folder, name).touch()
        )


@pytest.fixture
def options(tmp_path: pathlib.Path) -> ExportOptions:
    model_dir = save_finetuned(tmp_path / "model", CLASSIFICATION)
    return ExportOptions(model_dir, str(tmp_path / "out"), eval_file=write_examples(tmp_path, CLASSIFICATION))


def files_in(options: ExportOptions) -> list[str]:
    folder = pathlib.Path(options.export_dir)
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.usefixtures("writers")
@pytest.mark.parametrize(("format_name", "files"), [
    (SAVED_MODEL, ["1/saved_model.pb", "2/saved_model.pb"]),
    (ONNX, ["1/model.onnx", "2/model.onnx"]),
    (LITERT, ["model.tflite"]),
])  # fmt: skip
def test_one_format_is_written_to_the_folder_itself(format_name: str, files: list[str], options: ExportOptions):
    given = dataclasses.replace(options, format=[format_name])
    for _ in files:
        path = formats.export(given)[format_name]
    assert files_in(given) == files
    assert pathlib.Path(given.export_dir, files[-1]).parent == pathlib.Path(path)


@pytest.mark.usefixtures("writers")
def test_several_formats_are_written_to_a_subfolder_each(options: ExportOptions):
    given = dataclasses.replace(options, format=[LITERT, ONNX, SAVED_MODEL])
    paths = formats.export(given)
    assert list(paths) == given.format
    assert files_in(given) == ["litert/model.tflite", "onnx/1/model.onnx", "saved_model/1/saved_model.pb"]
    assert "litert already exists; pass the name of a new or empty folder" in refusal(formats.export, given)
    formats.export(dataclasses.replace(given, format=[SAVED_MODEL, ONNX], version=7))
    assert files_in(given)[1:] == [
        "onnx/1/model.onnx", "onnx/7/model.onnx", "saved_model/1/saved_model.pb", "saved_model/7/saved_model.pb"
    ]  # fmt: skip


@pytest.mark.usefixtures("writers")
def test_failing_format_removes_the_others(options: ExportOptions, monkeypatch: pytest.MonkeyPatch):
    def fails(*arguments: Any) -> None:
        raise UserError("it cannot be written")

    monkeypatch.setitem(formats._WRITERS, ONNX, fails)
    assert "it cannot be written" in refusal(formats.export, dataclasses.replace(options, format=[SAVED_MODEL, ONNX]))
    assert files_in(options) == []


def test_unsupported_format_is_rejected_before_writing(options: ExportOptions, tmp_path):
    given = dataclasses.replace(options, model_dir=save_run(tmp_path / "run"))
    for other in (ONNX, LITERT):
        with pytest.raises(UserError, match=f"--format={other} needs a .* is fill_mask; export it as saved_model"):
            formats.export(dataclasses.replace(given, format=[SAVED_MODEL, other]))
    assert not pathlib.Path(given.export_dir).exists()


def test_a_flag_may_apply_to_one_of_several_formats():
    given = ["--format=saved_model,onnx,litert", "--quantization=dynamic_int8", "--for_serving=2.19", "--version=3"]
    (options,) = EXPORT.parse(["--model_dir=m", "--export_dir=e", *given])
    assert options.format == [SAVED_MODEL, ONNX, LITERT]
