"""Fine-tuning: a run from --init to scores, predictions and a model in a folder."""

import dataclasses
import json
import os
from typing import Any

import numpy as np
import tensorflow as tf

from official_bert import checkpoints, files, finetuned, task_models
from official_bert.errors import UserError
from official_bert.fast_tokenization import FastTokenizer
from official_bert.finetuning_options import DTYPES, TFDS, Options
from official_bert.finetuning_report import write_report
from official_bert.progress import Progress
from official_bert.stop_request import StopRequest
from official_bert.tasks.all_tasks import find_task
from official_bert.tasks.bad_rows import BadRows
from official_bert.tasks.distillation import DistillationLoss, with_teacher
from official_bert.tasks.feature_cache import digest, features_of
from official_bert.tasks.starting import Start, read_start
from official_bert.tasks.task import LABELS, Array, Features, Task
from official_bert.tasks.trainer import Plan, Trainer, predict
from official_bert.training_log import EVAL, TRAIN, TrainingLog, read_log

OPTIONS_FILE, RESULTS_FILE = "finetuning_options.json", "results.json"
_STATE_FOLDER, _CACHE_FOLDER = "checkpoints", "features"
_BALANCED = "balanced"

Scores = dict[str, dict[str, float]]  # by split and name


@dataclasses.dataclass(frozen=True)
class _Data:
    """Where a run's examples and features come from."""

    task: Task
    options: Options
    tokenizer: FastTokenizer
    max_seq_length: int
    bad_rows: BadRows
    _examples: dict[str, list[Any]] = dataclasses.field(default_factory=dict)  # by split

    def read(self, split: str) -> list[Any]:
        if split not in self._examples:
            self._examples[split] = self._read(split)
        return self._examples[split]

    def _read(self, split: str) -> list[Any]:
        if self.options.source == TFDS:
            if self.task.read_tfds is None:
                raise UserError(f"--source=tfds has no {self.task.name}; give its files as --data_dir")
            return self.task.read_tfds(self.options.data_dir, split, self.bad_rows)
        return self.task.read(self.options.data_dir or "", split, self.bad_rows)

    def features(self, examples: list[Any]) -> Features:
        folder = self.options.cache_dir or os.path.join(self.options.output_dir, _CACHE_FOLDER)
        return features_of(self.task, examples, self.tokenizer, self.max_seq_length, folder)


def run(options: Options) -> Scores:
    """Trains, evaluates and predicts as the options say; returns the scores of each evaluation split.

    The output folder holds the best model (see finetuned), its scores (results.json), predictions, the log
    (train.jsonl, eval.jsonl, TensorBoard events) and, while training is not done, what it needs to go on.

    Raises:
        UserError: an option, a file or a row is wrong, or the folder holds another run.
        SystemExit: SIGTERM or Ctrl-C came in training, which is saved; the code is 128 and the signal's number.
    """
    options.check()
    trained = finetuned.is_finetuned(options.output_dir)
    init = options.init if options.do_train or not trained else options.output_dir
    if not options.do_train and finetuned.is_finetuned(init):
        options = _as_trained(options, finetuned.load_description(init))
    task = find_task(options)
    _check_parts(options, task)
    start = read_start(init, options.vocab_file, options.do_lower_case)
    for note in start.notes:
        print(f"note: {note}")
    max_seq_length = options.max_seq_length or task.defaults.max_seq_length
    if max_seq_length > start.config.max_position_embeddings:
        raise UserError(
            f"max_seq_length is {max_seq_length}; the model reads {start.config.max_position_embeddings} tokens at most"
        )
    results: Scores = {}
    with start.tokenizer() as tokenizer:
        data = _Data(task, options, tokenizer, max_seq_length, BadRows(options.on_bad_row))
        if options.do_train:
            _train(data, start)
        if options.do_eval or options.do_predict:
            results = _evaluate_and_predict(data, start)
    for line in data.bad_rows.summary():
        print(line)
    return results


