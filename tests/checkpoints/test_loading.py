"""Models are loaded from every format. Weights survive writing and reading bit for bit. Errors name wrong contents."""

import dataclasses
import itertools
import pathlib
import shutil

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file, save_file

import official_bert
from official_bert.checkpoints import bundle, checksums
from official_bert.checkpoints.checkpoint import ENCODER, MASKED_LM, POOLER, PRETRAINING, LoadedModel, LoadOverrides
from official_bert.checkpoints.formats import hugging_face, tf1
from official_bert.checkpoints.formats.all_formats import FORMATS
from official_bert.checkpoints.loading import open_model
from official_bert.checkpoints.run_checkpoints import get_stored_name
from official_bert.checkpoints.tensors import Naming, TensorFile, get_pretraining_shapes, look_up_name, read_weights
from official_bert.checkpoints.vocabulary import FoundTokenizer, find_vocabulary_difference, resolve_tokenizer
from official_bert.tokenization.added_tokens import AddedToken
from official_bert.tokenization.casing import UNCASED
from official_bert.tokenization.exact import SPECIAL_TOKENS
from tests.checkpoints import checkpoint_samples as samples
from tests.make import WORDS, add_attention_weight, assert_mentions, assert_rejected, refusal, write_text
from tests.tokenization.test_exact import ACCENTED, CASED, CASINGS

CLASSIFIER = frozenset({ENCODER, POOLER, samples.HEADS["sequence"]})
PARTS = {
    "official_bert": [PRETRAINING, {ENCODER}, CLASSIFIER],
    "tf1": [PRETRAINING, CLASSIFIER, PRETRAINING | CLASSIFIER, {ENCODER, POOLER, samples.HEADS["span"]}],
    "hugging_face": samples.HUGGING_FACE_CLASSES,
    "keras_hub": [{ENCODER, POOLER}, {ENCODER, POOLER, MASKED_LM}, CLASSIFIER],
}
# Files that stand for their folder.
FILES = {"hugging_face": ["model.safetensors"], "keras_hub": ["model.weights.h5"]}
FILES["tf1"] = [f"bert_model.ckpt{ending}" for ending in ("", ".index", ".data-00000-of-00001")]
EVERY_CASING = itertools.cycle(CASINGS)  # every format is written with every casing


@pytest.mark.parametrize(
    ("format_name", "parts", "casing"), [(name, each, next(EVERY_CASING)) for name in PARTS for each in PARTS[name]]
)
def test_written_checkpoints_are_read_back_bit_for_bit(format_name, parts, casing, tiny_config, tmp_path):
    checkpoint = dataclasses.replace(samples.sample(tiny_config, frozenset(parts)), casing=casing)
    checkpoint = dataclasses.replace(checkpoint, vocab=checkpoint.vocab.replace("\nsun\n", "\nsün\n"))
    assert set(checkpoint.parts) == set(parts)
    FORMATS[format_name].write(checkpoint, str(tmp_path))
    for file in ("", *FILES.get(format_name, ())):
        again = open_model(str(tmp_path / file))
        assert again.source.format == format_name
        samples.assert_equal(checkpoint, again)


def test_names_of_classes_are_preserved_unless_they_are_placeholders(tiny_config, tmp_path):
    labels = ("yes", "no", "möglich")
    checkpoint = dataclasses.replace(samples.sample(tiny_config, CLASSIFIER), labels=labels)
    for format_name in ("tf1", "official_bert", "hugging_face"):
        FORMATS[format_name].write(checkpoint, str(tmp_path / format_name))
        assert open_model(str(tmp_path / format_name)).labels == labels
    placeholders = dataclasses.replace(checkpoint, labels=("LABEL_0", "LABEL_1", "LABEL_2"))
    assert FORMATS["hugging_face"].write(placeholders, str(tmp_path / "placeholders")).labels is None
    (tmp_path / "tf1" / "checksums.json").unlink()
    for content, numbers in (('["yes", "no"]', (2, 3)), ('["yes", "no", 3]', ())):
        (tmp_path / "tf1" / "labels.json").write_text(content)
        samples.assert_unreadable(tmp_path / "tf1", "labels.json", *numbers)
    tf1.write(dataclasses.replace(samples.sample(tiny_config), labels=labels), str(tmp_path / "headless"))
    assert "no classifier" in open_model(str(tmp_path / "headless")).notes[-1]


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_is_converted_exactly(kind, tiny_config, tmp_path):
    checkpoint, path = samples.sample(tiny_config), tmp_path / "model.safetensors"
    samples.write_hugging_face(checkpoint, tmp_path)
    save_file({name: value.astype(kind) for name, value in load_file(path).items()}, path)
    rounded = {name: value.astype(kind).astype(np.float32) for name, value in checkpoint.weights.items()}
    samples.assert_equal(dataclasses.replace(checkpoint, weights=rounded), open_model(str(tmp_path)))
    save_file({name: value.astype(np.float64) for name, value in load_file(path).items()}, path)
    samples.assert_unreadable(tmp_path, path, "float64", "float32")


