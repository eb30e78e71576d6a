"""Arguments, saving, checkpoints, loading in a new process, quantizing and exporting of the Keras models."""

import functools
import inspect
import io
import json
import os
import re
import resource
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf

import official_bert
from official_bert.checkpoints import conversion, loading, options
from official_bert.checkpoints.checkpoint import PRETRAINING
from official_bert.export import formats, verification
from official_bert.export.graph_models import build_graph_model
from official_bert.finetuning.initial_model import describe_initial_model, read_initial_model
from official_bert.keras_models.learned_labels import learn_labels
from official_bert.kinds import class_labels
from official_bert.kinds.classification.model import build_classifier
from official_bert.modeling.encoder import build_encoder
from official_bert.modeling.fast.verification import run_functions_eagerly
from official_bert.optimization import optimizers, schedules
from official_bert.tokenization.added_tokens import AddedToken
from official_bert.tokenization.casing import UNCASED
from tests import make
from tests.make import VOCAB, assert_equal_weights, assert_mentions, assert_rejected, compile_eagerly, slow_after

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


take = official_bert.TextClassifier.from_checkpoint


def assert_has(model, weights: dict, parts: tuple[str, ...] = ("",)) -> None:
    for path, value in make.list_weights(model).items():
        if path.startswith(parts):
            np.testing.assert_array_equal(value, weights[path], err_msg=path)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory) -> str:
    """A folder with all pre-training heads."""
    folder = str(tmp_path_factory.mktemp("pretrained") / "model")
    make.build_text_model("MaskedLM", seed=7).save_checkpoint(folder)
    return folder


def test_a_trained_masked_lm_is_saved_as_a_complete_pretraining_checkpoint(pretrained, tmp_path, capsys):
    folder, kept = str(tmp_path / "adapted"), loading.open_model(pretrained).weights
    model = compile_eagerly(official_bert.MaskedLM.from_checkpoint(pretrained), "sgd")
    model.fit(TEXTS, verbose=0)
    model.save_checkpoint(folder)
    checkpoint = loading.open_model(folder)
    assert set(checkpoint.parts) == PRETRAINING  # includes the parts that a masked LM does not use
    assert_has(model, checkpoint.weights)
    assert any((kept[path] != value).any() for path, value in checkpoint.weights.items())
    for path in ("pooler/kernel", "next_sentence/kernel"):
        np.testing.assert_array_equal(checkpoint.weights[path], kept[path])
    assert official_bert.load_pretraining_model(folder)[1] == model.bert_config
    assert read_initial_model(folder).vocab == VOCAB
    conversion.convert(options.ConversionOptions(from_=folder, to=str(tmp_path / "google"), to_format="tf1"))
    capsys.readouterr()
    for name, settings in (("TextClassifier", {"labels": ["a", "b"]}), ("MaskedLM", {}), ("TextEncoder", {})):
        loaded = getattr(official_bert, name).from_checkpoint(folder, **settings)
        assert_has(loaded, checkpoint.weights, ("layer_", "word_embeddings", "pooler", "masked_lm"))
    assert "random" not in capsys.readouterr().out


def test_save_checkpoint_replaces_its_own_folder_but_no_other_files(tmp_path, monkeypatch):
    folder, mine = tmp_path / "model", tmp_path / "mine"
    first, model = make.build_text_model("MaskedLM", seed=1), make.build_text_model("MaskedLM", seed=2)
    first.save_checkpoint(str(folder))

    def stopped(self, path):
        (folder / f"{os.path.basename(path)}.data-00000-of-00001").write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(tf.train.Checkpoint, "write", stopped)
        with pytest.raises(KeyboardInterrupt):
            model.save_checkpoint(str(folder))
    assert_has(first, loading.open_model(str(folder)).weights)  # a save that is stopped leaves the earlier weights
    model.save_checkpoint(str(folder))
    assert_has(official_bert.MaskedLM.from_checkpoint(str(folder)), make.list_weights(model))
    assert len(list(folder.glob("ckpt-*"))) == 2  # an index file and a data file
    make.write_text(mine / "task.json", "{}")
    for each, path, name in (
        (make.build_text_model("MaskedLM", make.tiny_config()), folder, "bert_config.json"),
        (model, mine, "task.json"),
    ):
        assert_rejected((path, name), each.save_checkpoint, str(path))
    embeddings = model.get_layer("word_embeddings").embeddings
    embeddings.assign(embeddings * np.nan)
    assert_rejected(("word_embeddings/embeddings", "finite"), model.save_checkpoint, str(folder))


