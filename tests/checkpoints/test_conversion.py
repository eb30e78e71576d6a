"""The convert command: what it reads, verifies and writes, added tokens and more positions."""

import dataclasses
import errno
import os
import resource
from unittest import mock

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import official_bert_cli
from official_bert.checkpoints import hdf5, loading, parity, resize
from official_bert.checkpoints.checkpoint import ENCODER, POOLER, LoadOverrides
from official_bert.checkpoints.formats import hugging_face, keras_hub, tf1
from official_bert.checkpoints.formats.all_formats import FORMATS
from official_bert.checkpoints.formats.format import Framework
from official_bert.checkpoints.loading import open_model
from official_bert.checkpoints.options import WRITABLE
from official_bert.checkpoints.vocabulary import split_vocab
from official_bert.tokenization.added_tokens import AddedToken
from official_bert.tokenization.casing import make_casing
from tests.checkpoints import checkpoint_samples as samples
from tests.make import VOCAB, WORDS, assert_mentions, assert_rejected, refusal, write_text


def test_the_flag_lists_the_formats_that_can_be_written():
    assert set(WRITABLE) == {name for name, each in FORMATS.items() if each.write}


@pytest.mark.parametrize("name", WRITABLE)
@pytest.mark.parametrize("odd", ["", "cat"])
def test_duplicate_and_blank_lines_of_a_vocabulary_are_preserved(name, odd, tiny_config, tmp_path):
    checkpoint, vocab = samples.sample(tiny_config), "\n".join([*WORDS[:-2], odd, "sat", ""])
    tf1.write(dataclasses.replace(checkpoint, vocab=vocab), str(tmp_path / "google"))
    samples.convert(tmp_path / "google", tmp_path / "out", to_format=name)
    assert open_model(str(tmp_path / "out")).vocab == vocab


def test_what_is_lost_or_changed_on_the_way_is_detected(tiny_config, tmp_path, monkeypatch):
    labelled = samples.sample(tiny_config, frozenset({ENCODER, POOLER, samples.HEADS["sequence"]}), classes=2)
    tf1.write(dataclasses.replace(labelled, labels=("yes", "no")), str(tmp_path / "labelled"))
    trained = samples.add_optimizer_state(samples.sample(tiny_config), step=7)
    tf1.write(trained, str(tmp_path / "trained"))
    lines = samples.convert(tmp_path / "labelled", tmp_path / "a", to_format="keras_hub")
    assert "yes, no" in "".join(lines)
    wrong = {name: value * np.float32(1.0001) for name, value in labelled.weights.items()}
    slots = {name: 2 * value for name, value in trained.slots.items()}
    for source, lost, names in (
        ("labelled", {"labels": None}, ("labels", ("yes", "no"), None)),
        ("labelled", {"weights": wrong}, ("original", "--to")),
        ("trained", {"step": 0}, ("step", 7, 0)),
        ("trained", {"slots": slots}, ("original", "--to")),
        ("labelled", {"config": dataclasses.replace(tiny_config, hidden_dropout_prob=0.3)}, "config"),
        ("labelled", {"vocab": VOCAB.replace("cat", "cats")}, "vocab"),
        ("labelled", {"casing": make_casing(False)}, "casing"),
    ):

        def write(checkpoint, folder, lost=lost):
            tf1.write(dataclasses.replace(checkpoint, **lost), folder)
            return checkpoint

        monkeypatch.setitem(FORMATS, "tf1", dataclasses.replace(tf1.FORMAT, write=write))
        options = {"to_format": "tf1", "optimizer": source == "trained"}
        assert_rejected(names, samples.convert, tmp_path / source, tmp_path / "b", **options)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "labelled", "trained"]


