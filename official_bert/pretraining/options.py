"""The options of a run of pre-training: the flags of run_pretraining, their checks, and the phases they describe.

A flag is locked between the stop and the next start of a run, unless it is marked as free: where the run stands and on
which devices, what is logged, evaluated and kept, and what is checked in another way (files by their content).
"""

import dataclasses

from official_bert.errors import UserError
from official_bert.pretraining.option_groups.data import DataOptions
from official_bert.pretraining.option_groups.evaluation import EvaluationOptions
from official_bert.pretraining.option_groups.hardware import HardwareOptions
from official_bert.pretraining.option_groups.model import ModelOptions
from official_bert.pretraining.option_groups.phases import Phase, SecondPhaseOptions
from official_bert.pretraining.option_groups.run import RECORDS, RunOptions
from official_bert.pretraining.option_groups.training import TrainingOptions
from official_bert.utils import resuming


# The fields of the last base come first, so that --help begins with the data.
@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(
    HardwareOptions, RunOptions, EvaluationOptions, SecondPhaseOptions, TrainingOptions, ModelOptions, DataOptions
):
    """The flags of run_pretraining: the original's with its defaults, and some of our own."""

    def __post_init__(self) -> None:
        self._check_ranges()
        self.check_hardware()
        if not (self.do_train or self.do_eval):
            raise UserError("nothing to do; pass --do_train, --do_eval or both")
        self.check_evaluation()
        self.check_second_phase()
        changeable = resuming.locked_options(Options) | {RECORDS}
        unknown = sorted(set(self.allow_changes) - changeable)
        if unknown:
            raise UserError(
                f"--allow_changes names {', '.join(unknown)}; expected some of {', '.join(sorted(changeable))}"
            )
        if self.vocab_size_from_vocab and not self.vocab_file:
            raise UserError("--vocab_size_from_vocab needs the vocabulary; give it as --vocab_file")
        self.check_model()
        self.check_run()

    def _check_ranges(self) -> None:
        """Raises a UserError if a number is outside of its range."""
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
