"""Checks before the first step, and the initial weights of a run."""

import dataclasses
import json
import os
import pathlib
import random
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf

from official_bert.checkpoints.formats import hugging_face
from official_bert.checkpoints.loading import load_pretraining_model
from official_bert.commands import PRETRAIN
from official_bert.data import record_schema
from official_bert.errors import UserError
from official_bert.finetuning.initial_model import read_initial_model
from official_bert.modeling.config import BertConfig
from official_bert.optimization import distribution
from official_bert.pretraining import checks, run
from official_bert.pretraining.run import pretrain
from official_bert.runs.locks import lock_folder
from official_bert.runs.training_log import read_log
from tests.checkpoints.checkpoint_samples import sample
from tests.conftest import ROOT, WORDS
from tests.make import assert_refused, refusal, write_vocab
from tests.pretraining.pretraining_runs import (
    LENGTH,
    PREDICTIONS,
    OptionsMaker,
    random_record,
    write_manifest,
    write_records,
)

ANY_IDS = record_schema.pretraining_schema(LENGTH, PREDICTIONS)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"num_warmup_steps": 19}, ""),
        (
            {"num_warmup_steps": 20},
            "--learning_rate=0.01: the training has 20 steps, the warm-up 20 (--num_warmup_steps)",
        ),
        ({"num_warmup_steps": 20, "phase2_num_train_steps": 1, "phase2_input_file": ["x"]}, ""),
        (
            {
                "phase2_num_train_steps": 3, "phase2_input_file": ["x"], "phase2_learning_rate": 0.1,
                "phase2_num_warmup_steps": 4,
            },
            "--phase2_learning_rate=0.1: the training has 3 steps, the warm-up 4 (--phase2_num_warmup_steps)",
        ),
    ],
)  # fmt: skip
def test_a_learning_rate_that_never_reaches_its_peak_is_reported(changes, expected, make_options, tmp_path, capsys):
    checks.warn_of_long_warmup(make_options(tmp_path, num_train_steps=20, learning_rate=0.01, **changes))
    expected = f"warning: the learning rate never reaches {expected}\n" if expected else ""
    assert capsys.readouterr().out == expected


def test_init_checkpoint_gives_weights_and_starts_at_step_zero(make_options, shared_run, tmp_path, capsys):
    first = shared_run
    changes = {"init_checkpoint": str(first), "num_train_steps": 1, "learning_rate": 1e-9}
    second = make_options(tmp_path / "second", **changes)
    pretrain(second)
    output = capsys.readouterr().out
    assert "  loaded   layer_0_attention_query/kernel\n" in output
    assert re.search(r"30 tensors loaded, 0 missing, 0 unused; \d+ other tensors", output)
    names = [name for name, _ in tf.train.list_variables(str(first)) if name.startswith("model/")]
    for name in names:
        expected = tf.train.load_variable(str(first), name)
        np.testing.assert_allclose(tf.train.load_variable(second.output_dir, name), expected, atol=1e-7)
    assert read_log(second.output_dir, "train")[0]["step"] == 1


