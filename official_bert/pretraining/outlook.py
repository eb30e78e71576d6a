"""What a run's curve says while it trains: that it does not learn, that it is above its plan, where it will end."""

import collections

import numpy as np
import tensorflow as tf

from official_bert.errors import UserError
from official_bert.pretraining.options import Phase
from official_bert.pretraining.record_files import RecordFiles
from official_bert.pretraining.run_setup import RunSetup
from official_bert.pretraining.scaling_law import FROM_RANDOM, FROM_RECORDS, Reached, ScalingLaw, block_parameters
from official_bert.utils import files
from official_bert.utils.training_log import TRAIN, TrainingLog, read_log

_ENOUGH_STEPS = 1000  # after which a run should have learned more than how frequent tokens are
_UNIGRAM_LEVEL = 0.98  # of the unigram entropy
_BEGUN = 0.95  # of the unigram entropy: what is above says nothing of how the loss will fall
_PARTS = 4  # of a phase, after each of which but the last the run says where it will end
_COUNTED = (200, 64)  # batches, and records in each, whose predictions are counted


def unigram_entropy(records: RecordFiles) -> float:
    """Returns the entropy of the tokens to predict, in nats: the loss of guessing by frequency.

    A sample of the records is counted; the entropy of a sample is too low, which Miller and Madow's term makes up for.
    """
    most, batch_size = _COUNTED
    counts: collections.Counter[int] = collections.Counter()
    for batch in records.evaluation(batch_size).take(most):
        counts.update(tf.boolean_mask(batch["masked_lm_ids"], batch["masked_lm_weights"] > 0).numpy().tolist())
    shares = np.array(list(counts.values())) / max(counts.total(), 1)
    return float(-(shares * np.log(shares)).sum()) + (len(counts) - 1) / (2 * max(counts.total(), 1))


class Outlook:
    """Looks at the curve after each line of the log, and prints and notes what there is to say.

    Raises:
        UserError: --plan is no plan.
    """

    def __init__(self, setup: RunSetup, log: TrainingLog) -> None:
        self._setup, self._log = setup, log
        self._first_step = setup.pretrainer.step
        self._expected = read_expected_losses(setup.options.plan) if setup.options.plan else {}
        self._entropy: float | None = None
        self._said: set[str] = set()

    def after(self, step: int, phase: Phase, loss: float) -> None:
        """Looks at the mean masked-LM loss since the last line, which ends at a step."""
        if not self._setup.is_chief:
            return
        self._compare_with_plan(step, phase, loss)
        # What begins with weights, or goes on to longer records, does not begin at the unigram level.
        if phase.number == 1 and not self._setup.options.init_checkpoint:
            self._check_level(step, phase)
            self._forecast(step, phase, loss)

    def _compare_with_plan(self, step: int, phase: Phase, loss: float) -> None:
        points = self._expected.get(phase.max_seq_length, [])
        if "plan" in self._said or not points or step < points[0][0]:
            return
        most = float(np.interp(step, [at for at, _ in points], [highest for _, highest in points]))
        if loss > most:
            self._said.add("plan")
            self._warn(
                step,
                f"the masked LM loss at step {step:,}, {loss:.3f}, is above what the plan expects, at most {most:.3f}; "
                "look at the records and the rate, or plan again",
            )

    def _check_level(self, step: int, phase: Phase) -> None:
        if "level" in self._said or not self._first_step < _ENOUGH_STEPS <= step:
            return
        self._said.add("level")
        lowest = min(line["masked_lm_loss"] for line in read_log(self._setup.folder, TRAIN) if line["step"] <= step)
        entropy = self._unigram_entropy(phase)
        if lowest >= _UNIGRAM_LEVEL * entropy:
            self._warn(
                step,
                f"after {step:,} steps the masked LM loss, {lowest:.3f} at the lowest, is still that of guessing by "
                f"frequency ({entropy:.3f}): the model learns nothing of its context; lower --learning_rate "
                f"({phase.learning_rate:g}), lengthen --num_warmup_steps ({phase.num_warmup_steps:,}), or begin "
                "with --init_from_records",
            )

    def _forecast(self, step: int, phase: Phase, loss: float) -> None:
        steps = phase.last_step - phase.first_step
        part = _PARTS * (step - phase.first_step) // steps
        if not 1 <= part < _PARTS or f"part {part}" in self._said:
            return
        self._said.add(f"part {part}")
        try:
            law = ScalingLaw.read(FROM_RECORDS if self._setup.options.init_from_records else FROM_RANDOM)
        except UserError:  # a run does not end for want of it
            return
        entropy = self._unigram_entropy(phase)
        if loss > _BEGUN * entropy:
            return
        tokens, all_tokens = (n * phase.train_batch_size * phase.max_seq_length for n in (step, phase.last_step))
        statistics = [each.statistics for each in self._setup.records.training(phase).manifests]
        text = sum(each.get("text_tokens", 0) for each in statistics) or all_tokens
        parameters = block_parameters(self._setup.config)
        expected = law.loss_later(Reached(loss, tokens, parameters), all_tokens, parameters, entropy, text)
        low, high = law.interval(expected)
        print(
            f"as the loss falls so far, it will be about {expected:.2f} at step {phase.last_step:,} ({low:.2f} to "
            f"{high:.2f}); lower, if the rate decays",
            flush=True,
        )

    def _unigram_entropy(self, phase: Phase) -> float:
        if self._entropy is None:
            self._entropy = unigram_entropy(self._setup.records.training(phase))
        return self._entropy

    def _warn(self, step: int, sentence: str) -> None:
        print(f"warning: {sentence}", flush=True)
        self._log.note(step, sentence)


def read_expected_losses(path: str) -> dict[int, list[list[float]]]:
    """Returns by records' length the steps and the highest losses that a plan expects there.

    Raises:
        UserError: the file is no plan of official-bert plan.
    """
    held = files.read_json_object(path)
    try:
        return {
            phase["max_seq_length"]: [[float(step), float(loss)] for step, loss in phase["expected_losses"]]
            for phase in held["phases"]
        }
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"--plan={path} is no plan ({error!r}); expected the plan.json of official-bert plan"
        ) from error
