"""Pre-training: the loop over steps, its log, evaluation, saving and resuming."""

import dataclasses
import math
import os
import signal
import time
from typing import Any

import tensorflow as tf

from official_bert import checkpoints, distribution, files, records, report
from official_bert.command_line import option
from official_bert.config import BertConfig
from official_bert.errors import UserError
from official_bert.input_pipeline import evaluation_batches, training_batches
from official_bert.metrics import pretraining_metrics
from official_bert.optimization import WarmupLinearDecay
from official_bert.pretrainer import SUMS, Pretrainer
from official_bert.tokenization import check_special_tokens, load_vocab
from official_bert.training_log import EVAL, TRAIN, TrainingLog, progress_line

DTYPES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}

_FILES_CHECKED = 16  # by their first record, before the first step; every other record is checked when it is read


@dataclasses.dataclass(frozen=True)
class Options:
    """What run_pretraining is told: the original's flags and defaults, and some of our own at the end."""

    input_file: list[str] = option(dataclasses.MISSING, "TFRecord files or glob patterns, separated by commas.")
    bert_config_file: str = option(dataclasses.MISSING, "The model's bert_config.json; configs/models has all sizes.")
    output_dir: str = option(
        dataclasses.MISSING, "Folder of the run: checkpoints, logs, results. Given again, resumes."
    )
    init_checkpoint: str | None = option(
        None, "Weights to start from: a run's folder or a checkpoint, ours or a TF1 one."
    )
    max_seq_length: int = option(128, "Length of the records, in tokens.")
    max_predictions_per_seq: int = option(20, "Predictions in a record.")
    do_train: bool = option(False, "Whether to train.")
    do_eval: bool = option(False, "Whether to evaluate on the input files, after training if there is any.")
    train_batch_size: int = option(32, "Records in a step, over all devices.")
    eval_batch_size: int = option(8, "Records in an evaluation batch, over all devices.")
    learning_rate: float = option(5e-5, "The highest learning rate.")
    num_train_steps: int = option(100_000, "Steps in all.")
    num_warmup_steps: int = option(10_000, "Steps in which the learning rate rises from 0.")
    save_checkpoints_steps: int = option(1000, "Steps between checkpoints.")
    iterations_per_loop: int = option(1000, "The most steps in one call to the devices.")
    max_eval_steps: int = option(100, "The most batches to evaluate.")
    use_tpu: bool = option(False, "Short for --distribution_strategy=tpu.")
    tpu_name: str | None = option(None, "The TPU's name or grpc address; by default the one of this TPU VM.")
    tpu_zone: str | None = option(None, "The TPU's zone.")
    gcp_project: str | None = option(None, "The project the TPU belongs to.")
    num_tpu_cores: int | None = option(None, "The number of TPU cores to expect; an error if there are others.")
    distribution_strategy: str = option(
        "one_device", "Where to run: one device, all of this machine, many machines, a TPU.", distribution.STRATEGIES
    )
    dtype: str = option("float32", "Of the computation; weights, softmax and losses are float32.", tuple(DTYPES))
    vocab_file: str | None = option(None, "The records' vocabulary; it is kept with the model, for its answers.")
    do_lower_case: bool = option(True, "Whether that vocabulary is uncased.")
    warmup_jump: bool = option(
        True, "Whether the rate drops after warm-up as in the original, where decay counts from 0."
    )
    random_seed: int = option(12345, "The seed of initial weights, order of records and dropout.")
    jit_compile: bool = option(False, "Whether XLA compiles the step (one device only; TPUs always do).")
    log_steps: int = option(100, "Steps between lines of the log.")
    keep_checkpoint_max: int = option(5, "How many checkpoints are kept.")

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name in ("num_warmup_steps", "random_seed") else 1
            if field.type in (int, int | None) and value is not None and value < least:
                raise UserError(f"--{field.name} is {value}; expected at least {least}")
        if not self.learning_rate > 0:
            raise UserError(f"--learning_rate is {self.learning_rate}; expected a positive rate")
        if self.use_tpu and self.distribution_strategy not in ("one_device", "tpu"):
            raise UserError(f"--use_tpu and --distribution_strategy={self.distribution_strategy} exclude each other")
        if not (self.do_train or self.do_eval):
            raise UserError("nothing to do; pass --do_train, --do_eval or both")

    @property
    def strategy(self) -> str:
        """The name of the distribution strategy."""
        return "tpu" if self.use_tpu else self.distribution_strategy


