"""Checkpoints with wrong contents raise an error that names them. tests/test_damaged_files.py damages the files."""

import pathlib
import shutil
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from official_bert.checkpoints.checkpoint import ENCODER, POOLER, LoadedModel, LoadOverrides
from official_bert.checkpoints.formats.all_formats import FORMATS
from official_bert.checkpoints.loading import open_model
from official_bert.checkpoints.tensors import Naming, TensorFile, look_up_name, read_weights
from tests.checkpoints.checkpoint_samples import SAMPLE_CONFIG, assert_unreadable, change_json, sample, write_sample
from tests.make import assert_rejected, refusal


@pytest.mark.parametrize(("format_name", "tensor", "file"), [
    ("tf1", "bert/encoder/layer_0/attention/self/query/kernel", "bert_model.ckpt.data-00000-of-00001"),
    ("official_bert", "model/layer_0_attention_query.Skernel", "ckpt-7.data-00000-of-00001"),
    ("hugging_face", "bert.encoder.layer.0.attention.self.query.weight", "model.safetensors"),
    ("keras_hub", "layers/transformer_encoder_0/_self_attention_layer/query_dense/vars/0", "model.weights.h5"),
])  # fmt: skip
def test_errors_name_the_tensor_or_the_number_that_is_wrong(format_name: str, tensor: str, file: str, tmp_path):
    whole, changed = tmp_path / "whole", tmp_path / "changed"
    checkpoint = write_sample(format_name, whole)
    value = checkpoint.weights["layer_0_attention_query/kernel"]
    shutil.copytree(whole, changed)
    for path in filter(pathlib.Path.is_file, changed.iterdir()):
        for stored in (value.tobytes(), value.T.tobytes()):
            path.write_bytes(path.read_bytes().replace(stored, stored[:5] + b"?" + stored[6:]))
    assert_unreadable(changed, tensor, file)

    configs = {path: path.read_text() for path in whole.glob("*config.json")}
    for path, content in configs.items():
        path.write_text(content.replace("78", "80"))
    assert_unreadable(whole, min(configs), "checksums.json")
    (whole / "checksums.json").unlink()
    assert "embedding" in refusal(open_model, str(whole)).lower()
    assert_unreadable(whole, [78, 4], [80, 4])
    for path, content in configs.items():
        path.write_text(content)
    (vocabulary,) = whole.rglob("vocab*.txt")
    if format_name == "hugging_face":
        (whole / "tokenizer.json").unlink()
    vocabulary.write_text(vocabulary.read_text() + "more\n")
    assert_unreadable(whole, vocabulary, 79, "vocab_size", 78)

    checkpoint.weights["layer_0_output/kernel"][1, 2] = np.nan
    (tmp_path / "nan").mkdir()
    FORMATS[format_name].write(checkpoint, str(tmp_path / "nan"))
    assert_unreadable(tmp_path / "nan", tmp_path / "nan", "finite")


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
def test_invalid_values_are_named(format_name: str, file: str, values: dict[str, Any], names: tuple, tmp_path):
    write_sample(format_name, tmp_path)
    (tmp_path / "checksums.json").unlink()
    change_json(tmp_path / file, **values)
    assert_unreadable(tmp_path, tmp_path / file if format_name == "keras_hub" else tmp_path, *names)


def test_missing_and_unexpected_tensors_and_heads_are_listed(tmp_path: pathlib.Path):
    write_sample("hugging_face", tmp_path / "other")
    path = tmp_path / "other" / "model.safetensors"
    (tmp_path / "other" / "checksums.json").unlink()
    tensors = load_file(path)
    tensors["cls.predictions.more"] = tensors.pop("cls.predictions.bias")
    del tensors["bert.encoder.layer.0.output.dense.bias"]
    save_file(tensors, path)
    bias = "bert.encoder.layer.0.output.dense.bias"
    names = ("2 missing", bias, "cls.predictions.bias", "1 unexpected", "cls.predictions.more")
    assert_unreadable(tmp_path / "other", *names)
    change_json(tmp_path / "other" / "config.json", num_hidden_layers=200)
    assert_unreadable(tmp_path / "other", f"{199 * 16 + 2} missing", bias)

    write_sample("keras_hub", tmp_path / "preset")
    for name in ("checksums.json", "task.weights.h5"):
        (tmp_path / "preset" / name).unlink()
    assert_unreadable(tmp_path / "preset", "BertMaskedLM", "task.weights.h5")
    change_json(tmp_path / "preset" / "task.json", class_name={})
    open_model(str(tmp_path / "preset"))  # an unknown task is not an error

    (tmp_path / "headless").mkdir()
    FORMATS["hugging_face"].write(sample(SAMPLE_CONFIG, frozenset({ENCODER, POOLER})), str(tmp_path / "headless"))
    (tmp_path / "headless" / "checksums.json").unlink()
    path = tmp_path / "headless" / "config.json"
    path.write_text(path.read_text().replace("BertModel", "BertForMaskedLM"))
    assert_unreadable(path.parent, path, "BertForMaskedLM", "model.safetensors", "masked-LM head")


def test_formats_lack_some_variables_and_no_pattern_of_other_programs_hides_the_encoder():
    assert look_up_name({"pooler": "dense"}, {"kernel": "/weight"}, "pooler/kernel") == "dense/weight"
    assert look_up_name({"pooler": "dense"}, {"kernel": "/weight"}, "pooler/scale") is None
    source, naming = TensorFile("file", {}, {}.__getitem__), Naming(str, foreign={"of other programs": ".*"})
    arguments = (LoadedModel(SAMPLE_CONFIG, {}), source, naming, LoadOverrides())
    assert_rejected("word_embeddings/embeddings", read_weights, *arguments)


def test_a_changed_configuration_is_an_error_unless_its_checksum_is_removed(tmp_path: pathlib.Path):
    write_sample("tf1", tmp_path)
    path, digests = tmp_path / "bert_config.json", tmp_path / "checksums.json"
    path.write_text(path.read_text().replace('"num_attention_heads": 2', '"num_attention_heads": 4'))
    assert_unreadable(tmp_path, path, digests)
    for tensors in ('[["gone", "0"]]', "[[false, 9223372036854775808]]", '"ab"', "null", "[1]", "[" * 9):
        digests.write_text(f'{{"files": {{}}, "tensors": {tensors}}}')
        assert_unreadable(tmp_path, digests)
    digests.unlink()
    assert open_model(str(tmp_path)).config.num_attention_heads == 4


def test_paths_without_a_checkpoint_and_pickled_weights_are_refused(tmp_path: pathlib.Path):
    assert_unreadable(tmp_path / "nowhere", tmp_path / "nowhere", ".index")
    (tmp_path / "text.txt").write_text("hello")
    for path in (tmp_path, tmp_path / "text.txt"):
        assert_unreadable(path, path, "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04anything")
    assert_unreadable(tmp_path, "safe_serialization")
    write_sample("tf1", tmp_path / "tf1")
    data = tmp_path / "tf1" / "bert_model.ckpt.data-00000-of-00001"
    data.unlink()
    assert_unreadable(tmp_path / "tf1", data)
