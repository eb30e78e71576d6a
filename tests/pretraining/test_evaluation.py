"""Evaluation during and after training, and the best weights that are kept."""

import pathlib

import pytest
import tensorflow as tf

from official_bert.modeling.config import BertConfig
from official_bert.pretraining.evaluation import BestWeights, evaluate
from official_bert.pretraining.record_files import RecordFiles
from official_bert.pretraining.run import pretrain
from official_bert.runs.training_log import read_log
from tests.pretraining.pretraining_runs import LENGTH, PREDICTIONS, pretrainer_for, write_manifest


def found_records(paths: list[str], config: BertConfig) -> RecordFiles:
    return RecordFiles.find(
        paths, "input_file", max_seq_length=LENGTH, max_predictions_per_seq=PREDICTIONS, config=config, vocab_file=None
    )


def test_best_weights_are_judged_by_what_was_saved_with_them(tiny_config: BertConfig, tmp_path: pathlib.Path):
    model = pretrainer_for(tiny_config).model

    def best(data: int) -> BestWeights:
        return BestWeights(str(tmp_path / "best"), model, {}, data)

    assert best(1).keep_if_better(5, 1.0)
    assert not best(1).keep_if_better(10, 2.0)
    assert not best(1).keep_if_better(10, 1.0), "the earlier one of equal losses is kept"
    assert not best(1).keep_if_better(10, float("nan"))
    assert best(2).keep_if_better(10, 2.0), "losses on other records say nothing"
    assert best(2).keep_if_better(8, 3.0), "step 10 was taken by a run that went on from before"
    assert [path.name for path in (tmp_path / "best").glob("*.index")] == ["ckpt-8.index"]


def test_a_stop_is_answered_between_two_batches_of_an_evaluation(tiny_config: BertConfig, record_files):
    found = found_records(record_files, tiny_config)
    pretrainer = pretrainer_for(tiny_config)
    asked = iter([False, False, True])
    assert evaluate(pretrainer, found, 8, 100, lambda: next(asked)) is None
    assert next(asked, None) is None
    assert evaluate(pretrainer, found, 8, 2, lambda: False) is not None


@pytest.mark.slow
def test_evaluation_on_the_way_keeps_the_best_weights(make_options, record_files, tmp_path):
    folder = tmp_path / "run"
    changes = {"eval_input_file": record_files[1:], "eval_steps": 5, "do_eval": True, "learning_rate": 0.3}
    pretrain(make_options(folder, input_file=record_files[:1], **changes))
    lines = read_log(str(folder), "eval")
    assert [line["step"] for line in lines] == [5, 10, 15, 20, 20]
    best = min(lines, key=lambda line: line["loss"])
    kept = tf.train.latest_checkpoint(str(folder / "best"))
    assert kept == f"{folder}/best/ckpt-{best['step']}"
    # The kept weights give the score in the log.
    options = make_options(
        tmp_path / "again", input_file=record_files[1:], do_train=False, do_eval=True, init_checkpoint=kept
    )
    pretrain(options)
    assert read_log(options.output_dir, "eval")[0]["loss"] == pytest.approx(best["loss"], rel=1e-5)


@pytest.mark.slow
def test_a_run_from_weights_is_evaluated_before_the_first_step_and_on_general_text_too(
    make_options, record_files, shared_run, tmp_path, capsys
):
    changes = {
        "init_checkpoint": str(shared_run), "num_train_steps": 2, "eval_input_file": record_files[:1], "eval_steps": 2,
        "general_eval_file": record_files[1:], "do_eval": True,
    }  # fmt: skip
    options = make_options(tmp_path / "run", **changes)
    pretrain(options)
    logs = {kind: read_log(options.output_dir, kind) for kind in ("eval", "general")}
    for lines in logs.values():
        assert [line["step"] for line in lines] == [0, 2, 2]
    assert logs["eval"][0]["loss"] != logs["general"][0]["loss"]
    assert "evaluation at step 0 on general text: masked LM loss" in capsys.readouterr().out
    results = (tmp_path / "run" / "eval_results.txt").read_text()
    assert f"general_masked_lm_loss = {logs['general'][-1]['masked_lm_loss']}" in results
    assert "general text, step 2" in (tmp_path / "run" / "MODEL_CARD.md").read_text()
    pretrain(options)  # evaluates once more at the end, but not again before the first step
    assert [line["step"] for line in read_log(options.output_dir, "general")] == [0, 2, 2, 2]


@pytest.mark.slow
def test_evaluation_ends_after_as_many_batches_as_asked_for(make_options, record_files, vocab_file, tmp_path, capsys):
    options = make_options(tmp_path / "run", num_train_steps=1, do_eval=True, max_eval_steps=3, eval_batch_size=4)
    pretrain(options)
    assert "evaluated 12 records, " in capsys.readouterr().out
    write_manifest(record_files, vocab_file)
    pretrain(options)
    expected = (
        f"evaluated the first 12 of {50 * len(record_files)} records (--max_eval_steps=3 x --eval_batch_size=4), "
    )
    assert expected in capsys.readouterr().out
