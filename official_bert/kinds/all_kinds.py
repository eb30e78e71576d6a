"""The KindSpec class of each kind of task, by the name of the kind in task.json."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from official_bert.kinds.classification.spec import ClassificationSpec
from official_bert.kinds.multi_label.spec import MultiLabelSpec
from official_bert.kinds.multiple_choice.spec import MultipleChoiceSpec
from official_bert.kinds.question_answering.spec import QuestionAnsweringSpec
from official_bert.kinds.regression.spec import RegressionSpec
from official_bert.kinds.spec import KindSpec
from official_bert.kinds.tagging.spec import TaggingSpec
from official_bert.kinds.vectors.spec import VectorSpec
from official_bert.modeling.head_input import HeadInput

SPECS: dict[str, type[KindSpec]] = {
    spec.kind: spec
    for spec in (
        ClassificationSpec,
        MultiLabelSpec,
        RegressionSpec,
        TaggingSpec,
        QuestionAnsweringSpec,
        MultipleChoiceSpec,
        VectorSpec,
    )
}


def create_spec(task_spec: Mapping[str, Any]) -> KindSpec:
    """Creates the KindSpec, such as a ClassificationSpec, from the contents of task.json.

    Args:
        task_spec: The contents of the task.json of a fine-tuned model or an export, as `KindSpec.task_spec` returns
            them.
    """
    spec = SPECS[task_spec["kind"]]
    names = {field.name for field in dataclasses.fields(spec)}
    settings: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in task_spec.items()
        if name in names and value is not None
    }
    return spec(head_input=HeadInput.from_dict(task_spec), **settings)
