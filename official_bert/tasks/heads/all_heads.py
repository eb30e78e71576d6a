"""From the kind of a head, as task.json and exports name it, to its class."""

from official_bert.tasks.heads.choices import MultipleChoiceHead
from official_bert.tasks.heads.head import Head
from official_bert.tasks.heads.question_answering import QuestionAnsweringHead
from official_bert.tasks.heads.tagging import TaggingHead
from official_bert.tasks.heads.texts import ClassificationHead, MultiLabelHead, RegressionHead

HEADS: dict[str, type[Head]] = {
    head.kind: head
    for head in (
        ClassificationHead, MultiLabelHead, RegressionHead, TaggingHead, QuestionAnsweringHead, MultipleChoiceHead
    )
}  # fmt: skip
