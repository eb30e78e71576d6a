"""The options of pre-training: the flags of run_pretraining, their checks, and the phases that they define.

When you resume a run, only resumable options may change: the location of the run, devices, logging, evaluation and
checkpoints. Input files are compared by content. This module does not import TensorFlow.
"""

import dataclasses
import functools

from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.optimization import choices
from official_bert.utils import flags
from official_bert.utils.flags import ValidatedOptions, option
from official_bert.utils.progress import get_log_interval

RECORDS = "data"  # name of the records in --allow_changes

_data = functools.partial(option, group=flags.DATA)
_model = functools.partial(option, group=flags.MODEL)
_training = functools.partial(option, group=flags.TRAINING)
_phase2 = functools.partial(option, group="second phase")
_evaluation = functools.partial(option, group=flags.EVALUATION, resumable=True)
_run = functools.partial(option, group="the run", resumable=True)
_hardware = functools.partial(option, group=flags.HARDWARE, resumable=True)

_LOG_STEPS = 100  # default of --log_steps, except for short runs


@dataclasses.dataclass(frozen=True, kw_only=True)
class Phase:
    """A part of the training whose records have the same length.

    The fields after `last_step` are set by flags, whose names start with `prefix`.
    """

    number: int  # 1 or 2
    prefix: str  # prefix of the phase's flags
    first_step: int  # number of steps before the phase
    last_step: int  # number of steps at the end of the phase
    max_seq_length: int
    max_predictions_per_seq: int
    train_batch_size: int  # records per step, over all devices
    learning_rate: float  # peak learning rate
    num_warmup_steps: int

    def predictions(self, config: BertConfig) -> int:
        """Returns the number of predictions per record. A left-to-right model predicts every token except the first."""
        return self.max_predictions_per_seq if config.predicts_masked_tokens else self.max_seq_length - 1

    def flag(self, name: str) -> str:
        """Returns the flag that sets the field `name` of this phase, with dashes."""
        return f"--{self.prefix}{name}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingOptions(ValidatedOptions, choices.AdamOptions, choices.DeviceOptions):
    """The flags of run_pretraining. Flags that the original has as well have the same defaults there."""

    input_file: list[str] = _data(
        dataclasses.MISSING, "Comma-separated TFRecord files or glob patterns.", resumable=True
    )
    max_seq_length: int = _data(128, "Sequence length of the records in tokens.", min=1)
    max_predictions_per_seq: int = _data(
        20, "Maximum number of predictions per record, as passed to make-records.", min=1
    )
    vocab_file: str | None = _data(
        None, "Vocabulary of the records. It is stored with the model, which needs it to read text.", resumable=True
    )
    do_lower_case: bool | None = _data(
        None,
        "Whether the vocabulary is uncased. Defaults to the records' manifest, or is detected from capital letters.",
        resumable=True,
    )
    strip_accents: bool | None = _data(
        None, "Whether accents were removed from the texts. Defaults to the records' manifest.", resumable=True
    )
    on_corrupt_record: str = _data(
        "stop",
        "What to do with damaged records: stop, or skip and count them. With skip, all files are checked first.",
        ("stop", "skip"),
        resumable=True,
    )

    bert_config_file: str = _model(
        dataclasses.MISSING, "Model configuration (bert_config.json). configs/models has all sizes.", resumable=True
    )
    vocab_size_from_vocab: bool = _model(
        False, "Set vocab_size of the model to the number of tokens in --vocab_file.", resumable=True
    )
    left_to_right: bool = _model(
        False,
        "Train a causal language model, which predicts each token from the previous ones, instead of a masked LM.",
    )
    init_checkpoint: str | None = _model(
        None,
        "Weights to start from: a checkpoint in any format, the folder of a run, or a name (hf://..., google://...).",
    )
    init_from_records: bool = _model(
        False,
        "Initialize word embeddings, output bias and the attention of the first block from token counts of the records "
        "instead of randomly. Small models then learn several times as fast.",
    )
    init_allow: list[str] = _model(
        [],
        "Comma-separated regular expressions of weight names that --init_checkpoint may lack or leave unused.",
        resumable=True,
    )

    do_train: bool = _training(False, "Run training.", resumable=True)
    train_batch_size: int = _training(32, "Number of records per step, over all devices and micro-batches.", min=1)
    learning_rate: float = _training(5e-5, "Peak learning rate.", above=0)
    num_train_steps: int = _training(100_000, "Number of training steps (in the first phase, if there are two).", min=1)
    num_warmup_steps: int = _training(10_000, "Number of steps in which the learning rate warms up from 0.", min=0)
    warmup_jump: bool = _training(
        True, "Start the decay at step 0, as in the original, so that the learning rate drops after warm-up."
    )
    decay_power: float = _training(
        1.0, "Exponent of the polynomial learning-rate decay. 1 is linear, as in the original.", above=0
    )
    end_learning_rate: float = _training(0.0, "Learning rate after the last step.", min=0)
    next_sentence_prediction: bool = _training(
        True, "Train the next-sentence objective. Without it, the pooler keeps its initial weights."
    )
    optimizer: str = _training(
        "adamw", "Optimizer: adamw (the original's), lamb (for large batches) or keras_adamw.", choices.OPTIMIZERS
    )
    freeze: list[str] = _training([], "Regular expressions of the names of layers to freeze, such as layer_[0-5]_.*.")
    random_seed: int = _training(12345, "Random seed for initial weights, the order of the records and dropout.", min=0)
    pack_sequences: bool = _training(
        False, "Pack several short records into one row. This reduces padding; losses and gradients are the same."
    )
    on_nonfinite: str = _training(
        "stop",
        "What to do if the loss or a gradient is not finite: stop, or skip the step.",
        ("stop", "skip"),
        resumable=True,
    )

    phase2_num_train_steps: int = _phase2(
        0, "Number of steps of a second phase on longer records. 0 disables it.", min=0
    )
    phase2_input_file: list[str] = _phase2([], "TFRecord files or glob patterns of the second phase.", resumable=True)
    phase2_max_seq_length: int = _phase2(512, "Sequence length of the second phase's records.", min=1)
    phase2_max_predictions_per_seq: int = _phase2(
        77, "Maximum number of predictions per record in the second phase.", min=1
    )
    phase2_train_batch_size: int | None = _phase2(
        None, "Number of records per step in the second phase. Defaults to --train_batch_size.", min=1
    )
    phase2_learning_rate: float | None = _phase2(
        None,
        "Peak learning rate of a separate schedule for the second phase. By default, the first decay continues.",
        above=0,
    )
    phase2_num_warmup_steps: int = _phase2(
        0, "Number of warm-up steps in the second phase. Needs --phase2_learning_rate.", min=0
    )

    do_eval: bool = _evaluation(
        False, "Run evaluation after training, on --eval_input_file or otherwise on --input_file."
    )
    eval_input_file: list[str] = _evaluation(
        [], "Held-out TFRecord files or glob patterns, with the first phase's sequence length."
    )
    general_eval_file: list[str] = _evaluation(
        [], "Held-out records of general text, evaluated like --eval_input_file to measure forgetting."
    )
    eval_batch_size: int = _evaluation(8, "Number of records per evaluation batch, over all devices.", min=1)
    max_eval_steps: int = _evaluation(100, "Maximum number of batches to evaluate.", min=1)
    eval_steps: int = _evaluation(
        0,
        "Number of steps between evaluations during training. With --init_checkpoint, also evaluates before the first "
        "step. 0 disables them.",
        min=0,
    )

    output_dir: str = _run(
        dataclasses.MISSING, "Folder for checkpoints, logs and results. An existing run in it is resumed."
    )
    begin_anew: bool = _run(False, "Start at step 0 in a folder whose run has lost its checkpoints.")
    allow_changes: list[str] = _run(
        [], f"Comma-separated options (or {RECORDS} for the records) that may change when the run is resumed."
    )
    save_checkpoints_steps: int = _run(1000, "Number of steps between checkpoints.", min=1)
    keep_checkpoint_max: int = _run(5, "Maximum number of checkpoints to keep.", min=1)
    log_steps: int | None = _run(
        None, "Number of steps between log lines. Defaults to 100, or to a twentieth of a short run.", min=1
    )
    profile_steps: list[str] = _run(
        [], "First and last step to profile for TensorBoard, such as 100,110.", items=int, min=0
    )

    jit_compile: bool = _hardware(False, "Compile the step with XLA (one device only; off for bfloat16 on a CPU).")
    compile_parts: bool = _hardware(
        True, "On one CPU, compile everything except matrix products with XLA. --jit_compile compiles those too."
    )
    rematerialize: bool = _hardware(False, "Recompute encoder blocks in the backward pass: less memory, more time.")
    iterations_per_loop: int = _hardware(1000, "Maximum number of steps per call to the devices.", min=1)
    num_tpu_cores: int | None = _hardware(None, "Expected number of TPU cores. A different number is an error.", min=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_devices()
        if self.strategy == choices.TPU and self.dtype == "float16":
            raise UserError("--dtype=float16 is for GPUs; use --dtype=bfloat16 on a TPU")
        if not (self.do_train or self.do_eval):
            raise UserError("nothing to do; pass --do_train, --do_eval or both")
        if self.eval_steps and not self.eval_input_file:
            raise UserError("--eval_steps needs --eval_input_file with held-out records")
        if self.general_eval_file and not self.eval_input_file:
            raise UserError("--general_eval_file needs --eval_input_file with held-out records of the training text")
        if bool(self.phase2_num_train_steps) != bool(self.phase2_input_file):
            raise UserError("--phase2_num_train_steps and --phase2_input_file must be passed together")
        if self.phase2_num_warmup_steps and self.phase2_learning_rate is None:
            raise UserError("--phase2_num_warmup_steps needs --phase2_learning_rate")
        changeable = flags.locked_options(PretrainingOptions) | {RECORDS}
        unknown = sorted(set(self.allow_changes) - changeable)
        if unknown:
            raise UserError(
                f"--allow_changes contains {', '.join(unknown)}; expected some of {', '.join(sorted(changeable))}"
            )
        if self.vocab_size_from_vocab and not self.vocab_file:
            raise UserError("--vocab_size_from_vocab needs --vocab_file")
        if self.init_allow and not self.init_checkpoint:
            raise UserError("--init_allow needs --init_checkpoint")
        if self.init_from_records:
            self._check_initialization()
        lowest = min(self.learning_rate, self.phase2_learning_rate or self.learning_rate)
        if self.end_learning_rate > lowest:
            raise UserError(
                f"--end_learning_rate is {self.end_learning_rate}; it must be at most the peak learning rate, {lowest}."
            )
        steps = self.profile_steps
        if steps and not (len(steps) == 2 and int(steps[0]) < int(steps[1])):
            raise UserError(f"--profile_steps is {','.join(steps)}; expected two increasing steps, such as 100,110")

    def _check_initialization(self) -> None:
        """Raises a UserError if --init_from_records contradicts other flags."""
        if self.init_checkpoint:
            raise UserError("--init_from_records and --init_checkpoint cannot be combined; remove one of them")
        if self.left_to_right:
            raise UserError("--init_from_records does not support --left_to_right; remove one of them")
        if self.strategy == choices.MULTI_WORKER:
            # Matrix products of different workers may differ in the last bits, so their weights would differ.
            raise UserError(
                "--init_from_records supports one machine only; train one step with --num_train_steps=1, and pass "
                "that folder to all workers as --init_checkpoint"
            )

    @property
    def phases(self) -> list[Phase]:
        """The phases of the training, in order: one or two."""
        first = self._make_phase(1, "", 0, self.num_train_steps)
        if not self.phase2_num_train_steps:
            return [first]
        return [first, self._make_phase(2, "phase2_", first.last_step, self.phase2_num_train_steps)]

    def _make_phase(self, number: int, prefix: str, first_step: int, num_steps: int) -> Phase:
        """Creates a phase from the flags that start with `prefix`. Flags that are None have the values of phase 1."""
        names = [field.name for field in dataclasses.fields(Phase) if hasattr(self, field.name)]
        values = {name: getattr(self, name) for name in names}
        values |= {name: value for name in names if (value := getattr(self, prefix + name)) is not None}
        return Phase(number=number, prefix=prefix, first_step=first_step, last_step=first_step + num_steps, **values)

    @property
    def schedule_phases(self) -> list[Phase]:
        """The parts of the training that have a learning-rate schedule of their own.

        By default, this is one part with all steps, as in the paper. With --phase2_learning_rate, it is each phase.
        """
        if self.phase2_learning_rate is not None:
            return self.phases
        return [dataclasses.replace(self.phases[0], last_step=self.total_steps)]

    @property
    def total_steps(self) -> int:
        """Number of steps of all phases."""
        return self.phases[-1].last_step

    @property
    def log_interval(self) -> int:
        """Number of steps between log lines."""
        return self.log_steps or get_log_interval(self.total_steps, _LOG_STEPS)
