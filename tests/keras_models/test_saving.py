"""Common Keras operations on a model: saving, loading in a new process, quantizing, exporting, and summaries."""

import functools
import io
import json
import re
import resource
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf

import official_bert
from official_bert.export import formats, verification
from official_bert.export.graph_models import build_graph_model
from official_bert.kinds.classification.model import build_classifier
from official_bert.modeling.encoder import build_encoder
from official_bert.modeling.fast.verification import run_functions_eagerly
from official_bert.optimization import optimizers, schedules
from tests import make
from tests.make import assert_equal_weights, assert_mentions, assert_rejected, compile_eagerly, slow_after

TEXTS = ["the cat sat", "a dog ran in the sun", "walking"]

ANSWERS = {"no_answer": True, "n_best_size": 7, "max_answer_length": 6, "null_score_diff_threshold": 0.5}
VECTORS = {"normalize": True, "dimensions": [4], "objective": "triplet", "score_range": [0, 5], "margin": 2.0}
MODELS: dict[str, tuple[str, dict]] = {
    "classifier": ("TextClassifier", {"labels": ["bad", "good"]}),
    "pairs": ("TextClassifier", {"labels": ["a", "b", "c"], "pair": True}),
    "several": ("TextClassifier", {"labels": ["a", "b", "c"], "multi_label": True}),
    "windows": ("TextClassifier", {"labels": ["a", "b"], "doc_stride": 3, "max_seq_length": 6}),
    "regressor": ("TextRegressor", {"pair": True, "doc_stride": 3}),
    "tagger": ("TokenTagger", {"labels": ["D", "N", "V"], "doc_stride": 4}),
    "answerer": ("QuestionAnswerer", {"max_query_length": 8, "doc_stride": 8, **ANSWERS}),
    "choice": ("MultipleChoice", {}),
    "masked_lm": ("MaskedLM", {"masked_lm_prob": 0.3, "max_predictions_per_seq": 9, "do_whole_word_mask": True}),
    "encoder": ("TextEncoder", {"pooling": "cls", "scale": 10.0, **VECTORS}),
}


def build(name: str = "classifier", **settings):
    class_name, own = MODELS[name]
    return make.build_text_model(class_name, **own, **settings)


share = functools.cache(build)  # models for calls that change nothing


_LOAD_ALL = """
import json, pathlib, keras
import official_bert.keras_models
import numpy as np
models = {path.stem: keras.saving.load_model(path) for path in sorted(pathlib.Path().glob("*.keras"))}
ids = np.arange(1, 13, dtype=np.int32).reshape(2, 6)
np.save("outputs.npy", models["plain"]({"input_ids": ids, "input_mask": ids * 0 + 1, "segment_ids": ids * 0}))
print(json.dumps([
    type(models["plain"].optimizer).__name__, sorted(keras.saving.get_custom_objects()),
    {name: type(model).__name__ for name, model in models.items()},
]))
"""


