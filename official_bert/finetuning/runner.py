"""Runs fine-tuning, from --init to a folder with a model, scores and predictions."""

import dataclasses
import os
import shlex
from typing import Any

import tensorflow as tf

from official_bert.checkpoints.checkpoint import TASK_HEADS, LoadedModel, LoadOverrides
from official_bert.checkpoints.formats import finetuned
from official_bert.errors import UserError
from official_bert.finetuning.data import RunData
from official_bert.finetuning.evaluation import Scores, evaluate_and_predict, get_decision_options
from official_bert.finetuning.initial_model import (
    describe_initial_model,
    list_origin_notes,
    read_initial_model,
    select_head_weights,
)
from official_bert.finetuning.options import FinetuningOptions
from official_bert.finetuning.training import OPTIONS_FILE, train
from official_bert.optimization.precision import resolve_dtype
from official_bert.runs import run_file
from official_bert.runs.training_run import open_training_run
from official_bert.tasks.all_tasks import make_task
from official_bert.tasks.options import TableOptions
from official_bert.tasks.task import Task
from official_bert.utils.bad_rows import BadRows

# Options that a model must be evaluated with as it was trained, because exports use the values in task.json.
_TRAINED_SETTINGS = ("max_seq_length", "doc_stride", "max_query_length", "head", "lstm_units", "pooling", "normalize")


def run(options: FinetuningOptions, bert_config_file: str | None = None) -> Scores:
    """Runs fine-tuning: trains, evaluates and predicts, as the options specify. Returns the scores by split and name.

    The output folder contains the best model (see finetuned), its scores (results.json), predictions, the log
    (train.jsonl, eval.jsonl, TensorBoard events) and the state that a stopped run needs to resume.

    Args:
        options: The flags of finetune.
        bert_config_file: Path of the model's configuration, if --init lacks it.

    Raises:
        UserError: If an option, a file or a row is invalid, or the folder contains another run.
        SystemExit: If SIGTERM or SIGINT stopped the training (after it saved its state). The exit code is 128 plus the
            number of the signal.
    """
    with open_training_run(options) as strategy:
        return _run_with_strategy(options, strategy, bert_config_file)


def _run_with_strategy(
    options: FinetuningOptions, strategy: tf.distribute.Strategy, bert_config_file: str | None
) -> Scores:
    task_spec = None if options.do_train else finetuned.read_task_spec(options.output_dir)
    init = options.output_dir if task_spec else options.init
    if init is None:
        here = "" if options.do_train else f"; {options.output_dir} contains no fine-tuned model either"
        raise UserError(f"--init is missing; pass a checkpoint, a fine-tuned model or a bert_config.json{here}")
    if not options.do_train and (task_spec := task_spec or finetuned.read_task_spec(init)):
        options = _restore_settings(options, task_spec, init)
    task = make_run_task(options)
    _check_splits(options, task)
    overrides = LoadOverrides(
        bert_config_file, options.vocab_file, do_lower_case=options.do_lower_case, strip_accents=options.strip_accents
    )
    initial_model = read_initial_model(init, overrides)
    options = _resolve_dtype(options, initial_model, strategy)
    has_head = select_head_weights(initial_model, task.spec) is not None
    print(describe_initial_model(initial_model, init, has_head))
    trained_from = run_file.read_run_file(os.path.join(init, OPTIONS_FILE)).get("init") if task_spec else None
    if options.init not in (None, init, trained_from):
        print(f"note: --init={options.init} is not used, because {init} contains a fine-tuned model")
    if initial_model.task_spec is None and (unused := {*TASK_HEADS} & {*initial_model.parts}):
        print(
            f"note: the checkpoint's {', '.join(sorted(unused))} is not used; to keep it, pass a model that "
            "official-bert convert wrote"
        )
    for note in (*initial_model.notes, *list_origin_notes(initial_model, has_head), *task.notes()):
        print(f"note: {note}")
    initial_model.config.check_length(options.max_seq_length)
    data = RunData(
        task=task,
        tokenizer=initial_model.tokenizer,
        max_seq_length=options.max_seq_length,
        bad_rows=BadRows(options.on_bad_row),
    )
    if options.do_train and options.do_predict:  # report a missing test file before training
        for split in task.test_splits:
            data.read(split)
    predictions = train(options, data, initial_model, strategy) if options.do_train else {}
    scores: Scores = {}
    if options.do_eval or options.do_predict:
        folder = next((each for each in (options.output_dir, init) if finetuned.read_task_spec(each)), None)
        if folder is None:
            raise UserError(
                f"neither {options.output_dir} nor --init contains a fine-tuned model; pass --do_train to train one, "
                "or convert one of another format with official-bert convert"
            )
        scores = evaluate_and_predict(options, data, folder, strategy, predictions)
    for line in data.bad_rows.summary():
        print(line)
    if options.do_train:
        folder = shlex.quote(options.output_dir)
        name = shlex.quote(os.path.basename(os.path.abspath(options.output_dir)))
        print(
            f"export a model that accepts text: official-bert export --model_dir={folder} --export_dir=exports/{name}"
        )
    return scores