def _as_trained(options: Options, description: dict[str, Any]) -> Options:
    """The options with what task.json says of lengths and windows, where they have but defaults."""
    fields = {field.name: field.default for field in dataclasses.fields(options)}
    told = {
        name: value
        for name, value in description.items()
        if name in fields and name != "task" and getattr(options, name) == fields[name]
    }
    return dataclasses.replace(options, **told)


def _check_parts(options: Options, task: Task) -> None:
    """Raises a UserError if something is asked for that the task has no data for."""
    if options.do_eval and not (task.eval_splits or options.do_train):
        raise UserError(f"--do_eval: {task.name} has nothing to evaluate on; a table needs --eval_file")
    if options.do_predict and not task.test_splits:
        raise UserError(
            f"--do_predict: {task.name} has nothing to predict; a table needs --predict_file, and labelled test parts "
            "are scored by --do_eval"
        )


def _train(data: _Data, start: Start) -> None:
    task, options = data.task, data.options
    examples = data.read(task.train_split)
    features = data.features(examples)
    weights = _row_weights(options.class_weights, task, features)
    loss_function = None
    if options.teacher:
        print(f"the teacher in {options.teacher} answers {len(examples):,} examples", flush=True)
        features = with_teacher(
            task, examples, features, options.teacher, options.teacher_weight, options.eval_batch_size
        )
        loss_function = DistillationLoss(task.kind, options.temperature, options.teacher_weight)
    if not features.targets:
        raise UserError(f"the examples to train {task.name} on have no labels")
    held_out = {split: data.read(split) for split in task.eval_splits}
    plan = _plan(data, len(features))
    trainer = Trainer(task, start, plan, _head_of(start, task), loss_function)
    variables = {"model": trainer.model.variables, "optimizer": trainer.optimizer.variables}
    state = checkpoints.RunCheckpoints(os.path.join(options.output_dir, _STATE_FOLDER), variables, keep=1)
    settings = {**options.decisive(), "data": digest(task, examples, data.tokenizer, data.max_seq_length)}
    _check_same_run(options.output_dir, settings)
    step = 0
    if restored := state.restore_latest():
        step = checkpoints.step_of(restored)
        print(f"resuming at step {step:,}")
    training = _Training(data, start, trainer, plan, held_out, TrainingLog(options.output_dir, step))
    print(
        f"fine-tuning {task.name}: {len(examples):,} examples, {plan.num_steps:,} steps of "
        f"{plan.train_batch_size} rows of up to {data.max_seq_length} tokens, rate {plan.learning_rate:g}, "
        f"seed {plan.random_seed}"
    )
    resumed_at, rows = step, plan.train_batch_size
    progress = Progress(f"fine-tuning {task.name}", (plan.num_steps - step) * rows, "rows")
    with StopRequest() as stop:

        def on_step(done: int, loss: float) -> bool:
            progress.update((done - resumed_at) * rows)
            if done % options.log_steps == 0:
                training.log_loss(first, done, loss)
            return stop.signal is not None

        while step < plan.num_steps and not training.is_over():
            first, last = step, min(step - step % plan.eval_steps + plan.eval_steps, plan.num_steps)
            step, loss = trainer.train(features, first, last, on_step, weights)
            if not np.isfinite(loss):
                raise UserError(
                    f"the loss is not finite by step {step:,}; lower --learning_rate (now {plan.learning_rate:g})"
                )
            if step == last:
                training.log_loss(first, step, loss)
                training.evaluate(step, loss)
            state.save(step)
            if stop.signal is not None:
                print(f"stopped at step {step:,}; the same command goes on from there")
                raise SystemExit(128 + stop.signal)
    if step < plan.num_steps:
        print(f"stopped early: {options.early_stopping} evaluations without a better {_deciding(task)}")


