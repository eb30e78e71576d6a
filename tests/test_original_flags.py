"""Flags of the google-research/bert scripts, passed to ours."""

import dataclasses
import pathlib

import pytest

from official_bert.commands import RUN_CLASSIFIER, RUN_SQUAD
from official_bert.errors import UserError
from official_bert_cli import load

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


@pytest.mark.parametrize(("name", "flag"), [(name, flag) for name in SAME for flag in SAME[name].split()])
def test_the_originals_flags_are_ours(name: str, flag: str):
    command = load(name)
    assert command.parse([*NEEDED[name], f"--{flag}"]) != command.parse(NEEDED[name])


@pytest.mark.parametrize(
    ("name", "alias", "flag"), [(name, *row) for name in NEEDED for row in load(name).aliases.items()]
)
def test_a_flag_of_another_name_means_the_same(name: str, alias: str, flag: str, tmp_path: pathlib.Path):
    command = load(name)
    needed = [each for each in NEEDED[name] if not each.startswith(f"--{flag}=")]
    value = {"task": "MRPC", "eval_batch_size": "7"}.get(flag, "a/bert_model.ckpt")
    expected = command.parse([*needed, f"--{flag}={value}"])[0]
    assert getattr(expected, flag) != next(each.default for each in command.flags() if each.name == flag)
    assert command.parse([*needed, f"--{alias}={value}"])[0] == expected
    (tmp_path / "flags").write_text(f"--{alias}={value}\n", encoding="utf-8")
    assert command.parse([*needed, f"--flagfile={tmp_path / 'flags'}"])[0] == expected


def test_adam_is_corrected_in_finetune_alone(monkeypatch: pytest.MonkeyPatch):
    """The scripts with the original's names follow the original unless the flag is set."""
    finetune, flag = load("finetune"), "--adam_bias_correction"
    needed = NEEDED["finetune"]
    assert not load("pretrain").parse(NEEDED["pretrain"])[0].adam_bias_correction
    assert finetune.parse(needed)[0].adam_bias_correction
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


@pytest.mark.parametrize(
    ("name", "flag", "message"), [(name, *row) for name in NEEDED for row in load(name).refused.items()]
)
def test_a_flag_that_is_not_taken_names_what_is(name: str, flag: str, message: str):
    with pytest.raises(UserError) as caught:
        load(name).parse([*NEEDED[name], f"--{flag}=1"])
    assert str(caught.value).startswith(f"--{flag} is not a flag of this command")
    assert str(caught.value).endswith(message)


def test_what_a_refusal_recommends_is_a_flag():
    for command in map(load, NEEDED):
        known = {flag.name for variant in [None, *command.variants] for flag in command.flags(variant)}
        for message in command.refused.values():
            named = {word.removeprefix("--").split("=")[0] for word in message.replace("(", "").split() if "--" in word}
            assert {name.strip(":;,") for name in named} <= known, message
