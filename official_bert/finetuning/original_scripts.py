"""Runs run_classifier.py and run_squad.py: fine-tuning with the flags and output files of the original's scripts."""

import dataclasses
import glob
import os
from collections.abc import Mapping

from official_bert.errors import UserError
from official_bert.finetuning.options import SWEPT, FinetuningOptions
from official_bert.tasks.options import SQUAD_V2, SquadOptions, SquadV2Options, TaskOptions
from official_bert.utils import files
from official_bert.utils.flags import MODEL, TRAINING, ValidatedOptions, option

_NO_EFFECT = "No effect here"


@dataclasses.dataclass(frozen=True, kw_only=True)
class OriginalOptions(ValidatedOptions):
    """Flags of run_classifier.py and run_squad.py that `official-bert finetune` does not have."""

    bert_config_file: str | None = option(
        None, "Configuration of the model, if it is not in the folder of --init_checkpoint.", group=MODEL
    )
    save_checkpoints_steps: int = option(
        1000, f"{_NO_EFFECT}: the model is saved after each evaluation.", min=1, group=TRAINING
    )
    iterations_per_loop: int = option(1000, f"{_NO_EFFECT}.", min=1, group=TRAINING)
    num_tpu_cores: int = option(8, f"{_NO_EFFECT}: all cores are used.", min=1, group=TRAINING)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OriginalSquadOptions(OriginalOptions):
    """Flags of run_squad.py that `official-bert finetune --task=squad` does not have."""

    version_2_with_negative: bool = option(False, "Whether questions may have no answer, as in SQuAD v2.0.")
    null_score_diff_threshold: float = option(
        0.0, "With --version_2_with_negative: no answer if that scores by more than this above the best answer."
    )
    verbose_logging: bool = option(False, f"{_NO_EFFECT}.")


def run_classifier(options: FinetuningOptions, original: OriginalOptions, task_options: TaskOptions) -> None:
    """Runs `finetune`, and then also writes eval_results.txt and test_results.tsv like the original."""
    scores = _finetune(options, original, task_options)
    folder = options.output_dir
    if scores:
        write_scores(os.path.join(folder, "eval_results.txt"), next(iter(scores.values())))
    if options.do_predict:
        # For MNLI, the first file belongs to the matched split.
        path = min(files.glob(os.path.join(glob.escape(folder), "predictions_test*.tsv")))
        rows = files.read_text(path).splitlines()[1:]
        probabilities = ["\t".join(row.split("\t")[3:]) for row in rows]  # after id, prediction and label
        files.write_text(os.path.join(folder, "test_results.tsv"), "\n".join([*probabilities, ""]))


def run_squad(options: FinetuningOptions, original: OriginalSquadOptions, task_options: SquadOptions) -> None:
    """Runs `finetune`, and then also writes the predictions under the file names of the original."""
    if original.version_2_with_negative:
        threshold = original.null_score_diff_threshold
        task_options = SquadV2Options(**vars(task_options), null_score_diff_threshold=threshold)
        options = dataclasses.replace(options, task=SQUAD_V2)
    _finetune(options, original, task_options)
    for name in ("predictions", "nbest_predictions", "null_odds"):
        path = os.path.join(options.output_dir, f"{name}_test.json")
        if options.do_predict and files.exists(path):
            files.write_text(os.path.join(options.output_dir, f"{name}.json"), files.read_text(path))


def write_scores(path: str, scores: Mapping[str, float]) -> None:
    """Writes scores in the format of the original's eval_results.txt: lines such as `eval_accuracy = 0.86`."""
    files.write_text(path, "".join(f"eval_{name} = {value}\n" for name, value in sorted(scores.items())))


def _finetune(
    options: FinetuningOptions, original: OriginalOptions, task_options: TaskOptions
) -> dict[str, dict[str, float]]:
    from official_bert.finetuning import runner

    if lists := [f"--{name}" for name in SWEPT if getattr(options, name)]:
        raise UserError(f"{', '.join(lists)}: this script trains one model; run official-bert finetune for a sweep")
    init = options.init or original.bert_config_file  # random weights, as in the original
    options = dataclasses.replace(options, task_options=task_options, init=init)
    return runner.run(options, original.bert_config_file if options.init != original.bert_config_file else None)
