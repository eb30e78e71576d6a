import dataclasses
import pathlib
import re

import pytest

from official_bert.commands import FINETUNE
from official_bert.errors import UserError
from official_bert.finetuning import training
from official_bert.finetuning.options import Options
from official_bert.finetuning.training_config import make_training_config
from official_bert.optimization.choices import AdamOptions
from official_bert.runs.run_file import locked_options
from official_bert.tasks import all_tasks
from official_bert.tasks.options import (
    TASK_OPTIONS,
    Defaults,
    GlueOptions,
    MultipleChoiceOptions,
    SquadOptions,
    SquadV2Options,
    TableOptions,
)
from tests.conftest import ROOT
from tests.make import refusal

NEEDED = ["--init=a", "--output_dir=b", "--do_train"]


def parse(*arguments: str) -> list:
    return FINETUNE.parse([*NEEDED, *arguments])


def test_the_guide_lists_the_defaults():
    page = (ROOT / "docs" / "guides" / "finetuning.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `--(\w+)` \| ([\d.e-]+) \|(.*)\|$", page, re.MULTILINE)
    names = [field.name for field in dataclasses.fields(Defaults)]
    assert [name for name, *_ in rows] == [*names, "warmup_proportion"]
    for name, default, exceptions in rows:
        listed = {}
        for value, tasks in re.findall(r"([\d.e-]+) with ((?:`\w+`(?: and )?)+)", exceptions):
            listed |= dict.fromkeys(re.findall(r"`(\w+)`", tasks), float(value))
        for task in TASK_OPTIONS:
            assert getattr(parse(f"--task={task}")[0].resolved(), name) == listed.pop(task, float(default)), (
                name,
                task,
            )
        assert not listed


def test_each_task_has_its_own_options_and_defaults():
    options, task_options = parse("--task=squad", "--doc_stride=64")
    assert options.settings() == Defaults(32, 5e-5, 3.0, 384)
    assert task_options == SquadOptions(doc_stride=64)
    options, task_options = parse("--task=codah")
    assert dataclasses.replace(options, learning_rate=1e-3).settings() == Defaults(16, 1e-3, 3.0, 128)
    assert task_options == MultipleChoiceOptions()
    assert parse("--task=table", "--train_file=a.csv")[1] == TableOptions(train_file="a.csv")


def test_the_optimizer_s_flags_reach_the_trainer_and_lock_a_run():
    options = parse("--task=sst-2", "--weight_decay=0", "--adam_beta2=0.98", "--max_grad_norm=0.5")[0]
    settings = make_training_config(options, 8).optimizer_settings
    assert (settings["weight_decay_rate"], settings["beta_2"], settings["clip_norm"]) == (0.0, 0.98, 0.5)
    assert settings["adam_bias_correction"]
    assert {field.name for field in dataclasses.fields(AdamOptions)} <= locked_options(Options)


@pytest.mark.parametrize(("task", "flag"), [
    ("swag", "--doc_stride=64"),
    ("codah", "--doc_stride=64"),
    ("squad", "--null_score_diff_threshold=1"),
    ("sst-2", "--text_column=words"),
    ("tagging", "--max_query_length=9"),
    ("table", "--tag_column=xpos"),
])  # fmt: skip
def test_a_flag_of_another_task_is_an_error(task: str, flag: str):
    assert f"--task={task} does not take {flag.split('=')[0]}" in refusal(parse, f"--task={task}", flag)


