"""A file to evaluate a fine-tuned model on, whatever its task: the file's layout follows from the model's task.json."""

from collections.abc import Mapping
from typing import Any

from official_bert.kinds.multiple_choice.spec import MultipleChoiceSpec
from official_bert.kinds.question_answering.spec import QuestionAnsweringSpec
from official_bert.kinds.tagging.spec import TaggingSpec
from official_bert.kinds.vectors.spec import VectorSpec
from official_bert.tasks import conll, multiple_choice, squad
from official_bert.tasks.all_tasks import make_task
from official_bert.tasks.glue import SPECS, GlueTask, read_file
from official_bert.tasks.options import (
    CODAH,
    EMBEDDINGS,
    GLUE,
    TABLE,
    TAGGING,
    XNLI,
    EmbeddingsOptions,
    GlueOptions,
    MultipleChoiceOptions,
    SquadOptions,
    SquadV2Options,
    TableOptions,
    TaggingOptions,
    XnliOptions,
)
from official_bert.tasks.task import DEV, Task
from official_bert.tasks.xnli import XnliTask
from official_bert.utils import files, tables
from official_bert.utils.bad_rows import NoBadRows


def read_evaluation_file(task_spec: Mapping[str, Any], path: str) -> tuple[Task, list[Any]]:
    """Returns the task of a fine-tuned model, and the examples of a file.

    Args:
        task_spec: what the model's task.json holds.
        path: The layout that the model was trained on: SQuAD's JSON for questions, SWAG's or CODAH's for choices, CoNLL
            or a table for tags, GLUE's or XNLI's .tsv or a table for their tasks, else a table.

    Raises:
        UserError: the file has another layout.
    """
    return _READERS.get(task_spec["kind"], _table)(task_spec, path)


def _questions(spec: Mapping[str, Any], path: str) -> tuple[Task, list[Any]]:
    options = SquadV2Options() if spec["version_2"] else SquadOptions()
    questions = squad.read(path, spec["version_2"], for_training=False, bad_rows=NoBadRows())
    return squad.SquadTask(options.merge_trained(spec)), questions


def _choices(spec: Mapping[str, Any], path: str) -> tuple[Task, list[Any]]:
    task = multiple_choice.MultipleChoiceTask(CODAH, MultipleChoiceOptions())
    return task, multiple_choice.read(path, NoBadRows())


def _vectors(spec: Mapping[str, Any], path: str) -> tuple[Task, list[Any]]:
    task = make_task(EMBEDDINGS, EmbeddingsOptions(eval_file=path).merge_trained(spec))
    return task, task.read(DEV, NoBadRows())


def _sentences(spec: Mapping[str, Any], path: str) -> tuple[Task, list[Any]]:
    if "table" in spec or (tables.is_table(path) and not path.endswith((".csv", ".tsv"))):
        return _table(spec, path)
    options = TaggingOptions().merge_trained(spec)
    sentences = conll.read(path, NoBadRows(), options.tag_column, options.word_column)
    return make_task(TAGGING, options, spec["labels"]), sentences


def _table(spec: Mapping[str, Any], path: str) -> tuple[Task, list[Any]]:
    name = spec["task"]
    if name == XNLI and path.endswith(".tsv") and "gold_label" in _read_header(path):
        xnli_task = XnliTask(XnliOptions().merge_trained(spec))
        return xnli_task, xnli_task.read_file(path, DEV, NoBadRows())
    glue_task = GlueTask(name, GlueOptions(doc_stride=spec.get("doc_stride"))) if name in GLUE else None
    if glue_task and path.endswith(".tsv") and "text" not in _read_header(path):
        return glue_task, read_file(SPECS[name], path, DEV, NoBadRows())
    pair_column = "text_pair" if spec["pair"] and "table" not in spec else None  # a table's own columns are remembered
    table = TableOptions(eval_file=path, text_pair_column=pair_column).merge_trained(spec)
    task = make_task(TABLE, table, spec["labels"])
    return glue_task or task, task.read(DEV, NoBadRows())


def _read_header(path: str) -> list[str]:
    return files.read_text(path).partition("\n")[0].split()


_READERS = {
    QuestionAnsweringSpec.kind: _questions,
    MultipleChoiceSpec.kind: _choices,
    VectorSpec.kind: _vectors,
    TaggingSpec.kind: _sentences,
}
