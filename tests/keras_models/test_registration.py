"""One import registers every class used in our .keras files with Keras."""

import json
import pathlib
import re
import subprocess
import sys

import keras
import numpy as np
import pytest

from official_bert.kinds.classification.model import build_classifier
from official_bert.modeling.config import BertConfig
from official_bert.modeling.encoder import build_encoder
from official_bert.optimization.optimizers import BertAdamW
from official_bert.optimization.schedules import WarmupPolynomialDecay
from tests.conftest import ROOT

CONFIG = BertConfig(30, 8, 1, 2, 16, max_position_embeddings=16, hidden_act="gelu_exact")
IN_A_NEW_PROCESS = """
import json, keras
import official_bert.keras_models
import numpy as np
model = keras.saving.load_model("model.keras")
ids = np.arange(1, 13, dtype=np.int32).reshape(2, 6)
np.save("outputs.npy", model({"input_ids": ids, "input_mask": ids * 0 + 1, "segment_ids": ids * 0}))
print(json.dumps([type(model.optimizer).__name__, sorted(keras.saving.get_custom_objects())]))
"""


def registered_in_the_source() -> set[str]:
    """Returns the names under which the source registers classes and functions with Keras."""
    names = set()
    for path in (ROOT / "official_bert").rglob("*.py"):
        decorated = re.findall(
            r"^@keras\.saving\.register_keras_serializable\((.*)\)\n(?:class|def) (\w+)",
            path.read_text(encoding="utf-8"),
            re.MULTILINE,
        )
        for arguments, name in decorated:
            assert arguments == 'package="official_bert"', path
            names.add(f"official_bert>{name}")
    return names


@pytest.mark.slow
def test_a_new_process_loads_a_keras_file_after_importing_keras_models_alone(tmp_path: pathlib.Path):
    model = build_classifier(build_encoder(CONFIG, seed=1), 3, seed=2)
    model.compile(
        BertAdamW(WarmupPolynomialDecay(1e-3, 10)), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    model.optimizer.build(model.trainable_variables)
    model.save(tmp_path / "model.keras")
    command, environment = [sys.executable, "-c", IN_A_NEW_PROCESS], {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    optimizer, registered = json.loads(done.stdout)
    assert optimizer == "BertAdamW"
    ours = {name for name in registered if name.startswith("official_bert>")}
    assert len(ours) > 20
    assert ours == registered_in_the_source()
    ids = np.arange(1, 13, dtype=np.int32).reshape(2, 6)
    expected = model({"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)})
    np.testing.assert_allclose(np.load(tmp_path / "outputs.npy"), expected, atol=1e-6)