def test_a_tensor_of_another_type_does_not_match_its_checksum(tmp_path):
    value = np.ones((2, 3), np.float32)
    checksums.write(str(tmp_path), [], {"x": value})
    source = TensorFile("file", {"x": (2, 3)}, lambda name: value.view(np.int32))
    assert_rejected(("x", "file", "checksum"), checksums.verify_tensors(source, str(tmp_path)).read, "x")


def test_our_format_stores_every_weight_of_the_model(tiny_config, tmp_path, monkeypatch):
    FORMATS["official_bert"].write(samples.sample(tiny_config), str(tmp_path / "before"))
    get_pretraining_shapes.cache_clear()
    path = add_attention_weight(monkeypatch)
    checkpoint = samples.add_optimizer_state(samples.sample(tiny_config))
    FORMATS["official_bert"].write(checkpoint, str(tmp_path / "after"))
    samples.assert_equal(checkpoint, open_model(str(tmp_path / "after"), LoadOverrides(optimizer=True)))
    assert set(official_bert.load(str(tmp_path / "after")).model.output) == {"sequence_output", "pooled_output"}
    stored = get_stored_name(path)
    samples.assert_unreadable(tmp_path / "before", f"{tiny_config.num_hidden_layers} missing", stored)
    encoder = samples.sample(tiny_config, frozenset({ENCODER, POOLER}))
    for name in ("tf1", "hugging_face", "keras_hub"):
        assert_rejected(path, FORMATS[name].write, encoder, str(tmp_path))
    monkeypatch.undo()
    get_pretraining_shapes.cache_clear()
    samples.assert_unreadable(tmp_path / "after", f"{tiny_config.num_hidden_layers} unexpected", stored)


def test_load_works_under_a_distribution_scope_and_omits_a_missing_pooler(tiny_config, tmp_path):
    checkpoint = samples.sample(tiny_config, frozenset({ENCODER, MASKED_LM}))
    hugging_face.write(checkpoint, str(tmp_path))
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        encoder = official_bert.load(str(tmp_path), dtype="mixed_bfloat16").model
    assert set(encoder.output) == {"sequence_output"}
    assert encoder.get_layer("layer_0_output").compute_dtype == "bfloat16"
    for variable in encoder.variables:
        assert isinstance(variable.value, tf.distribute.DistributedValues)
        np.testing.assert_array_equal(variable, checkpoint.weights[variable.path])


def find_tokenizer(words, casing):
    vocab = "\n".join([*SPECIAL_TOKENS, *words, ""])
    return FoundTokenizer("model", {"vocab.txt": vocab}, casing, "tokenizer_config.json")


def test_the_accent_flags_apply_if_no_file_states_the_casing(tiny_config):
    found = find_tokenizer(["über", "a"], None)

    def resolve(**given):
        return resolve_tokenizer(found, LoadOverrides(**given), tiny_config)

    assert resolve().casing == UNCASED
    assert "--nostrip_accents" in "".join(resolve().notes)
    assert resolve(strip_accents=False).casing == ACCENTED
    assert "--nostrip_accents" not in "".join(resolve(strip_accents=False).notes)
    assert_rejected("tokenizer_config.json", resolve, do_lower_case=False, strip_accents=False)
    assert_rejected(("strip_accents", "true"), resolve, do_lower_case=False, strip_accents=True)
    assert resolve(do_lower_case=False, replace=True).casing == CASED


def test_a_folder_with_two_vocabularies_needs_the_name_of_one(tiny_config, tmp_path):
    one, other = ("\n".join([*SPECIAL_TOKENS, word]) + "\n" for word in ("cat", "dog"))
    casing = UNCASED._replace(added_tokens=(AddedToken("[E1]"),))
    found = FoundTokenizer("model", {"one": one, "other": other}, casing, "tokenizer_config.json")
    assert_rejected(("one", "other", "--vocab_file"), resolve_tokenizer, found, LoadOverrides(), tiny_config)
    given = LoadOverrides(vocab_file=write_text(tmp_path / "vocab.txt", other))
    resolved = resolve_tokenizer(found, given, tiny_config)
    assert (resolved.vocab, resolved.casing) == (other, UNCASED)
    notes = "".join(resolved.notes)
    assert "the added tokens [E1]: they are ordinary text" in notes
    assert f"the other {len(WORDS) - len(SPECIAL_TOKENS) - 1} have no token" in notes