@pytest.mark.slow
def test_keras_files_can_be_loaded_after_importing_only_keras_models(tmp_path):
    for name in MODELS:
        build(name).save(tmp_path / f"{name}.keras")
    plain = build_classifier(build_encoder(make.tiny_config(hidden_act="gelu_exact"), seed=1), 3, seed=2)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    plain.compile(optimizers.BertAdamW(schedules.WarmupPolynomialDecay(1e-3, 10)), loss)
    plain.optimizer.build(plain.trainable_variables)
    plain.save(tmp_path / "plain.keras")
    done = make.run_python("-c", _LOAD_ALL, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    optimizer, registered, classes = json.loads(done.stdout)
    expected_classes = {"plain": "Functional", **{name: each[0] for name, each in MODELS.items()}}
    assert (optimizer, classes) == ("BertAdamW", expected_classes)
    ids = np.arange(1, 13, dtype=np.int32).reshape(2, 6)
    expected = plain({"input_ids": ids, "input_mask": ids * 0 + 1, "segment_ids": ids * 0})
    np.testing.assert_allclose(np.load(tmp_path / "outputs.npy"), expected, atol=1e-6)
    decorated = r"^@keras\.saving\.register_keras_serializable\((.*)\)\n(?:class|def) (\w+)"
    source = "\n".join(path.read_text(encoding="utf-8") for path in (make.ROOT / "official_bert").rglob("*.py"))
    in_source = re.findall(decorated, source, re.MULTILINE)
    assert len(in_source) > 20
    assert {arguments for arguments, _ in in_source} == {'package="official_bert"'}
    ours = {name for name in registered if name.startswith("official_bert>")}
    assert ours == {f"official_bert>{name}" for _, name in in_source}


@pytest.mark.parametrize(
    "name", slow_after(5, ["several", "regressor", "tagger", "answerer", "choice", "classifier", "pairs"])
)
def test_the_folder_of_a_fine_tuned_model_is_written_and_read(name, tmp_path):
    model, folder = build(name), str(tmp_path / "folder")
    model.save_checkpoint(folder)
    assert "no_answer" not in json.loads((tmp_path / "folder" / "task.json").read_text())  # implied by version_2
    loaded = type(model).from_checkpoint(folder)
    assert loaded.get_config() == {**model.get_config(), "dtype": loaded.get_config()["dtype"]}
    assert_equal_weights(model, loaded)


def test_text_encoder_vectors_equal_feature_extractor_vectors():
    encoder = make.build_text_model("TextEncoder", make.tiny_config(), layers=[-1, -2])
    ids, vectors = encoder.preprocessor(TEXTS[:1]), encoder.predict(TEXTS)
    np.testing.assert_allclose(vectors[0, :8], np.mean(encoder(ids)["sequence_output"][0], axis=0), rtol=1e-5)
    pooled = make.build_text_model("TextEncoder", pooling="pooled")
    np.testing.assert_allclose(pooled.predict(TEXTS)[:1], pooled(ids)["pooled_output"], rtol=1e-5)


def test_precision_follows_the_argument_or_the_global_policy(tmp_path):
    model, before = build(dtype="mixed_bfloat16"), keras.config.dtype_policy()
    layer = model.get_layer("layer_0_intermediate")
    assert (layer.compute_dtype, layer.variable_dtype, model.output.dtype) == ("bfloat16", "float32", "float32")
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        other = build()
    finally:
        keras.config.set_dtype_policy(before)
    np.testing.assert_array_equal(other.predict(TEXTS), model.predict(TEXTS))
    model.save(tmp_path / "model.keras")
    assert keras.models.load_model(tmp_path / "model.keras").get_config()["dtype"] == "mixed_bfloat16"
    low = build(dtype="bfloat16")
    assert_rejected(("dtype=bfloat16", "dtype=mixed_bfloat16"), low.fit, TEXTS, ["bad"] * 3)
    compile_eagerly(low, "sgd")  # An optimizer of Keras needs no float32 weights.
    assert np.isfinite(low.fit(TEXTS, ["bad"] * 3, verbose=0).history["loss"]).all()


def test_a_model_of_the_same_configuration_has_new_weights(tmp_path, capsys):
    model, path = build(), str(tmp_path / "model.keras")
    model.freeze("layer_0_.*")
    other = type(model).from_config(model.get_config())
    assert other.get_config() == model.get_config()
    assert not {*map(id, other.variables)} & {*map(id, model.variables)}
    # Frozen layers stay frozen when loaded.
    model.save(path)
    loaded = type(model).load(path)
    paths = [[variable.path for variable in each.trainable_variables] for each in (loaded, model)]
    assert paths[0] == paths[1]
    assert_equal_weights(model, loaded)
    assert_rejected((path, "TextClassifier", "TextRegressor"), official_bert.TextRegressor.load, path)
    model.summary()
    assert "layer_0_output" in capsys.readouterr().out
    assert model.count_params() == sum(int(np.prod(variable.shape)) for variable in model.variables)


def test_export_passes_its_settings_and_those_of_the_model_on(monkeypatch):
    written, settings = [], {"version": 7, "quantization": "dynamic_int8", "max_loss": 0.5, "for_serving": "2.19"}
    settings |= {"eval_file": "dev.jsonl", "format": ["saved_model", "onnx"]}
    monkeypatch.setattr(formats, "write", lambda source, options: written.append(source.task_spec | vars(options)))
    build(min_confidence=0.75).export("out", **settings | {"format": "saved_model,onnx"})
    assert written[0].items() >= {**settings, "min_confidence": 0.75}.items()


def test_the_exported_functions_of_a_masked_lm_fill_masks_as_the_model_does(monkeypatch):
    model, texts, sources = build("masked_lm"), ["the [MASK] sat", "[MASK] dog ran [MASK]"], []
    monkeypatch.setattr(formats, "write", lambda source, options: sources.append(source))
    monkeypatch.setattr(verification, "synthetic_texts", lambda source: {"text": texts})
    model.export("out")
    with run_functions_eagerly():  # since tracing takes most of the time of an export
        tokens = build_graph_model(sources[0]).answer(text=tf.constant(texts))["tokens"].numpy()
        assert "tokens" in verification.record_answers(sources[0]).discrete_outputs
    for row, masks in enumerate(model.fill(texts)):
        for mask, candidates in enumerate(masks):
            assert tokens[row, mask].tolist() == [each.token.encode() for each in candidates]
    assert [len(candidates) for candidates in model.fill(texts, top_k=2)[1]] == [2, 2]


def test_dense_layers_of_a_trained_model_can_be_quantized_to_int8(tmp_path, pause_collection):
    model, path = build(), str(tmp_path / "model.keras")
    names = ("--format", "openvino", "saved_model", "onnx", "litert")
    assert_rejected(names, model.export, str(tmp_path / "out"), "openvino")
    compile_eagerly(model, "sgd").fit(TEXTS, labels := ["good", "bad", "good"], verbose=0)
    model.fit(tf.data.Dataset.from_tensor_slices((TEXTS, labels)), verbose=0)
    exact = model.predict(TEXTS)
    model.quantize("int8")
    assert_rejected(("8-bit", "saved_model"), model.export, str(tmp_path / "out"), "onnx")
    quantized = model.predict(TEXTS)
    np.testing.assert_allclose(quantized, exact, atol=0.02)
    assert not np.array_equal(quantized, exact)
    assert model.get_layer("layer_0_intermediate").kernel.dtype == "int8"
    model.save(path)
    np.testing.assert_array_equal(official_bert.TextClassifier.load(path).predict(TEXTS), quantized)


def test_lora_updates_are_trained_and_saved(tmp_path):
    model, path = build(), str(tmp_path / "model.keras")
    before = model.predict(TEXTS)  # traces the layers without their updates
    for layer in model.layers:
        if layer.name.endswith(("attention_query", "attention_value")):
            layer.enable_lora(2)
    compile_eagerly(model, learning_rate=1.0).fit(TEXTS, ["good", "bad", "good"], verbose=0)
    model.save(path)
    predictions = model.predict(TEXTS)
    assert not np.array_equal(predictions, before)
    np.testing.assert_allclose(official_bert.TextClassifier.load(path).predict(TEXTS), predictions, rtol=1e-5)


@pytest.mark.parametrize(("name", "x", "y", "names"), [
    ("pairs", ["a"], ["a"], ("x[0]", "'a'", "pairs")), ("pairs", (["a"], ["a", "b"]), ["a"], ("x", 1, 2)),
    ("tagger", ["the cat"], ["D"], ("x[0]", 2, "y[0]", 1)), ("masked_lm", ["a"], [0], ("MaskedLM", "y")),
    ("tagger", ["the", b"\xff"], ["D", "D"], ("x[1]", "UTF-8")), ("tagger", ["a", None], ["D", "D"], ("x[1]", None)),
    ("tagger", [["a", None]], ["D N"], ("x[0][1]", None)),
    ("tagger", ["the cat"], ["D X"], ("y[0][1]", "'X'", "D", "N", "V")),
    ("answerer", (["who"], ["the cat"]), ["dog"], ("y[0]", "'dog'", "context")),
    ("choice", [("the cat", ["sat", "ran", "on", "the mat"])], [4], ("y[0]", 4)),
])  # fmt: skip
def test_invalid_examples_are_reported(name, x, y, names):
    assert_rejected(names, share(name).fit, x, y, verbose=0)


@pytest.mark.parametrize("name", ["model.keras", "model.weights.h5", "model.h5"])
def test_a_failed_save_keeps_the_existing_file(name, tmp_path):
    model, path, before = share(), tmp_path / name, resource.getrlimit(resource.RLIMIT_FSIZE)
    save = model.save_weights if "weights" in name else model.save
    save(path)
    content = path.read_bytes()
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, before[1]))
    try:
        assert_rejected((path, "large"), save, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_bytes() == content
    assert not list(tmp_path.glob("*.writing-*"))
    assert_rejected((path, "overwrite=True"), save, path, overwrite=False)


@pytest.mark.parametrize("optimizer", slow_after(1, [None, "sgd"]))
def test_saving_as_h5_does_not_change_later_keras_files(optimizer, tmp_path):
    model = compile_eagerly(build(), optimizer)
    model.evaluate(["the cat"], ["bad"], verbose=0)
    for name in ("before.keras", "model.h5", "after.keras"):
        model.save(tmp_path / name)
    before, after = (official_bert.TextClassifier.load(str(tmp_path / f"{name}.keras")) for name in ("before", "after"))
    assert (before.compiled, before.get_compile_config()) == (after.compiled, after.get_compile_config())
    (tmp_path / "model.hdf5").touch()
    for path in (tmp_path / "model.h5", tmp_path / "model.hdf5"):
        assert_rejected((path, ".keras", "load_weights"), official_bert.TextClassifier.load, path)


def test_weights_in_one_file_or_several_and_models_in_folders_are_read_again(tmp_path):
    model, other = build(), build(seed=5)
    other_weights = other.get_weights()
    for name, settings in (("one.weights.h5", {}), ("model.weights.json", {"max_shard_size": 3e-6})):
        model.save_weights(tmp_path / name, **settings)
        other.set_weights(other_weights)
        other.load_weights(tmp_path / name)
        assert_equal_weights(model, other)
    assert len(list(tmp_path.glob("model_*.weights.h5"))) > 1
    model.save(tmp_path / "folder", zipped=False)
    assert_rejected(tmp_path / "folder", model.save, tmp_path / "folder", zipped=False)
    assert_equal_weights(model, official_bert.TextClassifier.load(tmp_path / "folder"))
    path = tmp_path / "folder.keras"
    assert_rejected((path, "zipped=False"), model.save, path, zipped=False)


def test_damaged_keras_files_are_reported(tmp_path):
    path, load = tmp_path / "model.keras", official_bert.TextClassifier.load
    build().save(path)
    content, damaged = path.read_bytes(), []
    with zipfile.ZipFile(path) as opened:
        parts = {name: opened.read(name) for name in opened.namelist()}
    for config_json in (b"[" * 100_000, b"{}", b"[]", b"text"):
        zipped = io.BytesIO()
        with zipfile.ZipFile(zipped, "w") as opened:
            for part, part_content in {**parts, "config.json": config_json}.items():
                opened.writestr(part, part_content)
        damaged.append(zipped.getvalue())
    make.flip_bits(path, len(content) // 2)
    for damaged_content in (path.read_bytes(), content[:-50], b"", *damaged):
        path.write_bytes(damaged_content)
        message = make.refusal(load, str(path))
        assert_mentions(message, path, "damaged")
        assert "File not found" not in message
        assert "\n" not in message
    assert_rejected(tmp_path / "none", load, str(tmp_path / "none"))
    assert_rejected((tmp_path, "save", "from_checkpoint"), load, str(tmp_path))


@pytest.mark.parametrize("name", ["masked_lm", "encoder", "choice", "answerer"])
def test_a_loaded_file_has_the_settings_of_the_model_and_its_encoder_as_backbone(name: str, tmp_path):
    model, path = build(name, max_seq_length=24), str(tmp_path / "model.keras")
    model.save(path)
    loaded = type(model).load(path)
    assert (loaded.max_seq_length, loaded.get_config()) == (24, model.get_config())
    ids = {name: np.ones((1, 5), np.int32) for name in ("input_ids", "input_mask", "segment_ids")}
    outputs = model.backbone(ids)["sequence_output"]
    assert outputs.shape == (1, 5, 8)
    unused = {id(each) for each in model.backbone.variables} - {id(each) for each in model.variables}
    assert len(unused) == (2 if name == "answerer" else 0)  # the pooler
    np.testing.assert_array_equal(loaded.backbone(ids)["sequence_output"], outputs)
    assert_equal_weights(model, loaded)
