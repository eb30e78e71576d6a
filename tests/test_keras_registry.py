"""A .keras file of ours is loaded by Keras after nothing but `import official_bert`."""

import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator

import keras
import numpy as np
import pytest

from official_bert import keras_registry
from official_bert.modeling.config import BertConfig
from official_bert.modeling.encoder import build_encoder
from official_bert.modeling.task_models import build_classifier, build_multiple_choice_model, build_span_predictor
from official_bert.optimization.optimizers import BertAdamW
from official_bert.optimization.schedules import WarmupPolynomialDecay
from tests.conftest import ROOT

CONFIG = BertConfig(30, 8, 1, 2, 16, max_position_embeddings=16, hidden_act="gelu_exact")
LOADS = """
import sys
{imports}
import numpy as np
model = keras.models.load_model(sys.argv[1])
ids = np.arange(1, 13, dtype=np.int32).reshape(2, 6)
inputs = dict(input_ids=ids, input_mask=ids * 0 + 1, segment_ids=ids * 0)
np.save(sys.argv[2], model(inputs))
print(type(model.optimizer).__name__)
"""


def inputs() -> dict[str, np.ndarray]:
    ids = np.arange(1, 13, dtype=np.int32).reshape(2, 6)
    return {"input_ids": ids, "input_mask": ids * 0 + 1, "segment_ids": ids * 0}


def saved_classifier(folder: pathlib.Path) -> keras.Model:
    model = build_classifier(build_encoder(CONFIG, seed=1), 3, seed=2)
    model.compile(
        BertAdamW(WarmupPolynomialDecay(1e-3, 10)), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    model.optimizer.build(model.trainable_variables)
    model.save(folder / "model.keras")
    return model


@pytest.fixture
def only_stand_ins() -> Iterator[None]:
    """Keras' registry as it is after `import official_bert` alone."""
    registry = keras.saving.get_custom_objects()
    ours = {name: value for name, value in registry.items() if name.startswith("official_bert>")}
    for name in ours:
        del registry[name]
    keras_registry.register_when_keras_is_imported()
    yield
    registry.update(ours)


def test_every_class_that_is_registered_has_a_stand_in():
    registered = {}
    for path in (ROOT / "official_bert").rglob("*.py"):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        decorated = re.findall(
            r"^@keras\.saving\.register_keras_serializable\((.*)\)\n(class|def) (\w+)",
            path.read_text(encoding="utf-8"),
            re.MULTILINE,
        )
        for arguments, _, name in decorated:
            assert arguments == 'package="official_bert"', path
            registered[name] = module
    assert len(registered) > 20
    assert registered == keras_registry.MODULE_OF


@pytest.mark.usefixtures("only_stand_ins")
def test_stand_ins_build_the_classes_themselves(tmp_path: pathlib.Path):
    model = saved_classifier(tmp_path)
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again(inputs()), model(inputs()))
    assert isinstance(again.optimizer, BertAdamW)
    encoder = build_encoder(CONFIG, seed=1)
    for built in (build_multiple_choice_model(encoder, 2), build_span_predictor(encoder)):
        built.save(tmp_path / "model.keras")
        assert keras.models.load_model(tmp_path / "model.keras").count_params() == built.count_params()


@pytest.mark.slow
@pytest.mark.parametrize("imports", ["import official_bert, keras", "import keras, official_bert"])
def test_a_new_process_loads_a_keras_file_after_importing_official_bert_alone(imports: str, tmp_path: pathlib.Path):
    model = saved_classifier(tmp_path)
    command = [sys.executable, "-c", LOADS.format(imports=imports), "model.keras", "outputs.npy"]
    done = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["BertAdamW"]
    np.testing.assert_allclose(np.load(tmp_path / "outputs.npy"), model(inputs()), atol=1e-6)
