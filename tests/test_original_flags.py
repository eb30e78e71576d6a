"""Flags of the google-research/bert scripts, passed to ours."""

import dataclasses
import pathlib
import re

import pytest

from official_bert.commands import RUN_CLASSIFIER, RUN_SQUAD
from official_bert_cli import load
from tests.make import assert_rejected

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


@pytest.mark.parametrize("name", NEEDED)
def test_flags_of_the_original_have_the_same_name_or_an_alias_or_name_a_replacement(name: str, tmp_path: pathlib.Path):
    command, needed = load(name), NEEDED[name]
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
