"""The flags of run_pretraining, their checks, and the phases that they describe.

A flag is locked between the stop and the next start of a run, unless it is marked as free: where the run stands and on
which devices, what is logged, evaluated and kept, and what is checked in another way (files by their content).
"""

import dataclasses
import re

from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.optimization.choices import (
    DTYPES,
    ONE_DEVICE,
    OPTIMIZERS,
    STRATEGIES,
    TPU,
    worker_hosts_option,
    worker_index_option,
)
from official_bert.utils import resuming
from official_bert.utils.flags import DATA, EVALUATION, HARDWARE, MODEL, TRAINING, option

RECORDS = "data"  # what --allow_changes calls the records themselves

_RUN, _SECOND_PHASE = "the run", "second phase"  # headings of --help, beside those of utils.flags


@dataclasses.dataclass(frozen=True, kw_only=True)
class Phase:
    """A part of training, on records of one length.

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

    def predictions(self, config: BertConfig) -> int:
        """Returns how many predictions the model makes of a record: from left to right, of all tokens."""
        return self.max_seq_length - 1 if config.causal_attention else self.max_predictions_per_seq

    def flag(self, name: str) -> str:
        """Returns the flag that sets one of these."""
        return f"--{name}" if self.number == 1 else f"--phase2_{name}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The flags of run_pretraining: the original's with its defaults, and some of our own."""

    input_file: list[str] = option(
        dataclasses.MISSING, "TFRecord files or glob patterns, separated by commas.", group=DATA, free=True
    )
    max_seq_length: int = option(128, "Length of the records, in tokens.", group=DATA)
    max_predictions_per_seq: int = option(20, "Predictions in a record.", group=DATA)
    vocab_file: str | None = option(
        None, "The records' vocabulary; it is kept with the model, for its answers.", group=DATA, free=True
    )
    do_lower_case: bool | None = option(
        None, "Whether that vocabulary is uncased; by default what the records' manifest says.", group=DATA, free=True
    )
    on_corrupt_record: str = option(
        "stop",
        "What to do with damaged records; to skip them all files are read through first.",
        ("stop", "skip"),
        group=DATA,
        free=True,
    )

    bert_config_file: str = option(
        dataclasses.MISSING, "The model's bert_config.json; configs/models has all sizes.", group=MODEL, free=True
    )
    vocab_size_from_vocab: bool = option(
        False,
        "Whether --vocab_file's number of tokens takes the place of the configuration's vocab_size.",
        group=MODEL,
        free=True,
    )
    left_to_right: bool = option(
        False,
        "Whether attention is causal and each token is predicted from those before it, instead of masked tokens.",
        group=MODEL,
    )
    init_checkpoint: str | None = option(
        None, "Weights to start from: a run's folder or a checkpoint, ours or a TF1 one.", group=MODEL
    )
    init_allow: list[str] = option(
        [],
        "Regular expressions of whole names, separated by commas: weights that it may lack, or hold unused.",
        group=MODEL,
        free=True,
    )

    do_train: bool = option(False, "Whether to train.", group=TRAINING, free=True)
    train_batch_size: int = option(32, "Records in a step, over all devices and micro-batches.", group=TRAINING)
    learning_rate: float = option(5e-5, "The highest learning rate.", group=TRAINING)
    num_train_steps: int = option(100_000, "Steps in all (of the first phase, if there are two).", group=TRAINING)
    num_warmup_steps: int = option(10_000, "Steps in which the learning rate rises from 0.", group=TRAINING)
    warmup_jump: bool = option(
        True, "Whether the rate drops after warm-up as in the original, where decay counts from 0.", group=TRAINING
    )
    decay_power: float = option(
        1.0, "The power of the rate's polynomial decay; 1 is the original's line.", group=TRAINING
    )
    end_learning_rate: float = option(0.0, "The rate at the last step.", group=TRAINING)
    next_sentence_prediction: bool = option(
        True,
        "Whether the loss of the records' sentence labels (next sentence, or order) is trained; without it the pooler "
        "keeps its initial weights.",
        group=TRAINING,
    )
    optimizer: str = option(
        "adamw", "adamw: the original's; lamb: for large batches; keras_adamw.", OPTIMIZERS, group=TRAINING
    )
    freeze: list[str] = option(
        [], "Regular expressions of layers' whole names, separated by commas: not trained.", group=TRAINING
    )
    random_seed: int = option(12345, "The seed of initial weights, order of records and dropout.", group=TRAINING)
    gradient_accumulation_steps: int = option(
        1, "Parts that each device's share of a batch is cut into: less memory, the same step.", group=TRAINING
    )
    pack_sequences: bool = option(
        False, "Whether short records share a row: less padding, the same losses and gradients.", group=TRAINING
    )
    on_nonfinite: str = option(
        "stop",
        "What to do with a step whose loss or gradient is not finite.",
        ("stop", "skip"),
        group=TRAINING,
        free=True,
    )

    phase2_num_train_steps: int = option(
        0, "Steps of a second phase after the first, on longer records; 0 for none.", group=_SECOND_PHASE
    )
    phase2_input_file: list[str] = option([], "Its TFRecord files or patterns.", group=_SECOND_PHASE, free=True)
    phase2_max_seq_length: int = option(512, "Length of its records.", group=_SECOND_PHASE)
    phase2_max_predictions_per_seq: int = option(77, "Predictions in a record of it.", group=_SECOND_PHASE)
    phase2_train_batch_size: int | None = option(
        None, "Records in a step of it; by default as in the first phase.", group=_SECOND_PHASE
    )
    phase2_learning_rate: float | None = option(
        None, "Its highest learning rate; by default as in the first phase.", group=_SECOND_PHASE
    )
    phase2_num_warmup_steps: int = option(0, "Steps in which its rate rises from 0.", group=_SECOND_PHASE)

    do_eval: bool = option(
        False,
        "Whether to evaluate, after training if there is any, on --eval_input_file or else the input files.",
        group=EVALUATION,
        free=True,
    )
    eval_input_file: list[str] = option(
        [], "Held-out TFRecord files or patterns, of the first phase's length.", group=EVALUATION, free=True
    )
    eval_batch_size: int = option(8, "Records in an evaluation batch, over all devices.", group=EVALUATION, free=True)
    max_eval_steps: int = option(100, "The most batches to evaluate.", group=EVALUATION, free=True)
    eval_steps: int = option(
        0, "Steps between evaluations on --eval_input_file while training; 0 for none.", group=EVALUATION, free=True
    )

    output_dir: str = option(
        dataclasses.MISSING,
        "Folder of the run: checkpoints, logs, results. Given again, resumes.",
        group=_RUN,
        free=True,
    )
    begin_anew: bool = option(
        False, "Whether to begin at step 0 in a folder whose run has lost its checkpoints.", group=_RUN, free=True
    )
    allow_changes: list[str] = option(
        [],
        f"Options (or {RECORDS}: the records) that may differ from those the run was begun with.",
        group=_RUN,
        free=True,
    )
    save_checkpoints_steps: int = option(1000, "Steps between checkpoints.", group=_RUN, free=True)
    keep_checkpoint_max: int = option(5, "How many checkpoints are kept.", group=_RUN, free=True)
    log_steps: int = option(100, "Steps between lines of the log.", group=_RUN, free=True)
    compare_with: str | None = option(
        None, "A run's folder or a file of configs/curves, to draw behind this run.", group=_RUN, free=True
    )
    save_curves: str | None = option(
        None, "A file to keep this run's curves in, for other runs to compare with.", group=_RUN, free=True
    )
    profile_steps: list[str] = option(
        [], "First and last step of a profile for TensorBoard, as in 100,110.", group=_RUN, free=True
    )

    distribution_strategy: str = option(
        ONE_DEVICE,
        "Where to run: one device, all of this machine, many machines, a TPU.",
        STRATEGIES,
        group=HARDWARE,
        free=True,
    )
    worker_hosts: list[str] = worker_hosts_option()
    worker_index: int | None = worker_index_option()
    dtype: str = option(
        "float32", "Of the computation; weights, softmax and losses are float32.", tuple(DTYPES), group=HARDWARE
    )
    jit_compile: bool = option(
        False, "Whether XLA compiles the step (one device only; TPUs always do).", group=HARDWARE, free=True
    )
    compile_parts: bool = option(
        True,
        "Whether XLA compiles all but the products of matrices on one CPU; --jit_compile compiles those too.",
        group=HARDWARE,
        free=True,
    )
    rematerialize: bool = option(
        False, "Whether encoder blocks are computed twice: less memory, more time.", group=HARDWARE, free=True
    )
    iterations_per_loop: int = option(1000, "The most steps in one call to the devices.", group=HARDWARE, free=True)
    use_tpu: bool = option(False, "Short for --distribution_strategy=tpu.", group=HARDWARE, free=True)
    tpu_name: str | None = option(
        None, "The TPU's name or grpc address; by default the one of this TPU VM.", group=HARDWARE, free=True
    )
    tpu_zone: str | None = option(None, "The TPU's zone.", group=HARDWARE, free=True)
    gcp_project: str | None = option(None, "The project the TPU belongs to.", group=HARDWARE, free=True)
    num_tpu_cores: int | None = option(
        None, "The number of TPU cores to expect; an error if there are others.", group=HARDWARE, free=True
    )

    def __post_init__(self) -> None:
        may_be_zero = {"num_warmup_steps", "random_seed", "eval_steps", "worker_index"}
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
        if self.use_tpu and self.distribution_strategy not in (ONE_DEVICE, TPU):
            raise UserError(f"--use_tpu and --distribution_strategy={self.distribution_strategy} exclude each other")
        if not (self.do_train or self.do_eval):
            raise UserError("nothing to do; pass --do_train, --do_eval or both")
        if self.eval_steps and not self.eval_input_file:
            raise UserError("--eval_steps needs --eval_input_file: evaluation is on records that are not trained on")
        if bool(self.phase2_num_train_steps) != bool(self.phase2_input_file):
            raise UserError("--phase2_num_train_steps and --phase2_input_file go together; one of them is missing")
        changeable = resuming.locked_options(Options) | {RECORDS}
        unknown = sorted(set(self.allow_changes) - changeable)
        if unknown:
            raise UserError(
                f"--allow_changes names {', '.join(unknown)}; expected some of {', '.join(sorted(changeable))}"
            )
        if self.vocab_size_from_vocab and not self.vocab_file:
            raise UserError("--vocab_size_from_vocab needs the vocabulary; give it as --vocab_file")
        if self.init_allow and not self.init_checkpoint:
            raise UserError("--init_allow is about --init_checkpoint, which is not given")
        if self.strategy == TPU and self.dtype == "float16":
            raise UserError("--dtype is float16, which is for GPUs; a TPU computes in bfloat16")
        steps = self.profile_steps
        if steps and not (re.fullmatch(r"\d+,\d+", ",".join(steps)) and int(steps[0]) < int(steps[1])):
            raise UserError(f"--profile_steps is {','.join(self.profile_steps)}; expected two steps, as in 100,110")

    @property
    def strategy(self) -> str:
        """The name of the distribution strategy."""
        return TPU if self.use_tpu else self.distribution_strategy

    @property
    def phases(self) -> list[Phase]:
        """The parts of training, in order."""
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
