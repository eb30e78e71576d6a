import dataclasses
import re

import pytest

from official_bert.commands import FINETUNE
from official_bert.finetuning import training
from official_bert.finetuning.options import FinetuningOptions
from official_bert.optimization.choices import AdamOptions
from official_bert.tasks import all_tasks
from official_bert.tasks.options import TASK_OPTIONS, Defaults, SquadOptions, SquadV2Options, TableOptions
from official_bert.utils.flags import locked_options
from tests.make import ROOT, assert_rejected, write_text


def parse(*arguments: str) -> list:
    return FINETUNE.parse(["--init=a", "--output_dir=b", "--do_train", *arguments])


def make_options(**changes: object) -> FinetuningOptions:
    return FinetuningOptions(**{"task": "sst-2", "do_train": True, "init": "i", "output_dir": "o", **changes})


def test_the_guide_lists_the_defaults():
    page = (ROOT / "docs" / "guides" / "finetuning.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `--(\w+)` \| ([\d.e-]+) \|(.*)\|$", page, re.MULTILINE)
    assert [name for name, *_ in rows] == [*(each.name for each in dataclasses.fields(Defaults)), "warmup_proportion"]
    resolved = {task: parse(f"--task={task}")[0] for task in TASK_OPTIONS}
    for name, default, exceptions in rows:
        expected = dict.fromkeys(TASK_OPTIONS, float(default))
        for value, tasks in re.findall(r"([\d.e-]+) with ((?:`\w+`(?: and )?)+)", exceptions):
            expected |= dict.fromkeys(re.findall(r"`(\w+)`", tasks), float(value))
        assert {task: getattr(options, name) for task, options in resolved.items()} == expected, name


def test_each_task_has_its_own_options():
    assert parse("--task=squad", "--doc_stride=64")[1] == SquadOptions(doc_stride=64)
    assert parse("--task=codah", "--learning_rate=1e-3")[0].learning_rate == 1e-3
    assert parse("--task=table", "--train_file=a.csv")[1] == TableOptions(train_file="a.csv")


def test_optimizer_flags_cannot_change_when_a_run_is_resumed():
    assert {field.name for field in dataclasses.fields(AdamOptions)} <= locked_options(FinetuningOptions)


@pytest.mark.parametrize(("task", "flag"), [
    ("swag", "--doc_stride=64"), ("squad", "--null_score_diff_threshold=1"), ("sst-2", "--text_column=words"),
    ("tagging", "--max_query_length=9"), ("table", "--tag_column=xpos"),
])  # fmt: skip
def test_a_flag_of_another_task_is_an_error(task: str, flag: str):
    assert_rejected((f"--task={task}", flag.partition("=")[0]), parse, f"--task={task}", flag)


def test_help_shows_the_task_s_defaults_and_lists_the_tasks():
    text = FINETUNE.help(["--task=squad"])
    for line in ("--max_seq_length=N  (default: 384)", "--train_batch_size=N  (default: 32)", "--n_best_size=N"):
        assert line in text
    assert "--text_column" not in text
    headings = re.findall("^[^ \n].*(?=:$)", text, re.MULTILINE)
    assert headings == ["data", "model", "training", "evaluation", "hardware", "--task=squad", "more examples"]
    assert [task for task in TASK_OPTIONS if task not in FINETUNE.help()] == []


def test_predictions_must_not_overwrite_the_input_table(tmp_path):
    changes = {"task": "table", "output_dir": str(tmp_path), "do_predict": True}
    for flag, name in (("train_file", "dev"), ("eval_file", "test"), ("predict_file", "dev")):
        path = tmp_path / f"predictions_{name}.tsv"
        table = TableOptions(**{"train_file": "a.csv", flag: f"{tmp_path}/./{path.name}"})
        assert_rejected(("--output_dir", path, "input"), make_options, task_options=table, **changes)
    make_options(task_options=TableOptions(train_file="a.csv", predict_file=f"{tmp_path}/other.tsv"), **changes)


def test_options_of_unknown_and_other_tasks_are_refused():
    assert make_options(use_tpu=True, distribution_strategy="tpu").strategy == "tpu"  # both flags select the same
    with pytest.raises(TypeError, match="swag.* GlueOptions.* MultipleChoiceOptions"):
        all_tasks.make_task("swag", TASK_OPTIONS["cola"]())


@pytest.mark.parametrize("task", TASK_OPTIONS)
def test_every_task_is_made_from_its_options(task: str, tmp_path):
    write_text(tmp_path / "train.txt", "a X\n")
    options = TASK_OPTIONS[task](data_dir=str(tmp_path))
    if isinstance(options, TableOptions):
        options = dataclasses.replace(options, train_file=write_text(tmp_path / "rows.csv", "text,label\na,x\nb,y\n"))
    assert all_tasks.make_task(task, options).name == task


@pytest.mark.parametrize(("changes", "task_changes", "digests", "names"), [
    ({}, {}, ("train", ["dev"]), ()),
    ({"learning_rate": 5e-5, "eval_batch_size": 7}, {"data_dir": "elsewhere"}, ("train", ["dev"]), ()),
    ({"learning_rate": 1e-5}, {}, ("train", ["dev"]), ("--learning_rate", 5e-05, 1e-05)),
    ({"dtype": "bfloat16"}, {}, ("train", ["dev"]), ("--dtype", "'float32'", "'bfloat16'")),
    ({}, {"doc_stride": 64}, ("train", ["dev"]), ("--doc_stride", 128, 64)),
    ({}, {"max_query_length": 9}, ("train", ["dev"]), ("--max_query_length", 64, 9)),
    ({}, {}, ("other", ["dev"]), ("training", "vocabulary")),
    ({}, {}, ("train", ["other"]), ("evaluation", "--do_train")),
])  # fmt: skip
def test_resuming_needs_the_same_options_and_data(changes, task_changes, digests, names, tmp_path):
    first = make_options(task="squad", task_options=SquadOptions(), output_dir=str(tmp_path))
    training.write_or_compare_options(first, "any", [])
    training.write_or_compare_options(first, "train", ["dev"])  # nothing has been trained yet
    for name in ("task.json", "bert_config.json"):  # now it has been trained
        write_text(tmp_path / name, "{}")
    options = dataclasses.replace(first, task_options=SquadOptions(**task_changes), **changes)
    if names:
        assert_rejected((tmp_path, *names), training.write_or_compare_options, options, *digests)
    else:
        training.write_or_compare_options(options, *digests)


def test_unset_options_default_to_the_settings_of_the_trained_model():
    task_spec = {"task": "squad_v2", "doc_stride": 64, "n_best_size": 5, "null_score_diff_threshold": -1.5}
    trained = SquadV2Options(n_best_size=7).merge_trained(task_spec)
    assert trained == SquadV2Options(doc_stride=64, n_best_size=7, null_score_diff_threshold=-1.5)
    given = parse("--task=squad_v2", "--doc_stride=128")[0].given_flags  # the default
    expected = dataclasses.replace(trained, doc_stride=128, n_best_size=5)
    assert SquadV2Options().merge_trained(task_spec, given) == expected