def _resolve_dtype(
    options: FinetuningOptions, initial_model: LoadedModel, strategy: tf.distribute.Strategy
) -> FinetuningOptions:
    """Returns the options with --dtype=auto replaced by the precision to use. A resumed run keeps its precision."""
    earlier = run_file.read_run_file(os.path.join(options.output_dir, OPTIONS_FILE)).get("dtype")
    tokens = options.train_batch_size * options.max_seq_length // strategy.num_replicas_in_sync
    dtype = resolve_dtype(options.dtype, earlier, strategy, initial_model.config, tokens)
    return dataclasses.replace(options, dtype=dtype)


def make_run_task(options: FinetuningOptions) -> Task:
    """Returns the task of a run.

    It has the classes of the teacher, or of the model that is only evaluated, if there is one.

    Raises:
        UserError: If the task has no score named --metric_for_best_model, or an option is invalid.
    """
    folders = [options.teacher] if options.teacher else [] if options.do_train else [options.output_dir, options.init]
    task_spec = next(filter(None, (finetuned.read_task_spec(each) for each in folders if each is not None)), None)
    task_options, labels = options.task_options, None
    if task_spec is not None:
        labels = task_spec["labels"]
        if isinstance(task_options, TableOptions):
            task_options = dataclasses.replace(
                task_options, label_values=task_spec.get("table", {}).get("label_values", ())
            )
    learns_from_teacher_alone = bool(options.teacher) and options.teacher_weight == 1.0
    task = make_task(options.task, task_options, labels, needs_labels=not learns_from_teacher_alone)
    if options.do_train and options.early_stopping:
        task.require_evaluation_data("--early_stopping")
    if name := options.metric_for_best_model:
        task.require_evaluation_data("--metric_for_best_model")
        if name not in task.score_names:
            valid = ", ".join(task.score_names)
            raise UserError(f"--metric_for_best_model is {name}; {task.name} has the scores {valid}")
        task.best_metric = name
    return task


def _restore_settings(options: FinetuningOptions, task_spec: dict[str, Any], folder: str) -> FinetuningOptions:
    """Returns the options with settings from a fine-tuned model's task.json where the user set none.

    Raises:
        UserError: If the model in the folder was trained with another value of one of `_TRAINED_SETTINGS`.
    """
    length, flags = options.max_seq_length, options.given_flags
    if "max_seq_length" not in flags and length == options.task_options.defaults.max_seq_length:
        length = task_spec["max_seq_length"]
    task_options = options.task_options.merge_trained(task_spec, flags)
    options = dataclasses.replace(options, max_seq_length=length, task_options=task_options)
    before = {**dataclasses.asdict(type(task_options)()), **task_spec}
    now = {name: value for name, value in options.as_dict().items() if name in _TRAINED_SETTINGS}
    remedy = "Remove these flags to evaluate the model as it is, or train with them (--do_train, other --output_dir)."
    run_file.refuse_changes(folder, run_file.find_changes(before, now), remedy)
    return options


def _check_splits(options: FinetuningOptions, task: Task) -> None:
    """Raises a UserError if data for a requested evaluation, prediction or decision are missing.

    A requested decision (calibration, thresholds, minimum confidence) must also suit the kind of task.
    """
    task.spec.check_decision_options(get_decision_options(options))
    if options.do_eval:
        task.require_evaluation_data("--do_eval")
    if options.do_predict and not task.test_splits:
        raise UserError(
            f"--do_predict: {task.name} has no test data; pass --predict_file, or add the test part to --data_dir"
        )
