"""Computes the unigram level, the loss of guessing tokens by frequency, and warns about runs that do not beat it."""

import collections

import numpy as np

from official_bert.modeling.config import BertConfig
from official_bert.pretraining.options import Phase
from official_bert.pretraining.record_files import RecordFiles
from official_bert.runs.training_log import TRAIN, TrainingLog, read_log

CHECKED_STEP = 1000  # until here, a run should have learned more than token frequencies
_UNIGRAM_LEVEL = 0.98  # share of the unigram entropy above which a loss counts as unigram level
_MAX_BATCHES, _BATCH_SIZE = 200, 64  # sample of the records in which predicted tokens are counted


def warn_at_unigram_level(
    folder: str, records: RecordFiles, log: TrainingLog, step: int, phase: Phase, config: BertConfig
) -> None:
    """Prints and logs a warning if all masked-LM losses logged so far are at or above the unigram level.

    Args:
        folder: Folder of the run.
        records: The training records.
        log: Log that the warning is written to.
        step: Number of steps done. Later lines of the log are ignored.
        phase: The present phase.
        config: Configuration of the model.
    """
    lowest = min(line["masked_lm_loss"] for line in read_log(folder, TRAIN) if line["step"] <= step)
    entropy = compute_unigram_entropy(records)
    if lowest < _UNIGRAM_LEVEL * entropy:
        return
    warning = (
        f"after {step:,} steps the lowest {config.token_objective} loss is {lowest:.3f}, no better than guessing "
        f"tokens by frequency ({entropy:.3f}): the model ignores the context; lower --learning_rate "
        f"({phase.learning_rate:g}), increase --num_warmup_steps ({phase.num_warmup_steps:,}), or start with "
        "--init_from_records"
    )
    print(f"warning: {warning}", flush=True)
    log.note(step, warning)


def compute_unigram_entropy(records: RecordFiles) -> float:
    """Returns the entropy of the tokens to predict, in nats. This is the loss of guessing each token by its frequency.

    The tokens in a sample of the records are counted. The Miller-Madow term corrects the bias of a small sample.
    """
    counts = _count_predicted_tokens(records, _BATCH_SIZE, _MAX_BATCHES)
    total = max(counts.total(), 1)
    shares = np.array(list(counts.values())) / total
    return float(-(shares * np.log(shares)).sum()) + (len(counts) - 1) / (2 * total)


def compute_unigram_accuracy(records: RecordFiles, batch_size: int, max_batches: int) -> float:
    """Returns the share of the most frequent token among the tokens to predict.

    This is the accuracy of always predicting this token.
    """
    counts = _count_predicted_tokens(records, batch_size, max_batches)
    return max(counts.values(), default=0) / max(counts.total(), 1)


def _count_predicted_tokens(records: RecordFiles, batch_size: int, max_batches: int) -> collections.Counter[int]:
    counts: collections.Counter[int] = collections.Counter()
    for batch in records.evaluation_batches(batch_size).take(max_batches).as_numpy_iterator():
        counts.update(batch["masked_lm_ids"][batch["masked_lm_weights"] > 0].tolist())
    return counts
