"""From the kind of a head, as task.json and exports name it, to its class."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from official_bert.modeling.head_input import HeadInput
from official_bert.tasks.heads.choices import MultipleChoiceHead
from official_bert.tasks.heads.classes import ClassificationHead, MultiLabelHead
from official_bert.tasks.heads.head import Head
from official_bert.tasks.heads.question_answering import QuestionAnsweringHead
from official_bert.tasks.heads.tagging import TaggingHead
from official_bert.tasks.heads.texts import RegressionHead
from official_bert.tasks.heads.vectors import VectorHead

HEADS: dict[str, type[Head]] = {
    head.kind: head
    for head in (
        ClassificationHead, MultiLabelHead, RegressionHead, TaggingHead, QuestionAnsweringHead, MultipleChoiceHead
    )
}  # fmt: skip


def head_of(task_spec: Mapping[str, Any]) -> Head:
    """Returns the head that a task.json, or an export's metadata, describes (see Head.task_spec)."""
    head = VectorHead if task_spec["kind"] == VectorHead.kind else HEADS[task_spec["kind"]]
    names = {field.name for field in dataclasses.fields(head)}
    settings: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in task_spec.items()
        if name in names and value is not None
    }
    return head(head_input=HeadInput.from_dict(task_spec), **settings)
