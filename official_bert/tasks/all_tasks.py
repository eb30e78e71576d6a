"""Every task, by the name that --task gives it."""

from collections.abc import Callable

from official_bert import task_models
from official_bert.errors import UserError
from official_bert.finetuning_options import Options
from official_bert.tasks import glue, multiple_choice_task, squad_task, tabular, tagging_task
from official_bert.tasks.task import Task

TASKS: dict[str, Task] = {**glue.TASKS, **multiple_choice_task.TASKS}
# Tasks that the options shape: their columns, lengths, files.
MADE: dict[str, Callable[[Options], Task]] = {
    "squad": squad_task.make_version_1,
    "squad_v2": squad_task.make_version_2,
    "tagging": tagging_task.make_task,
    "table": tabular.make_task,
}


def find_task(options: Options) -> Task:
    """Returns the task that the options name.

    Raises:
        UserError: there is none of that name, or its own options are wrong.
    """
    if options.task == "features":
        raise UserError("vectors of texts take other flags; see python -m run_finetuning --task=features --help")
    if options.task == "table" and options.label_kind == task_models.TAGGING:
        return tagging_task.make_table_task(options)
    if options.task in MADE:
        return MADE[options.task](options)
    if options.task in TASKS:
        task = TASKS[options.task]
        return (
            glue.with_windows(task, options.doc_stride) if options.doc_stride and options.task in glue.TASKS else task
        )
    raise UserError(f"unknown task {options.task!r}; expected one of {', '.join([*TASKS, *MADE])}")
