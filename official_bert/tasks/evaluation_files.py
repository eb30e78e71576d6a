"""A file to evaluate a fine-tuned model on, whatever its task: the file's layout follows from the model's task.json."""

from collections.abc import Mapping
from typing import Any

from official_bert.tasks import multiple_choice, squad
from official_bert.tasks.all_tasks import make_task
from official_bert.tasks.glue import GlueTask
from official_bert.tasks.heads.choices import MultipleChoiceHead
from official_bert.tasks.heads.question_answering import QuestionAnsweringHead
from official_bert.tasks.heads.vectors import VectorHead
from official_bert.tasks.options import (
    CODAH,
    EMBEDDINGS,
    GLUE,
    TABLE,
    EmbeddingsOptions,
    GlueOptions,
    MultipleChoiceOptions,
    SquadOptions,
    SquadV2Options,
    TableOptions,
)
from official_bert.tasks.task import DEV, Task
from official_bert.utils.bad_rows import BadRows


def read_evaluation_file(task_spec: Mapping[str, Any], path: str) -> tuple[Task, list[Any]]:
    """Returns the task of a fine-tuned model, and the examples of a file.

    Args:
        task_spec: what the model's task.json holds.
        path: SQuAD's JSON for questions, SWAG's or CODAH's layout for choices, else a table.

    Raises:
        UserError: the file has another layout.
    """
    readers = {QuestionAnsweringHead.kind: _questions, MultipleChoiceHead.kind: _choices, VectorHead.kind: _vectors}
    return readers.get(task_spec["kind"], _table)(task_spec, path)


def _questions(spec: Mapping[str, Any], path: str) -> tuple[Task, list[Any]]:
    options = SquadV2Options() if spec["version_2"] else SquadOptions()
    questions = squad.read(path, spec["version_2"], for_training=False, bad_rows=BadRows())
    return squad.SquadTask(options.with_trained(spec)), questions


def _choices(spec: Mapping[str, Any], path: str) -> tuple[Task, list[Any]]:
    task = multiple_choice.MultipleChoiceTask(CODAH, MultipleChoiceOptions())
    return task, multiple_choice.read(path, BadRows())


def _vectors(spec: Mapping[str, Any], path: str) -> tuple[Task, list[Any]]:
    task = make_task(EMBEDDINGS, EmbeddingsOptions(eval_file=path).with_trained(spec))
    return task, task.read(DEV, BadRows())


def _table(spec: Mapping[str, Any], path: str) -> tuple[Task, list[Any]]:
    pair_column = "text_pair" if spec["pair"] and "table" not in spec else None  # a table's own columns are remembered
    table = TableOptions(eval_file=path, text_pair_column=pair_column).with_trained(spec)
    task = make_task(TABLE, table, spec["labels"])
    examples = task.read(DEV, BadRows())
    if spec["task"] in GLUE:  # that task's own scores
        task = GlueTask(spec["task"], GlueOptions(doc_stride=spec.get("doc_stride")))
    return task, examples
