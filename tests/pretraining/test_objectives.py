"""Pre-training without next sentence prediction, left to right, and on records of other objectives."""

import json
import pathlib
import shutil

import numpy as np
import pytest

from official_bert.checkpoints.conversion import convert
from official_bert.checkpoints.loading import ModelAndTokenizer
from official_bert.checkpoints.options import ConversionOptions
from official_bert.finetuning.initial_model import read_initial_model
from official_bert.inference.fill_mask import fill_mask
from official_bert.pretraining.run import pretrain
from official_bert.runs.training_log import read_log
from tests.make import WORDS, assert_rejected, write_vocab
from tests.pretraining import pretraining_runs as runs


@pytest.mark.slow
def test_disabled_next_sentence_prediction_is_never_mentioned(make_options, record_files, vocab_file, tmp_path, capsys):
    folder, changes = tmp_path / "run", {"num_train_steps": 2, "do_eval": True, "vocab_file": vocab_file}
    runs.write_manifest(record_files, vocab_file, sentence_objective="none", masking_rates="100/0/0")
    assert_rejected("--nonext_sentence_prediction", pretrain, make_options(**changes))
    pretrain(make_options(next_sentence_prediction=False, **changes))
    assert "next sentence" not in capsys.readouterr().out
    for line in [*read_log(str(folder), "train"), *read_log(str(folder), "eval")]:
        assert line["loss"] == line["masked_lm_loss"] > 0
    for name in ("train.jsonl", "eval.jsonl", "eval_results.txt"):
        assert "next_sentence" not in (folder / name).read_text()
    metadata = json.loads((folder / "run.json").read_text())
    assert metadata["flags"]["next_sentence_prediction"] is False
    assert metadata["data"][0]["source"]["flags"]["masking_rates"] == "100/0/0"
    card = " ".join((folder / "MODEL_CARD.md").read_text().split())
    assert all(each in card for each in ("to predict masked tokens. It has", "Its pooler is not trained", "100/0/0"))
    runs.write_manifest(record_files, vocab_file)
    assert_rejected(("--next_sentence_prediction", False, True), pretrain, make_options(**changes))


@pytest.mark.slow
def test_left_to_right_is_stored_in_the_configuration(make_options, vocab_file, tmp_path, capsys):
    folder, changes = tmp_path / "run", {"num_train_steps": 2, "vocab_file": vocab_file}
    pretrain(make_options(left_to_right=True, **changes))
    log = capsys.readouterr().out
    assert "  next token 4." in log
    assert "masked LM" not in log
    assert "each token from the tokens before it and next sentences" in (folder / "MODEL_CARD.md").read_text()
    # All tokens are predicted, not only the masked ones, so the loss is close to a uniform guess.
    assert runs.log_values(folder, "masked_lm_loss")[0] == pytest.approx(np.log(78), rel=0.05)
    config = read_initial_model(str(folder)).config
    assert config.causal_attention
    assert_rejected(folder / "bert_config.json", pretrain, make_options(**changes))
    assert_rejected("[MASK]", fill_mask, ModelAndTokenizer(None, config, None), "[MASK]")
    conversion = ConversionOptions(from_=str(folder), to=str(tmp_path / "out"), to_format="tf1")
    assert_rejected((folder, "--to_format=official_bert"), convert, conversion)
    assert not (tmp_path / "out").exists()


@pytest.fixture
def two_files(record_files, tmp_path):
    """Two files of records in different folders, which may have different manifests."""
    (tmp_path / "other").mkdir()
    return record_files[0], str(shutil.move(record_files[1], tmp_path / "other"))


def test_records_of_several_kinds_or_of_other_sizes_are_refused(set_up_run, two_files, vocab_file, tmp_path):
    first, other = two_files
    unmasked = {"masking": "dynamic", "masked_lm_prob": 0.15, "do_whole_word_mask": False}
    both = {"input_file": [first, other], "vocab_file": vocab_file}
    runs.write_manifest([first], vocab_file, **unmasked)
    assert_rejected(("--input_file", "masks"), set_up_run, **both)
    for flags, other_flags, names in (
        (unmasked, {}, ("--input_file", "masks")),
        (unmasked, {**unmasked, "masked_lm_prob": 0.25}, ("masked_lm_prob", 0.15, 0.25)),
        ({"do_lower_case": True}, {"do_lower_case": False}, ("--input_file", "lower-cased")),
        ({}, {"max_predictions_per_seq": 4}, ("--max_predictions_per_seq", 3, 4)),
    ):
        runs.write_manifest([first], vocab_file, **flags)
        runs.write_manifest([other], vocab_file, **other_flags)
        assert_rejected(names, set_up_run, **both)
    runs.write_manifest([first], vocab_file, **unmasked)
    assert_rejected("--vocab_file", set_up_run, input_file=[first])
    runs.write_manifest([first], write_vocab(tmp_path / "other.txt", WORDS[:-1]))
    assert_rejected((vocab_file, "--input_file"), set_up_run, input_file=[first], vocab_file=vocab_file)


def test_a_missing_file_of_a_manifest_is_refused_with_a_pattern(set_up_run, record_files, vocab_file, tmp_path):
    runs.write_manifest(record_files, vocab_file)
    pathlib.Path(record_files[1]).unlink()
    names = (record_files[1], "--input_file", tmp_path / "records.manifest.json")
    assert_rejected(names, set_up_run, input_file=[f"{tmp_path}/*.tfrecord"])


def test_several_objectives_or_vocabularies_are_refused(set_up_run, two_files, vocab_file, tmp_path):
    first, other = two_files
    runs.write_manifest([first], vocab_file)
    phase2 = {"phase2_num_train_steps": 1, "phase2_input_file": [other], **runs.PHASE2_SIZES}
    both, held_out = ({"eval_input_file": paths, "do_eval": True} for paths in ([first, other], [other]))
    for refused, flag, values in (
        ((phase2, both, held_out), "sentence_objective", ("next_sentence", "none")),
        ((phase2, both), "masking_rates", ("80/10/10", "0/0/100")),
    ):
        runs.write_manifest([other], vocab_file, **{flag: values[1]})
        for changes in refused:
            assert_rejected((f"--{flag}", *values), set_up_run, input_file=[first], **changes)
    runs.write_manifest([other], write_vocab(tmp_path / "other.txt", [*WORDS[:-2], WORDS[-1], WORDS[-2]]))
    general = {"eval_input_file": [first], "general_eval_file": [other], "do_eval": True}
    for changes in ({"input_file": [first, other]}, phase2, held_out, general):
        assert_rejected("--vocab_file", set_up_run, **{"input_file": [first], **changes})
