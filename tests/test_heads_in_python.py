import pathlib
import re

import numpy as np
import pytest

from official_bert import checkpoints
from official_bert.config import BertConfig
from official_bert.models import build_pretraining_model
from tests.conftest import ROOT, WORDS

_SECTION = re.compile(r"^### In Python\n(.*?)^## ", re.DOTALL | re.MULTILINE)


@pytest.mark.slow
def test_the_readme_s_example_of_every_head_runs(
    vocab_file: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    config = BertConfig(
        vocab_size=len(WORDS), hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=128,
    )  # fmt: skip
    model = build_pretraining_model(config, seed=0)
    folder = str(tmp_path / "model")
    checkpoints.save_description(folder, checkpoints.description(config, vocab_file, do_lower_case=True))
    checkpoints.RunCheckpoints(folder, {"model": model.variables}, keep=1).save(0)
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    section = _SECTION.search((ROOT / "README.md").read_text(encoding="utf-8"))
    assert section
    blocks = re.findall(r"```python\n(.*?)```", section[1], re.DOTALL)
    assert len(blocks) == 6
    for block in blocks:
        exec(block, names)
    assert names["probabilities"].shape == (2, 2)
    np.testing.assert_allclose(names["probabilities"].sum(axis=1), 1.0)
    assert names["values"].shape == (2,)
    best = names["predictions"][0].best
    assert "the cat sat on the mat"[best.start : best.end] == best.text != ""
    assert len(names["tags"][0]) == 3
    assert set(names["tags"][0]) <= {"DET", "NOUN", "VERB"}
    assert names["choices"][0] in range(4)
    assert names["features"].values.shape == (2, 8)
