"""Common Keras operations on a model: saving, loading in a new process, quantizing, exporting, and summaries."""

import io
import json
import os
import re
import resource
import zipfile

import keras
import numpy as np
import pytest

import official_bert
from official_bert.errors import UserError
from official_bert.inference.onnx_model import OnnxPredictor
from tests.make import VOCAB, refusal, run_python, tiny_config

TEXTS = ["the cat sat", "a dog ran in the sun", "walking"]
ENDINGS = [("the cat", ["sat", "ran", "on", "the mat"])]


CONFIG = tiny_config()
# Models tested by the fast tests. The slow tests cover all of them.
FAST = ("classifier",)

# Each class, its settings, and examples with labels.
MODELS = {
    "classifier": ("TextClassifier", {"labels": ["bad", "good"]}, TEXTS, ["good", "bad", 1]),
    "pairs": ("TextClassifier", {"labels": ["a", "b", "c"], "pair": True}, (TEXTS, TEXTS[::-1]), ["a", "c", "b"]),
    "several": ("TextClassifier", {"labels": ["a", "b", "c"], "multi_label": True}, TEXTS, [["a"], [], ["b", "c"]]),
    "windows": ("TextClassifier", {"labels": ["a", "b"], "doc_stride": 3, "max_seq_length": 6}, TEXTS, ["a", "b", "a"]),
    "regressor": ("TextRegressor", {"pair": True}, [(text, "mat") for text in TEXTS], [1, 2.5, 0]),
    "tagger": ("TokenTagger", {"labels": ["D", "N", "V"]}, ["the cat sat", ["a", "dog"]], ["D N V", ["D", "N"]]),
    "answerer": (
        "QuestionAnswerer",
        {"max_query_length": 8, "doc_stride": 8, "no_answer": True},
        (["who sat ?", "who ran ?", "when ?"], ["the cat sat", "a dog ran", "in the sun"]),
        ["cat", ("dog", 2), None],
    ),
    "choice": ("MultipleChoice", {}, ENDINGS, [3]),
    "masked_lm": ("MaskedLM", {}, ["the [MASK] sat", "a [MASK]"], None),
}  # fmt: skip


def built(name: str, **settings):
    class_name, own, x, y = MODELS[name]
    model = getattr(official_bert, class_name)(CONFIG, VOCAB, **{**own, **settings})
    return model, x, y


def assert_same(left, right, rtol=1e-5):
    if isinstance(left, np.ndarray):
        np.testing.assert_allclose(left, right, rtol=rtol)
    else:
        assert str(left) == str(right)


@pytest.mark.parametrize("name", [
    name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in MODELS
])  # fmt: skip
def test_every_model_learns_answers_and_survives_saving(name, tmp_path):
    model, x, y = built(name)
    model.compile(learning_rate=1e-2, jit_compile=False)
    before = model.evaluate(x, y, verbose=0, return_dict=True)
    model.fit(x, y, epochs=4, verbose=0)
    after = model.evaluate(x, y, verbose=0, return_dict=True)
    assert after["loss"] != before["loss"]
    answers = model.predict(x)
    assert len(answers) == (1 if name == "choice" else len(x[0]) if isinstance(x, tuple) else len(x))
    model.save(tmp_path / "model.keras")
    assert_same(type(model).load(str(tmp_path / "model.keras")).predict(x), answers)
    other, *_ = built(name, seed=1)
    model.save_weights(tmp_path / "model.weights.h5")
    other.load_weights(tmp_path / "model.weights.h5")
    assert_same(other.predict(x), answers)