class _StopRequest:
    """Within its context, SIGTERM and the first Ctrl-C ask for a stop instead of forcing one."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __enter__(self) -> "_StopRequest":
        self._before = {number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: object) -> None:
        self.signal = number
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print(f"received {signal.Signals(number).name}: saving after the steps under way", flush=True)


def run(options: Options) -> int:
    """Trains, evaluates or both, as the options say; returns the process's exit code.

    The code is 0 when all is done, and 128 plus the signal's number when SIGTERM or Ctrl-C stopped training, which
    saves first.

    Raises:
        UserError: something given is wrong; what was saved stays as it is.
    """
    # First of all: a strategy over several workers must be made before TensorFlow does anything else.
    strategy = distribution.get_strategy(options.strategy, options.tpu_name, options.tpu_zone, options.gcp_project)
    _check_replicas(options, strategy.num_replicas_in_sync)
    config = BertConfig.from_json_file(options.bert_config_file)
    if options.max_seq_length > config.max_position_embeddings:
        raise UserError(
            f"--max_seq_length is {options.max_seq_length}, but {options.bert_config_file} has max_position_embeddings "
            f"{config.max_position_embeddings}"
        )
    if options.vocab_file:
        _check_vocabulary(options.vocab_file, config, options.bert_config_file)
    is_chief = strategy.extended.should_checkpoint
    description = checkpoints.description(config, options.vocab_file, options.do_lower_case)
    checkpoints.check_description(options.output_dir, description)
    paths = _without_empty_files(files.expand(options.input_file, "input_file"))
    schema = records.pretraining_schema(
        options.max_seq_length, options.max_predictions_per_seq, config.vocab_size, config.type_vocab_size
    )
    _check_first_records(paths, schema)

    schedule = WarmupLinearDecay(
        options.learning_rate, options.num_train_steps, options.num_warmup_steps, options.warmup_jump
    )
    pretrainer = Pretrainer(config, strategy, schedule, options.random_seed, DTYPES[options.dtype], options.jit_compile)
    saved = checkpoints.RunCheckpoints(
        options.output_dir, pretrainer.model, pretrainer.optimizer, options.keep_checkpoint_max
    )
    restored = saved.restore_latest()
    if restored:
        print(f"going on from {restored}, step {pretrainer.step:,}")
    elif options.init_checkpoint:
        unused = checkpoints.load_weights(pretrainer.model, options.init_checkpoint)
        print(f"weights taken from {options.init_checkpoint}; not used: {', '.join(unused) or 'nothing'}")
    elif not options.do_train:
        raise UserError(
            f"{options.output_dir} has no checkpoint to evaluate; give the --output_dir of a training run, or weights "
            "as --init_checkpoint"
        )
    if is_chief:
        checkpoints.save_description(options.output_dir, description)
    log = TrainingLog(options.output_dir if is_chief else None, pretrainer.step if options.do_train else None)

    try:
        if options.do_train:
            stopped_by = _train(options, pretrainer, paths, schema, saved if is_chief else None, log)
            if stopped_by:
                return 128 + stopped_by
        if options.do_eval:
            _evaluate(options, pretrainer, paths, schema, log)
    except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
        damage = records.find_damage(paths, schema)
        if damage is None:
            raise
        raise UserError(f"{damage}; checkpoints up to here are intact") from error
    if is_chief:
        picture = report.draw_curves(options.output_dir)
        print(
            f"curves in {picture}" if picture else "no curves were drawn: nothing was logged, or there is no matplotlib"
        )
    return 0


def _check_vocabulary(vocab_file: str, config: BertConfig, config_file: str) -> None:
    vocab = load_vocab(vocab_file)
    check_special_tokens(vocab, vocab_file)
    pieces = max(vocab.values()) + 1
    if pieces > config.vocab_size:
        raise UserError(
            f"{vocab_file} has {pieces} tokens, but {config_file} has vocab_size {config.vocab_size}; they must belong "
            "together"
        )
    if pieces < config.vocab_size:
        print(
            f"note: {vocab_file} has {pieces} tokens, {config_file} has vocab_size {config.vocab_size}; the rest of "
            "the table is never used"
        )


def _without_empty_files(paths: list[str]) -> list[str]:
    empty = [path for path in paths if not files.size(path)]
    if len(empty) == len(paths):
        raise UserError(f"there is no record in {', '.join(paths)}; make some with data_gen.create_pretraining_data")
    if empty:
        print(f"warning: left out, since they are empty: {', '.join(empty)}")
    return [path for path in paths if path not in empty]


def _check_first_records(paths: list[str], schema: records.Schema) -> None:
    for path in paths[:_FILES_CHECKED]:
        record = next(records.read_file(path), None)
        problem = "it holds no record" if record is None else records.mismatch(record, schema)
        if problem:
            raise UserError(
                f"{path}: {problem}; --max_seq_length, --max_predictions_per_seq and --bert_config_file must be those "
                "that the records were made with"
            )


def _check_replicas(options: Options, replicas: int) -> None:
    on_tpu = options.strategy == "tpu"
    if options.num_tpu_cores is not None and on_tpu and options.num_tpu_cores != replicas:
        raise UserError(f"--num_tpu_cores is {options.num_tpu_cores}, but the TPU has {replicas}")
    if options.jit_compile and (replicas > 1 or on_tpu):
        raise UserError("--jit_compile is for one CPU or GPU; leave it out")
    for name in ("train_batch_size", "eval_batch_size"):
        if getattr(options, name) % replicas:
            raise UserError(f"--{name} is {getattr(options, name)}; expected a multiple of the {replicas} replicas")


def _train(
    options: Options,
    pretrainer: Pretrainer,
    paths: list[str],
    schema: records.Schema,
    saved: checkpoints.RunCheckpoints | None,
    log: TrainingLog,
) -> int | None:
    """Trains up to the last step; returns the number of the signal that stopped it, if one did."""
    step = pretrainer.step
    if step >= options.num_train_steps:
        print(f"all {options.num_train_steps:,} steps are done already")
        return None
    print(
        f"training {pretrainer.model.count_params():,} parameters from step {step:,} to {options.num_train_steps:,}, "
        f"batches of {options.train_batch_size} x {options.max_seq_length} on "
        f"{', '.join(_devices(pretrainer.strategy))}",
        flush=True,
    )
    data = training_batches(
        paths, options.train_batch_size, schema, options.random_seed, skipped_records=step * options.train_batch_size
    )
    batches = iter(pretrainer.strategy.experimental_distribute_dataset(data))
    since = time.monotonic()
    with _StopRequest() as stop:
        while step < options.num_train_steps:
            first = step
            step = _end_of_call(step, options)
            sums = pretrainer.train(batches, step - first)
            if not math.isfinite(sums["masked_lm_loss"] + sums["next_sentence_loss"] + sums["gradient_norm"]):
                raise UserError(
                    f"loss or gradient is not finite between steps {first:,} and {step:,}: {sums}; the checkpoints "
                    "before are intact: lower --learning_rate, lengthen the warm-up or look at the records"
                )
            now = time.monotonic()
            values = _measurements(sums, step, step - first, now - since, options, pretrainer.schedule)
            since = now
            log.write(TRAIN, step, values)
            print(progress_line(step, options.num_train_steps, values), flush=True)
            stopping = pretrainer.anywhere(stop.signal is not None)
            if saved and (stopping or step == options.num_train_steps or not step % options.save_checkpoints_steps):
                path = saved.save(step)
                print(f"saved {path}", flush=True)
                since = time.monotonic()
            if stopping:
                print(f"stopped at step {step:,}; the same command goes on from there")
                return stop.signal or signal.SIGTERM
    return None


def _devices(strategy: tf.distribute.Strategy) -> list[str]:
    """The short names of this process's devices: CPU:0, GPU:1, TPU:7."""
    return [device.split("device:")[-1] for device in strategy.extended.worker_devices]


