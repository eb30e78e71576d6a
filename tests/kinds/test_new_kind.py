"""Adding a kind takes a folder, a public class and a line in each list, as docs/guides/extending.md describes."""

import re
import shutil
import subprocess
import textwrap

import pytest

from tests.make import ROOT, VOCAB, run_python

TRAIN_AND_PREDICT = """
import sys
import keras
import numpy as np
import official_bert
from official_bert.inference import backends
from official_bert.kinds.all_kinds import create_spec

config = official_bert.BertConfig(len(sys.argv[1].splitlines()), 8, 1, 2, 16, max_position_embeddings=16)
model = official_bert.OrdinalClassifier(config, sys.argv[1], labels=[1, 2, 3], max_seq_length=8)
model.compile()
texts, labels = ["the cat", "the dog", "the mat", "the sun"] * 2, [1, 3, 2, 1] * 2
model.fit(texts, labels, batch_size=4, epochs=2, verbose=0)
predictions, spec = model.predict(texts), model.spec.task_spec("stars", 8)
assert "mean_rank_error" in model.spec.scores(predictions, model.spec.make_examples(texts, labels))
assert spec["kind"] == "ordinal"
assert create_spec(spec) == model.spec
model.save("model.keras")
np.testing.assert_array_equal(keras.saving.load_model("model.keras").predict(texts), predictions)
model.export("export")
answers = backends.load_predictor("export/1").run({"text": np.array(texts, object)})
np.testing.assert_allclose(answers["probabilities"], predictions, atol=1e-6)
"""


def code_blocks(language: str) -> list[str]:
    """Returns the code blocks of a language in the section about kinds."""
    page = (ROOT / "docs" / "guides" / "extending.md").read_text(encoding="utf-8")
    section = page.partition("\n## A kind\n")[2].partition("\n## ")[0]
    return [textwrap.dedent(block) for block in re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)]


def insert(path, before: str, lines: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(before) == 1, f"{before!r} in {path}"
    path.write_text(text.replace(before, lines + before), encoding="utf-8")


@pytest.mark.slow
def test_a_kind_is_added_by_copying_a_folder(tmp_path):
    shutil.copytree(ROOT / "official_bert", tmp_path / "official_bert", ignore=shutil.ignore_patterns("__pycache__"))
    (copy_folder,) = code_blocks("bash")
    subprocess.run(["bash", "-e", "-c", copy_folder], cwd=tmp_path, check=True)
    score, public_class = code_blocks("python")
    package = tmp_path / "official_bert"
    insert(package / "kinds" / "ordinal" / "spec.py", "        return values\n", textwrap.indent(score, " " * 8))
    (package / "keras_models" / "ordinal_classifier.py").write_text(public_class, encoding="utf-8")
    name = "official_bert.keras_models.ordinal_classifier"
    insert(package / "__init__.py", "}\n_MODULE_OF", f'    "{name}": "OrdinalClassifier",\n')
    environment = {"PYTHONPATH": str(tmp_path), "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = run_python("-c", TRAIN_AND_PREDICT, VOCAB, folder=tmp_path, environment=environment)
    assert done.returncode == 0, done.stderr
