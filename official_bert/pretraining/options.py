"""The options of a run of pre-training: the flags of run_pretraining, their checks, and the phases they describe.

A resumed run needs the same flags, except for those marked as resumable: where the run is stored, its devices, what is
logged, evaluated and kept, and what is checked in another way (files by their content). Importing this module does not
import TensorFlow.
"""

import dataclasses
import functools

from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.optimization import choices
from official_bert.runs import run_file
from official_bert.utils.flags import DATA, EVALUATION, HARDWARE, MODEL, TRAINING, ValidatedOptions, option
from official_bert.utils.progress import log_interval

RECORDS = "data"  # what --allow_changes calls the records themselves

_data = functools.partial(option, group=DATA)
_model = functools.partial(option, group=MODEL)
_training = functools.partial(option, group=TRAINING)
_phase2 = functools.partial(option, group="second phase")
_evaluation = functools.partial(option, group=EVALUATION, resumable=True)
_run = functools.partial(option, group="the run", resumable=True)
_hardware = functools.partial(option, group=HARDWARE, resumable=True)

_LOG_STEPS = 100  # between lines of the log, unless the run is short


@dataclasses.dataclass(frozen=True, kw_only=True)
class Phase:
    """A part of training on records of one length. Each field after `last_step` is a flag, with the phase's prefix."""

    number: int  # 1 or 2
    prefix: str  # of its flags
    first_step: int  # Number of steps done before it.
    last_step: int  # Number of steps done at its end.
    input_file: list[str]  # TFRecord files or glob patterns.
    max_seq_length: int
    max_predictions_per_seq: int
    train_batch_size: int  # Records in a step, over all devices.
    learning_rate: float  # The highest.
    num_warmup_steps: int  # Steps in which the rate rises from 0.

    def followed_by(self, options: "Options", prefix: str, num_steps: int) -> "Phase":
        """Returns the next phase. Flags with the prefix that are None have the values of this phase."""
        values = {field.name: getattr(options, prefix + field.name, None) for field in dataclasses.fields(self)}
        return dataclasses.replace(
            self,
            number=self.number + 1,
            prefix=prefix,
            first_step=self.last_step,
            last_step=self.last_step + num_steps,
            **{name: value for name, value in values.items() if value is not None},
        )

    def predictions(self, config: BertConfig) -> int:
        """Returns the number of predictions per record: all tokens but the first if next tokens are predicted."""
        return self.max_predictions_per_seq if config.predicts_masked_tokens else self.max_seq_length - 1

    def flag(self, name: str) -> str:
        """Returns the flag that sets a field."""
        return f"--{self.prefix}{name}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(ValidatedOptions):
    """The flags of run_pretraining: those of the original with its defaults, and more."""

    input_file: list[str] = _data(
        dataclasses.MISSING, "TFRecord files or glob patterns, separated by commas.", resumable=True
    )
    max_seq_length: int = _data(128, "Length of the records, in tokens.", min=1)
    max_predictions_per_seq: int = _data(20, "Predictions in a record.", min=1)
    vocab_file: str | None = _data(
        None, "The records' vocabulary; it is kept with the model, for its answers.", resumable=True
    )
    do_lower_case: bool | None = _data(
        None,
        "Whether that vocabulary is uncased; by default what the records' manifest or its capital letters say.",
        resumable=True,
    )
    strip_accents: bool | None = _data(
        None,
        "Whether lower-cased texts lost their accents; by default what the records' manifest says.",
        resumable=True,
    )
    on_corrupt_record: str = _data(
        "stop",
        "What to do with damaged records; to skip them all files are read through first.",
        ("stop", "skip"),
        resumable=True,
    )

    bert_config_file: str = _model(
        dataclasses.MISSING, "The model's bert_config.json; configs/models has all sizes.", resumable=True
    )
    vocab_size_from_vocab: bool = _model(
        False,
        "Whether --vocab_file's number of tokens takes the place of the configuration's vocab_size.",
        resumable=True,
    )
    left_to_right: bool = _model(
        False, "Whether attention is causal and each token is predicted from those before it, instead of masked tokens."
    )
    init_checkpoint: str | None = _model(
        None, "Weights to start from: a run's folder, a checkpoint of any format, or a name (hf://, google://)."
    )
    init_from_records: bool = _model(
        False,
        "Whether word vectors, the output's bias and the first block's attention start from counts of the records' "
        "tokens instead of at random: small models learn several times as fast.",
    )
    init_allow: list[str] = _model(
        [],
        "Regular expressions of whole names, separated by commas: weights that it may lack, or hold unused.",
        resumable=True,
    )

    do_train: bool = _training(False, "Whether to train.", resumable=True)
    train_batch_size: int = _training(32, "Records in a step, over all devices and micro-batches.", min=1)
    learning_rate: float = _training(5e-5, "The highest learning rate.", above=0)
    num_train_steps: int = _training(100_000, "Steps in all (of the first phase, if there are two).", min=1)
    num_warmup_steps: int = _training(10_000, "Steps in which the learning rate rises from 0.", min=0)
    warmup_jump: bool = _training(
        True, "Whether the rate drops after warm-up as in the original, where decay counts from 0."
    )
    decay_power: float = _training(1.0, "The power of the rate's polynomial decay; 1 is the original's line.", above=0)
    end_learning_rate: float = _training(0.0, "The rate at the last step.", min=0)
    next_sentence_prediction: bool = _training(
        True,
        "Whether the loss of the records' sentence labels (next sentence, or order) is trained; without it the pooler "
        "keeps its initial weights.",
    )
    optimizer: str = _training(
        "adamw", "adamw: the original's; lamb: for large batches; keras_adamw.", choices.OPTIMIZERS
    )
    adam_bias_correction: bool = _training(
        False, "Whether adamw corrects the bias of its moments, which the original does not; the others always do."
    )
    freeze: list[str] = _training([], "Regular expressions of layers' whole names, separated by commas: not trained.")
    random_seed: int = _training(12345, "The seed of initial weights, order of records and dropout.", min=0)
    gradient_accumulation_steps: int = _training(
        1, "Parts that each device's share of a batch is cut into: less memory, the same step.", min=1
    )
    pack_sequences: bool = _training(
        False, "Whether short records share a row: less padding, the same losses and gradients."
    )
    on_nonfinite: str = _training(
        "stop", "What to do with a step whose loss or gradient is not finite.", ("stop", "skip"), resumable=True
    )

    phase2_num_train_steps: int = _phase2(
        0, "Steps of a second phase after the first, on longer records; 0 for none.", min=0
    )
    phase2_input_file: list[str] = _phase2([], "Its TFRecord files or patterns.", resumable=True)
    phase2_max_seq_length: int = _phase2(512, "Length of its records.", min=1)
    phase2_max_predictions_per_seq: int = _phase2(77, "Predictions in a record of it.", min=1)
    phase2_train_batch_size: int | None = _phase2(
        None, "Records in a step of it; by default as in the first phase.", min=1
    )
    phase2_learning_rate: float | None = _phase2(
        None,
        "The highest rate of a schedule of its own; by default it continues the first phase's decay.",
        above=0,
    )
    phase2_num_warmup_steps: int = _phase2(
        0, "With --phase2_learning_rate: steps in which the rate rises from 0.", min=0
    )

    do_eval: bool = _evaluation(
        False, "Whether to evaluate, after training if there is any, on --eval_input_file or else the input files."
    )
    eval_input_file: list[str] = _evaluation([], "Held-out TFRecord files or patterns, of the first phase's length.")
    general_eval_file: list[str] = _evaluation(
        [],
        "Held-out records of general text, evaluated as --eval_input_file is: what training on other text forgets.",
    )
    eval_batch_size: int = _evaluation(8, "Records in an evaluation batch, over all devices.", min=1)
    max_eval_steps: int = _evaluation(100, "The most batches to evaluate.", min=1)
    eval_steps: int = _evaluation(
        0,
        "Steps between evaluations on --eval_input_file while training, with --init_checkpoint also before the first "
        "step; 0 for none.",
        min=0,
    )

    output_dir: str = _run(dataclasses.MISSING, "Folder of the run: checkpoints, logs, results. Given again, resumes.")
    begin_anew: bool = _run(False, "Whether to begin at step 0 in a folder whose run has lost its checkpoints.")
    allow_changes: list[str] = _run(
        [], f"Options (or {RECORDS}: the records) that may differ from those the run was begun with."
    )
    save_checkpoints_steps: int = _run(1000, "Steps between checkpoints.", min=1)
    keep_checkpoint_max: int = _run(5, "How many checkpoints are kept.", min=1)
    log_steps: int | None = _run(
        None, "Steps between lines of the log; 100, of a short run a twentieth of its steps.", min=1
    )
    profile_steps: list[str] = _run(
        [], "First and last step of a profile for TensorBoard, as in 100,110.", items=int, min=0
    )

    distribution_strategy: str = _hardware(
        choices.ONE_DEVICE, "Where to run: one device, all of this machine, many machines, a TPU.", choices.STRATEGIES
    )
    worker_hosts: list[str] = choices.worker_hosts_option()
    worker_index: int | None = choices.worker_index_option()
    dtype: str = choices.dtype_option()
    jit_compile: bool = _hardware(False, "Compile the step with XLA (one device only; off for bfloat16 on a CPU).")
    compile_parts: bool = _hardware(
        True, "Whether XLA compiles all but the products of matrices on one CPU; --jit_compile compiles those too."
    )
    deterministic: bool = choices.deterministic_option()
    rematerialize: bool = _hardware(False, "Whether encoder blocks are computed twice: less memory, more time.")
    iterations_per_loop: int = _hardware(1000, "The most steps in one call to the devices.", min=1)
    use_tpu: bool = _hardware(False, "Short for --distribution_strategy=tpu.")
    tpu_name: str | None = _hardware(None, "The TPU's name or grpc address; by default the one of this TPU VM.")
    tpu_zone: str | None = _hardware(None, "The TPU's zone.")
    gcp_project: str | None = _hardware(None, "The project the TPU belongs to.")
    num_tpu_cores: int | None = _hardware(
        None, "The number of TPU cores to expect; an error if there are others.", min=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.use_tpu and self.distribution_strategy not in (choices.ONE_DEVICE, choices.TPU):
            raise UserError(f"--use_tpu and --distribution_strategy={self.distribution_strategy} exclude each other")
        if self.strategy == choices.TPU and self.dtype == "float16":
            raise UserError("--dtype is float16, which is for GPUs; a TPU computes in bfloat16")
        if not (self.do_train or self.do_eval):
            raise UserError("nothing to do; pass --do_train, --do_eval or both")
        if self.eval_steps and not self.eval_input_file:
            raise UserError("--eval_steps needs --eval_input_file: evaluation is on records that are not trained on")
        if self.general_eval_file and not self.eval_input_file:
            raise UserError("--general_eval_file goes with --eval_input_file, held-out records of the text trained on")
        if bool(self.phase2_num_train_steps) != bool(self.phase2_input_file):
            raise UserError("--phase2_num_train_steps and --phase2_input_file go together; one of them is missing")
        if self.phase2_num_warmup_steps and self.phase2_learning_rate is None:
            raise UserError("--phase2_num_warmup_steps needs --phase2_learning_rate, the rate that warm-up ends at")
        changeable = run_file.locked_options(Options) | {RECORDS}
        unknown = sorted(set(self.allow_changes) - changeable)
        if unknown:
            raise UserError(
                f"--allow_changes names {', '.join(unknown)}; expected some of {', '.join(sorted(changeable))}"
            )
        if self.vocab_size_from_vocab and not self.vocab_file:
            raise UserError("--vocab_size_from_vocab needs the vocabulary; give it as --vocab_file")
        if self.init_allow and not self.init_checkpoint:
            raise UserError("--init_allow is about --init_checkpoint, which is not given")
        if self.init_from_records:
            self._check_initialization()
        lowest = min(self.learning_rate, self.phase2_learning_rate or self.learning_rate)
        if self.end_learning_rate > lowest:
            raise UserError(
                f"--end_learning_rate is {self.end_learning_rate}; it must be at most the peak learning rate, {lowest}."
            )
        steps = self.profile_steps
        if steps and not (len(steps) == 2 and int(steps[0]) < int(steps[1])):
            raise UserError(f"--profile_steps is {','.join(steps)}; expected two steps, as in 100,110")

    def _check_initialization(self) -> None:
        """Raises a UserError if --init_from_records does not go with other flags."""
        if self.init_checkpoint:
            raise UserError("--init_from_records and --init_checkpoint exclude each other; give one of them")
        if self.left_to_right:
            raise UserError("--init_from_records is for masked tokens, not for --left_to_right; leave it out")
        if self.strategy == choices.MULTI_WORKER:
            # Workers' products may differ in their last bits, and with them the weights of their replicas.
            raise UserError(
                "--init_from_records is for one machine; train one step there with --num_train_steps=1, and give its "
                "folder to all workers as --init_checkpoint"
            )

    def apply_to(self, config: BertConfig) -> BertConfig:
        """Returns the model's configuration with the changes that flags make to it."""
        return dataclasses.replace(config, causal_attention=True) if self.left_to_right else config

    @property
    def strategy(self) -> str:
        """The name of the distribution strategy."""
        return choices.TPU if self.use_tpu else self.distribution_strategy

    @property
    def phases(self) -> list[Phase]:
        """The parts of training, in order."""
        first = Phase(
            number=1,
            prefix="",
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
        return [first, first.followed_by(self, "phase2_", self.phase2_num_train_steps)]

    @property
    def total_steps(self) -> int:
        """Steps of all phases."""
        return self.phases[-1].last_step

    @property
    def log_interval(self) -> int:
        """Steps between lines of the log."""
        return self.log_steps or log_interval(self.total_steps, _LOG_STEPS)