def test_from_checkpoint_accepts_keras_files_of_all_models(pretrained, tmp_path, capsys):
    path, masked = tmp_path / "model.keras", tmp_path / "masked.keras"
    model = make.build_text_model(pair=True, max_seq_length=12, seed=3)
    model.save(path)
    same = take(path)
    assert (same.labels, same.spec.pair, same.max_seq_length) == (("a", "b"), True, 12)
    assert_has(same, make.list_weights(model))
    told = capsys.readouterr().out
    assert all(text in told for text in ("the head is the checkpoint's", "labels=['a', 'b'] is taken from"))
    encoder_parts = ("layer_", "word_embeddings", "pooler")
    assert_has(official_bert.TextRegressor.from_checkpoint(path), make.list_weights(model), encoder_parts)
    assert "head is new: train it" in capsys.readouterr().out
    # The file of a masked LM also contains the pooler and the next-sentence head.
    official_bert.MaskedLM.from_checkpoint(pretrained).save(masked)
    official_bert.MaskedLM.from_checkpoint(masked).save_checkpoint(str(tmp_path / "again"))
    again = loading.open_model(str(tmp_path / "again")).weights
    assert_has(official_bert.TextEncoder.from_checkpoint(masked), again)
    keras.tree.map_structure(np.testing.assert_array_equal, again, loading.open_model(pretrained).weights)
    told = capsys.readouterr().out
    assert told.count("the masked-LM head is the checkpoint's") == 2
    assert "random" not in told


def test_thresholds_follow_their_classes_and_are_dropped_with_a_new_head(tmp_path, capsys):
    settings = {"multi_label": True, "thresholds": [0.1, 0.5, 0.9], "temperature": 2.0}
    model = make.build_text_model(labels=["a", "b", "c"], **settings)
    expected = model.predict(TEXTS)[:, [2, 0, 1]]
    folder, file = tmp_path / "model", tmp_path / "model.keras"
    model.save_checkpoint(str(folder))
    model.save(file)
    for source in (folder, file):
        turned = take(source, labels=["c", "a", "b"])
        assert turned.spec.settings == {"thresholds": [0.9, 0.1, 0.5], "temperature": 2.0}
        np.testing.assert_allclose(turned.predict(TEXTS), expected, rtol=1e-6)
    given = take(folder, labels=["b", "a", "c"], thresholds=[0.3, 0.2, 0.1])
    assert given.spec.settings["thresholds"] == [0.3, 0.2, 0.1]
    told = capsys.readouterr().out
    assert not [text for text in ("the head is new", "labels=") if text in told]
    for other in ({"labels": ["x", "y", "z"]}, {"multi_label": False}):
        assert not {"thresholds", "temperature"} & take(folder, **other).spec.settings.keys()
        assert "the head is new" in capsys.readouterr().out
    make.build_text_model(thresholds=[0.25, 0.75]).save_checkpoint(str(tmp_path / "two"))
    assert take(tmp_path / "two", labels=["b", "a"]).thresholds == (0.75, 0.25)


def test_a_note_reports_a_missing_pooler(tmp_path, capsys):
    make.build_text_model("TokenTagger").save(tmp_path / "tagger.keras")
    official_bert.TokenTagger.from_checkpoint(tmp_path / "tagger.keras")
    take(
        make.tiny_config(), vocab_file=make.write_text(tmp_path / "vocab.txt", VOCAB), labels=["a", "b"]
    )  # has no weights
    assert "no pooler" not in capsys.readouterr().out
    take(tmp_path / "tagger.keras", labels=["a", "b"])
    assert "the checkpoint has no pooler; its weights are random" in capsys.readouterr().out


def test_lora_updates_are_merged_into_the_saved_weights(tmp_path):
    for name in ("TextEncoder", "MaskedLM"):  # folders of a fine-tuned model and of a pre-trained one
        model, folder = make.build_text_model(name), str(tmp_path / name)
        layer = model.get_layer("layer_0_output")
        layer.enable_lora(2)
        layer.lora_kernel_b.assign(np.ones(layer.lora_kernel_b.shape))
        model.save_checkpoint(folder)
        np.testing.assert_array_equal(loading.open_model(folder).weights["layer_0_output/kernel"], layer.kernel)