def test_init_checkpoint_has_the_vocabulary_and_the_casing_of_the_records(
    make_options, record_files, vocab_file, shared_run, tmp_path
):
    initial = shutil.copytree(shared_run, tmp_path / "initial")
    lines = pathlib.Path(vocab_file).read_text().splitlines()
    options = make_options(tmp_path / "run", init_checkpoint=str(initial))
    one_device = distribution.get_strategy("one_device")

    def set_up(**changes: object) -> run.RunParts:
        return run.set_up(dataclasses.replace(options, **changes), one_device)

    (initial / "vocab.txt").write_text("\n".join([*lines[:7], lines[8], lines[7], *lines[9:]]))
    with pytest.raises(UserError, match=r"not the vocabulary of --init_checkpoint, .*line 8 is 'c' instead of 'd'"):
        set_up(vocab_file=vocab_file)
    write_manifest(record_files, vocab_file)
    assert_refused("vocabulary of the records is not the vocabulary of --init_checkpoint", set_up)
    shutil.copy(vocab_file, initial / "vocab.txt")
    set_up()
    (initial / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert set_up().options.do_lower_case is False
    with pytest.raises(
        UserError,
        match="run's texts are lower-cased, but --init_checkpoint, .*, was trained on texts that are not lower-cased",
    ):
        set_up(do_lower_case=True)


def test_init_checkpoint_of_another_library_fits_the_configuration_and_the_vocabulary(
    make_options, vocab_file, tiny_config, tmp_path, capsys
):
    exact = dataclasses.replace(tiny_config, hidden_act="gelu_exact")
    hugging_face.write(sample(exact), str(tmp_path / "theirs"))
    one_device = distribution.get_strategy("one_device")

    def set_up(config: BertConfig) -> run.RunParts:
        (tmp_path / "config.json").write_text(config.to_json())
        changes = {"init_checkpoint": str(tmp_path / "theirs"), "vocab_file": vocab_file}
        options = make_options(tmp_path / "run", bert_config_file=str(tmp_path / "config.json"), **changes)
        return run.set_up(options, one_device)

    set_up(exact)
    assert "warning" not in capsys.readouterr().out
    set_up(tiny_config)
    assert "has hidden_act gelu, but the model of --init_checkpoint has gelu_exact" in capsys.readouterr().out
    with pytest.raises(UserError, match="has num_attention_heads 4, but the model of --init_checkpoint has 2"):
        set_up(dataclasses.replace(exact, num_attention_heads=4))
    pathlib.Path(vocab_file).write_text("\n".join([*WORDS[:6], WORDS[7], WORDS[6], *WORDS[8:]]))
    assert_refused("is not the vocabulary of --init_checkpoint.*line 7 is 'c' instead of 'b'", set_up, exact)


def test_weights_of_another_size_are_refused_by_name(make_options, shared_run, tiny_config, tmp_path):
    other = BertConfig.from_dict({**tiny_config.to_dict(), "intermediate_size": 32, "num_hidden_layers": 3})
    (tmp_path / "other.json").write_text(other.to_json())
    options = make_options(
        tmp_path / "second", bert_config_file=str(tmp_path / "other.json"), init_checkpoint=str(shared_run)
    )
    with pytest.raises(UserError, match=r"layer_0_intermediate.* has shape \[8, 16\]; expected \[8, 32\]") as caught:
        pretrain(options)
    assert "layer_2_attention_query" in str(caught.value)
    assert "is missing" in str(caught.value)


def test_a_folder_that_another_process_uses_is_refused(make_options: OptionsMaker, tmp_path: pathlib.Path):
    with (
        lock_folder(str(tmp_path / "run"), "output_dir"),
        pytest.raises(UserError, match=f"--output_dir: .*run is in use .process {os.getpid()} on"),
    ):
        pretrain(make_options(tmp_path / "run"))


@pytest.mark.slow
def test_the_records_manifest_decides_whether_the_model_is_cased(
    make_options, record_files, vocab_file, tmp_path, capsys
):
    write_vocab(pathlib.Path(vocab_file), [*WORDS[:-2], "Anna", "Berlin"])
    write_manifest(record_files, vocab_file, do_lower_case=False)
    folder = tmp_path / "run"
    with pytest.raises(UserError, match="--do_lower_case contradicts the manifest of the records of --input_file"):
        pretrain(make_options(folder, vocab_file=vocab_file, do_lower_case=True))
    pretrain(make_options(folder, vocab_file=vocab_file, num_train_steps=1))
    assert load_pretraining_model(str(folder)).tokenizer.basic_tokenizer.do_lower_case is False
    assert read_initial_model(str(folder)).casing.do_lower_case is False
    assert json.loads((folder / "run.json").read_text())["flags"]["do_lower_case"] is False
    # A folder from an older version, which stored the flag's default.
    (folder / "tokenizer_config.json").write_text('{\n  "do_lower_case": true\n}\n')
    longer = {"num_train_steps": 2, "allow_changes": ["num_train_steps"]}
    pretrain(make_options(folder, vocab_file=vocab_file, **longer))
    assert "tokenizer_config.json is replaced, because it contradicts the records' manifest" in capsys.readouterr().out
    assert json.loads((folder / "tokenizer_config.json").read_text()) == {"do_lower_case": False}


def test_a_run_without_a_vocabulary_says_so_before_the_first_step(make_options, vocab_file, tmp_path, capsys):
    strategy = distribution.get_strategy("one_device")
    run.set_up(make_options(tmp_path / "a", vocab_file=None), strategy)
    assert "no vocabulary; pass --vocab_file" in capsys.readouterr().out
    run.set_up(make_options(tmp_path / "b", vocab_file=vocab_file), strategy)
    assert "no vocabulary" not in capsys.readouterr().out


def test_a_vocabulary_smaller_than_the_model_is_a_warning_or_decides_the_size(
    make_options, tiny_config, vocab_file, tmp_path, capsys
):
    large = dataclasses.replace(tiny_config, num_hidden_layers=1, vocab_size=100)
    (tmp_path / "large.json").write_text(large.to_json())
    options = make_options(
        tmp_path / "run", bert_config_file=str(tmp_path / "large.json"), vocab_file=vocab_file, num_train_steps=1
    )
    pretrain(options)
    assert "warning: the vocabulary has 78 tokens, the word table 100 rows" in capsys.readouterr().out
    assert BertConfig.from_json_file(str(tmp_path / "run" / "bert_config.json")).vocab_size == 100
    as_vocab = {"output_dir": str(tmp_path / "small"), "vocab_size_from_vocab": True}
    setup = run.set_up(dataclasses.replace(options, **as_vocab), distribution.get_strategy("one_device"))
    assert "the vocabulary has" not in capsys.readouterr().out
    assert setup.config.vocab_size == json.loads(setup.model_files["bert_config.json"])["vocab_size"] == 78


def test_all_mistakes_are_named_at_once_the_most_specific_first(make_options, finished_run, tiny_config, tmp_path):
    other = dataclasses.replace(tiny_config, hidden_dropout_prob=0.2, num_hidden_layers=1)
    (tmp_path / "other.json").write_text(other.to_json())
    files = {"input_file": ["none-*"], "bert_config_file": str(tmp_path / "other.json")}
    options = make_options(finished_run, **files, max_seq_length=64, num_train_steps=25)
    with pytest.raises(UserError) as caught:
        pretrain(options)
    first, *mistakes = str(caught.value).splitlines()
    assert first == "4 errors:"
    for mistake, expected in zip(mistakes, (
        "1. --input_file: no file matches 'none-*'", "2. --max_seq_length is 64, but",
        "--num_train_steps was 20 and is 25",
        "bert_config.json differs from this command",
    ), strict=True):  # fmt: skip
        assert expected in mistake


def test_vocabulary_larger_than_the_model_is_refused(make_options, vocab_file, tmp_path):
    with open(vocab_file, "a") as vocabulary:
        vocabulary.write("more\n")
    with pytest.raises(UserError, match="has 79 tokens, but .* has vocab_size 78"):
        pretrain(make_options(tmp_path / "run", vocab_file=vocab_file))


def test_folder_of_another_configuration_is_refused(make_options, finished_run, tiny_config, tmp_path):
    other = BertConfig.from_dict({**tiny_config.to_dict(), "hidden_dropout_prob": 0.2})
    (tmp_path / "other.json").write_text(other.to_json())
    with pytest.raises(UserError, match="the folder contains another run"):
        pretrain(make_options(finished_run, bert_config_file=str(tmp_path / "other.json")))


@pytest.mark.parametrize(("changes", "message"), [
    ({"input_file": ["none-*"]}, "--input_file: no file matches 'none-\\*'"),
    ({"bert_config_file": "none.json"}, "there is no file none.json"),
    ({"max_seq_length": 64}, "--max_seq_length is 64, but .* has max_position_embeddings=32"),
    ({"max_seq_length": 16}, "input_ids has 12 values; expected 16. Pass the --max_seq_length"),
    ({"init_checkpoint": "none/ckpt"}, "there is no file or folder none/ckpt"),
    ({"vocab_file": str(ROOT / "LICENSE")}, r"LICENSE has .* tokens, but lacks \[PAD\]"),
    ({"jit_compile": True, "use_tpu": True}, "cannot connect to the TPU 'local'"),
])  # fmt: skip
def test_bad_options_are_refused_before_the_first_step(make_options, changes, message, tmp_path):
    assert_refused(message, lambda: pretrain(make_options(tmp_path / "run", **changes)))
    assert not list(tmp_path.glob("run/ckpt*"))


@pytest.mark.parametrize("recipe", ["one_gpu", "eight_gpus", "tpu_v3-8", "tpu_v5e-64"])
def test_recipes_of_the_paper_have_one_decay_over_both_phases(recipe):
    files = ["--input_file=x", "--phase2_input_file=x", "--eval_input_file=x", "--output_dir=x"]
    (options,) = PRETRAIN.parse([f"--flagfile={ROOT}/configs/{recipe}.flagfile", *files])
    schedule = run.make_schedule(options)
    expected = {
        0: 0.0,
        9_999: 0.9999e-4,
        10_000: 0.99e-4,
        450_000: 0.55e-4,
        899_999: 1.00001e-5,
        900_000: 1e-5,
        900_001: 0.99999e-5,
        950_000: 5e-6,
        1_000_000: 0.0,
    }
    assert [float(schedule(step)) for step in expected] == pytest.approx(list(expected.values()), rel=1e-6)
    assert {phase.train_batch_size for phase in options.phases} == {256}


def test_second_phase_with_a_learning_rate_has_its_own_schedule(make_options, tmp_path):
    second = {"phase2_num_train_steps": 10, "phase2_learning_rate": 1.0, "phase2_num_warmup_steps": 2}
    changes = {"learning_rate": 0.5, "num_train_steps": 20, "num_warmup_steps": 4, "phase2_input_file": ["x"]}
    schedule = run.make_schedule(make_options(tmp_path, **changes, **second))
    rates = [float(schedule(step)) for step in (2, 10, 19, 20, 21, 22, 29, 30)]
    assert rates == pytest.approx([0.25, 0.25, 0.025, 0.0, 0.5, 0.8, 0.1, 0.0], abs=1e-6)


def test_damaged_record_stops_the_run_and_is_named(make_options, record_files, tmp_path):
    path = pathlib.Path(record_files[1])
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"1.tfrecord: record \d+ \(from 0\), near byte \d+, is corrupted"):
        pretrain(make_options(tmp_path / "run"))


