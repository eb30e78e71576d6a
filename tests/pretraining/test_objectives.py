"""Pre-training without next sentence prediction, left to right, and on records of other objectives."""

import json
import pathlib

import numpy as np
import pytest

from official_bert.checkpoints.conversion import convert
from official_bert.checkpoints.loading import Loaded, open_model
from official_bert.checkpoints.options import ConversionOptions
from official_bert.errors import UserError
from official_bert.finetuning.initial_model import read_initial_model
from official_bert.inference.fill_mask import fill_mask
from official_bert.modeling.config import BertConfig
from official_bert.pretraining.run import pretrain
from official_bert.runs.training_log import read_log
from tests.pretraining.pretraining_runs import LENGTH, PREDICTIONS, list_weights, pretrainer_for, write_manifest


@pytest.mark.slow
def test_without_next_sentences_the_pooler_stays_as_it_was(
    make_options, record_files, vocab_file, tiny_config, tmp_path, capsys
):
    write_manifest(record_files, vocab_file, sentence_objective="none", masking_rates="100/0/0")
    run = {"num_train_steps": 2, "random_seed": 1, "do_eval": True, "vocab_file": vocab_file}
    with pytest.raises(UserError, match="without sentence labels; pass --nonext_sentence_prediction"):
        pretrain(make_options(tmp_path / "run", **run))
    run["next_sentence_prediction"] = False
    pretrain(make_options(tmp_path / "run", **run))
    assert "next sentence" not in capsys.readouterr().out
    lines = [*read_log(str(tmp_path / "run"), "train"), *read_log(str(tmp_path / "run"), "eval")]
    assert all(line["loss"] == line["masked_lm_loss"] > 0 and "next_sentence_loss" not in line for line in lines)
    assert "next_sentence" not in (tmp_path / "run" / "eval_results.txt").read_text()
    # Initial weights are a function of the seed. Weights without a loss must not change.
    initial = list_weights(pretrainer_for(tiny_config))  # with seed 1
    trained = open_model(str(tmp_path / "run")).weights
    same = {name for name, value in trained.items() if np.array_equal(value, initial[name])}
    assert same == {f"{layer}/{part}" for layer in ("pooler", "next_sentence") for part in ("kernel", "bias")}
    metadata = json.loads((tmp_path / "run" / "run.json").read_text())
    assert metadata["flags"]["next_sentence_prediction"] is False
    assert metadata["data"][0]["source"]["flags"]["masking_rates"] == "100/0/0"
    card = " ".join((tmp_path / "run" / "MODEL_CARD.md").read_text().split())
    assert "pre-trained to predict masked tokens. It has" in card
    assert "Its pooler is not trained" in card
    assert "100/0/0" in card
    run["next_sentence_prediction"] = True
    write_manifest(record_files, vocab_file)
    with pytest.raises(UserError, match="--next_sentence_prediction was False and is True"):
        pretrain(make_options(tmp_path / "run", **run))


@pytest.mark.slow
def test_a_left_to_right_run_keeps_its_attention_in_the_configuration(make_options, vocab_file, tmp_path, capsys):
    folder = tmp_path / "run"
    run = {"num_train_steps": 2, "left_to_right": True, "vocab_file": vocab_file}
    pretrain(make_options(folder, **run))
    log = capsys.readouterr().out
    assert "  next token 4." in log
    assert "masked LM" not in log
    assert json.loads((folder / "bert_config.json").read_text())["causal_attention"] is True
    assert "each token from the tokens before it and next sentences" in (folder / "MODEL_CARD.md").read_text()
    # All tokens are predicted, not only the masked ones, so the loss is close to a uniform guess.
    assert read_log(str(folder), "train")[0]["masked_lm_loss"] == pytest.approx(np.log(78), rel=0.05)
    assert read_initial_model(str(folder)).config.causal_attention
    with pytest.raises(UserError, match="bert_config.json"):
        pretrain(make_options(folder, **{**run, "left_to_right": False}))
    config = BertConfig.from_json_file(str(folder / "bert_config.json"))
    with pytest.raises(UserError, match=r"cannot fill in \[MASK\]"):
        fill_mask(Loaded(None, config, None), "[MASK]")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="is not a masked LM, .* choose --to_format=official_bert"):
        convert(ConversionOptions(from_=str(folder), to=str(tmp_path / "out"), to_format="tf1"))
    assert not (tmp_path / "out").exists()


def test_phases_and_evaluation_of_several_objectives_are_refused(make_options, record_files, vocab_file, tmp_path):
    first, second = record_files
    other = tmp_path / "other" / "second.tfrecord"
    other.parent.mkdir()
    other.write_bytes(pathlib.Path(second).read_bytes())

    def refused(*run: dict[str, object], **flags: object) -> str:
        write_manifest([first], vocab_file)
        write_manifest([str(other)], vocab_file, **flags)
        with pytest.raises(UserError) as caught:
            pretrain(make_options(tmp_path / "run", input_file=[first], **run[0]))
        return str(caught.value)

    phase2 = {
        "phase2_num_train_steps": 1, "phase2_input_file": [str(other)], "phase2_max_seq_length": LENGTH,
        "phase2_max_predictions_per_seq": PREDICTIONS,
    }  # fmt: skip
    held_out = {"eval_input_file": [str(other)], "do_eval": True}
    for run in (phase2, held_out):
        message = refused(run, sentence_objective="none")
        assert "different values of --sentence_objective: next_sentence, none" in message
    assert "different values of --masking_rates: 0/0/100, 80/10/10" in refused(phase2, masking_rates="0/0/100")
    held_out["eval_input_file"] = [first, str(other)]
    assert "different values of --masking_rates: 0/0/100, 80/10/10" in refused(held_out, masking_rates="0/0/100")
