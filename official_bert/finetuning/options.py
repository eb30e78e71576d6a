"""The options of a fine-tuning run, including the options of its task."""

import dataclasses
import functools
import os
from collections.abc import Callable
from typing import Any

from official_bert.errors import UserError
from official_bert.kinds.names import MEASURES, parse_measure
from official_bert.optimization.choices import AdamOptions, DeviceOptions
from official_bert.tasks.options import TaskOptions, get_options_class
from official_bert.tokenization.casing import STRIP_ACCENTS
from official_bert.utils import files
from official_bert.utils.bad_rows import POLICIES, STOP
from official_bert.utils.flags import DATA, EVALUATION, HARDWARE, MODEL, TRAINING, ValidatedOptions, option

_data = functools.partial(option, group=DATA)
_model = functools.partial(option, group=MODEL)
_training = functools.partial(option, group=TRAINING)
_evaluation = functools.partial(option, group=EVALUATION)

# Maps each option with a list of values to the option that a sweep sets to each of them, and to the type of the values.
SWEPT: dict[str, tuple[str, Callable[[str], Any]]] = {
    "random_seeds": ("random_seed", int),
    "grid_batch_sizes": ("train_batch_size", int),
    "grid_learning_rates": ("learning_rate", float),
    "grid_epochs": ("num_train_epochs", float),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuningOptions(ValidatedOptions, AdamOptions, DeviceOptions):
    """The options of a fine-tuning run.

    The defaults of some options depend on the task (see tasks.options.Defaults). `task_options` contains the options of
    the task, an instance of its class in tasks.options.TASK_OPTIONS.
    """

    task: str = _data(dataclasses.MISSING, "The task to fine-tune on.")
    # Not a flag itself: each of its fields is a flag, and most of them cannot change when a run is resumed.
    task_options: TaskOptions = dataclasses.field(default_factory=TaskOptions, metadata={"resumable": True})
    # Names of the options that the user passed as flags, even if with their default values.
    given_flags: frozenset[str] = dataclasses.field(default=frozenset(), metadata={"resumable": True})
    output_dir: str = _data(
        dataclasses.MISSING, "Folder of the run. If it contains a run, that run is resumed.", resumable=True
    )
    on_bad_row: str = _data(
        STOP, "How to handle a row that cannot be read: stop, or skip it and report the count.", POLICIES
    )

    init: str | None = _model(
        None,
        "Initial model: the path or name of a checkpoint in any format (official-bert models lists some names), the "
        "folder of a fine-tuned model, or a bert_config.json for random weights. Not needed without --do_train if "
        "--output_dir contains a model.",
    )
    vocab_file: str | None = _model(None, "Vocabulary file, if --init does not include one.", resumable=True)
    do_lower_case: bool | None = _model(None, "Whether the vocabulary is uncased, if --init does not state it.")
    strip_accents: bool | None = _model(None, STRIP_ACCENTS)
    max_seq_length: int = _model(None, "Maximum sequence length in tokens.", min=1)

    do_train: bool = _training(False, "Whether to run training.", resumable=True)
    train_batch_size: int = _training(None, "Number of rows per step, over all devices.", min=1)
    learning_rate: float = _training(None, "Maximum learning rate.", above=0)
    num_train_epochs: float = _training(None, "Number of epochs.", above=0)
    warmup_proportion: float = _training(
        0.1, "Proportion of steps in which the learning rate rises from 0.", min=0, max=1
    )
    log_steps: int | None = _training(
        None,
        "Number of steps between log lines. Defaults to about 50, or to 1/20 of the steps in short runs.",
        resumable=True,
        min=1,
    )
    class_weights: list[str] = _training(
        [],
        "Weight of each class in the loss, in the order of the labels, or the word balanced to weight classes by their "
        "inverse frequency. With several labels per text, these are weights of the positive examples.",
    )
    balanced_sampling: bool = _training(
        False,
        "Whether each epoch has equally many examples of each class. Examples of rare classes occur several times. An "
        "alternative to --class_weights; the two cannot be combined.",
    )
    freeze: list[str] = _training(
        [],
        "Regular expressions of the names of layers to freeze, such as layer_[0-5]_.*, or all to train only the head.",
    )
    layer_decay: float = _training(
        1.0, "Factor that reduces the learning rate from each layer to the layer below.", above=0, max=1
    )
    adam_bias_correction: bool = _training(
        True,
        "Whether Adam corrects the bias of its moments. The original does not, and fails to learn more often on small "
        "data.",
    )
    group_by_length: bool = _training(
        False, "Whether to put texts of similar length into a batch, which saves padding but makes batches less random."
    )
    random_seed: int = _training(12345, "Random seed for the head's weights, shuffling and dropout.", min=0)
    teacher: str | None = _training(
        None, "Folder of a fine-tuned model whose predictions the model learns (distillation)."
    )
    temperature: float = _training(
        1.0, "Temperature that divides the logits of teacher and student in distillation.", above=0
    )
    teacher_weight: float = _training(
        1.0, "Weight of the teacher's loss, from 0 to 1. The rest is the weight of the labels' loss.", min=0, max=1
    )
    random_seeds: list[str] = _training(
        [], "Random seeds to try: one run per value, summarized in one table.", items=int, min=0
    )
    grid_batch_sizes: list[str] = _training(
        [], "Batch sizes to try: one run per value, summarized in one table.", items=int, min=1
    )
    grid_learning_rates: list[str] = _training(
        [], "Learning rates to try, as for batch sizes. The paper tries 5e-5,3e-5,2e-5.", items=float, above=0
    )
    grid_epochs: list[str] = _training(
        [], "Numbers of epochs to try, as for batch sizes. The paper tries 2,3,4.", items=float, above=0
    )

    do_eval: bool = _evaluation(
        False, "Whether to evaluate the best model on the task's evaluation data.", resumable=True
    )
    calibrate: bool = _evaluation(
        False,
        "With --do_eval: whether to calibrate the model's probabilities on the evaluation data, by a temperature.",
        resumable=True,
    )
    thresholds: str | None = _evaluation(
        None,
        f"With --do_eval: the measure that chooses the threshold of the rarer of two classes, or of each of several "
        f"labels per text, on the evaluation data: {', '.join(MEASURES)}, precision=P (the best recall with at least "
        "this precision) or recall=R. Without it, all thresholds are 0.5.",
        resumable=True,
    )
    min_confidence: float | None = _evaluation(
        None,
        "With --do_eval and classes: the model gives no answer below this probability.",
        resumable=True,
        min=0,
        below=1,
    )
    do_predict: bool = _evaluation(
        False,
        "Whether to predict the task's test data and write the files that its leaderboard accepts.",
        resumable=True,
    )
    eval_batch_size: int = _evaluation(
        64, "Number of rows per batch in evaluation and prediction.", resumable=True, min=1
    )
    eval_steps: int | None = _evaluation(
        None,
        "Steps between evaluations. The state is saved after each of them.",
        shown_default="the steps of an epoch",
        min=1,
    )
    metric_for_best_model: str | None = _evaluation(
        None,
        "Score of the evaluation data that selects the best model and stops training early.",
        shown_default="the score of the task",
    )
    early_stopping: int = _evaluation(
        0, "Number of evaluations without a better score after which training stops. 0 disables early stopping.", min=0
    )

    rematerialize: bool = option(
        False, "Whether the backward pass computes encoder blocks again, to save memory.", group=HARDWARE
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, default in vars(get_options_class(self.task).defaults).items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)
        if not (self.do_train or self.do_eval or self.do_predict):
            raise UserError("nothing to do: pass --do_train, --do_eval or --do_predict")
        if self.chooses_decision_settings and not self.do_eval:
            raise UserError(
                "--calibrate, --thresholds and --min_confidence need --do_eval, because they use the evaluation data"
            )
        if self.balanced_sampling and self.class_weights:
            raise UserError(
                f"--class_weights is {','.join(self.class_weights)}, and --balanced_sampling is set. Together they "
                "would correct the imbalance of the classes twice; remove one of them."
            )
        defaults = FinetuningOptions.temperature, FinetuningOptions.teacher_weight
        if self.teacher is None and (self.temperature, self.teacher_weight) != defaults:
            raise UserError(
                f"--temperature is {self.temperature:g} and --teacher_weight is {self.teacher_weight:g}, but --teacher "
                "is missing; pass it, or remove them. To calibrate probabilities by a temperature, pass --calibrate."
            )
        for name, (swept, _) in SWEPT.items():
            values = getattr(self, name)
            if len({float(value) for value in values}) < len(values):
                raise UserError(f"--{name} is {','.join(values)}; each value can occur only once")
            if values and swept in self.given_flags:
                raise UserError(f"--{swept} has no effect together with --{name}; remove one of them")
            if values and not self.do_train:
                raise UserError(f"--{name} needs --do_train, because a model is trained with each value")
        if self.thresholds is not None:
            parse_measure(self.thresholds, "--thresholds")
        self.check_devices()
        inputs = [getattr(self.task_options, name, None) for name in ("train_file", "eval_file", "predict_file")]
        for split in ("dev", "test"):  # the tables of predictions
            path = os.path.join(self.output_dir, f"predictions_{split}.tsv")
            files.refuse_overwriting(path, "output_dir", [each for each in inputs if each])

    @property
    def chooses_decision_settings(self) -> bool:
        """Whether a temperature, thresholds or a minimum confidence are to be chosen on the evaluation data."""
        return self.calibrate or self.thresholds is not None or self.min_confidence is not None

    def as_dict(self) -> dict[str, Any]:
        """Returns one flat dict of all options by name, including the options of the task."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del values["task_options"], values["given_flags"]
        return {**values, **dataclasses.asdict(self.task_options)}
