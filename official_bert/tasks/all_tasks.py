"""Every task, by the name that --task gives it."""

from collections.abc import Callable

from official_bert.errors import UserError
from official_bert.finetuning_options import Options
from official_bert.tasks import glue, tabular
from official_bert.tasks.task import Task

TASKS: dict[str, Task] = {**glue.TASKS}
# Tasks that the options shape: their columns, lengths, files.
MADE: dict[str, Callable[[Options], Task]] = {"table": tabular.make_task}


def find_task(options: Options) -> Task:
    """Returns the task that the options name.

    Raises:
        UserError: there is none of that name, or its own options are wrong.
    """
    if options.task in MADE:
        return MADE[options.task](options)
    if options.task in TASKS:
        task = TASKS[options.task]
        return glue.with_windows(task, options.doc_stride) if options.doc_stride else task
    raise UserError(f"unknown task {options.task!r}; expected one of {', '.join([*TASKS, *MADE])}")
