"""Values and combinations of flags that the commands reject, and flags of the google-research/bert scripts."""

import dataclasses
import math
import pathlib
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

import data_gen.options
import official_bert.commands
import tools.reproduce.experiment
import tools.tpu_check.options
import tools.tpu_check.recipes
from official_bert.commands import RUN_CLASSIFIER, RUN_SQUAD
from official_bert.utils.command_line import Command
from official_bert.utils.flags import Flag, ValidatedOptions, list_flags
from official_bert_cli import load
from tests.make import assert_rejected

# Modules that define options, which the tests find as subclasses of ValidatedOptions.
_MODULES = (data_gen.options, official_bert.commands, tools.reproduce, tools.tpu_check)

# Every option that is a number, by its limits.
_LIMITS = {
    "": "dimensions layers margin max_in_flight_bytes max_loss max_position_embeddings max_queue max_words "
    "null_score_diff_threshold scale score_range word_column",
    "at least 0": "early_stopping end_learning_rate eval_steps max_grad_norm max_wait_ms new_words num_records "
    "num_train_epochs num_train_steps num_warmup_steps phase2_num_train_steps phase2_num_warmup_steps profile_steps "
    "random_seed random_seeds shard_size_mb weight_decay worker_index",
    "at least 0 and at most 1": "short_seq_prob teacher_weight warmup_proportion",
    "at least 0 and at most 65535": "port",
    "at least 0 and less than 1": "adam_beta1 adam_beta2 general_share min_confidence",
    "at least 1": "batch_size block_tokens doc_stride dupe_factor eval_batch_size eval_steps "
    "gradient_accumulation_steps grid_batch_sizes iterations_per_loop keep_checkpoint_max log_steps lstm_units "
    "max_answer_length max_batch_size max_batch_tokens max_body_bytes max_connections max_eval_steps max_instances "
    "max_predictions_per_seq max_query_length max_seq_length max_text_bytes max_tokens min_frequency n_best_size "
    "num_labels num_tpu_cores num_train_steps num_workers packed_rows phase2_max_predictions_per_seq "
    "phase2_max_seq_length phase2_train_batch_size save_checkpoints_steps threads time_limit top_k train_batch_size "
    "version versions vocab_size",
    "at least 1 and at most 65535": "max_predictions_per_seq",
    "at least 1 and at most 99999": "num_shards",
    "at least 4": "max_seq_length",
    "at least 5": "max_seq_length",
    "at least 5 and at most 65535": "max_seq_length",
    "greater than 0": "adam_epsilon decay_power drain_seconds grid_epochs grid_learning_rates learning_rate "
    "num_train_epochs phase2_learning_rate reload_seconds temperature timeout_seconds",
    "greater than 0 and at most 1": "character_coverage layer_decay",
    "greater than 0 and less than 1": "heldout_share masked_lm_prob",
}


def _list_option_classes(parent: type = ValidatedOptions) -> Iterator[type]:
    for child in parent.__subclasses__():
        if dataclasses.is_dataclass(child) and not child.__module__.startswith(("tests", "tools.benchmarks")):
            yield child
        yield from _list_option_classes(child)


def _list_options(cls: type) -> list[tuple[Flag, Mapping[str, Any], type]]:
    """Returns each flag of a class with the metadata of its field, and with its type or the type of its items."""
    metadata = {field.name: field.metadata for field in dataclasses.fields(cls)}
    return [(flag, metadata[flag.field], metadata[flag.field]["items"] or flag.kind) for flag in list_flags(cls)]


def _list_invalid_values(flag: Flag, metadata: Mapping[str, Any], kind: Any) -> Iterator[tuple[str, str]]:
    """Returns values that a flag rejects, each with a part of the description of valid values in the message."""
    for name, limit in metadata["limits"].items():
        value = limit
        if name in ("at least", "at most"):
            sign = -1 if name == "at least" else 1
            value = limit + sign if kind is int else math.nextafter(limit, sign * math.inf)
        yield str(kind(value)), f"{name} {limit:,}"
    if metadata["limits"] and kind is float:
        yield from ((value, "finite") for value in ("nan", "inf", "-inf"))
    if flag.choices:
        yield "unheard-of", ", ".join(flag.choices)
    elif kind in (bool, int, float):
        expected = {bool: "false", int: "whole", float: "number"}[kind]
        yield from ((value, expected) for value in ["many", *(["1.5"] if kind is int else [])])
    elif flag.is_list and not flag.repeated:
        yield '"a', "quote"


