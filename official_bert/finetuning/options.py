"""The options of fine-tuning: those of every run, and with them those of its task."""

import dataclasses
import os
from typing import Any, Self

from official_bert.errors import UserError
from official_bert.kinds.names import MEASURES
from official_bert.optimization.choices import (
    ONE_DEVICE,
    STRATEGIES,
    TPU,
    deterministic_option,
    dtype_option,
    worker_hosts_option,
    worker_index_option,
)
from official_bert.tasks.options import Defaults, TaskOptions, options_class
from official_bert.tokenization.casing import STRIP_ACCENTS
from official_bert.utils import files
from official_bert.utils.bad_rows import POLICIES, STOP
from official_bert.utils.flags import DATA, EVALUATION, HARDWARE, MODEL, TRAINING, ValidatedOptions, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(ValidatedOptions):
    """The options of a run of fine-tuning.

    The options that are None take the task's default: see `resolved`. `task_options` is an instance of the class that
    tasks.options.TASK_OPTIONS has for the task.
    """

    task: str = option(dataclasses.MISSING, "What to learn.", group=DATA)
    # No flag, and free: its fields are flags of their own, most of which are locked.
    task_options: TaskOptions = dataclasses.field(default_factory=TaskOptions, metadata={"resumable": True})
    output_dir: str = option(
        dataclasses.MISSING, "Folder of the run; a run that is there goes on.", group=DATA, resumable=True
    )
    cache_dir: str | None = option(
        None,
        "Folder of features that were made before.",
        group=DATA,
        resumable=True,
        shown_default="one in --output_dir",
    )
    on_bad_row: str = option(
        STOP, "What a row that cannot be read does: stop, or skip and count.", POLICIES, group=DATA
    )

    init: str | None = option(
        None,
        "What to start from: a checkpoint of any format or the name of one (official-bert models lists some), a "
        "fine-tuned model's folder, or a bert_config.json for random weights; without --do_train the model in "
        "--output_dir does.",
        group=MODEL,
    )
    vocab_file: str | None = option(None, "The vocabulary, where --init has none.", group=MODEL, resumable=True)
    do_lower_case: bool | None = option(
        None, "Whether the vocabulary is uncased, where --init does not say it.", group=MODEL
    )
    strip_accents: bool | None = option(None, STRIP_ACCENTS, group=MODEL)
    max_seq_length: int | None = option(None, "The longest sequence, in tokens.", group=MODEL, min=1)

    do_train: bool = option(False, "Whether to train.", group=TRAINING, resumable=True)
    train_batch_size: int | None = option(None, "Rows in a step, over all devices.", group=TRAINING, min=1)
    learning_rate: float | None = option(None, "The highest learning rate.", group=TRAINING, above=0)
    num_train_epochs: float | None = option(None, "Passes over the training data.", group=TRAINING, above=0)
    warmup_proportion: float = option(
        0.1, "The share of the steps in which the rate rises from 0.", group=TRAINING, min=0, max=1
    )
    log_steps: int | None = option(
        None,
        "Steps between losses in the log; without it 50 or a few less, and a twentieth of a short run's steps.",
        group=TRAINING,
        resumable=True,
        min=1,
    )
    class_weights: list[str] = option(
        [],
        "How much each class weighs, in the order of the labels; or balanced: by how rare it is. With several labels, "
        "how much more a label weighs where a text has it.",
        group=TRAINING,
    )
    balanced_sampling: bool = option(
        False,
        "Whether an epoch has as many examples of each class, those of rare classes several times; an alternative to "
        "--class_weights.",
        group=TRAINING,
    )
    freeze: list[str] = option([], "Regular expressions of the encoder's layers that stay as they are.", group=TRAINING)
    layer_decay: float = option(
        1.0, "The learning rate of each layer by that of the layer above it.", group=TRAINING, above=0, max=1
    )
    adam_bias_correction: bool = option(
        True,
        "Whether Adam corrects the bias of its moments. The original does not, which fails more often on little data.",
        group=TRAINING,
    )
    group_by_length: bool = option(
        False,
        "Whether the texts of a batch have similar lengths: less padding, but batches that are less random.",
        group=TRAINING,
    )
    random_seed: int = option(12345, "Of the head's weights, the order of the data and dropout.", group=TRAINING, min=0)
    teacher: str | None = option(
        None, "A fine-tuned model's folder, whose answers the model learns (distillation).", group=TRAINING
    )
    temperature: float = option(
        1.0, "What teacher's and model's logits are divided by in distillation.", group=TRAINING, above=0
    )
    teacher_weight: float = option(
        1.0, "The share of the loss that is the teacher's; the rest is the labels'.", group=TRAINING, min=0, max=1
    )
    random_seeds: list[str] = option(
        [], "Several seeds: a run with each, and one table.", group=TRAINING, items=int, min=0
    )
    grid_batch_sizes: list[str] = option(
        [], "Several batch sizes: a run with each, and one table.", group=TRAINING, items=int, min=1
    )
    grid_learning_rates: list[str] = option(
        [], "Several learning rates, likewise; the paper's are 5e-5,3e-5,2e-5.", group=TRAINING, items=float, above=0
    )
    grid_epochs: list[str] = option(
        [], "Several numbers of epochs, likewise; the paper's are 2,3,4.", group=TRAINING, items=float, above=0
    )

    do_eval: bool = option(
        False, "Whether to score the best model on the task's evaluation data.", group=EVALUATION, resumable=True
    )
    calibrate: bool = option(
        False,
        "With --do_eval: whether the model's probabilities are calibrated on the evaluation data, by a temperature.",
        group=EVALUATION,
        resumable=True,
    )
    thresholds: str | None = option(
        None,
        "With --do_eval, for several labels: the measure by which each label's threshold is chosen on the evaluation "
        "data; they are 0.5 otherwise.",
        MEASURES,
        group=EVALUATION,
        resumable=True,
    )
    min_confidence: float | None = option(
        None,
        "With --do_eval, for classes: the probability below which the model gives no answer.",
        group=EVALUATION,
        resumable=True,
        min=0,
        below=1,
    )
    do_predict: bool = option(
        False,
        "Whether to predict the task's test data, and write what its leaderboard takes.",
        group=EVALUATION,
        resumable=True,
    )
    eval_batch_size: int = option(64, "Rows that are predicted at once.", group=EVALUATION, resumable=True, min=1)
    eval_steps: int | None = option(
        None,
        "Steps between two evaluations, each of which saves.",
        group=EVALUATION,
        shown_default="those of an epoch",
        min=1,
    )
    early_stopping: int = option(
        0, "Stop after so many evaluations without a better score; 0 never does.", group=EVALUATION, min=0
    )

    dtype: str = dtype_option()
    gradient_accumulation_steps: int = option(
        1, "Micro-batches that each device takes one after the other in a step, for less memory.", group=HARDWARE, min=1
    )
    rematerialize: bool = option(
        False, "Whether encoder blocks are computed again in the backward pass, for less memory.", group=HARDWARE
    )
    deterministic: bool = deterministic_option()
    distribution_strategy: str = option(
        STRATEGIES[0],
        "Which devices train, evaluate and predict: the first GPU or else the CPU; all of this machine; all of several "
        "machines; a TPU.",
        STRATEGIES,
        group=HARDWARE,
        resumable=True,
    )
    worker_hosts: list[str] = worker_hosts_option()
    worker_index: int | None = worker_index_option()
    use_tpu: bool = option(False, "Short for --distribution_strategy=tpu.", group=HARDWARE, resumable=True)
    tpu_name: str | None = option(
        None, "The TPU's name or grpc address; by default the one of this TPU VM.", group=HARDWARE, resumable=True
    )
    tpu_zone: str | None = option(None, "The TPU's zone.", group=HARDWARE, resumable=True)
    gcp_project: str | None = option(None, "The project the TPU belongs to.", group=HARDWARE, resumable=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        options_class(self.task)
        if not (self.do_train or self.do_eval or self.do_predict):
            raise UserError("nothing to do: pass --do_train, --do_eval or --do_predict")
        if self.makes_decisions and not self.do_eval:
            raise UserError(
                "--calibrate, --thresholds and --min_confidence need --do_eval, on whose data they are chosen"
            )
        if self.use_tpu and self.distribution_strategy not in (ONE_DEVICE, TPU):
            raise UserError(f"--use_tpu and --distribution_strategy={self.distribution_strategy} exclude each other")
        inputs = [getattr(self.task_options, name, None) for name in ("train_file", "eval_file", "predict_file")]
        for split in ("dev", "test"):  # of a table, as sequences.write_table names them
            path = os.path.join(self.output_dir, f"predictions_{split}.tsv")
            files.refuse_overwriting(path, "output_dir", [each for each in inputs if each])

    @property
    def makes_decisions(self) -> bool:
        """Whether what the model decides is chosen on the evaluation data."""
        return self.calibrate or self.thresholds is not None or self.min_confidence is not None

    @property
    def strategy(self) -> str:
        """The name of the distribution strategy."""
        return TPU if self.use_tpu else self.distribution_strategy

    def settings(self) -> Defaults:
        """Returns the settings that the task has defaults for, with those in place of None."""
        defaults = options_class(self.task).defaults
        values = {name: getattr(self, name) for name in vars(defaults)}
        return dataclasses.replace(defaults, **{name: value for name, value in values.items() if value is not None})

    def resolved(self) -> Self:
        """Returns the options with the task's defaults in place of None."""
        return dataclasses.replace(self, **vars(self.settings()))

    def as_dict(self) -> dict[str, Any]:
        """Returns the options of the run and those of its task, by name."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del values["task_options"]
        return {**values, **dataclasses.asdict(self.task_options)}