def test_another_vocabulary_may_replace_unused_tokens_and_append_tokens():
    found = [find_vocabulary_difference("a\n[unused0]\nb\n", other) for other in ("a\nc\nb\nd", "a\nc", "a\nc\nd")]
    assert found == [None, "it has 2 tokens instead of 3", "line 3 is 'd' instead of 'b'"]


def test_a_stated_casing_that_contradicts_the_vocabulary_is_noted(tiny_config):
    for piece, casing in itertools.product(("Ü", "ü"), (UNCASED, CASED)):
        is_noted = (piece == "Ü") == (casing == UNCASED)
        notes = resolve_tokenizer(find_tokenizer([piece], casing), LoadOverrides(), tiny_config).notes
        note = f"tokenizer_config.json says {casing.kind}, but vocab.txt"
        assert sum(note in each for each in notes) == is_noted


def test_checkpoints_are_ordered_by_their_numbers(tmp_path):
    for number in (900, 1000, 20):
        (tmp_path / f"ckpt-{number}.index").touch()
    assert bundle.list_checkpoints(str(tmp_path)) == [f"{tmp_path}/ckpt-{number}" for number in (1000, 900, 20)]
    for other, count in (("other-5", 0), ("other", 3)):
        (path := tmp_path / f"{other}.index").touch()
        assert len(bundle.list_checkpoints(str(tmp_path))) == count
        assert_rejected((tmp_path, 4, path.name), bundle.find_prefix, str(tmp_path))
        path.unlink()


@pytest.mark.parametrize(("format_name", "tensor", "file"), [
    ("tf1", "bert/encoder/layer_0/attention/self/query/kernel", "bert_model.ckpt.data-00000-of-00001"),
    ("official_bert", "model/layer_0_attention_query.Skernel", "ckpt-7.data-00000-of-00001"),
    ("hugging_face", "bert.encoder.layer.0.attention.self.query.weight", "model.safetensors"),
    ("keras_hub", "layers/transformer_encoder_0/_self_attention_layer/query_dense/vars/0", "model.weights.h5"),
])  # fmt: skip
def test_errors_name_the_tensor_or_the_number_that_is_wrong(format_name, tensor, file, tmp_path):
    whole, changed = tmp_path / "whole", tmp_path / "changed"
    checkpoint = samples.write_sample(format_name, whole)
    value = checkpoint.weights["layer_0_attention_query/kernel"]
    shutil.copytree(whole, changed)
    for path in filter(pathlib.Path.is_file, changed.iterdir()):
        for stored in (value.tobytes(), value.T.tobytes()):
            path.write_bytes(path.read_bytes().replace(stored, stored[:5] + b"?" + stored[6:]))
    samples.assert_unreadable(changed, tensor, file)

    configs = {path: path.read_text() for path in whole.glob("*config.json")}
    for path, content in configs.items():
        path.write_text(content.replace("78", "80"))
    samples.assert_unreadable(whole, min(configs), "checksums.json")
    (whole / "checksums.json").unlink()
    message = refusal(open_model, str(whole)).lower()
    assert_mentions(message, [78, 4], [80, 4])
    assert "embedding" in message
    for path, content in configs.items():
        path.write_text(content)
    (vocabulary,) = whole.rglob("vocab*.txt")
    if format_name == "hugging_face":
        (whole / "tokenizer.json").unlink()
    words = vocabulary.read_text()
    for extra, advice in (("\n", "blank"), ("more\n", "own")):
        vocabulary.write_text(words + extra)
        samples.assert_unreadable(whole, vocabulary, 79, "vocab_size", 78, advice)

    checkpoint.weights["layer_0_output/kernel"][1, 2] = np.nan
    nan = tmp_path / "nan"
    nan.mkdir()
    FORMATS[format_name].write(checkpoint, str(nan))
    samples.assert_unreadable(nan, nan, "finite")


@pytest.mark.parametrize(("format_name", "file", "values", "names"), [
    ("keras_hub", "config.json", {"class_name": ["BertBackbone"]}, (["BertBackbone"], "BertBackbone")),
    ("keras_hub", "config.json", {"config": None}, ("configuration",)),
    ("keras_hub", "config.json", {"config": {"num_layers": 1}}, ("dropout", "hidden_dim")),
    ("keras_hub", "config.json", {"config/num_layers": "2"}, ("num_hidden_layers", "'2'")),
    ("keras_hub", "config.json", {"config/dropout": [0.1]}, ("hidden_dropout_prob", [0.1])),
    ("keras_hub", "tokenizer.json", {"config": "lowercase"}, ("lowercase",)),
    # Added tokens without a row of their own.
    ("hugging_face", "tokenizer_config.json", {"added_tokens_decoder": {"7": {"content": "[E1]"}}}, ("'[E1]'", 7, 78)),
    ("hugging_face", "added_tokens.json", {"[E1]": 77}, ("'[E1]'", 77, 78)),
    ("hugging_face", "added_tokens.json", {"[E1]": 78}, ("'[E1]'", 78, "vocab_size", 79)),
    ("hugging_face", "added_tokens.json", {"[E1]": "x"}, ("ValueError",)),
    ("hugging_face", "tokenizer_config.json", {"added_tokens_decoder": [3]}, ("AttributeError",)),
])  # fmt: skip
def test_invalid_values_are_named(format_name, file, values, names, tmp_path):
    samples.write_sample(format_name, tmp_path)
    (tmp_path / "checksums.json").unlink()
    samples.change_json(tmp_path / file, **values)
    samples.assert_unreadable(tmp_path, tmp_path / file if format_name == "keras_hub" else tmp_path, *names)