def test_id_outside_the_vocabulary_is_named(make_options, record_files, tmp_path):
    records = [random_record(random.Random(number)) for number in range(20)]
    records[7]["input_ids"][1] = len(WORDS)
    paths = [*record_files, write_records(tmp_path / "2.tfrecord", records, ANY_IDS)]
    with pytest.raises(UserError, match=r"2.tfrecord: record 7 \(from 0\): input_ids contains 78; expected 0 to 77"):
        pretrain(make_options(tmp_path / "run", input_file=paths))


def test_bad_value_is_named_whatever_the_device_would_make_of_it(make_options: OptionsMaker, tmp_path: pathlib.Path):
    for name, value in (("segment_ids", 7), ("masked_lm_positions", LENGTH), ("masked_lm_ids", -1)):
        records = [random_record(random.Random(number)) for number in range(8)]
        records[5][name][0] = value
        path = write_records(tmp_path / f"{name}.tfrecord", records, ANY_IDS)
        with pytest.raises(
            UserError, match=rf"{name}.tfrecord: record 5 \(from 0\): {name} contains {value}; expected 0 to"
        ):
            pretrain(make_options(tmp_path / name, input_file=[path]))


def test_empty_files_are_left_out(make_options, record_files, tmp_path, capsys):
    empty = tmp_path / "empty.tfrecord"
    empty.touch()
    pretrain(make_options(tmp_path / "run", input_file=[*record_files, str(empty)], num_train_steps=1))
    assert f"skipped empty files: {empty}" in capsys.readouterr().out
    with pytest.raises(UserError, match="empty.tfrecord: no records. Write records with"):
        pretrain(make_options(tmp_path / "other", input_file=[str(empty)]))


