"""What run_pretraining is told: its flags, their checks, and the phases that they describe."""

import dataclasses
import re

from official_bert import distribution
from official_bert.command_line import option
from official_bert.curves import DECISIVE_SETTINGS
from official_bert.errors import UserError
from official_bert.optimization import OPTIMIZERS

DTYPES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}

# The options that decide the weights a run ends with: between a stop and the next start they may not change unasked.
DECISIVE = frozenset(DECISIVE_SETTINGS) | {
    "random_seed",
    "phase2_max_seq_length",
    "phase2_max_predictions_per_seq",
    "phase2_train_batch_size",
    "phase2_learning_rate",
    "phase2_num_train_steps",
    "phase2_num_warmup_steps",
}
DATA = "data"  # what --allow_changes calls the records themselves


@dataclasses.dataclass(frozen=True)
class Phase:
    """A stretch of training on records of one length.

    Attributes:
        number: 1 or 2.
        first_step: the number of steps done before it.
        last_step: the number of steps done at its end.
        input_file: TFRecord files or glob patterns.
        max_seq_length: length of the records.
        max_predictions_per_seq: predictions in a record.
        train_batch_size: records in a step, over all devices.
        learning_rate: the highest.
        num_warmup_steps: steps in which the rate rises from 0.
    """

    number: int
    first_step: int
    last_step: int
    input_file: list[str]
    max_seq_length: int
    max_predictions_per_seq: int
    train_batch_size: int
    learning_rate: float
    num_warmup_steps: int

    def flag(self, name: str) -> str:
        """Returns the flag that sets one of these."""
        return f"--{name}" if self.number == 1 else f"--phase2_{name}"


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
    init_allow: list[str] = option(
        [], "Regular expressions of whole names, separated by commas: weights that it may lack, or hold unused."
    )
    max_seq_length: int = option(128, "Length of the records, in tokens.")
    max_predictions_per_seq: int = option(20, "Predictions in a record.")
    do_train: bool = option(False, "Whether to train.")
    do_eval: bool = option(
        False, "Whether to evaluate, after training if there is any, on --eval_input_file or else the input files."
    )
    train_batch_size: int = option(32, "Records in a step, over all devices and micro-batches.")
    eval_batch_size: int = option(8, "Records in an evaluation batch, over all devices.")
    learning_rate: float = option(5e-5, "The highest learning rate.")
    num_train_steps: int = option(100_000, "Steps in all (of the first phase, if there are two).")
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
    decay_power: float = option(1.0, "The power of the rate's polynomial decay; 1 is the original's line.")
    end_learning_rate: float = option(0.0, "The rate at the last step.")
    optimizer: str = option("adamw", "adamw: the original's; lamb: for large batches; keras_adamw.", OPTIMIZERS)
    freeze: list[str] = option([], "Regular expressions of layers' whole names, separated by commas: not trained.")
    random_seed: int = option(12345, "The seed of initial weights, order of records and dropout.")
    gradient_accumulation_steps: int = option(
        1, "Parts that each device's share of a batch is cut into: less memory, the same step."
    )
    rematerialize: bool = option(False, "Whether encoder blocks are computed twice: less memory, more time.")
    jit_compile: bool = option(False, "Whether XLA compiles the step (one device only; TPUs always do).")
    log_steps: int = option(100, "Steps between lines of the log.")
    keep_checkpoint_max: int = option(5, "How many checkpoints are kept.")
    eval_input_file: list[str] = option([], "Held-out TFRecord files or patterns, of the first phase's length.")
    eval_steps: int = option(0, "Steps between evaluations on --eval_input_file while training; 0 for none.")
    on_nonfinite: str = option("stop", "What to do with a step whose loss or gradient is not finite.", ("stop", "skip"))
    on_corrupt_record: str = option(
        "stop", "What to do with damaged records; to skip them all files are read through first.", ("stop", "skip")
    )
    allow_changes: list[str] = option(
        [], f"Options (or {DATA}: the records) that may differ from those the run was begun with."
    )
    profile_steps: list[str] = option([], "First and last step of a profile for TensorBoard, as in 100,110.")
    compare_with: str | None = option(None, "A run's folder or a file of configs/curves, to draw behind this run.")
    save_curves: str | None = option(None, "A file to keep this run's curves in, for other runs to compare with.")
    phase2_num_train_steps: int = option(0, "Steps of a second phase after the first, on longer records; 0 for none.")
    phase2_input_file: list[str] = option([], "Its TFRecord files or patterns.")
    phase2_max_seq_length: int = option(512, "Length of its records.")
    phase2_max_predictions_per_seq: int = option(77, "Predictions in a record of it.")
    phase2_train_batch_size: int | None = option(None, "Records in a step of it; by default as in the first phase.")
    phase2_learning_rate: float | None = option(None, "Its highest learning rate; by default as in the first phase.")
    phase2_num_warmup_steps: int = option(0, "Steps in which its rate rises from 0.")

    def __post_init__(self) -> None:
        may_be_zero = {"num_warmup_steps", "random_seed", "eval_steps"}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name in may_be_zero or field.name.startswith("phase2_num_") else 1
            if field.type in (int, int | None) and value is not None and value < least:
                raise UserError(f"--{field.name} is {value}; expected at least {least}")
        for name in ("learning_rate", "phase2_learning_rate", "decay_power"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UserError(f"--{name} is {value}; expected a positive number")
        lowest = min(self.learning_rate, self.phase2_learning_rate or self.learning_rate)
        if not 0 <= self.end_learning_rate <= lowest:
            raise UserError(
                f"--end_learning_rate is {self.end_learning_rate}; expected 0 up to the learning rate, {lowest}"
            )
        if self.use_tpu and self.distribution_strategy not in ("one_device", "tpu"):
            raise UserError(f"--use_tpu and --distribution_strategy={self.distribution_strategy} exclude each other")
        if not (self.do_train or self.do_eval):
            raise UserError("nothing to do; pass --do_train, --do_eval or both")
        if self.eval_steps and not self.eval_input_file:
            raise UserError("--eval_steps needs --eval_input_file: evaluation is on records that are not trained on")
        if bool(self.phase2_num_train_steps) != bool(self.phase2_input_file):
            raise UserError("--phase2_num_train_steps and --phase2_input_file go together; one of them is missing")
        unknown = sorted(set(self.allow_changes) - DECISIVE - {DATA})
        if unknown:
            raise UserError(
                f"--allow_changes names {', '.join(unknown)}; expected some of {', '.join(sorted(DECISIVE | {DATA}))}"
            )
        if self.init_allow and not self.init_checkpoint:
            raise UserError("--init_allow is about --init_checkpoint, which is not given")
        if self.strategy == "tpu" and self.dtype == "float16":
            raise UserError("--dtype is float16, which is for GPUs; a TPU computes in bfloat16")
        steps = self.profile_steps
        if steps and not (re.fullmatch(r"\d+,\d+", ",".join(steps)) and int(steps[0]) < int(steps[1])):
            raise UserError(f"--profile_steps is {','.join(self.profile_steps)}; expected two steps, as in 100,110")

    @property
    def strategy(self) -> str:
        """The name of the distribution strategy."""
        return "tpu" if self.use_tpu else self.distribution_strategy

    @property
    def phases(self) -> list[Phase]:
        """The stretches of training, in order."""
        first = Phase(
            number=1,
            first_step=0,
            last_step=self.num_train_steps,
            input_file=self.input_file,
            max_seq_length=self.max_seq_length,
            max_predictions_per_seq=self.max_predictions_per_seq,
            train_batch_size=self.train_batch_size,
            learning_rate=self.learning_rate,
            num_warmup_steps=self.num_warmup_steps,
        )
        if not self.phase2_num_train_steps:
            return [first]
        second = Phase(
            number=2,
            first_step=self.num_train_steps,
            last_step=self.num_train_steps + self.phase2_num_train_steps,
            input_file=self.phase2_input_file,
            max_seq_length=self.phase2_max_seq_length,
            max_predictions_per_seq=self.phase2_max_predictions_per_seq,
            train_batch_size=self.phase2_train_batch_size or self.train_batch_size,
            learning_rate=self.phase2_learning_rate or self.learning_rate,
            num_warmup_steps=self.phase2_num_warmup_steps,
        )
        return [first, second]

    @property
    def total_steps(self) -> int:
        """Steps of all phases."""
        return self.phases[-1].last_step