def test_outputs_and_ids_are_compared_with_the_framework_of_the_format(tiny_config, tmp_path, monkeypatch):
    assert hugging_face.FORMAT.framework
    assert keras_hub.FORMAT.framework
    checkpoint = tf1.write(samples.sample(tiny_config), str(tmp_path / "google"))
    paths, outputs = (tmp_path / "google", tmp_path / "out"), parity.compute_outputs(checkpoint)["pooled_output"]
    compute, ids, tokenizer = mock.Mock(), list[int](), checkpoint.tokenizer

    def encode(_, texts):
        return [ids or tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text)) for text in texts]

    changed = dataclasses.replace(hugging_face.FORMAT, framework=Framework("another library", compute, encode))
    monkeypatch.setitem(FORMATS, "hugging_face", changed)
    for error in (1e-2, np.nan):
        compute.return_value = {"pooled_output": outputs + error}
        assert_rejected(("another library", "--to"), samples.convert, *paths, to_format="hugging_face")
    compute.return_value = {"pooled_output": outputs + 1e-5}
    ids += [WORDS.index("the"), 999]
    refused = refusal(samples.convert, *paths, to_format="hugging_face")
    assert_mentions(refused, "another library", "the 999")
    assert "lower_case" not in refused
    for name in ("tokenizer_config.json", "checksums.json"):
        (paths[0] / name).unlink()
    assert_rejected(("--do_lower_case", "--nodo_lower_case"), samples.convert, *paths, to_format="hugging_face")
    assert not paths[1].exists()
    ids.clear()
    lines = samples.convert(*paths, to_format="hugging_face")
    assert "tokenizer: 4 fixed texts get the ids of another library" in lines
    compute.side_effect = RuntimeError("shape 3\nabove")
    names, again = ("another library", paths[1], "(RuntimeError: shape 3)"), tmp_path / "again"
    assert_rejected(names, samples.convert, paths[1], again)
    compute.side_effect = ModuleNotFoundError("another_library")
    assert "not compared with another library" in "".join(samples.convert(paths[0], again, to_format="hugging_face"))


@pytest.mark.slow
def test_weights_that_transformers_cannot_read_are_converted_without_a_comparison(tiny_config, tmp_path):
    wrapped = tmp_path / "wrapped"
    samples.write_hugging_face(samples.sample(tiny_config), wrapped)
    file = wrapped / "model.safetensors"
    save_file({f"module.{name}": value for name, value in load_file(file).items()}, file)
    theirs = samples.unpacked("transformers", tmp_path)
    for source in (wrapped, theirs / "classifier", theirs / "safetensors", theirs / "shards"):
        lines = samples.convert(source, tmp_path / "out" / source.name, to_format="hugging_face")
        assert [line for line in lines if line.startswith(f"forward pass of {source}: not compared, because ")]
        assert [line for line in lines if line.startswith("forward pass on a fixed input: ")], "of the result"


def test_a_regression_with_several_outputs_is_refused_as_a_finetuned_model(tiny_config, tmp_path):
    checkpoint = samples.sample(tiny_config, frozenset({ENCODER, POOLER, samples.HEADS["sequence"]}), classes=3)
    FORMATS["hugging_face"].write(dataclasses.replace(checkpoint, kind="regression"), str(tmp_path / "hf"))
    assert_rejected(("regression", 3), samples.convert, tmp_path / "hf", tmp_path / "out")


def count_tensors(folder, **given):
    """Returns the number of loaded tensors, and of ignored tensors by kind (without the text in parentheses)."""
    inventory = open_model(str(folder), LoadOverrides(**given)).inventory
    kinds = {kind.split(" (")[0]: len(names) for kind, names in inventory.left_behind.items()}
    return len(inventory.loaded), kinds


def test_every_tensor_of_a_file_is_loaded_or_reported(tiny_config, tmp_path):
    checkpoint = samples.add_optimizer_state(samples.sample(tiny_config))  # 46 weights
    for name in WRITABLE:
        FORMATS[name].write(checkpoint, str(tmp_path / name))
    samples.write_model_garden("trained", tmp_path / "garden")
    moments, others = "of the optimizer's moments and step", {"of the place in the data": 3, "of TensorFlow's own": 1}
    pooler = {"of the encoder's pooler, in whose place the head has its own": 2}
    assert count_tensors(tmp_path / "tf1") == (46, {moments: 93})
    assert count_tensors(tmp_path / "tf1", optimizer=True) == (139, {})
    assert count_tensors(tmp_path / "official_bert") == (46, {moments: 93, **others})
    assert count_tensors(tmp_path / "official_bert", optimizer=True) == (139, others)
    assert count_tensors(tmp_path / "hugging_face") == (46, {})
    assert count_tensors(tmp_path / "keras_hub") == (44, {"of the optimizer's state": 2})
    assert count_tensors(tmp_path / "garden") == (30, {moments: 70, "of TensorFlow's own": 2, **pooler})
    lines = samples.convert(tmp_path / "tf1", tmp_path / "long", list_tensors=True)
    assert {"loaded: bert/pooler/dense/kernel as pooler/kernel", "left behind: global_step"} <= set(lines)
    assert sum(line.startswith("loaded:") for line in lines) == 46
    assert sum(line.startswith("left behind:") for line in lines) == 93


