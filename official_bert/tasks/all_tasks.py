"""Creates tasks from their options."""

from collections.abc import Sequence

from official_bert.tasks.embeddings import EmbeddingsTask
from official_bert.tasks.glue import GlueTask
from official_bert.tasks.multiple_choice import MultipleChoiceTask
from official_bert.tasks.options import (
    EmbeddingsOptions,
    GlueOptions,
    MultipleChoiceOptions,
    SquadOptions,
    TableOptions,
    TaggingOptions,
    TaskOptions,
    XnliOptions,
    get_options_class,
)
from official_bert.tasks.squad import SquadTask
from official_bert.tasks.table import TableTask
from official_bert.tasks.tagging import TaggingTask
from official_bert.tasks.task import Task
from official_bert.tasks.xnli import XnliTask


def make_task(name: str, options: TaskOptions, labels: Sequence[str] | None = None, needs_labels: bool = True) -> Task:
    """Creates a task from its options.

    Args:
        name: Name of the task, a value of --task.
        options: Options of the task, an instance of its class in TASK_OPTIONS.
        labels: For tables and tagging: the class names of an existing model. None to read them from the training data.
        needs_labels: For tables: whether training rows without labels are invalid.

    Raises:
        UserError: If the task is unknown, an option is invalid, or training data are needed for the labels and missing.
        TypeError: If the options belong to another task.
    """
    if type(options) is not get_options_class(name):
        raise TypeError(
            f"the options of {name} are {type(options).__name__}; expected {get_options_class(name).__name__}"
        )
    match options:
        case GlueOptions():
            return GlueTask(name, options)
        case XnliOptions():
            return XnliTask(options)
        case SquadOptions():
            return SquadTask(options)
        case MultipleChoiceOptions():
            return MultipleChoiceTask(name, options)
        case TaggingOptions() | TableOptions(label_kind="tagging"):
            return TaggingTask(options, labels)
        case TableOptions():
            return TableTask(options, labels, needs_labels)
        case EmbeddingsOptions():
            return EmbeddingsTask(options)
    raise AssertionError(f"no task is made from {type(options).__name__}")