def test_help_shows_the_task_s_defaults_and_lists_the_tasks():
    text = FINETUNE.help(["--task=squad"])
    for line in ("--max_seq_length=N  (default: 384)", "--train_batch_size=N  (default: 32)", "--n_best_size=N"):
        assert line in text
    assert "--text_column" not in text
    headings = [line for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert headings == ["data:", "model:", "training:", "evaluation:", "hardware:", "--task=squad:", "more examples:"]
    for task in TASK_OPTIONS:
        assert task in FINETUNE.help()


def test_an_unknown_task_is_rejected():
    message = refusal(Options, task="colla", task_options=SquadOptions(), init="a", output_dir="b", do_train=True)
    assert "'colla'; expected one of cola, " in message


def test_a_table_that_predictions_would_be_written_over_is_refused(tmp_path: pathlib.Path):
    for name in ("predictions_dev.tsv", "predictions_test.tsv", "other.tsv"):
        table = TableOptions(train_file="a.csv", predict_file=f"{tmp_path}/./{name}")
        values = {"task": "table", "task_options": table, "init": "a", "output_dir": str(tmp_path), "do_predict": True}
        if name == "other.tsv":
            Options(**values)
        else:
            assert re.search(f"--output_dir would write .*{name}, which is an input", refusal(Options, **values))


def test_a_task_takes_no_other_task_s_options():
    with pytest.raises(TypeError, match="the options of swag are GlueOptions; expected MultipleChoiceOptions"):
        all_tasks.make_task("swag", GlueOptions())


@pytest.mark.parametrize("task", TASK_OPTIONS)
def test_every_task_is_made_from_its_options(task: str, tmp_path: pathlib.Path):
    (tmp_path / "train.txt").write_text("a X\n")
    (tmp_path / "rows.csv").write_text("text,label\na,x\nb,y\n")
    options = TASK_OPTIONS[task](data_dir=str(tmp_path))
    if isinstance(options, TableOptions):
        options = dataclasses.replace(options, train_file=str(tmp_path / "rows.csv"))
    assert all_tasks.make_task(task, options).name == task


@pytest.mark.parametrize(("changes", "task_changes", "message"), [
    ({}, {}, ""),
    ({"learning_rate": 5e-5, "eval_batch_size": 7, "log_steps": 1}, {"data_dir": "elsewhere"}, ""),
    ({"learning_rate": 1e-5}, {}, "--learning_rate was 5e-05 and is 1e-05"),
    ({"dtype": "bfloat16"}, {}, "--dtype was 'float32' and is 'bfloat16'"),
    ({}, {"doc_stride": 64}, "--doc_stride was 128 and is 64"),
    ({}, {"max_query_length": 9}, "--max_query_length was 64 and is 9"),
])  # fmt: skip
def test_a_run_goes_on_with_the_same_options(changes: dict, task_changes: dict, message: str, tmp_path: pathlib.Path):
    first = Options(task="squad", task_options=SquadOptions(), init="a", output_dir=str(tmp_path), do_train=True)
    training.check_resume_compatibility(first.resolved(), "d", [])
    for name in ("task.json", "bert_config.json"):
        (tmp_path / name).write_text("{}")
    options = dataclasses.replace(first, task_options=SquadOptions(**task_changes), **changes).resolved()
    if message:
        assert message in refusal(training.check_resume_compatibility, options, "d", [])
    else:
        training.check_resume_compatibility(options, "d", [])
        assert "the training data" in refusal(training.check_resume_compatibility, options, "e", [])


def test_what_a_model_was_trained_with_holds_where_the_user_says_nothing():
    task_spec = {"task": "squad_v2", "doc_stride": 64, "n_best_size": 5, "null_score_diff_threshold": -1.5}
    trained = SquadV2Options(n_best_size=7).merge_trained(task_spec)
    assert trained == SquadV2Options(doc_stride=64, n_best_size=7, null_score_diff_threshold=-1.5)


def test_epochs_and_batches_make_the_number_of_steps():
    options = Options(
        task="sst-2", do_train=True, init="i", output_dir="o", train_batch_size=4, num_train_epochs=2.5, eval_steps=2
    )
    config = make_training_config(options, rows=9)
    assert (config.steps_per_epoch, config.num_steps, config.eval_steps) == (3, 7, 2)
    assert (config.learning_rate, config.max_seq_length) == (5e-5, 128)  # the task's own
    assert make_training_config(dataclasses.replace(options, eval_steps=None), rows=9).eval_steps == 3


def test_losses_are_logged_in_even_distances_up_to_each_evaluation():
    def steps(epochs: float, **changes: int) -> list[int]:
        options = Options(
            task="sst-2", do_train=True, output_dir="o", train_batch_size=1, num_train_epochs=epochs, **changes
        )
        config = make_training_config(options, rows=150)
        numbers = range(1, config.num_steps + 1)
        return [step for step in numbers if training._is_logged(step, changes.get("log_steps"), config)]

    assert steps(1)[:3] == [7, 14, 21]
    assert len(steps(1)) == 22
    assert steps(20)[:4] == [50, 100, 150, 200]
    assert steps(20, eval_steps=60)[:4] == [30, 60, 90, 120]
    assert steps(1, log_steps=40, eval_steps=60) == [40, 80, 120]


def test_training_stops_after_so_many_evaluations_that_are_no_better():
    assert not training.has_stopped_improving([0.1, 0.3], 1)
    assert training.has_stopped_improving([0.1, 0.3, 0.2], 1)
    assert not training.has_stopped_improving([0.1, 0.3, 0.2], 2)
    assert training.has_stopped_improving([0.1, 0.3, 0.2, 0.3], 2)  # an equal score does not count
    assert not training.has_stopped_improving([0.5, 0.4, 0.3], 0)
    assert not training.has_stopped_improving([], 1)


def test_a_run_goes_on_with_the_same_data_alone(tmp_path: pathlib.Path):
    options = Options(task="sst-2", do_train=True, init="i", output_dir=str(tmp_path)).resolved()
    training.check_resume_compatibility(options, "trained on", ["scored on"])
    training.check_resume_compatibility(options, "trained on", ["another"])  # nothing has been trained yet
    for name in ("task.json", "bert_config.json"):  # now it has been trained
        (tmp_path / name).write_text("{}")
    training.check_resume_compatibility(options, "trained on", ["another"])
    with pytest.raises(UserError, match="the training data or the vocabulary differ"):
        training.check_resume_compatibility(options, "another", ["another"])
    with pytest.raises(UserError, match="the evaluation data.* differ.* --do_train"):
        training.check_resume_compatibility(options, "trained on", ["scored on"])
