"""Checkpoints of Google's and similar scripts: names, optimizer slots, step, and the other files in the folder."""

import dataclasses
import filecmp
import json

import numpy as np
import tensorflow as tf

from official_bert.checkpoints import bundle, loading, model_files, parity, run_checkpoints
from official_bert.checkpoints.checkpoint import PRETRAINING, SLOTS, LoadOverrides
from official_bert.checkpoints.formats import hugging_face, tf1
from official_bert.checkpoints.loading import open_model
from official_bert.finetuning.initial_model import read_initial_model
from official_bert.modeling.config import BertConfig
from official_bert.modeling.pretraining_model import build_pretraining_model
from official_bert.pretraining.initial_checkpoint import assign_initial_weights
from official_bert.tokenization.casing import make_casing
from tests.checkpoints.checkpoint_samples import add_optimizer_state, assert_equal, assert_unreadable, convert, sample
from tests.pretraining.pretraining_runs import make_pretrainer
from tests.reference import gelu


def test_the_toy_checkpoint_is_written_byte_for_byte_with_slots_and_step(test_data, tmp_path):
    folder = test_data / "checkpoints" / "toy_tf1"
    toy = open_model(str(folder), LoadOverrides(optimizer=True))
    assert toy.step == 20
    assert len(toy.weights) + len(toy.slots) + 1 == 139
    tf1.write(toy, str(tmp_path))
    for name in ("bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001", "vocab.txt"):
        assert filecmp.cmp(folder / name, tmp_path / name, shallow=False), name
    reader = tf.train.load_checkpoint(str(folder / "bert_model.ckpt"))
    for slot in SLOTS:
        theirs = reader.get_tensor(f"cls/seq_relationship/output_weights/{slot}")
        np.testing.assert_array_equal(toy.slots[f"next_sentence/kernel/{slot}"], theirs.T)


def test_bert_mini_has_the_released_names_shapes_and_order(test_data, tmp_path):
    folder = test_data / "checkpoints" / "bert_mini_index"
    config = BertConfig.from_json_file(str(folder / "bert_config.json"))
    tf1.write(dataclasses.replace(sample(config), vocab=None), str(tmp_path))
    released = json.loads((folder / "index_parsed.json").read_text())
    del released["__header__"]
    written = [(name, list(shape)) for name, shape in tf.train.list_variables(str(tmp_path / "bert_model.ckpt"))]
    assert written == [(name, entry["shape"]) for name, entry in released.items()]
    content = (tmp_path / "bert_model.ckpt.data-00000-of-00001").read_bytes()
    reader = tf.train.load_checkpoint(str(tmp_path / "bert_model.ckpt"))
    for name, entry in released.items():
        stored = content[entry["offset"] : entry["offset"] + entry["size"]]
        assert stored == reader.get_tensor(name).tobytes(), name
    assert len(content) == sum(entry["size"] for entry in released.values())


def test_outputs_of_the_heads_equal_those_computed_from_googles_names(tiny_config, tmp_path):
    # tests/modeling/test_encoder.py compares the encoder with outputs of Google's own code.
    tf1.write(sample(tiny_config), str(tmp_path))
    get = tf.train.load_checkpoint(str(tmp_path / "bert_model.ckpt")).get_tensor
    outputs = parity.compute_outputs(open_model(str(tmp_path)))
    scope = "cls/predictions/transform"
    x = gelu(outputs["hidden_1"] @ get(f"{scope}/dense/kernel") + get(f"{scope}/dense/bias"), exact=False)
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
    x = x * get(f"{scope}/LayerNorm/gamma") + get(f"{scope}/LayerNorm/beta")
    masked_lm = x @ get("bert/embeddings/word_embeddings").T + get("cls/predictions/output_bias")
    np.testing.assert_allclose(outputs["masked_lm_logits"], masked_lm, rtol=1e-4, atol=1e-4)
    weights, bias = (get(f"cls/seq_relationship/output_{part}") for part in ("weights", "bias"))
    next_sentence = outputs["pooled_output"] @ weights.T + bias
    np.testing.assert_allclose(outputs["next_sentence_logits"], next_sentence, rtol=1e-4, atol=1e-4)


