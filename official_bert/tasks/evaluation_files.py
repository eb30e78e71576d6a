"""Reads a file with labeled examples to evaluate a fine-tuned model. The model's task.json determines the format."""

from collections.abc import Mapping
from typing import Any

from official_bert.kinds.names import MULTIPLE_CHOICE, QUESTION_ANSWERING, VECTORS
from official_bert.kinds.names import TAGGING as TAGGING_KIND
from official_bert.tasks import conll, multiple_choice
from official_bert.tasks.all_tasks import make_task
from official_bert.tasks.glue import SPECS, GlueTask, read_file
from official_bert.tasks.multiple_choice import MultipleChoiceTask
from official_bert.tasks.options import (
    CODAH,
    EMBEDDINGS,
    GLUE,
    SQUAD,
    SQUAD_V2,
    TABLE,
    TAGGING,
    XNLI,
    GlueOptions,
    MultipleChoiceOptions,
    TaggingOptions,
    XnliOptions,
    get_options_class,
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
    kind, name, bad_rows = task_spec["kind"], task_spec["task"], NoBadRows()
    if kind == MULTIPLE_CHOICE:
        return MultipleChoiceTask(CODAH, MultipleChoiceOptions()), multiple_choice.read(path, bad_rows)
    if kind == TAGGING_KIND and not _is_table_of_sentences(task_spec, path):
        tagging = TaggingOptions().merge_trained(task_spec)
        sentences = conll.read(path, bad_rows, tagging.tag_column, tagging.word_column)
        return make_task(TAGGING, tagging, task_spec["labels"]), sentences
    header = files.read_text(path).partition("\n")[0].split() if path.endswith(".tsv") else []
    if name == XNLI and "gold_label" in header:
        xnli_task = XnliTask(XnliOptions().merge_trained(task_spec))
        return xnli_task, xnli_task.read_file(path, DEV, bad_rows)
    glue_task = GlueTask(name, GlueOptions(doc_stride=task_spec.get("doc_stride"))) if name in GLUE else None
    if glue_task and header and "text" not in header:
        return glue_task, read_file(SPECS[name], path, DEV, bad_rows)
    settings = {"eval_file": path}
    if kind == QUESTION_ANSWERING:
        task_name = SQUAD_V2 if task_spec["version_2"] else SQUAD
    elif kind == VECTORS:
        task_name = EMBEDDINGS
    else:
        task_name = TABLE
        if task_spec["pair"] and "table" not in task_spec:
            settings["text_pair_column"] = "text_pair"  # A pair is in the columns text and text_pair.
    options = get_options_class(task_name)(**settings).merge_trained(task_spec)  # type: ignore[arg-type]
    task = make_task(task_name, options, task_spec["labels"])
    return glue_task or task, task.read(DEV, bad_rows)


def _is_table_of_sentences(task_spec: Mapping[str, Any], path: str) -> bool:
    return "table" in task_spec or (tables.is_table(path) and not path.endswith((".csv", ".tsv")))