class _Training:
    """A model in training, its evaluations, and the best of it so far."""

    def __init__(
        self, data: _Data, start: Start, trainer: Trainer, plan: Plan, held_out: dict[str, list[Any]], log: TrainingLog
    ) -> None:
        self._data, self._start, self._trainer, self._plan, self._log = data, start, trainer, plan, log
        self._held_out = {split: (examples, data.features(examples)) for split, examples in held_out.items()}
        lines = read_log(data.options.output_dir, EVAL) if held_out else []
        self._scores = [line[_deciding(data.task)] for line in lines]
        self._logged = (0, 0.0)  # the last step in the log, and the sum of losses then

    def log_loss(self, first: int, done: int, mean: float) -> None:
        """Logs the mean loss since the line before, given that of the steps from `first` up to `done`."""
        total = mean * (done - first)
        step, before = self._logged if self._logged[0] > first else (first, 0.0)
        if done > step:
            values = {"loss": (total - before) / (done - step), "learning_rate": self._trainer.learning_rate()}
            self._log.write(TRAIN, done, values)
        self._logged = (done, total)

    def is_over(self) -> bool:
        """Whether training is to stop, since its evaluations get no better."""
        patience, scores = self._data.options.early_stopping, self._scores
        return bool(patience and scores) and len(scores) - 1 - int(np.argmax(scores)) >= patience

    def evaluate(self, step: int, loss: float) -> None:
        """Logs the scores, prints them and the loss of late, and writes the model if it is the best so far."""
        task, trainer, plan = self._data.task, self._trainer, self._plan
        line = f"step {step:,} of {plan.num_steps:,} (epoch {step / plan.steps_per_epoch:.2f}): loss {loss:.4f}"
        if self._held_out:
            found: dict[str, float] = {}
            for split, (examples, features) in self._held_out.items():
                outputs = trainer.predict(features, self._data.options.eval_batch_size)
                scores = task.metrics(task.decode(outputs, features, examples), examples)
                found |= {f"{split}/{name}": value for name, value in scores.items()}
            self._log.write(EVAL, step, found)
            self._scores.append(found[_deciding(task)])
            line += "".join(f", {name} {value:.4f}" for name, value in found.items())
        if not self._scores or self._scores[-1] > max(self._scores[:-1], default=-np.inf):
            finetuned.save(
                self._data.options.output_dir,
                trainer.model,
                task.description(self._data.max_seq_length),
                self._start.config,
                self._start.vocab,
                self._start.do_lower_case,
            )
            line += "; saved"
        print(line, flush=True)


