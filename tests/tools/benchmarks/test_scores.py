"""What always answering the commonest class scores, for tasks of every kind."""

from typing import Any

import pytest

from official_bert.tasks.glue import GlueTask
from official_bert.tasks.heads.choices import Example
from official_bert.tasks.heads.tagging import Sentence
from official_bert.tasks.heads.texts import TextExample
from official_bert.tasks.multiple_choice import MultipleChoiceTask
from official_bert.tasks.options import GlueOptions, MultipleChoiceOptions, SquadOptions, TaggingOptions
from official_bert.tasks.squad import SquadTask
from official_bert.tasks.tagging import FolderTaggingTask
from tools.benchmarks import scores


def made_of(task: Any, train: list[Any], dev: list[Any]) -> Any:
    task.read = lambda split, bad_rows: train if split == "train" else dev
    return task


def texts(*labels: float) -> list[TextExample]:
    return [TextExample(str(number), "a", "b", label) for number, label in enumerate(labels)]


def choices(*labels: int) -> list[Example]:
    return [Example("a", tuple("bcde"), label) for label in labels]


def sentences(*tags: str) -> list[Sentence]:
    return [Sentence(tuple(each), tuple(each), 1) for each in tags]


@pytest.mark.parametrize(("task", "train", "dev", "score"), [
    (GlueTask("rte", GlueOptions()), texts(1, 0, 1), texts(1, 1, 1, 0), "75.0"),
    (MultipleChoiceTask("codah", MultipleChoiceOptions()), choices(2, 2, 0), choices(2, 1), "50.0"),
    (FolderTaggingTask(TaggingOptions(), labels=("X", "Y")), sentences("XXY", "X"), sentences("XYYY"), "25.0"),
    (SquadTask(SquadOptions()), [], [], "-"),
])  # fmt: skip
def test_the_commonest_class_is_that_of_the_training_data(task: Any, train: list[Any], dev: list[Any], score: str):
    assert scores._commonest(made_of(task, train, dev)) == score