def test_pretraining_resumes_from_a_converted_tf1_run(tiny_config, tmp_path):
    old = add_optimizer_state(sample(tiny_config), step=7)
    tf1.write(old, str(tmp_path / "old"))
    lines = convert(tmp_path / "old", tmp_path / "run", optimizer=True)
    assert "92 moments of Adam, step 7" in lines[0]
    pretrainer = make_pretrainer(tiny_config)
    variables = {**pretrainer.variables, "place": run_checkpoints.create_data_position()}
    saved = run_checkpoints.RunCheckpoints(str(tmp_path / "run"), variables, keep=1)
    assert saved.restore_latest() == str(tmp_path / "run" / "ckpt-7")
    assert pretrainer.step == 7
    for variable in pretrainer.model.variables:
        np.testing.assert_array_equal(variable, old.weights[variable.path])
    held = {variable.path: np.asarray(variable) for variable in pretrainer.optimizer.variables}
    for path, value in old.slots.items():
        name, slot = path.rsplit("/", 1)
        np.testing.assert_array_equal(held[f"bert_adam_w/{name.replace('/', '_')}_{slot}"], value)
    model_files.check_model_files(str(tmp_path / "run"), model_files.format_model_files(old))


def test_missing_files_of_a_google_checkpoint_can_be_passed_as_flags(tiny_config, tmp_path):
    checkpoint, folder = sample(tiny_config), tmp_path / "run"
    tf1.write(checkpoint, str(folder))
    assert_unreadable(folder, 93, "--optimizer", optimizer=True)
    for name in ("bert_config.json", "vocab.txt", "checksums.json", "tokenizer_config.json"):
        (folder / name).rename(tmp_path / name)
    assert_unreadable(folder, folder / "bert_config.json", "--bert_config_file")
    given = LoadOverrides(str(tmp_path / "bert_config.json"), str(tmp_path / "vocab.txt"), strip_accents=False)
    expected = dataclasses.replace(checkpoint, casing=make_casing(True, False))
    assert_equal(open_model(str(folder), given), expected)


KERNEL = "bert/encoder/layer_0/output/dense/kernel"
OTHER_OPTIMIZERS = f"""OptimizeLoss/{KERNEL}/LAMB bert/embeddings/word_embeddings/AdamWeightDecayOptimizer {KERNEL}/Adam
{KERNEL}/Adam_1 {KERNEL}/accum {KERNEL}/lamb_m beta1_power current_loss_scale good_steps loss_scale output_weights/Adam
""".split()
OTHER_HEADS = ("bert/lstm/kernel", "crf_loss/transitions", "output_bias", "output_weights", "project/logits/W")


def write_with_others(folder, config, *others):
    tf1.write(sample(config), str(folder))
    source = bundle.open_bundle(str(folder / "bert_model.ckpt"))
    tensors = {name: source.read(name) for name in source.shapes}
    tensors |= {name: np.zeros((5, 3), np.float32) for name in others}
    bundle.write_bundle(str(folder / "bert_model.ckpt"), tensors)


def test_variables_of_other_programs_are_ignored_and_listed(tiny_config, tmp_path, capsys):
    path = tmp_path / "theirs"
    write_with_others(path, tiny_config, *OTHER_OPTIMIZERS, *OTHER_HEADS)
    checkpoint = open_model(str(path))
    assert_equal(checkpoint, dataclasses.replace(sample(tiny_config), notes=checkpoint.notes))
    assert set(checkpoint.parts) == PRETRAINING
    line = f"ignored 5 tensors of heads or programs that BERT does not have: {', '.join(OTHER_HEADS)}"
    assert line in checkpoint.notes
    assert any("ignored 11 tensors of another optimizer: " in note for note in checkpoint.notes)
    loading.load(str(path))
    assert f"note: {line}" in capsys.readouterr().out
    assert convert(path, tmp_path / "ours").count(f"note: {line}") == 1
    assert line in read_initial_model(str(path)).notes
    report = assign_initial_weights(build_pretraining_model(tiny_config), checkpoint)
    assert "46 tensors loaded, 0 missing, 0 unused; 16 other tensors" in report[-1]


def test_weights_outside_the_configuration_are_still_an_error(tiny_config, tmp_path):
    names = ["cls/predictions/more", "bert/embeddings/word_embeddings_2", "bert/encoder/layer_7/output/dense/kernel"]
    write_with_others(tmp_path, tiny_config, *names)
    assert_unreadable(tmp_path, "3 unexpected", *names)


def test_a_google_checkpoint_with_hugging_face_files_is_read(exact_config, tmp_path):
    checkpoint, folder = sample(dataclasses.replace(exact_config, layer_norm_eps=1e-12)), tmp_path / "google"
    hugging_face.write(checkpoint, str(tmp_path / "theirs"))
    tf1.write(checkpoint, str(folder))
    for name in ("bert_config.json", "checksums.json", "tokenizer_config.json"):
        (folder / name).unlink()
    for name in ("config.json", "tokenizer_config.json"):
        (tmp_path / "theirs" / name).rename(folder / name)
    found = open_model(str(folder))
    assert found.source.format == "tf1"
    assert_equal(checkpoint, dataclasses.replace(found, notes=checkpoint.notes))
    assert "config.json is read as Hugging Face's, with hidden_act gelu_exact" in "".join(found.notes)
