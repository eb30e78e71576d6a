"""The options of a fine-tuning run, including the options of its task."""

import dataclasses
import os
from typing import Any, Self

from official_bert.errors import UserError
from official_bert.kinds.names import MEASURES, parse_measure
from official_bert.optimization.choices import (
    ONE_DEVICE,
    STRATEGIES,
    TPU,
    AdamOptions,
    deterministic_option,
    dtype_option,
    worker_hosts_option,
    worker_index_option,
)
from official_bert.tasks.options import Defaults, TaskOptions, get_options_class
from official_bert.tokenization.casing import STRIP_ACCENTS
from official_bert.utils import files
from official_bert.utils.bad_rows import POLICIES, STOP
from official_bert.utils.flags import DATA, EVALUATION, HARDWARE, MODEL, TRAINING, ValidatedOptions, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(ValidatedOptions, AdamOptions):
    """The options of a fine-tuning run.

    Options that are None take the task's default (see `resolved`). `task_options` contains the options of the task, an
    instance of its class in tasks.options.TASK_OPTIONS.
    """

    task: str = option(dataclasses.MISSING, "The task to fine-tune on.", group=DATA)
    # Not a flag itself: each of its fields is a flag, and most of them cannot change when a run is resumed.
    task_options: TaskOptions = dataclasses.field(default_factory=TaskOptions, metadata={"resumable": True})
    output_dir: str = option(
        dataclasses.MISSING, "Folder of the run. If it contains a run, that run is resumed.", group=DATA, resumable=True
    )
    cache_dir: str | None = option(
        None,
        "Folder that caches tokenized examples.",
        group=DATA,
        resumable=True,
        shown_default="a folder in --output_dir",
    )
    on_bad_row: str = option(
        STOP, "How to handle a row that cannot be read: stop, or skip it and report the count.", POLICIES, group=DATA
    )

    init: str | None = option(
        None,
        "Initial model: the path or name of a checkpoint in any format (official-bert models lists some names), the "
        "folder of a fine-tuned model, or a bert_config.json for random weights. Not needed without --do_train if "
        "--output_dir contains a model.",
        group=MODEL,
    )
    vocab_file: str | None = option(
        None, "Vocabulary file, if --init does not include one.", group=MODEL, resumable=True
    )
    do_lower_case: bool | None = option(
        None, "Whether the vocabulary is uncased, if --init does not state it.", group=MODEL
    )
    strip_accents: bool | None = option(None, STRIP_ACCENTS, group=MODEL)
    max_seq_length: int | None = option(None, "Maximum sequence length in tokens.", group=MODEL, min=1)

    do_train: bool = option(False, "Whether to run training.", group=TRAINING, resumable=True)
    train_batch_size: int | None = option(None, "Number of rows per step, over all devices.", group=TRAINING, min=1)
    learning_rate: float | None = option(None, "Maximum learning rate.", group=TRAINING, above=0)
    num_train_epochs: float | None = option(None, "Number of epochs.", group=TRAINING, above=0)
    warmup_proportion: float = option(
        0.1, "Proportion of steps in which the learning rate rises from 0.", group=TRAINING, min=0, max=1
    )
    log_steps: int | None = option(
        None,
        "Number of steps between log lines. Defaults to about 50, or to 1/20 of the steps in short runs.",
        group=TRAINING,
        resumable=True,
        min=1,
    )
    class_weights: list[str] = option(
        [],
        "Weight of each class in the loss, in the order of the labels, or the word balanced to weight classes by their "
        "inverse frequency. With several labels per text, these are weights of the positive examples.",
        group=TRAINING,
    )
    balanced_sampling: bool = option(
        False,
        "Whether each epoch has equally many examples of each class. Examples of rare classes occur several times. An "
        "alternative to --class_weights.",
        group=TRAINING,
    )
    freeze: list[str] = option(
        [],
        "Regular expressions of the names of layers to freeze, such as layer_[0-5]_.*, or all to train only the head.",
        group=TRAINING,
    )
    layer_decay: float = option(
        1.0,
        "Factor that reduces the learning rate from each layer to the layer below.",
        group=TRAINING,
        above=0,
        max=1,
    )
    adam_bias_correction: bool = option(
        True,
        "Whether Adam corrects the bias of its moments. The original does not, and fails to "
        "learn more often on small data.",
        group=TRAINING,
    )
    group_by_length: bool = option(
        False,
        "Whether the texts of a batch have similar lengths, which saves padding but makes batches less random.",
        group=TRAINING,
    )
    random_seed: int = option(
        12345, "Random seed for the head's weights, shuffling and dropout.", group=TRAINING, min=0
    )
    teacher: str | None = option(
        None, "Folder of a fine-tuned model whose predictions the model learns (distillation).", group=TRAINING
    )
    temperature: float = option(
        1.0, "Temperature that divides the logits of teacher and student in distillation.", group=TRAINING, above=0
    )
    teacher_weight: float = option(
        1.0,
        "Weight of the teacher's loss, from 0 to 1. The rest is the weight of the labels' loss.",
        group=TRAINING,
        min=0,
        max=1,
    )
    random_seeds: list[str] = option(
        [], "Random seeds to try: one run per value, summarized in one table.", group=TRAINING, items=int, min=0
    )
    grid_batch_sizes: list[str] = option(
        [], "Batch sizes to try: one run per value, summarized in one table.", group=TRAINING, items=int, min=1
    )
    grid_learning_rates: list[str] = option(
        [],
        "Learning rates to try, as for batch sizes. The paper tries 5e-5,3e-5,2e-5.",
        group=TRAINING,
        items=float,
        above=0,
    )
    grid_epochs: list[str] = option(
        [], "Numbers of epochs to try, as for batch sizes. The paper tries 2,3,4.", group=TRAINING, items=float, above=0
    )

    do_eval: bool = option(
        False, "Whether to evaluate the best model on the task's evaluation data.", group=EVALUATION, resumable=True
    )
    calibrate: bool = option(
        False,
        "With --do_eval: whether to calibrate the model's probabilities on the evaluation data, by a temperature.",
        group=EVALUATION,
        resumable=True,
    )
    thresholds: str | None = option(
        None,
        f"With --do_eval: the measure that chooses the threshold of the rarer of two classes, or of each of several "
        f"labels per text, on the evaluation data: {', '.join(MEASURES)}, precision=P (the best recall with at least "
        "this precision) or recall=R. Without it, all thresholds are 0.5.",
        group=EVALUATION,
        resumable=True,
    )
    min_confidence: float | None = option(
        None,
        "With --do_eval and classes: the model gives no answer below this probability.",
        group=EVALUATION,
        resumable=True,
        min=0,
        below=1,
    )
    do_predict: bool = option(
        False,
        "Whether to predict the task's test data and write the files that its leaderboard accepts.",
        group=EVALUATION,
        resumable=True,
    )
    eval_batch_size: int = option(
        64, "Number of rows per batch in evaluation and prediction.", group=EVALUATION, resumable=True, min=1
    )
    eval_steps: int | None = option(
        None,
        "Steps between evaluations. The state is saved after each of them.",
        group=EVALUATION,
        shown_default="the steps of an epoch",
        min=1,
    )
    metric_for_best_model: str | None = option(
        None,
        "Score of the evaluation data that selects the best model and stops training early.",
        group=EVALUATION,
        shown_default="the score of the task",
    )
    early_stopping: int = option(
        0,
        "Number of evaluations without a better score after which training stops. 0 disables early stopping.",
        group=EVALUATION,
        min=0,
    )

    dtype: str = dtype_option()
    gradient_accumulation_steps: int = option(
        1,
        "Number of parts that each batch is split into, to save memory. The batch size and the step stay the same.",
        group=HARDWARE,
        min=1,
    )
    rematerialize: bool = option(
        False, "Whether the backward pass computes encoder blocks again, to save memory.", group=HARDWARE
    )
    deterministic: bool = deterministic_option()
    distribution_strategy: str = option(
        STRATEGIES[0],
        "Devices to use: one_device (the first GPU, or the CPU), mirrored (all GPUs of this machine), multi_worker "
        "(all devices of several machines) or tpu.",
        STRATEGIES,
        group=HARDWARE,
        resumable=True,
    )
    worker_hosts: list[str] = worker_hosts_option()
    worker_index: int | None = worker_index_option()
    use_tpu: bool = option(False, "Same as --distribution_strategy=tpu.", group=HARDWARE, resumable=True)
    tpu_name: str | None = option(
        None, "Name or gRPC address of the TPU. Defaults to the TPU of this VM.", group=HARDWARE, resumable=True
    )
    tpu_zone: str | None = option(None, "Zone of the TPU.", group=HARDWARE, resumable=True)
    gcp_project: str | None = option(None, "Google Cloud project of the TPU.", group=HARDWARE, resumable=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        get_options_class(self.task)
        if not (self.do_train or self.do_eval or self.do_predict):
            raise UserError("nothing to do: pass --do_train, --do_eval or --do_predict")
        if self.makes_decisions and not self.do_eval:
            raise UserError(
                "--calibrate, --thresholds and --min_confidence need --do_eval, because they use the evaluation data"
            )
        if self.thresholds is not None:
            parse_measure(self.thresholds, "--thresholds")
        if self.use_tpu and self.distribution_strategy not in (ONE_DEVICE, TPU):
            raise UserError(
                f"--use_tpu cannot be combined with --distribution_strategy={self.distribution_strategy}; remove one"
            )
        inputs = [getattr(self.task_options, name, None) for name in ("train_file", "eval_file", "predict_file")]
        for split in ("dev", "test"):  # the tables of predictions
            path = os.path.join(self.output_dir, f"predictions_{split}.tsv")
            files.refuse_overwriting(path, "output_dir", [each for each in inputs if each])

    @property
    def makes_decisions(self) -> bool:
        """Whether a temperature, thresholds or a minimum confidence are to be chosen on the evaluation data."""
        return self.calibrate or self.thresholds is not None or self.min_confidence is not None

    @property
    def strategy(self) -> str:
        """The name of the distribution strategy that the flags choose."""
        return TPU if self.use_tpu else self.distribution_strategy

    def settings(self) -> Defaults:
        """Returns the settings that have task-specific defaults, with these defaults in place of None."""
        defaults = get_options_class(self.task).defaults
        values = {name: getattr(self, name) for name in vars(defaults)}
        return dataclasses.replace(defaults, **{name: value for name, value in values.items() if value is not None})

    def resolved(self) -> Self:
        """Returns the options with the task's defaults in place of None."""
        return dataclasses.replace(self, **vars(self.settings()))

    def as_dict(self) -> dict[str, Any]:
        """Returns one flat dict of all options by name, including those of the task."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del values["task_options"]
        return {**values, **dataclasses.asdict(self.task_options)}
