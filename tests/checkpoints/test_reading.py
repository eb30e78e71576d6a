"""Damaged checkpoints raise an error that the user can act on, and never load as a wrong model."""

import pathlib
import random
import re
import shutil

import numpy as np
import pytest

from official_bert.checkpoints import checksums
from official_bert.checkpoints.checkpoint import ENCODER, POOLER, LoadedModel, LoadOverrides
from official_bert.checkpoints.formats.all_formats import FORMATS
from official_bert.checkpoints.loading import open_model
from official_bert.errors import UserError
from tests.checkpoints.checkpoint_samples import (
    SAMPLE_CONFIG,
    assert_equal,
    assert_fits,
    read_refusal,
    sample,
    write_sample,
)
from tests.conftest import slow_after

VARIANTS = 200


def damage(folder: pathlib.Path, rng: random.Random) -> str:
    """Damages one file and returns a description of the damage."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    path = rng.choice(paths)
    content = bytearray(path.read_bytes())
    kind = rng.choice(["flip", "flip", "flip", "cut", "insert", "remove", "zero"])
    place = rng.randrange(len(content))
    if kind == "flip":
        content[place] ^= rng.randrange(1, 256)
    elif kind == "cut":
        del content[place:]
    elif kind == "insert":
        content[place:place] = rng.randbytes(rng.randrange(1, 9))
    elif kind == "zero":
        end = min(place + rng.randrange(1, 64), len(content))
        content[place:end] = bytes(end - place)
    path.write_bytes(content)
    if kind == "remove":
        path.unlink()
    return f"{kind} at {place} of {path.name}"


# The formats that samples are written in. test_tensorflow_models.py covers damaged SavedModels.
WRITTEN = [name for name, each in FORMATS.items() if each.write or name == "model_garden"]


@pytest.mark.parametrize("format_name", slow_after(2, WRITTEN))
def test_damaged_checkpoints_raise_a_clear_error_or_are_read_correctly(format_name: str, tmp_path: pathlib.Path):
    rng = random.Random(format_name)
    expected = write_sample(format_name, tmp_path / "whole")
    given = LoadOverrides(optimizer=bool(expected.slots))
    assert_equal(open_model(str(tmp_path / "whole"), given), expected)
    errors = 0
    for _ in range(2 * VARIANTS):
        folder = tmp_path / "damaged"
        shutil.copytree(tmp_path / "whole", folder)
        how = damage(folder, rng)
        try:
            found = open_model(str(folder), given)
            assert_equal(found, expected)  # the damage is in bytes that are never read
        except UserError as error:
            errors += 1
            if str(folder) not in str(error):
                raise AssertionError(f"{how}: the error names no file") from error
        except Exception as error:
            raise AssertionError(f"{how}: {error!r}") from error
        shutil.rmtree(folder)
        if errors == VARIANTS:
            return
    raise AssertionError(f"only {errors} of {2 * VARIANTS} variants were errors")


def write_without_checksums(format_name: str, folder: pathlib.Path) -> LoadedModel:
    """Writes a checkpoint as other programs do, and returns the expected result of reading it."""
    checkpoint = write_sample(format_name, folder)
    (folder / checksums.CHECKSUM_FILE).unlink()
    return checkpoint


@pytest.mark.parametrize("format_name", slow_after(2, WRITTEN))
def test_damage_without_checksums_raises_an_error_or_gives_a_valid_model(format_name: str, tmp_path: pathlib.Path):
    write_without_checksums(format_name, tmp_path / "whole")
    rng = random.Random(format_name)
    for _ in range(VARIANTS):
        folder = tmp_path / "damaged"
        shutil.copytree(tmp_path / "whole", folder)
        how = damage(folder, rng)
        try:
            assert_fits(open_model(str(folder)))
        except UserError:
            pass  # a changed number in a file without checksums goes unnoticed
        except Exception as error:
            raise AssertionError(f"{how}: {error!r}") from error
        shutil.rmtree(folder)


def test_damaged_headers_of_safetensors_are_detected(tmp_path: pathlib.Path):
    expected = write_without_checksums("hugging_face", tmp_path)
    path = tmp_path / "model.safetensors"
    content = path.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    rng = random.Random(0)
    errors = 0
    while errors < VARIANTS:
        damaged = bytearray(content)
        damaged[rng.randrange(header)] ^= rng.randrange(1, 256)
        path.write_bytes(damaged)
        try:
            assert_equal(open_model(str(tmp_path)), expected)
        except UserError:
            errors += 1


@pytest.mark.parametrize(("format_name", "file"), [
    ("tf1", "bert_model.ckpt.data-00000-of-00001"),
    ("official_bert", "ckpt-7.data-00000-of-00001"),
    ("hugging_face", "model.safetensors"),
    ("keras_hub", "model.weights.h5"),
])  # fmt: skip
def test_truncated_weights_are_an_error_that_names_the_file(format_name: str, file: str, tmp_path: pathlib.Path):
    expected = write_without_checksums(format_name, tmp_path)
    path = tmp_path / file
    content = path.read_bytes()
    # Our own format ends with a description of Python objects, which is not read.
    used = content.rindex(expected.weights["word_embeddings/embeddings"].tobytes()[-8:]) + 8
    for length in range(0, used, used // 29):
        path.write_bytes(content[:length])
        assert file in read_refusal(tmp_path, optimizer=bool(expected.slots))


@pytest.mark.parametrize(("format_name", "tensor"), [
    ("tf1", "bert/encoder/layer_0/attention/self/query/kernel in .*bert_model.ckpt.data-00000-of-00001 is damaged"),
    ("official_bert", "model/layer_0_attention_query.Skernel/.* in .*ckpt-7.data-00000-of-00001 is damaged"),
    ("hugging_face", "bert.encoder.layer.0.attention.self.query.weight in .*model.safetensors does not match"),
    ("keras_hub", "model.weights.h5/layers/transformer_encoder_0/_self_attention_layer/query_dense/vars/0 in .* is "),
])  # fmt: skip
def test_a_flipped_byte_is_an_error_that_names_the_tensor(format_name: str, tensor: str, tmp_path: pathlib.Path):
    checkpoint = write_sample(format_name, tmp_path)
    value = checkpoint.weights["layer_0_attention_query/kernel"]
    for path in filter(pathlib.Path.is_file, tmp_path.iterdir()):
        content = path.read_bytes()
        for stored in (value.tobytes(), value.T.tobytes()):
            if stored in content:
                damaged = bytearray(content)
                damaged[content.index(stored) + 5] ^= 1
                path.write_bytes(damaged)
    assert re.search(tensor, read_refusal(tmp_path))


@pytest.mark.parametrize("format_name", ["tf1", "official_bert", "hugging_face", "keras_hub"])
def test_weights_that_are_not_finite_are_rejected(format_name: str, tmp_path: pathlib.Path):
    checkpoint = sample(SAMPLE_CONFIG)
    checkpoint.weights["layer_0_output/kernel"][1, 2] = np.nan
    FORMATS[format_name].write(checkpoint, str(tmp_path))
    assert "contains values that are not finite" in read_refusal(tmp_path)


@pytest.mark.parametrize("format_name", ["tf1", "official_bert", "hugging_face", "keras_hub"])
def test_a_vocabulary_of_the_wrong_size_is_rejected(format_name: str, tmp_path: pathlib.Path):
    write_without_checksums(format_name, tmp_path)
    (path,) = tmp_path.rglob("vocab*.txt")
    if format_name == "hugging_face":
        (tmp_path / "tokenizer.json").unlink()
    path.write_text(path.read_text() + "more\n")
    assert "has 79 tokens, but the configuration has vocab_size 78" in read_refusal(tmp_path)


@pytest.mark.parametrize("format_name", ["tf1", "official_bert", "hugging_face", "keras_hub"])
def test_a_word_table_of_the_wrong_size_is_rejected(format_name: str, tmp_path: pathlib.Path):
    write_without_checksums(format_name, tmp_path)
    for path in tmp_path.glob("*config.json"):
        path.write_text(path.read_text().replace("78", "80"))
    assert re.search(r"(?i)embedding.* has shape \[78, 4\]; expected \[80, 4\]", read_refusal(tmp_path))


def test_missing_and_unexpected_tensors_are_listed(tmp_path: pathlib.Path):
    from safetensors.numpy import load_file, save_file

    write_without_checksums("hugging_face", tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tensors["cls.predictions.more"] = tensors.pop("cls.predictions.bias")
    del tensors["bert.encoder.layer.0.output.dense.bias"]
    save_file(tensors, path)
    message = read_refusal(tmp_path)
    assert "2 missing: bert.encoder.layer.0.output.dense.bias, cls.predictions.bias" in message
    assert "1 unexpected: cls.predictions.more" in message


def test_a_missing_head_is_an_error(tmp_path: pathlib.Path):
    write_without_checksums("keras_hub", tmp_path / "preset")
    (tmp_path / "preset" / "task.weights.h5").unlink()
    message = read_refusal(tmp_path / "preset")
    assert "describes a BertMaskedLM, but its head is not in task.weights.h5" in message
    folder = tmp_path / "folder"
    folder.mkdir()
    FORMATS["hugging_face"].write(sample(SAMPLE_CONFIG, frozenset({ENCODER, POOLER})), str(folder))
    (folder / checksums.CHECKSUM_FILE).unlink()
    path = folder / "config.json"
    path.write_text(path.read_text().replace("BertModel", "BertForMaskedLM"))
    message = read_refusal(folder)
    assert re.search("describes a BertForMaskedLM, but .*model.safetensors has no masked-LM head", message)


@pytest.mark.parametrize("format_name", ["tf1", "official_bert", "model_garden"])
def test_a_missing_data_file_is_named(format_name: str, tmp_path: pathlib.Path):
    write_sample(format_name, tmp_path)
    (path,) = tmp_path.glob("*.data-*")
    path.unlink()
    assert re.search(
        rf"is damaged or missing: .*{path.name}.* Copy all files of the checkpoint", read_refusal(tmp_path)
    )


def test_pickled_weights_are_not_opened(tmp_path: pathlib.Path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04anything")
    with pytest.raises(UserError, match="pickled weights can run any code and are not opened.*safe_serialization"):
        open_model(str(tmp_path))


def test_a_changed_configuration_is_an_error_unless_its_checksum_is_removed(tmp_path: pathlib.Path):
    write_sample("tf1", tmp_path)
    path = tmp_path / "bert_config.json"
    path.write_text(path.read_text().replace('"num_attention_heads": 2', '"num_attention_heads": 4'))
    with pytest.raises(UserError, match="bert_config.json does not match its checksum; .*remove .*checksums.json"):
        open_model(str(tmp_path))
    (tmp_path / "checksums.json").unlink()
    assert open_model(str(tmp_path)).config.num_attention_heads == 4


@pytest.mark.parametrize("tensors", ['[["gone", "0"]]', "[[false, 9223372036854775808]]", '"ab"', "null", "[1]"])
def test_invalid_checksum_files_are_rejected(tensors: str, tmp_path: pathlib.Path):
    write_sample("hugging_face", tmp_path)
    (tmp_path / "checksums.json").write_text('{"files": {}, "tensors": ' + tensors + "}")
    assert "checksums.json is damaged" in read_refusal(tmp_path)


def test_truncated_checksum_files_are_rejected(tmp_path: pathlib.Path):
    write_sample("hugging_face", tmp_path)
    (tmp_path / "checksums.json").write_text("{")
    message = read_refusal(tmp_path)
    assert re.search("checksums.json is not valid JSON: .*; restore the folder from a copy", message)
    assert "UserError" not in message


def test_paths_without_a_checkpoint_are_rejected(tmp_path: pathlib.Path):
    assert re.search("there is no readable checkpoint .*nowhere", read_refusal(tmp_path / "nowhere"))
    assert "holds no checkpoint of a known format; expected a folder with" in read_refusal(tmp_path)
    (tmp_path / "text.txt").write_text("hello")
    assert "holds no checkpoint of a known format" in read_refusal(tmp_path / "text.txt")