@pytest.mark.slow
def test_keras_loads_every_model_after_one_import(tmp_path):
    for name in MODELS:
        model, *_ = built(name)
        model.save(tmp_path / f"{name}.keras")
    code = (
        "import sys, pathlib, keras, official_bert.keras_models\n"
        "for path in sorted(pathlib.Path(sys.argv[1]).glob('*.keras')):\n"
        "    print(path.stem, type(keras.models.load_model(path)).__name__)\n"
    )
    done = run_python("-c", code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert dict(line.split() for line in done.stdout.splitlines()) == {name: each[0] for name, each in MODELS.items()}


@pytest.mark.parametrize("name", ["classifier", "pairs", "several", "regressor", "tagger", "answerer", "choice"])
def test_the_folder_of_a_fine_tuned_model_is_written_and_read(name, tmp_path):
    model, *_ = built(name)
    model.save_checkpoint(str(tmp_path / "folder"))
    assert "no_answer" not in json.loads((tmp_path / "folder" / "task.json").read_text())  # implied by version_2
    loaded = type(model).from_checkpoint(str(tmp_path / "folder"))
    assert loaded.get_config() == {**model.get_config(), "dtype": loaded.get_config()["dtype"]}
    for before, after in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(after, before)


@pytest.mark.slow
def test_vectors_are_those_of_the_extractor(tmp_path):
    encoder = official_bert.TextEncoder(CONFIG, VOCAB, layers=[-1, -2])
    vectors = encoder.predict([*TEXTS, "the cat ||| ran"])
    assert vectors.shape == (4, 16)
    ids = encoder.preprocessor(TEXTS[:1])
    np.testing.assert_allclose(vectors[0, :8], np.mean(encoder(ids)["sequence_output"][0], axis=0), rtol=1e-5)
    pooled = official_bert.TextEncoder(CONFIG, VOCAB, pooling="pooled")
    np.testing.assert_allclose(pooled.predict(TEXTS)[:1], pooled(ids)["pooled_output"], rtol=1e-5)
    encoder.save(tmp_path / "encoder.keras")
    loaded = official_bert.TextEncoder.load(str(tmp_path / "encoder.keras"))
    np.testing.assert_array_equal(loaded.predict(TEXTS), vectors[:3])
    assert "; expected pairs or triplets of texts" in refusal(encoder.fit, TEXTS, [0, 1, 0])


@pytest.mark.slow
def test_precision_follows_the_argument_or_the_global_policy(tmp_path):
    model, *_ = built("classifier", dtype="mixed_bfloat16")
    assert model.get_layer("layer_0_intermediate").compute_dtype == "bfloat16"
    assert model.get_layer("layer_0_intermediate").variable_dtype == "float32"
    assert model.output.dtype == "float32"
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        other, *_ = built("classifier")
    finally:
        keras.config.set_dtype_policy(before)
    np.testing.assert_array_equal(other.predict(TEXTS), model.predict(TEXTS))
    model.save(tmp_path / "model.keras")
    assert keras.models.load_model(tmp_path / "model.keras").get_config()["dtype"] == "mixed_bfloat16"


def test_a_model_of_the_same_configuration_has_new_weights():
    model, x, _ = built("classifier")
    model.freeze("layer_0_.*")
    other = type(model).from_config(model.get_config())
    assert other.get_config() == model.get_config()
    assert not {*map(id, other.variables)} & {*map(id, model.variables)}
    other.set_weights(model.get_weights())
    np.testing.assert_array_equal(other.predict(x), model.predict(x))


@pytest.mark.parametrize("formats", ["onnx", pytest.param("onnx,litert", marks=pytest.mark.slow)])
def test_a_model_is_exported_in_the_formats_asked_for(formats, tmp_path):
    model, x, _ = built("classifier")
    rows = [{"text": text, "label": "good"} for text in x]
    (tmp_path / "dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model.export(str(tmp_path / "out"), formats, eval_file=str(tmp_path / "dev.jsonl"))
    several = "litert" in formats
    answers = OnnxPredictor(str(tmp_path / "out" / ("onnx/1" if several else "1"))).run({"text": np.array(x, object)})
    np.testing.assert_allclose(answers["probabilities"], model.predict(x), rtol=1e-4)
    if several:
        assert json.loads((tmp_path / "out" / "litert" / "report.json").read_text())["examples"] == len(rows)
    with pytest.raises(UserError, match="--format is openvino; .* saved_model, onnx, litert"):
        model.export(str(tmp_path / "other"), "openvino")
    model.quantize("int8")
    with pytest.raises(UserError, match="has 8-bit weights, which only .keras files and saved_model exports can store"):
        model.export(str(tmp_path / "other"), "onnx")


def test_models_can_be_summarized_and_looked_into(capsys):
    model, *_ = built("classifier")
    model.summary()
    assert "layer_1_output" in capsys.readouterr().out
    assert model.count_params() == sum(int(np.prod(variable.shape)) for variable in model.variables)


@pytest.mark.slow
@pytest.mark.usefixtures("pause_collection")
def test_dense_layers_take_eight_bits_and_low_rank_updates(tmp_path):
    model, *_ = built("classifier")
    exact = model.predict(TEXTS)
    model.quantize("int8")
    assert model.get_layer("layer_0_intermediate").kernel.dtype == "int8"
    quantized = model.predict(TEXTS)
    np.testing.assert_allclose(quantized, exact, atol=0.02)
    assert not np.array_equal(quantized, exact)
    model.save(tmp_path / "int8.keras")
    loaded = official_bert.TextClassifier.load(str(tmp_path / "int8.keras"))
    np.testing.assert_array_equal(loaded.predict(TEXTS), quantized)
    other, *_ = built("classifier")
    for layer in other.layers:
        if layer.name.endswith(("attention_query", "attention_value")):
            layer.enable_lora(2)
    other.compile(learning_rate=1e-2, jit_compile=False)
    other.fit(TEXTS, ["good", "bad", "good"], epochs=2, verbose=0)
    other.save(tmp_path / "lora.keras")
    loaded = official_bert.TextClassifier.load(str(tmp_path / "lora.keras"))
    np.testing.assert_allclose(loaded.predict(TEXTS), other.predict(TEXTS), rtol=1e-5)


def test_frozen_layers_stay_frozen_when_loaded(tmp_path):
    model, *_ = built("classifier")
    model.freeze("layer_0_.*")
    model.save(tmp_path / "model.keras")
    loaded = official_bert.TextClassifier.load(str(tmp_path / "model.keras"))
    paths = [[variable.path for variable in each.trainable_variables] for each in (loaded, model)]
    assert paths[0] == paths[1]
    message = refusal(official_bert.TextRegressor.load, str(tmp_path / "model.keras"))
    assert "contains a TextClassifier; expected a TextRegressor" in message


@pytest.mark.parametrize(
    ("name", "x", "y", "message"),
    [
        ("pairs", ["a"], ["a"], r"x\[0\] is 'a'; expected pairs of texts"),
        ("pairs", (["a"], ["a", "b"]), ["a"], "x has columns of 1, 2 texts"),
        ("tagger", ["the cat"], ["D"], r"x\[0\] has 2 words and y\[0\] 1 tags"),
        ("tagger", ["the cat"], ["D X"], r"y\[0\]\[1\] is 'X'; expected one of D, N, V"),
        ("answerer", (["who"], ["the cat"]), ["dog"], r"y\[0\] is 'dog', which is not in the context at this position"),
        ("choice", [("the", ["a", "b"])], [0], r"x\[0\] has 2 endings; expected 4"),
        ("choice", ENDINGS, [4], r"y\[0\] is 4"),
        ("masked_lm", ["a"], [0], "remove y"),
        ("regressor", [("a", "b")], [float("inf")], r"y\[0\] is inf; expected a finite number"),
    ],
)  # fmt: skip
def test_examples_that_do_not_fit_are_named(name, x, y, message):
    model, *_ = built(name)
    assert re.search(message, refusal(model.fit, x, y, verbose=0))


@pytest.mark.parametrize("name", ["model.keras", "model.weights.h5", "model.h5"])
def test_a_file_that_cannot_be_replaced_stays(name, tmp_path):
    model, *_ = built("classifier")
    save = model.save_weights if "weights" in name else model.save
    path = tmp_path / name
    save(path)
    content = path.read_bytes()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, before[1]))
    try:
        assert re.search(f"cannot write .*{name}: File too large", refusal(save, path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_bytes() == content
    assert not list(tmp_path.glob("*.writing-*"))
    assert f"{name} already exists" in refusal(save, path, overwrite=False)


@pytest.mark.slow
def test_a_model_that_was_saved_in_the_older_format_is_saved_in_the_other_as_before(tmp_path):
    model = official_bert.TextClassifier(CONFIG, VOCAB, labels=["a", "b"])
    for optimizer in ("sgd", None):
        model.compile(optimizer)
        model.evaluate(["the cat"], ["a"], verbose=0)
        model.save(tmp_path / "before.keras")
        model.save(tmp_path / "model.h5")
        model.save(tmp_path / "after.keras")
        paths = (str(tmp_path / f"{name}.keras") for name in ("before", "after"))
        before, after = map(official_bert.TextClassifier.load, paths)
        assert (before.compiled, before.get_compile_config()) == (after.compiled, after.get_compile_config())


def test_callbacks_of_keras_replace_the_file_as_a_whole(tmp_path, monkeypatch):
    model, x, y = built("classifier")
    replaced = []
    monkeypatch.setattr(os, "replace", lambda source, target: replaced.append((source, target)))
    names = {"model.keras": False, "model.weights.h5": True}
    callbacks = [
        keras.callbacks.ModelCheckpoint(tmp_path / name, save_weights_only=only) for name, only in names.items()
    ]
    model.fit(x, y, verbose=0, callbacks=callbacks)
    assert [target for _, target in replaced] == [str(tmp_path / name) for name in names]


def test_weights_in_several_files_and_models_in_folders_are_read_again(tmp_path):
    model, *_ = built("classifier")
    model.save_weights(tmp_path / "model.weights.json", max_shard_size=3e-6)
    assert len(list(tmp_path.glob("model_*.weights.h5"))) > 1
    other, *_ = built("classifier", seed=5)
    other.load_weights(tmp_path / "model.weights.json")
    for left, right in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(left, right)
    model.save(tmp_path / "folder", zipped=False)
    assert "folder already exists; pass the name of a new" in refusal(model.save, tmp_path / "folder", zipped=False)


def test_damaged_files_are_said_to_be(tmp_path):
    model, *_ = built("classifier")
    path = tmp_path / "model.keras"
    model.save(path)
    content = path.read_bytes()
    with zipfile.ZipFile(path) as opened:
        parts = {name: opened.read(name) for name in opened.namelist()}
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 1
    damaged = {"cut": content[:-50], "empty": b"", "flipped": bytes(flipped)}
    nested = b"[" * 100_000
    for name, config_json in (("nested", nested), ("keyless", b"{}"), ("list", b"[]"), ("text", b"text")):
        zipped = io.BytesIO()
        with zipfile.ZipFile(zipped, "w") as opened:
            for part, part_content in {**parts, "config.json": config_json}.items():
                opened.writestr(part, part_content)
        damaged[name] = zipped.getvalue()
    for name, damaged_content in damaged.items():
        path.write_bytes(damaged_content)
        message = refusal(official_bert.TextClassifier.load, str(path))
        assert f"{path} is damaged" in message
        assert "File not found" not in message, name
        assert "\n" not in message
    path.unlink()
    assert f"there is no file {path}" in refusal(official_bert.TextClassifier.load, str(path))
