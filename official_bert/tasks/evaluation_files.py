"""Reads a file with labeled examples to evaluate a fine-tuned model. The model's task.json determines the format."""

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
    """Reads the examples in a file for the task of a fine-tuned model. Returns the task and the examples.

    Args:
        task_spec: Contents of the model's task.json.
        path: A file in the format of the training data. Question answering: SQuAD's JSON. Multiple choice: SWAG's or
            CODAH's format. Tagging: CoNLL or a table. GLUE and XNLI tasks: their .tsv format or a table. Others: a
            table.

    Raises:
        UserError: If the file has another format.
    """
    return _READERS.get(task_spec["kind"], _read_table)(task_spec, path)


def _read_questions(spec: Mapping[str, Any], path: str) -> tuple[Task, list[Any]]:
    options = SquadV2Options() if spec["version_2"] else SquadOptions()
    questions = squad.read(path, spec["version_2"], for_training=False, bad_rows=NoBadRows())
    return squad.SquadTask(options.merge_trained(spec)), questions


def _read_choices(spec: Mapping[str, Any], path: str) -> tuple[Task, list[Any]]:
    task = multiple_choice.MultipleChoiceTask(CODAH, MultipleChoiceOptions())
    return task, multiple_choice.read(path, NoBadRows())


def _read_vectors(spec: Mapping[str, Any], path: str) -> tuple[Task, list[Any]]:
    task = make_task(EMBEDDINGS, EmbeddingsOptions(eval_file=path).merge_trained(spec))
    return task, task.read(DEV, NoBadRows())


def _read_sentences(spec: Mapping[str, Any], path: str) -> tuple[Task, list[Any]]:
    if "table" in spec or (tables.is_table(path) and not path.endswith((".csv", ".tsv"))):
        return _read_table(spec, path)
    options = TaggingOptions().merge_trained(spec)
    sentences = conll.read(path, NoBadRows(), options.tag_column, options.word_column)
    return make_task(TAGGING, options, spec["labels"]), sentences


def _read_table(spec: Mapping[str, Any], path: str) -> tuple[Task, list[Any]]:
    name = spec["task"]
    if name == XNLI and path.endswith(".tsv") and "gold_label" in _read_header(path):
        xnli_task = XnliTask(XnliOptions().merge_trained(spec))
        return xnli_task, xnli_task.read_file(path, DEV, NoBadRows())
    glue_task = GlueTask(name, GlueOptions(doc_stride=spec.get("doc_stride"))) if name in GLUE else None
    if glue_task and path.endswith(".tsv") and "text" not in _read_header(path):
        return glue_task, read_file(SPECS[name], path, DEV, NoBadRows())
    pair_column = "text_pair" if spec["pair"] and "table" not in spec else None  # task.json has a table's own columns.
    table = TableOptions(eval_file=path, text_pair_column=pair_column).merge_trained(spec)
    task = make_task(TABLE, table, spec["labels"])
    return glue_task or task, task.read(DEV, NoBadRows())


def _read_header(path: str) -> list[str]:
    return files.read_text(path).partition("\n")[0].split()


_READERS = {
    QuestionAnsweringSpec.kind: _read_questions,
    MultipleChoiceSpec.kind: _read_choices,
    VectorSpec.kind: _read_vectors,
    TaggingSpec.kind: _read_sentences,
}