def test_the_report_of_a_conversion(tiny_config, tmp_path, capsys):
    tf1.write(samples.sample(tiny_config), str(tmp_path / "google"))
    (tmp_path / "new.txt").write_text("dogs\n\ncats\n")
    flags = [f"--from={tmp_path}/google", f"--to={tmp_path}/out"]
    flags += [f"--new_tokens_file={tmp_path}/new.txt", "--max_position_embeddings=48"]
    with pytest.raises(SystemExit, match="0"):
        official_bert_cli.load("convert").run(flags)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"read Google TF1 checkpoint {tmp_path}/google: encoder, pooler, masked-LM head")
    assert "46 tensors, 2,368 parameters" in lines[0]
    assert lines[1:5] == [
        "tensors: 46 loaded, none missing, none unexpected; left behind: none",
        "changed: 2 tokens in new rows, each initialized with the mean of the pieces that it was split into before",
        "changed: position embeddings tiled, from 32 to 48",
        "round trip: 46 tensors read back, largest difference 0",
    ]
    assert lines[5].startswith(f"written official_bert checkpoint {tmp_path}/out")
    assert "vocabulary of 80, uncased; up to 48 positions" in lines[5]
    assert loading.load_pretraining_model(str(tmp_path / "out")).config.vocab_size == 80
    with pytest.raises(SystemExit, match="1"):
        official_bert_cli.load("convert").run(flags)
    assert_mentions(capsys.readouterr().err, f"{tmp_path}/out", "exists")