def test_errors_about_unsupported_files_say_what_is_supported(tmp_path, pause_collection):
    path, model = str(tmp_path / "model.keras"), make.build_text_model()
    keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]).save(tmp_path / "other.keras")
    model.save(path)
    model.quantize("int8")
    model.save(tmp_path / "small.keras")
    assert_rejected((tmp_path / "other.keras", "Sequential", "TextClassifier"), take, tmp_path / "other.keras")
    assert_rejected(tmp_path / "none.keras", take, tmp_path / "none.keras", labels=["a", "b"])
    for function, small in ((take, "small.keras"), (model.save_checkpoint, "folder")):
        assert_rejected(("8-bit", ".keras", "saved_model", "quantize"), function, str(tmp_path / small))
    assert_rejected(("--nodo_lower_case", path), take, path, do_lower_case=False)
    assert_rejected((path, "from_checkpoint", "TextClassifier", "save_checkpoint(FOLDER)"), official_bert.load, path)


def test_accents_and_added_tokens_survive_all_ways_to_save_a_model(tmp_path):
    added = (AddedToken("[E1]", special=True, normalized=False),)
    casing = UNCASED._replace(strip_accents=False, added_tokens=added)
    vocab = VOCAB.replace("\nsun\n", "\nsün\n").replace("\na\n", "\n[E1]\n")
    model, path, folder = (
        make.build_text_model(vocab=vocab, do_lower_case=casing),
        tmp_path / "model.keras",
        tmp_path / "folder",
    )
    model.save(path)
    model.save_checkpoint(str(folder))
    for taken in (type(model).load(str(path)), take(path), take(folder)):
        assert taken.casing == casing
        ids = taken.preprocessor(np.array(["SÜN[E1] SUN"]))["input_ids"].numpy()[0, 1:-1]
        assert [taken.vocab.splitlines()[index] for index in ids] == ["sün", "[E1]", "s", "##u", "##n"]
        assert taken.get_config()["strip_accents"] is False
    for source in (path, folder):
        assert_rejected(("--strip_accents", source), take, source, strip_accents=True)
    description = describe_initial_model(read_initial_model(str(folder)), "x", has_head=False)
    assert "uncased, accented vocabulary" in description
    assert make.build_text_model(vocab=vocab, strip_accents=False).casing == casing._replace(added_tokens=())


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


CONFIG = make.tiny_config(num_hidden_layers=1)
FOUR_TEXTS = ["the cat", "a dog", "walking mat", "the sun"]
SETTABLE = {"temperature", "thresholds", "min_confidence", "name", "trainable"}


