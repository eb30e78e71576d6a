"""What users keep and write: files of earlier models, losses of the same fit, arguments of the public classes."""

import pathlib
from typing import Any

import keras
import pytest

import official_bert
from tests.golden import make_older_models
from tests.golden.comparison import assert_alike, golden, unpacked
from tests.golden.make_older_models import EPOCHS, MODELS

# What the fast tests try; the slow ones try all.
LEARNING = ("classifier",)


def fast_or_slow(fast: tuple[str, ...]) -> list[Any]:
    return [name if name in fast else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with the files of earlier models."""
    return unpacked("keras.tar.xz", tmp_path_factory.mktemp("older"))


@pytest.mark.parametrize("name", MODELS)
def test_a_file_of_earlier_code_answers_as_it_did(name: str, older: pathlib.Path):
    case = MODELS[name]
    model = getattr(official_bert, case.class_name).load(str(older / f"{name}.keras"))
    assert_alike(make_older_models.as_json(model.predict(case.asked)), golden("answers.json")[name])
    if case.frozen:
        frozen = {layer.name for layer in model.layers if layer.variables and not layer.trainable}
        assert "layer_0_intermediate" in frozen
        assert "layer_1_intermediate" not in frozen


@pytest.mark.parametrize("name", fast_or_slow(("adam",)))
def test_a_file_of_earlier_code_is_trained_on_as_it_was(name: str, older: pathlib.Path):
    """A user's optimizer goes on where it was; BERT's begins anew."""
    case = MODELS[name]
    model = getattr(official_bert, case.class_name).load(str(older / f"{name}.keras"))
    expected = golden("losses_of_fit.json")[name]
    if case.adam:
        assert isinstance(model.optimizer, keras.optimizers.Adam)
        assert int(model.optimizer.iterations.numpy()) == len(expected["fit"])
    if case.x is not None:
        assert_alike(make_older_models.fitted(model, case, EPOCHS, EPOCHS + 1), expected["loaded"])


@pytest.mark.parametrize("name", fast_or_slow(LEARNING))
def test_fit_learns_by_the_same_losses(name: str, tmp_path: pathlib.Path):
    case = MODELS[name]
    make_older_models.write_files(tmp_path)
    model = make_older_models.built(case, tmp_path)
    if case.x is not None and not case.adam:  # whose gradients of word pieces were sparse then, and squared row by row
        assert_alike(make_older_models.fitted(model, case), golden("losses_of_fit.json")[name]["fit"])


@pytest.mark.parametrize("name", make_older_models.CLASSES)
def test_no_argument_is_lost(name: str):
    """New ones may be added, those by position behind those that were."""
    found = make_older_models.signatures()[name]
    for method, arguments in golden("signatures.json")[name].items():
        for argument, kind_and_default in arguments.items():
            assert found[method].get(argument) == kind_and_default, f"{name}.{method}({argument})"
        positional = [argument for argument, (kind, _) in arguments.items() if kind == "POSITIONAL_OR_KEYWORD"]
        now = [argument for argument, (kind, _) in found[method].items() if kind == "POSITIONAL_OR_KEYWORD"]
        assert now[: len(positional)] == positional, f"{name}.{method}"
