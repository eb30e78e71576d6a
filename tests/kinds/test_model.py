import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

from official_bert.checkpoints import finetuned
from official_bert.checkpoints.checkpoint import LoadedModel
from official_bert.checkpoints.loading import open_model
from official_bert.kinds import names
from official_bert.kinds.classification.model import build_classifier
from official_bert.modeling.config import BertConfig
from official_bert.modeling.encoder import build_encoder
from tests import make
from tests.conftest import WORDS
from tests.make import VOCAB, build_task_model, refusal

B, S, LABELS, CHOICES = 8, 6, 3, 2


@pytest.fixture
def quick_config() -> BertConfig:
    """Configuration of a model that learns in a few steps."""
    scales = {"initializer_range": 0.2, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return make.tiny_config(hidden_size=16, num_hidden_layers=1, intermediate_size=32, **scales)


def features(shape: tuple[int, ...], seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    ids = rng.integers(5, len(WORDS), shape).astype(np.int32)
    mask = np.ones(shape, np.int32)
    mask[..., -1] = 0
    return {"input_ids": ids * mask, "input_mask": mask, "segment_ids": rng.integers(0, 2, shape).astype(np.int32)}


def cross_entropy(from_logits: bool = True):
    return keras.losses.SparseCategoricalCrossentropy(from_logits=from_logits)


def example(kind: str):
    """Returns inputs, targets, a loss, and a function that converts outputs to the form of the targets."""
    rng = np.random.default_rng(1)
    if kind == "classification":
        return features((B, S)), rng.integers(0, LABELS, B), cross_entropy(), lambda y: y.argmax(-1)
    if kind == "multi_label":
        targets = rng.integers(0, 2, (B, LABELS))
        return features((B, S)), targets, keras.losses.BinaryCrossentropy(from_logits=True), lambda y: y > 0
    if kind == "regression":
        return features((B, S)), rng.integers(0, 5, B), keras.losses.MeanSquaredError(), lambda y: y.round()
    if kind == "tagging":
        targets = rng.integers(0, LABELS, (B, S))
        return features((B, S)), targets, cross_entropy(), lambda y: y.argmax(-1)
    if kind == "question_answering":
        targets = {"start_logits": rng.integers(0, S - 1, B), "end_logits": rng.integers(0, S - 1, B)}
        losses = {name: cross_entropy() for name in targets}
        return features((B, S)), targets, losses, lambda y: {name: each.argmax(-1) for name, each in y.items()}
    return features((B, CHOICES, S)), rng.integers(0, CHOICES, B), cross_entropy(), lambda y: y.argmax(-1)


def create_kind_model(kind: str, config) -> keras.Model:
    return build_task_model(kind, build_encoder(config, seed=3), LABELS, CHOICES, seed=3)


def description(kind: str) -> dict:
    sizes = {"num_choices": CHOICES, "max_seq_length": S}
    return {"task": "t", "kind": kind, "pair": False, "labels": ["x", "y", "z"], **sizes}


# Slow, because each builds a graph of its own.
SLOW = ("multi_label", "regression", "tagging", "question_answering", "multiple_choice")


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] if kind in SLOW else []) for kind in names.KINDS]
)
def test_a_head_learns_eight_examples_by_heart_and_answers_the_same_when_loaded(kind, quick_config, tmp_path):
    inputs, targets, loss, decoded = example(kind)
    model = create_kind_model(kind, quick_config)
    model.compile(keras.optimizers.Adam(0.003), loss)
    data = tf.data.Dataset.from_tensors((inputs, targets)).repeat()
    before = [variable.numpy() for variable in model.variables]
    model.fit(data, steps_per_epoch=1, shuffle=False, verbose=0)
    for old, variable in zip(before, model.variables, strict=True):
        pooler_is_unused = kind in ("tagging", "question_answering") and variable.path.startswith("pooler")
        # It shifts the logits of all choices equally, so its gradient is only rounding.
        cancels = variable.path == "multiple_choice/bias"
        assert pooler_is_unused or cancels or not np.array_equal(old, variable.numpy()), variable.path
    for _ in range(6):
        model.fit(data, steps_per_epoch=60, shuffle=False, verbose=0)
        output = keras.tree.map_structure(np.asarray, model(inputs, training=False))
        if all_equal(decoded(output), targets):
            break
    assert all_equal(decoded(output), targets)
    finetuned.save(str(tmp_path / "model"), model, description(kind), quick_config, VOCAB)
    with h5py.File(tmp_path / "model" / "model.weights.h5") as weights:
        assert "optimizer" not in weights
    again = open_model(str(tmp_path / "model"))
    assert again.config == quick_config
    assert again.task == description(kind)
    assert again.tokenizer.tokenize("The cat") == ["the", "cat"]
    keras.tree.map_structure(
        np.testing.assert_array_equal, finetuned.build_model(again)(inputs, training=False), output
    )


def all_equal(found, targets) -> bool:
    if isinstance(targets, dict):
        return all(np.array_equal(found[name], targets[name]) for name in targets)
    return np.array_equal(found, targets)


@pytest.mark.parametrize("kind", names.KINDS)
def test_more_padding_changes_no_prediction(kind, tiny_config):
    inputs, *_ = example(kind)
    model = create_kind_model(kind, tiny_config)
    longer = {
        name: np.pad(each, [(0, 0)] * (each.ndim - 1) + [(0, 4)]) for name, each in inputs.items()
    }  # [..., S + 4]
    ours, theirs = model(inputs), model(longer)

    def compare(a, b):
        np.testing.assert_allclose(a, b[:, :S] if a.shape != b.shape else b, atol=1e-5)

    keras.tree.map_structure(compare, ours, theirs)


@pytest.mark.parametrize("kind", names.KINDS)
def test_a_tenth_is_dropped_before_every_head_but_that_of_questions(kind, tiny_config):
    layers = create_kind_model(kind, tiny_config)._flatten_layers()
    rates = [layer.rate for layer in layers if layer.name == "head_dropout"]
    assert rates == ([] if kind in ("question_answering", "embedding") else [0.1])


def test_logits_are_float32_under_bfloat16(tiny_config):
    for kind in names.KINDS:
        encoder = build_encoder(tiny_config, dtype="mixed_bfloat16")
        outputs = build_task_model(kind, encoder, LABELS, CHOICES).outputs
        assert {each.dtype for each in outputs} == {"float32"}


def test_an_encoder_without_a_pooler_is_refused(tiny_config):
    encoder = build_encoder(tiny_config)
    bare = keras.Model(encoder.input, {"sequence_output": encoder.output["sequence_output"]})
    assert "no pooled_output" in refusal(build_classifier, bare, 2)


def test_a_damaged_folder_is_named(tiny_config, tmp_path):
    folder = tmp_path / "model"
    assert "no task.json" in refusal(finetuned.build_model, LoadedModel(tiny_config, {}))
    model = create_kind_model("classification", tiny_config)
    finetuned.save(str(folder), model, description("classification"), tiny_config, VOCAB)
    weights = (folder / "model.weights.h5").read_bytes()
    (folder / "model.weights.h5").write_bytes(weights[:1000])
    assert "model.weights.h5 does not match its checksum" in refusal(open_model, str(folder))
    (folder / "checksums.json").unlink()
    assert "model.weights.h5 is damaged: " in refusal(open_model, str(folder))
    (folder / "task.json").write_text('{"task": "t"}')
    assert "no value for kind, pair" in refusal(open_model, str(folder))
