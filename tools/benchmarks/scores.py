"""What pre-training is worth: `python -m tools.benchmarks.scores --data_dir=data --init=model --output_dir=scores`.

Each task is learned several times from the pre-trained model, and as often from random weights of the same size with
the same settings; beside both stands what always answering the training data's commonest class gives. The data are in
the layouts of their releases: glue/SST-2 and others, squad, codah/fold_0, and de_gsd-ud-*.conllu in tagging.

Stopped, it goes on where it was; several processes may each take some of the tasks, and the last prints all.
"""

import collections
import dataclasses
import os
import statistics
from typing import Any

import numpy as np

from official_bert.finetuning import sweep
from official_bert.finetuning.options import Options as FineTuningOptions
from official_bert.finetuning.runner import task_of
from official_bert.modeling import task_models
from official_bert.tasks.options import options_class
from official_bert.tasks.task import Task
from official_bert.utils import files
from official_bert.utils.bad_rows import BadRows
from official_bert.utils.command_line import Command
from official_bert.utils.flags import option

_SMALL = {"learning_rate": 5e-4, "train_batch_size": 32, "num_train_epochs": 4.0}
# The settings of each task, the same for both beginnings; none was searched for.
_TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "sst-2": ("glue/SST-2", {"learning_rate": 5e-4, "train_batch_size": 128, "num_train_epochs": 2.0}),
    "mrpc": ("glue/MRPC", _SMALL),
    "cola": ("glue/CoLA", _SMALL),
    "rte": ("glue/RTE", _SMALL),
    "sts-b": ("glue/STS-B", _SMALL),
    "squad": ("squad", {**_SMALL, "num_train_epochs": 2.0, "max_seq_length": 256, "eval_steps": 10**9}),
    "codah": ("codah/fold_0", _SMALL),
    "tagging": ("tagging", {**_SMALL, "num_train_epochs": 10.0}),
}
_PRETRAINED, _RANDOM = "pre-trained", "random weights"


@dataclasses.dataclass(frozen=True)
class Options:
    """The flags of the benchmark."""

    data_dir: str = option(dataclasses.MISSING, "Folder of all tasks' data.")
    init: str = option(dataclasses.MISSING, "Folder of a run of run_pretraining.")
    output_dir: str = option(dataclasses.MISSING, "Folder of the runs.")
    tasks: list[str] = option(list(_TASKS), "The tasks.")
    random_seeds: list[str] = option(["1", "2", "3"], "A run with each.")


def main(options: Options) -> None:
    lines = ["| task | score | commonest class | random weights | pre-trained |", "|---|---|---|---|---|"]
    for name in options.tasks:
        given = {start: _given(options, name, start) for start in (_RANDOM, _PRETRAINED)}
        task = task_of(given[_PRETRAINED])
        cells = []
        for each in given.values():
            (row,) = sweep.run_sweep(each)
            values = [100 * value for value in row["scores"][f"{task.eval_splits[0]}/{task.best_metric}"]]
            deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
            cells.append(f"{statistics.fmean(values):.1f}{deviation}")
        lines.append(f"| {name} | {task.best_metric} | {_commonest(task)} | {' | '.join(cells)} |")
    print("\n".join(lines))


def _given(options: Options, name: str, start: str) -> FineTuningOptions:
    folder, settings = _TASKS[name]
    data_dir = os.path.join(options.data_dir, folder)
    if name == "tagging":
        data_dir = _tagging_parts(data_dir, os.path.join(options.output_dir, "data"))
    return FineTuningOptions(
        task=name,
        task_options=options_class(name)(data_dir=data_dir),
        init=options.init if start == _PRETRAINED else os.path.join(options.init, "bert_config.json"),
        vocab_file=None if start == _PRETRAINED else os.path.join(options.init, "vocab.txt"),
        output_dir=os.path.join(options.output_dir, name, start.replace(" ", "_")),
        cache_dir=os.path.join(options.output_dir, "features"),
        random_seeds=options.random_seeds,
        do_train=True,
        do_eval=True,
        **settings,
    )


def _tagging_parts(source: str, target: str) -> str:
    """The treebank's dev part to train on and its test part to score, since its training part is not there."""
    for theirs, ours in (("dev", "train"), ("test", "dev")):
        path = os.path.join(target, f"{ours}.conllu")
        if not files.exists(path):
            files.copy(os.path.join(source, f"de_gsd-ud-{theirs}.conllu"), path)
    return target


def _commonest(task: Task) -> str:
    """The score of the training data's commonest class (or mean); a dash where there is none."""
    train, dev = (task.read(split, BadRows()) for split in ("train", task.eval_splits[0]))
    kind = task.head.kind
    predictions: Any
    if kind == task_models.TAGGING:
        tag = _mode([tag for sentence in train for tag in sentence.tags])
        predictions = [([tag] * len(each.words), [1.0] * len(each.words)) for each in dev]
    elif kind == task_models.QUESTION_ANSWERING:
        return "-"
    else:
        labels = [example.label for example in train]
        if kind == task_models.REGRESSION:
            predictions = np.full(len(dev), np.mean(labels))
        else:
            predictions = np.eye(max(labels) + 1)[[_mode(labels)] * len(dev)]
    return f"{100 * task.metrics(predictions, dev)[task.best_metric]:.1f}"


def _mode(values: list[Any]) -> Any:
    return collections.Counter(values).most_common(1)[0][0]


if __name__ == "__main__":
    summary = "What pre-training is worth."
    Command(program="python -m tools.benchmarks.scores", summary=summary, main=main, options=(Options,)).run()