_CLASSES = list(_list_option_classes())


@pytest.mark.parametrize("cls", _CLASSES, ids=lambda cls: f"{cls.__module__}.{cls.__name__}")
def test_values_outside_the_limits_the_choices_or_the_type_of_a_flag_are_rejected(cls: type):
    command = Command(program="program", summary="", main=print, options=(cls,))
    needed = [f"--{flag.name}={flag.choices[0] if flag.choices else 'x'}" for flag in list_flags(cls) if flag.required]
    for flag, metadata, kind in _list_options(cls):
        for value, expected in _list_invalid_values(flag, metadata, kind):
            names = (f"--{flag.name}", value, expected)
            assert_rejected(names, command.parse, [*needed, f"--{flag.name}={value}"])


def test_the_limits_of_all_numbers_are_listed():
    limits: dict[str, set[str]] = {}
    for cls in _CLASSES:
        for flag, metadata, kind in _list_options(cls):
            if kind in (int, float):
                text = " and ".join(f"{name} {limit}" for name, limit in metadata["limits"].items())
                limits.setdefault(text, set()).add(flag.name)
    assert limits == {text: set(names.split()) for text, names in _LIMITS.items()}


# Each row has flags that the command rejects if they follow its first example. After the colon are the parts of the
# message. A row without a colon is rejected with the names of its flags.
_REJECTED = {
    "make-records": [
        "--nodo_lower_case --strip_accents: strip_accents do_lower_case",
        "--word_boundaries=jieba: --word_boundaries --do_whole_word_mask",
        "--word_boundaries=jieba --do_whole_word_mask --added_tokens_file=x: --word_boundaries --added_tokens_file",
        "--word_boundaries=jieba --do_whole_word_mask --masking=dynamic: --word_boundaries --masking=static",
        "--output_file=", "--output_file=a,b --num_shards=2", "--output_file=a,b --shard_size_mb=1",
        "--algorithm=reference --num_shards=2", "--algorithm=reference --shard_size_mb=1",
        "--algorithm=reference --gzip",
        "--algorithm=reference --input_format=jsonl: --algorithm=reference --input_format",
        "--algorithm=reference --masking=dynamic: --masking=dynamic --algorithm",
    ],
    "learn-vocabulary": [
        "--nodo_lower_case --strip_accents: strip_accents do_lower_case",
        "--vocab_size=60 --max_words=59: --max_words 59 --vocab_size 60",
    ],
    "verify-records": [
        "--input_file=x: --input_file --manifest", "--manifest=: --input_file --manifest",
    ],
    "pretrain": [
        "--nodo_train: --do_train --do_eval",
        "--use_tpu --distribution_strategy=mirrored: --use_tpu --distribution_strategy=mirrored",
        "--use_tpu --dtype=float16: --dtype=float16", "--distribution_strategy=tpu --dtype=float16: --dtype=float16",
        "--eval_steps=1: --eval_steps --eval_input_file",
        "--general_eval_file=x: --general_eval_file --eval_input_file",
        "--phase2_num_train_steps=1: --phase2_num_train_steps --phase2_input_file",
        "--phase2_input_file=x: --phase2_num_train_steps --phase2_input_file",
        "--phase2_num_warmup_steps=1: --phase2_num_warmup_steps --phase2_learning_rate",
        "--allow_changes=lerning_rate: --allow_changes lerning_rate adam_beta1 data",
        "--vocab_size_from_vocab: --vocab_size_from_vocab --vocab_file",
        "--init_allow=x: --init_allow --init_checkpoint", "--init_from_records --init_checkpoint=x",
        "--init_from_records --left_to_right",
        "--init_from_records --distribution_strategy=multi_worker: --init_from_records machine",
        "--learning_rate=1e-4 --end_learning_rate=2e-4: --end_learning_rate 0.0002 0.0001",
        "--phase2_learning_rate=1e-5 --end_learning_rate=2e-5: --end_learning_rate 2e-05 1e-05",
        "--profile_steps=7: --profile_steps 7", "--profile_steps=7,7: --profile_steps 7,7",
        "--profile_steps=7,8,9: --profile_steps 7,8,9",
    ],
    "adapt": [
        "--input_file=", "--output_dir=", "--output_dir=gs://bucket/model: --output_dir gs://bucket/model",
        "--general_share=0.1: --general_share --general_file",
        "--word_boundaries=jieba: --word_boundaries --do_whole_word_mask", "--new_words=2 --new_words_file=x",
    ],
    "finetune": [
        "--nodo_train --nodo_eval: --do_train --do_eval --do_predict", "--nodo_eval --calibrate: --calibrate --do_eval",
        "--nodo_eval --thresholds=f1: --thresholds --do_eval",
        "--nodo_eval --min_confidence=0.5: --min_confidence --do_eval", "--thresholds=auc: --thresholds auc f1",
        "--random_seeds=1,2 --random_seed=3", "--grid_batch_sizes=8,16 --train_batch_size=32",
        "--grid_learning_rates=1e-4,2e-4 --learning_rate=3e-4", "--grid_epochs=1,2 --num_train_epochs=3",
        "--random_seeds=1,2 --nodo_train: --random_seeds --do_train",
        "--use_tpu --distribution_strategy=mirrored: --use_tpu --distribution_strategy=mirrored",
        "--task=colla: --task=colla cola?",
    ],
    "convert": [
        "--new_token_rows=unused: --new_token_rows=unused --new_tokens_file",
        "--position_init=interpolated: --position_init=interpolated --max_position_embeddings",
    ],
    "export": [
        "--format=: --format saved_model onnx litert",
        "--format=onnx --for_serving=2.19: --for_serving --format=onnx saved_model",
        "--format=saved_model,onnx --encoder: --encoder --format=saved_model,onnx",
        "--format=litert --version=2: --version --format=litert saved_model onnx",
        "--format=saved_model --quantization=dynamic_int8: --quantization --format=saved_model onnx litert",
        "--format=saved_model --max_loss=0.5: --max_loss --format=saved_model onnx litert",
    ],
    "predict": [
        "--shard=0/2 --dask=tcp://host:8786", "--num_shards=2: --num_shards=2 --dask --shard",
    ],
    "serve": [
        "--max_queue=10: --max_queue 10 --max_instances",
        "--max_in_flight_bytes=1000: --max_in_flight_bytes 1000 --max_body_bytes", "--model=/: --model=/ NAME=FOLDER",
        "--model=size=: --model=size= NAME=FOLDER", "--model=a/b=c: --model=a/b=c NAME=FOLDER",
        "--model='exports/a b': exports/a NAME=FOLDER", "--model=a=b --model=a=c: --model a b c",
        "--model=exports/a --model=a=c: --model exports/a c",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("command", "row"), [(name, row) for name, rows in _REJECTED.items() for row in rows])
def test_flags_that_contradict_each_other_are_rejected(command: str, row: str):
    flags, _, names = row.partition(": ")
    expected = names.split() or re.findall(r"--\w+", flags)
    arguments = shlex.split(f"{load(command).examples[0]} {flags}")
    assert_rejected((*expected,), load(command).parse, arguments)


# Other required flags of each command.
NEEDED = {
    "pretrain": ["--do_train", "--input_file=x", "--bert_config_file=c", "--output_dir=o"],
    "finetune": ["--task=mrpc", "--init=i", "--output_dir=o", "--do_train", "--do_eval"],
    "features": ["--init=i", "--input_file=x", "--output_file=y.npy"],
    "make-records": ["--input_file=x", "--output_file=y", "--vocab_file=v"],
}
COMMON = "max_seq_length=64 learning_rate=1e-5 train_batch_size=16 eval_batch_size=4"
# The flags that the original scripts share with ours, each with a value other than the default.
SAME = {
    "pretrain": f"{COMMON} init_checkpoint=i max_predictions_per_seq=10 do_eval=True num_train_steps=5 "
    "num_warmup_steps=2 save_checkpoints_steps=7 iterations_per_loop=3 max_eval_steps=9 use_tpu=True tpu_name=t "
    "tpu_zone=z gcp_project=p num_tpu_cores=8",
    "finetune": f"{COMMON} data_dir=d vocab_file=v do_lower_case=False do_train=False do_eval=False "
    "do_predict=True num_train_epochs=4 warmup_proportion=0.2 use_tpu=True tpu_name=t tpu_zone=z gcp_project=p",
    "features": "layers=-1,-2 max_seq_length=64 batch_size=8 vocab_file=v do_lower_case=False",
    "make-records": "do_lower_case=False do_whole_word_mask=True max_seq_length=64 "
    "max_predictions_per_seq=10 random_seed=1 dupe_factor=3 masked_lm_prob=0.2 short_seq_prob=0.2",
}


# The other flags of the original scripts.
_OTHER = {
    "pretrain": "master",
    "finetune": "task_name init_checkpoint predict_batch_size bert_config_file save_checkpoints_steps "
    "iterations_per_loop train_file predict_file version_2_with_negative verbose_logging master num_tpu_cores",
    "features": "init_checkpoint bert_config_file use_one_hot_embeddings use_tpu tpu_name tpu_zone gcp_project master "
    "num_tpu_cores",
    "make-records": "",
}


@pytest.mark.parametrize("name", NEEDED)
def test_flags_of_the_original_have_the_same_name_or_an_alias_or_name_a_replacement(name: str, tmp_path: pathlib.Path):
    command, needed = load(name), NEEDED[name]
    assert {*command.aliases, *command.refused} == {*_OTHER[name].split()}
    for flag in SAME[name].split():
        assert command.parse([*needed, f"--{flag}"]) != command.parse(needed), flag
    for alias, flag in command.aliases.items():
        others = [each for each in needed if not each.startswith(f"--{flag}=")]
        value = {"task": "MRPC", "eval_batch_size": "7"}.get(flag, "a/bert_model.ckpt")
        expected = command.parse([*others, f"--{flag}={value}"])[0]
        assert getattr(expected, flag) != next(each.default for each in command.flags() if each.name == flag)
        (tmp_path / "flags").write_text(f"--{alias}={value}\n", encoding="utf-8")
        for given in (f"--{alias}={value}", f"--flagfile={tmp_path / 'flags'}"):
            assert command.parse([*others, given])[0] == expected
    known = {flag.name for variant in [None, *command.variants] for flag in command.flags(variant)}
    for flag, replacement in command.refused.items():
        assert_rejected((f"--{flag}", replacement), command.parse, [*needed, f"--{flag}=1"])
        assert set(re.findall(r"--(\w+)", replacement)) <= known, replacement


def test_adam_bias_correction_defaults_to_true_only_in_finetune(monkeypatch: pytest.MonkeyPatch):
    """The scripts with the original's names follow the original unless the flag is set."""
    needed, flag = NEEDED["finetune"], "--adam_bias_correction"
    assert {*RUN_CLASSIFIER.refused} == {*RUN_SQUAD.refused} == {"master"}
    assert not load("pretrain").parse(NEEDED["pretrain"])[0].adam_bias_correction
    assert load("finetune").parse(needed)[0].adam_bias_correction
    found: list[bool] = []
    for command, given in ((RUN_CLASSIFIER, needed), (RUN_SQUAD, needed[1:])):
        script = dataclasses.replace(
            command, main=lambda options, *_: found.append(options.adam_bias_correction), tensorflow=False
        )
        for arguments in ([], [flag]):
            monkeypatch.setattr("sys.argv", [command.script_module, *given, *arguments])
            with pytest.raises(SystemExit):
                script.run_as_script()
    assert found == [False, True] * 2