def test_evaluation_without_a_checkpoint_is_refused(make_options: OptionsMaker, tmp_path: pathlib.Path):
    with pytest.raises(UserError, match="has no checkpoint to evaluate"):
        pretrain(make_options(tmp_path / "run", do_train=False, do_eval=True))


def test_accents_are_kept_as_the_records_manifest_says(make_options, record_files, config_file, vocab_file, tmp_path):
    folder = tmp_path / "run"
    options = make_options(folder, vocab_file=vocab_file)
    one_device = distribution.get_strategy("one_device")

    def set_up(**changes: object) -> run.RunParts:
        return run.set_up(dataclasses.replace(options, **changes), one_device)

    assert json.loads(set_up().model_files["tokenizer_config.json"]) == {"do_lower_case": True}
    assert json.loads(set_up(strip_accents=False).model_files["tokenizer_config.json"])["strip_accents"] is False
    write_manifest(record_files, vocab_file, do_lower_case=True, strip_accents=False)
    made = set_up()
    assert made.metadata["flags"]["strip_accents"] is False
    assert json.loads(made.model_files["tokenizer_config.json"]) == {"do_lower_case": True, "strip_accents": False}
    with pytest.raises(UserError, match="--strip_accents contradicts the manifest .*: their text is lower-cased with"):
        set_up(strip_accents=True)
    initial = tmp_path / "initial"
    hugging_face.write(sample(BertConfig.from_json_file(config_file)), str(initial))
    with pytest.raises(
        UserError, match="texts are lower-cased with their accents kept, but --init_checkpoint, .* texts that are low"
    ):
        set_up(init_checkpoint=str(initial))
    write_manifest(record_files, vocab_file, do_lower_case=True)
    with pytest.raises(UserError, match="--nostrip_accents contradicts the manifest of the records of --input_file"):
        set_up(strip_accents=False)