def test_missing_and_unexpected_tensors_and_heads_are_listed(tmp_path):
    samples.write_hugging_face(samples.sample(samples.SAMPLE_CONFIG), tmp_path / "other")
    path, bias = tmp_path / "other" / "model.safetensors", "bert.encoder.layer.0.output.dense.bias"
    tensors = load_file(path)
    tensors["cls.predictions.more"] = tensors.pop("cls.predictions.bias")
    del tensors[bias]
    save_file(tensors, path)
    names = ("2 missing", bias, "cls.predictions.bias", "1 unexpected", "cls.predictions.more")
    samples.assert_unreadable(path.parent, *names)
    samples.change_json(tmp_path / "other" / "config.json", num_hidden_layers=200)
    samples.assert_unreadable(tmp_path / "other", f"{199 * 16 + 2} missing", bias)

    samples.write_sample("keras_hub", tmp_path / "preset")
    for name in ("checksums.json", "task.weights.h5"):
        (tmp_path / "preset" / name).unlink()
    samples.assert_unreadable(tmp_path / "preset", "BertMaskedLM", "task.weights.h5")
    samples.change_json(tmp_path / "preset" / "task.json", class_name={})
    open_model(str(tmp_path / "preset"))  # an unknown task is not an error

    headless = samples.sample(samples.SAMPLE_CONFIG, frozenset({ENCODER, POOLER}))
    samples.write_hugging_face(headless, tmp_path / "headless")
    path = tmp_path / "headless" / "config.json"
    path.write_text(path.read_text().replace("BertModel", "BertForMaskedLM"))
    samples.assert_unreadable(path.parent, path, "BertForMaskedLM", "model.safetensors", "masked-LM head")


def test_formats_lack_some_variables_and_no_pattern_of_other_programs_hides_the_encoder():
    assert look_up_name({"pooler": "dense"}, {"kernel": "/weight"}, "pooler/kernel") == "dense/weight"
    assert look_up_name({"pooler": "dense"}, {"kernel": "/weight"}, "pooler/scale") is None
    source, naming = TensorFile("file", {}, {}.__getitem__), Naming(str, foreign={"of other programs": ".*"})
    arguments = (LoadedModel(samples.SAMPLE_CONFIG, {}), source, naming, LoadOverrides())
    assert_rejected("word_embeddings/embeddings", read_weights, *arguments)


def test_a_changed_configuration_is_an_error_unless_its_checksum_is_removed(tmp_path):
    samples.write_sample("tf1", tmp_path)
    path, digests = tmp_path / "bert_config.json", tmp_path / "checksums.json"
    path.write_text(path.read_text().replace('"num_attention_heads": 2', '"num_attention_heads": 4'))
    samples.assert_unreadable(tmp_path, path, digests)
    for tensors in ('[["gone", "0"]]', "[[false, 9223372036854775808]]", '"ab"', "null", "[1]", "[" * 9):
        digests.write_text(f'{{"files": {{}}, "tensors": {tensors}}}')
        samples.assert_unreadable(tmp_path, digests)
    digests.unlink()
    assert open_model(str(tmp_path)).config.num_attention_heads == 4


def test_paths_without_a_checkpoint_and_pickled_weights_are_refused(tmp_path):
    (tmp_path / "text.txt").write_text("hello")
    write_text(tmp_path / "export" / "1" / "assets.extra" / "official_bert.json", "{}")
    reasons = {"nowhere": ".index", "": "model.safetensors", "text.txt": "model.safetensors"}
    for name, reason in {**reasons, "export": "is an export", "export/1": "is an export"}.items():
        samples.assert_unreadable(tmp_path / name, tmp_path / name, reason)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04anything")
    samples.assert_unreadable(tmp_path, "safe_serialization")
    samples.write_sample("tf1", tmp_path / "tf1")
    (data := tmp_path / "tf1" / "bert_model.ckpt.data-00000-of-00001").unlink()
    samples.assert_unreadable(tmp_path / "tf1", data)