def limit_file_size(limit, names, function, *arguments, **keywords):
    """Checks that a call raises a UserError that mentions each name while files cannot grow beyond a size."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        assert_rejected((*names, os.strerror(errno.EFBIG)), function, *arguments, **keywords)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_reported_and_leaves_no_files(tiny_config, tmp_path, capfd):
    tf1.write(samples.sample(tiny_config, frozenset({ENCODER, POOLER})), str(tmp_path / "google"))
    for name in WRITABLE:
        limit_file_size(8000, (), samples.convert, tmp_path / "google", tmp_path / "out", to_format=name)
        assert [path.name for path in tmp_path.iterdir()] == ["google"]
    # HDF5 writes parts of a file when it is closed, and crashes if that fails.
    tensors = {f"{number}/vars/0": np.zeros((30, 30), np.float32) for number in range(100)}
    path = tmp_path / "google" / "model.weights.h5"
    hdf5.write_hdf5(str(path), tensors)
    size = path.stat().st_size
    path.write_bytes(b"the old one")
    for limit in (1000, size // 2, size - 1):
        limit_file_size(limit, (path,), hdf5.write_hdf5, str(path), tensors)
        assert path.read_bytes() == b"the old one"
    assert capfd.readouterr().err == ""


WORD_TABLE, BIAS, POSITIONS = "word_embeddings/embeddings", "masked_lm_output/bias", "position_embeddings/embeddings"


def assert_mean(before, after, row, pieces):
    """Asserts that the row of a new token is the mean of the rows of its pieces, or of all tokens if it has none."""
    rows = [WORDS.index(piece) for piece in pieces.split()] or range(len(WORDS))
    for name in (WORD_TABLE, BIAS):
        expected = before.weights[name][rows].mean(axis=0)
        np.testing.assert_allclose(after.weights[name][row], expected, rtol=1e-5, atol=1e-7)


def test_new_tokens_are_initialized_with_the_mean_of_their_pieces(tiny_config):
    before = samples.sample(tiny_config)
    after = resize.add_tokens(before, ["running", "##ming"])[0]
    assert after.config.vocab_size == 80
    assert split_vocab(after.vocab) == [*WORDS, "running", "##ming"]
    np.testing.assert_array_equal(after.weights[WORD_TABLE][:78], before.weights[WORD_TABLE])
    assert_mean(before, after, 78, "r ##u ##n ##n ##ing")
    assert_mean(before, after, 79, "m ##ing")
    assert parity.compute_outputs(after)["masked_lm_logits"].shape[-1] == 80
    assert not parity.make_fixed_input(dataclasses.replace(tiny_config, type_vocab_size=1))["segment_ids"].any()
    padded = samples.sample(dataclasses.replace(tiny_config, vocab_size=len(WORDS) + 10))
    grown, unknown = resize.add_tokens(padded, ["日", "running"], "append")
    assert_mean(padded, grown, len(WORDS), "")
    assert unknown == ["日"]


def test_markers_become_added_tokens_that_texts_contain(tiny_config, tmp_path):
    before = samples.sample(tiny_config)
    tf1.write(before, str(tmp_path / "google"))
    tokens = write_text(tmp_path / "new.txt", "[E1]\r\ndogs\r<user>\n日\n")
    lines = samples.convert(tmp_path / "google", tmp_path / "out", new_tokens_file=tokens, to_format="tf1")
    assert any("4 tokens in new rows" in line and "were [UNK]: [E1], 日" in line for line in lines)
    after = open_model(str(tmp_path / "out"))
    ids, _ = after.tokenizer.encode(["[E1] the dogs[E1]<user>!"])
    assert ids.tolist() == [78, WORDS.index("the"), 79, 78, 80, WORDS.index("!")]
    assert_mean(before, after, 80, "u ##s ##e ##r")  # < and > are not in the vocabulary
    assert_mean(before, after, 81, "")
    tokens = [AddedToken(token, special=True, normalized=False) for token in ("[E1]", "<user>", "[E2]")]
    assert resize.add_tokens(after, ["[E2]"])[0].casing.added_tokens == (*tokens,)


def test_new_tokens_can_replace_unused_ones(tiny_config, tmp_path):
    words = [*WORDS[:70], "[unused0]", "[unused1]", *WORDS[72:]]
    before = dataclasses.replace(samples.sample(tiny_config), vocab="".join(f"{word}\n" for word in words))
    after = resize.add_tokens(before, ["dogs"], "unused")[0]
    assert split_vocab(after.vocab) == [*words[:70], "dogs", *words[71:]]
    assert after.config == before.config
    assert_mean(before, after, 70, "dog ##s")
    np.testing.assert_array_equal(*(np.delete(each.weights[WORD_TABLE], 70, 0) for each in (before, after)))
    new = ["dogs", "cats", "mats"]
    assert_rejected((3, 2, "--new_token_rows=unused_first"), resize.add_tokens, before, new, "unused")
    tf1.write(before, str(tmp_path / "google"))
    new = {"new_tokens_file": write_text(tmp_path / "new.txt", "dogs\ncats\nmats\n"), "new_token_rows": "unused_first"}
    changes = {"max_position_embeddings": 40, "position_init": "interpolated", "strip_accents": False}
    samples.convert(tmp_path / "google", tmp_path / "out", **new, **changes)
    more = open_model(str(tmp_path / "out"))
    assert more.casing.strip_accents is False
    np.testing.assert_array_equal(more.weights[POSITIONS][-1], before.weights[POSITIONS][-1])
    samples.convert(tmp_path / "google", tmp_path / "cased", do_lower_case=False)
    assert not open_model(str(tmp_path / "cased")).casing.do_lower_case
    assert split_vocab(more.vocab) == [*words[:70], "dogs", "cats", *words[72:], "mats"]
    assert_mean(before, more, 70, "dog ##s")
    assert len(more.weights[WORD_TABLE]) == len(more.weights[BIAS]) == more.config.vocab_size == len(words) + 1


def test_useless_new_tokens_are_rejected(tiny_config):
    for tokens in (["cat"], ["dogs", "dogs"], ["Dogs"], ["a-b"]):
        assert_rejected(repr(tokens[-1]), resize.add_tokens, samples.sample(tiny_config), tokens)


def test_positions_are_tiled_or_interpolated(tiny_config):
    before = samples.sample(tiny_config)
    table = before.weights[POSITIONS]  # [32, H]
    tiled = resize.extend_positions(before, 80)
    assert tiled.config.max_position_embeddings == 80
    np.testing.assert_array_equal(tiled.weights[POSITIONS], [*table, *table, *table[:16]])
    stretched = resize.extend_positions(before, 63, "interpolated").weights[POSITIONS]
    np.testing.assert_allclose(stretched[::2], table, rtol=1e-6)
    np.testing.assert_allclose(stretched[1::2], (table[:-1] + table[1:]) / 2, rtol=1e-5, atol=1e-7)
    for length in (31, 32):
        assert_rejected((32, length), resize.extend_positions, before, length)
    for change in (resize.extend_positions, lambda model, _: resize.add_tokens(model, ["dogs"])):
        assert_rejected("--optimizer", change, samples.add_optimizer_state(before), 80)