def test_the_vocabulary_decides_the_casing_of_records_without_a_manifest(
    make_options: OptionsMaker, record_files: list[str], vocab_file: str, tmp_path: pathlib.Path
):
    write_vocab(pathlib.Path(vocab_file), [*WORDS[:-2], "Anna", "Berlin"])
    options = make_options(tmp_path / "run", vocab_file=vocab_file)
    one_device = distribution.get_strategy("one_device")
    made = run.set_up(options, one_device)
    assert json.loads(made.model_files["tokenizer_config.json"]) == {"do_lower_case": False}
    assert made.metadata["flags"]["do_lower_case"] is False
    told = refusal(run.set_up, dataclasses.replace(options, do_lower_case=True), one_device)
    assert all(part in told for part in (vocab_file, "'Anna'", "pass --do_lower_case=false")), told
    write_manifest(record_files, vocab_file, do_lower_case=True)
    told = refusal(run.set_up, options, one_device)
    assert all(part in told for part in (vocab_file, "'Anna'", "records again with --do_lower_case=false")), told


def test_the_optimizer_s_flags_reach_the_optimizer(make_options, tmp_path):
    flags = {"weight_decay": 0.2, "adam_beta1": 0.8, "max_grad_norm": 0, "optimizer": "lamb"}
    parts = run.set_up(make_options(tmp_path / "run", **flags), distribution.get_strategy("one_device"))
    optimizer = parts.pretrainer.optimizer
    assert (optimizer.weight_decay_rate, optimizer.beta_1, optimizer.clip_norm) == (0.2, 0.8, None)
    assert flags.items() <= parts.metadata["flags"].items()