def _plan(data: _Data, rows: int) -> Plan:
    options, defaults = data.options, data.task.defaults
    batch_size = options.train_batch_size or defaults.train_batch_size
    per_epoch = -(-rows // batch_size)
    num_steps = max(1, int(per_epoch * (options.num_train_epochs or defaults.num_train_epochs)))
    return Plan(
        train_batch_size=batch_size,
        learning_rate=options.learning_rate or defaults.learning_rate,
        num_steps=num_steps,
        steps_per_epoch=per_epoch,
        warmup_proportion=options.warmup_proportion,
        eval_steps=options.eval_steps or per_epoch,
        max_seq_length=data.max_seq_length,
        random_seed=options.random_seed,
        freeze=tuple(options.freeze),
        layer_decay=options.layer_decay,
        dtype=DTYPES[options.dtype],
        strategy=options.distribution_strategy,
    )


def _deciding(task: Task) -> str:
    """The score that says which model is best, as the log has it."""
    return f"{task.eval_splits[0]}/{task.best_metric}"


def _check_same_run(folder: str, settings: dict[str, Any]) -> None:
    """Raises a UserError if the folder holds something that was learnt with other settings; else notes them there."""
    path = os.path.join(folder, OPTIONS_FILE)
    if finetuned.is_finetuned(folder) or checkpoints.newest_step(os.path.join(folder, _STATE_FOLDER)):
        if not files.exists(path):
            raise UserError(f"{folder} holds a fine-tuned model of another origin; give another --output_dir")
        before = files.read_json_object(path)
        changed = [name for name in settings if before.get(name) != settings[name]]
        if changed:
            shown = "; ".join(f"{name} was {before.get(name)!r}, now {settings[name]!r}" for name in changed)
            raise UserError(f"{folder} holds another run ({shown}); give the same, or another --output_dir")
    else:
        files.write_text(path, json.dumps(settings, indent=1) + "\n")


def _head_of(start: Start, task: Task) -> list[Array] | None:
    """The weights of a whole model, where --init is one of the same classes."""
    if start.description is None:
        return None
    same = task.description(start.description["max_seq_length"])
    if any(start.description[key] != same[key] for key in ("kind", "labels", "num_choices")):
        return None
    print(f"note: the head is that of {start.folder} too, since its classes are the same")
    return [np.asarray(value) for value in finetuned.load(start.folder).model.get_weights()]


def _row_weights(class_weights: list[str], task: Task, features: Features) -> Array | None:
    """How much each row weighs in the loss, by its class; None where all weigh 1."""
    if not class_weights:
        return None
    if task.kind != task_models.CLASSIFICATION or not features.targets:
        raise UserError(f"--class_weights is for classification with labels; {task.name} is {task.kind}")
    classes = len(task.labels or ())
    labels = features.targets[LABELS]
    if class_weights == [_BALANCED]:
        counts = np.bincount(labels, minlength=classes)
        weights = len(labels) / (np.maximum(counts, 1) * np.count_nonzero(counts))
    else:
        try:
            weights = np.array([float(weight) for weight in class_weights])
        except ValueError:
            weights = np.empty(0)
        if len(weights) != classes or not (weights >= 0).all():
            raise UserError(
                f"--class_weights is {','.join(class_weights)}; expected {_BALANCED}, or {classes} numbers, one for "
                f"each of {', '.join(task.labels or ())}"
            )
    return np.asarray(weights[labels], np.float32)


def _evaluate_and_predict(data: _Data, start: Start) -> Scores:
    task, options = data.task, data.options
    folder = options.output_dir if finetuned.is_finetuned(options.output_dir) else start.folder
    if not folder:
        raise UserError(
            f"there is no fine-tuned model in {options.output_dir} or --init; pass --do_train, or the folder of one"
        )
    loaded = finetuned.load(folder, DTYPES[options.dtype])
    expected = task.description(data.max_seq_length)
    differing = [key for key in ("kind", "labels", "num_choices") if loaded.description[key] != expected[key]]
    if differing:
        shown = "; ".join(f"{key}: {loaded.description[key]}, the task's: {expected[key]}" for key in differing)
        raise UserError(f"the model in {folder} is of another task than {task.name} ({shown})")

    forward = tf.function(lambda inputs: loaded.model(inputs, training=False), reduce_retracing=True, autograph=False)

    def predictions_of(split: str) -> tuple[list[Any], Any]:
        examples = data.read(split)
        features = data.features(examples)
        outputs = predict(forward, features, options.eval_batch_size, data.max_seq_length)
        return examples, task.decode(outputs, features, examples)

    results: Scores = {}
    if options.do_eval and task.eval_splits:
        outcomes = {}
        for split in task.eval_splits:
            examples, predictions = predictions_of(split)
            results[split] = task.metrics(predictions, examples)
            print(f"{split}: " + ", ".join(f"{name} {value:.4f}" for name, value in results[split].items()))
            outcomes[split] = task.outcomes(predictions, examples)
            task.write_predictions(options.output_dir, split, predictions, examples)
        files.write_text(os.path.join(options.output_dir, RESULTS_FILE), json.dumps(results, indent=1) + "\n")
        write_report(options.output_dir, task, dataclasses.asdict(options), results, outcomes)
    if options.do_predict:
        for split in task.test_splits:
            examples, predictions = predictions_of(split)
            for path in task.write_predictions(options.output_dir, split, predictions, examples):
                print(f"written {path}: {len(examples):,} predictions")
    return results
