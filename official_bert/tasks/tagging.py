"""The task "tagging": tags words. Reads a folder of CoNLL or CoNLL-U files, or a table."""

import abc
import collections
import contextlib
import os
from collections.abc import Collection, Sequence
from typing import Any

from official_bert.errors import UserError
from official_bert.kinds.tagging.spec import Sentence, Tagged, TaggingSpec
from official_bert.tasks import conll, data_files, table, table_labels
from official_bert.tasks.options import TAGGING, TableOptions, TaggingOptions
from official_bert.tasks.task import DEV, TEST, TRAIN, Task
from official_bert.utils import files, tables
from official_bert.utils.bad_rows import SKIP, BadRows

# File names by split, including the names in CoNLL-2003 and Universal Dependencies.
_PATTERNS = {
    TRAIN: ("train.*", "*.train", "*train*.conllu", "*train*"),
    DEV: ("dev.*", "valid.*", "*.testa", "*dev*.conllu", "*dev*", "*valid*"),
    TEST: ("test.*", "*.testb", "*test*.conllu", "*test*"),
}


class TaggingTask(Task):
    """Base class of tagging tasks. Subclasses read the sentences.

    Args:
        options: The options of the task, such as the window stride.
        labels: Tags of an existing model, in the order of its logits. None to use the sorted tags of the training data.

    Raises:
        UserError: If `labels` is None and the training data are missing.
    """

    head: TaggingSpec

    def __init__(self, options: TaggingOptions | TableOptions, labels: Sequence[str] | None) -> None:
        # Bad rows are reported later, when the file is read for training.
        known = labels or conll.collect_tags(self._read_part(TRAIN, BadRows(SKIP, silent=True), None))
        head = options.make_spec(TaggingSpec, labels=tuple(known))
        super().__init__(TAGGING, head, options if isinstance(options, TableOptions) else None)

    @abc.abstractmethod
    def _read_part(self, split: str, bad_rows: BadRows, tags: Collection[str] | None) -> list[Sentence]:
        """Reads the sentences of a split. If `tags` is not None, sentences with other tags are invalid rows."""

    def notes(self) -> list[str]:
        similar = table_labels.find_similar_classes(self.head.labels)
        if scheme := self.head.scheme:
            return [f"the tags mark entities in the scheme {scheme.name}; they are scored like conlleval", *similar]
        names = tables.format_names(list(self.head.labels))
        schemes = "IOB1, IOB2, BIOES, BILOU, BMES, BMEWO"
        return [f"the tags ({names}) do not follow an entity scheme ({schemes}); they are scored by accuracy", *similar]

    def read(self, split: str, bad_rows: BadRows) -> list[Sentence]:
        if split == TRAIN:
            return self._read_part(split, bad_rows, self.head.labels)
        sentences = self._read_part(split, bad_rows, None)
        unknown = collections.Counter(
            tag for each in sentences for tag in each.tags or () if tag not in self.head.labels
        )
        if unknown:
            print(
                f"note: {unknown.total():,} words of the {split} split have tags that the model was not trained on "
                f"({tables.format_names(sorted(unknown))}); they count as wrong"
            )
        return sentences

    def write_predictions(
        self, folder: str, split: str, predictions: Sequence[Tagged], sentences: Sequence[Sentence]
    ) -> list[str]:
        """Writes the words with their expected tags (if known) and predicted tags, in the format of conlleval.

        Returns the path of the file.
        """
        path = os.path.join(folder, f"predictions_{split}.txt")
        lines = []
        for sentence, (tags, _) in zip(sentences, predictions, strict=True):
            columns = [sentence.words, tags] if sentence.tags is None else [sentence.words, sentence.tags, tags]
            lines += ["\t".join(row) for row in zip(*columns, strict=True)] + [""]
        files.write_text(path, "\n".join(lines) + "\n")
        return [path]


class FolderTaggingTask(TaggingTask):
    """Tags the words in CoNLL or CoNLL-U files of a folder.

    The folder has a file for each split, whose name contains train, dev (or valid) or test. The test file is optional.
    It can be predicted, and is also scored unless tag_column is "none".

    Args:
        options: The folder, its columns and the window stride.
        labels: See TaggingTask.
    """

    def __init__(self, options: TaggingOptions, labels: Sequence[str] | None = None) -> None:
        self._options = options
        super().__init__(options, labels)
        if options.tag_column == "none":
            self.eval_splits = ()
        else:
            self.test_splits = ()
            with contextlib.suppress(UserError):
                data_files.find(options.data_dir, TEST, _PATTERNS[TEST])
                self.test_splits = (TEST,)
            self.eval_splits = (DEV, *self.test_splits)

    def task_spec(self, max_seq_length: int) -> dict[str, Any]:
        changed = {name: getattr(self._options, name) for name in ("tag_column", "word_column")}
        default = TaggingOptions()
        return super().task_spec(max_seq_length) | {
            name: value for name, value in changed.items() if value != getattr(default, name)
        }

    def _read_part(self, split: str, bad_rows: BadRows, tags: Collection[str] | None) -> list[Sentence]:
        path = data_files.find(self._options.data_dir, split, _PATTERNS[split])
        return conll.read(path, bad_rows, self._options.tag_column, self._options.word_column, tags)


class TableTaggingTask(TaggingTask):
    """Tags the words in the rows of a table.

    Args:
        options: The files, their columns and the window stride.
        labels: See TaggingTask.
    """

    def __init__(self, options: TableOptions, labels: Sequence[str] | None = None) -> None:
        self._options = options
        super().__init__(options, labels)

    def task_spec(self, max_seq_length: int) -> dict[str, Any]:
        remembered = {name: getattr(self._options, name) for name in ("columns", "text_column", "label_column")}
        return {**super().task_spec(max_seq_length), "table": remembered}

    def _read_part(self, split: str, bad_rows: BadRows, tags: Collection[str] | None) -> list[Sentence]:
        path = table.get_path(self._options, split)
        rows = table.read_rows(self._options, path, bad_rows)
        column = None if split == TEST else self._options.label_column
        return conll.read_rows(rows, path, bad_rows, self._options.text_column, column, tags)
