"""The task's score of a model before and after a conversion that changes its numbers."""

from collections.abc import Callable
from typing import Any

from official_bert.errors import UserError
from official_bert.export.options import ExportOptions
from official_bert.export.source import Source
from official_bert.inference.keras_model import KerasRunner
from official_bert.kinds.features import Features, Outputs
from official_bert.tasks.evaluation_files import read_evaluation_file
from official_bert.tokenization.fast import FastTokenizer
from official_bert.utils.counting import counted

_BATCH_SIZE = 32


def measure(
    source: Source, options: ExportOptions, run_converted: Callable[[Features], Outputs], format_name: str
) -> dict[str, Any]:
    """Scores a model and its converted form on the evaluation file, and prints both scores.

    Args:
        source: The model before the conversion.
        options: The options of the export, with the evaluation file and the largest loss allowed.
        run_converted: The converted model, from features to outputs.
        format_name: The format of the converted model, for messages.

    Returns:
        The metric's name, its value `before` and `after`, and the number of examples.

    Raises:
        UserError: If the evaluation file cannot be read, or the converted model loses more than allowed.
    """
    assert options.eval_file
    task, examples = read_evaluation_file(source.task_spec, options.eval_file)
    length = source.task_spec["max_seq_length"]
    features = task.head.featurize(examples, FastTokenizer.of(source.tokenizer), length)
    before, after = (
        task.metrics(task.head.decode(outputs, features, examples), examples)[task.best_metric]
        for outputs in (
            KerasRunner(source.model, None, length).compute_outputs(features, _BATCH_SIZE),
            run_converted(features),
        )
    )
    name = f"{options.quantization} {format_name} model"
    if (before - after) / task.head.perfect > options.max_loss:
        raise UserError(
            f"the {name} loses {before - after:.4f} (from {before:.4f} to {after:.4f}) on {options.eval_file}, more "
            f"than --max_loss={options.max_loss}; nothing is written"
        )
    print(f"{name}: {task.best_metric} {before:.4f} before, {after:.4f} after, on {counted(len(examples), 'example')}")
    return {"metric": task.best_metric, "before": before, "after": after, "examples": len(examples)}
