"""Runs the examples of docs/guides/python.md unchanged, in order."""

import pathlib
import re

import numpy as np
import pytest

from official_bert.modeling.pretraining_model import build_pretraining_model
from tests.conftest import ROOT
from tests.make import tiny_config, write_run


@pytest.fixture
def folder(vocab_file: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A reader's working directory: a pre-trained model in `model`, and the configs of the repository."""
    config = tiny_config(max_position_embeddings=128)
    write_run(tmp_path / "model", build_pretraining_model(config, seed=0), config, vocab_file)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read_code_blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:(currentThread|getName):DeprecationWarning")  # of Keras Tuner
@pytest.mark.usefixtures("folder")
def test_the_examples_of_the_python_guide_run(capsys: pytest.CaptureFixture[str]):
    names: dict = {}
    blocks = read_code_blocks("docs/guides/python.md")
    assert len(blocks) == 17
    for block in blocks:
        exec(block, names)
    assert names["outputs"]["sequence_output"].shape == (1, 5, 8)
    shapes = {"values": (1,), "probabilities": (1, 3), "choice_probabilities": (2, 4), "vectors": (2, 8)}
    assert {name: names[name].shape for name in shapes} == shapes
    inputs = {name: np.ones((1, 5), "int32") for name in names["attention"].input}
    for probabilities in names["attention"](inputs):
        np.testing.assert_allclose(np.sum(probabilities, axis=-1), np.ones((1, 2, 5)), atol=1e-5)
    assert names["span"].text == "."  # the last word printed by the loop
    assert names["span"].label in {"DET", "NOUN", "VERB"}
    answer = names["answer"]
    assert "the cat sat on the mat"[answer.start : answer.end] == answer.text != ""
    assert names["choices"][0] in range(4)
    assert {"loss", "accuracy"} <= set(names["tagging_scores"])
    assert len(names["tagged_words"]) == len(names["found_answers"]) == 2
    assert {"exact_match", "f1"} <= set(names["answer_scores"])
    assert 0 <= names["choice_scores"]["accuracy"] <= 1
    for export in ("tags", "answers", "choices"):
        assert list(pathlib.Path("exports", export).rglob("saved_model.pb"))
    assert 1e-5 <= names["best_rate"] <= 1e-3
    assert len(names["study"].trials) == len(names["fillings"][0][0]) == 3
    assert 0 < names["found"]["mrr"] <= 1
    assert names["nearest"] in range(3)
    assert capsys.readouterr().out.count("(2, 8)") == 2  # the vectors of two texts


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_the_python_example_of_the_readme_runs():
    names: dict = {}
    for block in read_code_blocks("README.md"):
        assert len(block.strip().splitlines()) <= 10
        exec(block, names)
    assert set(names["classifier"].classify(["a dull film"])) <= {"bad", "good"}