@pytest.mark.parametrize("name", MODELS)
def test_attributes_without_effect_cannot_be_set(name: str):
    class_name, settings = MODELS[name]
    given = {"max_seq_length": 12, **settings, "seed": 3, "gradient_accumulation_steps": 2, "name": "mine"}
    given |= {"trainable": False, "rematerialize": True}
    model = make.build_text_model(class_name, **given)
    for argument, value in given.items():
        read = getattr(model, argument)
        assert (list(read) if isinstance(read, tuple) else read) == value
    names, config = {"bert_config", "casing", "vocab"}, model.get_config()
    for each in (type(model), official_bert.TextClassifier.__mro__[1]):
        parameters = inspect.signature(each.__init__).parameters.values()
        names |= {parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
    for argument in names - SETTABLE:
        with pytest.raises(AttributeError, match=argument):
            setattr(model, argument, object())
    with pytest.raises(AttributeError, match=f"seed=.*{class_name}"):
        model.seed = 4
    assert model.get_config() == config


def test_replacing_the_last_layer_for_learned_labels_keeps_attributes_and_changed_layers():
    class Mine(official_bert.TextClassifier):
        def __init__(self, *arguments, extra=1, **settings):
            super().__init__(*arguments, **settings)
            self.extra = extra

    model = Mine(CONFIG, VOCAB, extra=2)
    model.extra, encoder = model.extra + 1, model.backbone
    model.get_layer("layer_0_intermediate").enable_lora(2)
    kernel = model.get_layer("sequence_classifier").kernel
    kernel.regularizer, kernel.constraint = keras.regularizers.L2(0.1), keras.constraints.NonNeg()
    learn_labels(model, FOUR_TEXTS, ["a", "b", "c", "b"], verbose=0)
    new_kernel = model.get_layer("sequence_classifier").kernel
    assert (model.extra, model.backbone, model.output_shape) == (3, encoder, (None, 3))
    assert model.get_layer("layer_0_intermediate").lora_enabled
    assert (new_kernel.constraint, new_kernel.regularizer) == (kernel.constraint, kernel.regularizer)


def test_labels_are_not_learned_if_the_last_layer_cannot_be_replaced():
    class Scaled(official_bert.TextClassifier):
        def _build_core(self, *arguments):
            core = super()._build_core(*arguments)
            return keras.Model(core.input, keras.layers.Rescaling(2.0, name="scale")(core.output))

    quantized = make.build_text_model(labels=None)
    quantized.quantize("int8")
    for model in (quantized, Scaled(CONFIG, VOCAB)):
        layers = [layer.name for layer in model.layers]
        assert_rejected(("quantized", "labels=[...]"), model.fit, FOUR_TEXTS, ["a", "b", "c", "b"])
        assert (model.labels, [layer.name for layer in model.layers]) == (None, layers)


def test_labels_are_learned_from_y_and_saved(tmp_path, capsys):
    path, y = str(tmp_path / "model.keras"), ["good", "bad", "so", "bad"]
    model = make.build_text_model(labels=None)
    assert model.labels is None
    for call in (model.predict, lambda texts: model.evaluate(texts, y), lambda texts: model.save_checkpoint("model")):
        assert_rejected(("fit", "labels=[...]"), call, FOUR_TEXTS)
    model.save(path)
    model = official_bert.TextClassifier.load(path)
    encoder = [weight + 0.5 for weight in model.backbone.get_weights()]  # not the initial weights of the seed
    model.backbone.set_weights(encoder)
    model.compile(keras.optimizers.SGD(0.0), metrics=["accuracy"], run_eagerly=True)
    assert list(model.fit(FOUR_TEXTS, y, verbose=2).history) == ["accuracy", "loss"]
    assert "note: learned the labels bad, good, so from y" in capsys.readouterr().out
    assert len(model.trainable_variables) == len({each.path for each in model.trainable_variables})
    keras.tree.map_structure(np.testing.assert_array_equal, model.backbone.get_weights(), encoder)
    model.save(path)
    loaded = official_bert.TextClassifier.load(path)
    assert loaded.labels == model.labels == ("bad", "good", "so")
    np.testing.assert_allclose(loaded.predict(FOUR_TEXTS), model.predict(FOUR_TEXTS), atol=1e-6)
    assert_rejected(("y[0]", "'other'", "bad", "good", "so"), model.fit, FOUR_TEXTS, ["other", *y[1:]])


def test_learned_labels_are_sorted():
    found = [class_labels.learn_label_names(y) for y in ([10, 2, 2, 10], [True, False], [["b"], [], ["a", "c"]])]
    assert found == [["2", "10"], ["False", "True"], ["a", "b", "c"]]


def test_labels_of_taggers_and_multi_label_models_are_learned_from_y(capsys):
    tagger, several = (
        make.build_text_model("TokenTagger", labels=None),
        make.build_text_model(labels=None, multi_label=True, positive_weights=[1, 2]),
    )
    compile_eagerly(tagger, "sgd").fit(["the cat", "a dog"], [["I", "B"], ["I", "O"]], verbose=0)
    assert_rejected(("positive_weights", 3), several.fit, FOUR_TEXTS[:2], [["O", "B"], ["I"]])
    assert several.get_config()["positive_weights"] == [1, 2]
    several.thresholds = [0.5, 0.6]
    assert_rejected(("thresholds", 3), several.fit, FOUR_TEXTS[:2], [["O", "B"], ["I"]])
    learn_labels(several, FOUR_TEXTS[:2], [["O", "B"], ["O"]], verbose=0)  # without compile
    learn_labels(one := make.build_text_model(labels=None, multi_label=True), FOUR_TEXTS[:1], [["B"]], verbose=0)
    labels = [tagger.labels, several.labels, make.build_text_model(labels=one.labels, multi_label=True).labels]
    assert (labels, capsys.readouterr().out) == ([("B", "I", "O"), ("B", "O"), ("B",)], "")


def test_invalid_labels_in_y_are_named():
    model = make.build_text_model(labels=None)
    for y, names in (
        (np.eye(4), ("y[0]", "array([1., 0., 0., 0.])", "labels=[...]")),
        (["a", None, "b", "a"], ("y[1]", "None")),
        (["a"] * 4, ("['a']", "two")),
        (None, ("lists", "labels=[...]")),
    ):
        assert_rejected(names, model.fit, FOUR_TEXTS, y)
