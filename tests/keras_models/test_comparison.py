"""The code of docs/comparison.md, run as it stands, one block after the other."""

import re

import numpy as np
import pytest

from official_bert.checkpoints import conversion, model_files, run_checkpoints
from official_bert.checkpoints.options import ConversionOptions
from official_bert.modeling.config import BertConfig
from official_bert.modeling.pretraining_model import build_pretraining_model
from tests.conftest import ROOT, WORDS


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the other libraries
def test_the_comparison_runs_and_all_libraries_give_the_same_vectors(vocab_file, tmp_path, monkeypatch):
    config = BertConfig(
        vocab_size=len(WORDS), hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=512,
    )  # fmt: skip
    monkeypatch.chdir(tmp_path)
    model_files.write_contents("model", model_files.contents_of(config, vocab_file))
    variables = build_pretraining_model(config, seed=0).variables
    run_checkpoints.RunCheckpoints("model", {"model": variables}, keep=1).save(0)
    for folder, format in (("preset", "keras_hub"), ("hf_model", "hugging_face")):
        conversion.convert(ConversionOptions(from_="model", to=folder, to_format=format))
    texts = ["the cat sat", "a dog ran in the sun", "walking", "unaffable mat"]
    names: dict = {"texts": texts, "labels": [1, 0, 1, 0], "dev_texts": texts[:2], "dev_labels": [1, 0]}
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "comparison.md").read_text("utf-8"), re.DOTALL)
    assert len(blocks) == 16
    for block in blocks:
        exec(block, names)
    assert names["answers"]["label"].shape == (2,)
    assert 0 <= names["accuracy"] <= 1
    np.testing.assert_allclose(names["vectors"], names["hub_vectors"], atol=1e-4)
    np.testing.assert_allclose(names["vectors"], names["hf_vectors"], atol=1e-4)