def _end_of_call(step: int, options: Options) -> int:
    """The step at which to come back from the devices: to log, to save, or because it is far enough."""

    def next_multiple(of: int) -> int:
        return (step // of + 1) * of

    return min(
        step + options.iterations_per_loop,
        next_multiple(options.log_steps),
        next_multiple(options.save_checkpoints_steps),
        options.num_train_steps,
    )


def _measurements(
    sums: dict[str, float], step: int, steps: int, seconds: float, options: Options, schedule: Any
) -> dict[str, float]:
    return {
        **pretraining_metrics(sums),
        "learning_rate": float(schedule(step - 1)),
        "gradient_norm": sums["gradient_norm"] / steps,
        "steps_per_second": steps / seconds,
        "examples_per_second": steps * options.train_batch_size / seconds,
        "tokens_per_second": sums["tokens"] / seconds,
    }


def _evaluate(
    options: Options, pretrainer: Pretrainer, paths: list[str], schema: records.Schema, log: TrainingLog
) -> None:
    data = evaluation_batches(paths, options.eval_batch_size, schema).take(options.max_eval_steps)
    totals = dict.fromkeys(SUMS, 0.0)
    for batch in pretrainer.strategy.experimental_distribute_dataset(data):
        for name, value in pretrainer.evaluate(batch).items():
            totals[name] += value
    metrics = pretraining_metrics(totals)
    log.write(EVAL, pretrainer.step, metrics)
    results = {"global_step": pretrainer.step, **metrics}
    text = "".join(f"{name} = {results[name]}\n" for name in sorted(results))
    if pretrainer.strategy.extended.should_checkpoint:
        files.write_text(os.path.join(options.output_dir, "eval_results.txt"), text)
    print(f"evaluated {totals['next_sentence_count']:,.0f} records, {totals['masked_lm_count']:,.0f} predictions")
    print(text, end="")
    print(f"unigram baseline, always the commonest token: masked_lm_accuracy = {_unigram_accuracy(data)}", flush=True)


def _unigram_accuracy(batches: tf.data.Dataset) -> float:
    """How often the best constant answer is right: the share of the commonest token among those to predict."""
    counts: dict[int, int] = {}
    for batch in batches:
        ids = tf.boolean_mask(batch["masked_lm_ids"], batch["masked_lm_weights"] > 0)
        for token in ids.numpy().tolist():
            counts[token] = counts.get(token, 0) + 1
    return max(counts.values(), default=0) / max(sum(counts.values()), 1)
