"""Tagging as a task of fine-tuning: words with tags, from a folder of CoNLL or CoNLL-U files or from a table."""

import abc
import collections
import os
from collections.abc import Collection, Sequence
from typing import Any

from official_bert.kinds.tagging.spec import Sentence, Tagged, TaggingSpec
from official_bert.tasks import conll, data_files, table, table_labels
from official_bert.tasks.options import TAGGING, TableOptions, TaggingOptions
from official_bert.tasks.task import DEV, TEST, TRAIN, Task
from official_bert.utils import files, tables
from official_bert.utils.bad_rows import SKIP, BadRows

# What the files of each part are called: ours, CoNLL-2003's, and those of Universal Dependencies.
_PATTERNS = {
    TRAIN: ("train.*", "*.train", "*train*.conllu", "*train*"),
    DEV: ("dev.*", "valid.*", "*.testa", "*dev*.conllu", "*dev*", "*valid*"),
    TEST: ("test.*", "*.testb", "*test*.conllu", "*test*"),
}


class TaggingTask(Task):
    """Tags for words; a subclass says where the sentences come from.

    Args:
        options: how long sentences are cut, and what stands on the encoder.
        labels: the tags of a model that is there, in the order of its logits; None for those of the training part,
            sorted.

    Raises:
        UserError: the labels are to come from a training part, and there is none.
    """

    head: TaggingSpec

    def __init__(self, options: TaggingOptions | TableOptions, labels: Sequence[str] | None) -> None:
        # Bad rows are shown when the file is read for training.
        known = labels or conll.tags_of(self._read_part(TRAIN, BadRows(SKIP, silent=True), None))
        head = TaggingSpec(labels=tuple(known), doc_stride=options.doc_stride, head_input=options.head_input)
        super().__init__(TAGGING, head)

    @abc.abstractmethod
    def _read_part(self, split: str, bad_rows: BadRows, tags: Collection[str] | None) -> list[Sentence]:
        """The sentences of a part; those with other tags than `tags` are bad rows, unless that is None."""

    def notes(self) -> list[str]:
        similar = table_labels.find_similar_classes(self.head.labels)
        if scheme := self.head.scheme:
            return [f"the tags are entities in {scheme.name}, which are scored as conlleval counts them", *similar]
        shown = tables.format_names(list(self.head.labels))
        schemes = "IOB1, IOB2, BIOES, BILOU, BMES, BMEWO"
        return [f"the tags ({shown}) are of no scheme of entities ({schemes}); accuracy is their score", *similar]

    def read(self, split: str, bad_rows: BadRows) -> list[Sentence]:
        if split == TRAIN:
            return self._read_part(split, bad_rows, self.head.labels)
        sentences = self._read_part(split, bad_rows, None)
        unknown = collections.Counter(
            tag for each in sentences for tag in each.tags or () if tag not in self.head.labels
        )
        if unknown:
            print(
                f"note: {unknown.total():,} words of the {split} part have tags that the model does not know "
                f"({tables.format_names(sorted(unknown))}); they count as wrong"
            )
        return sentences

    def write_predictions(
        self, folder: str, split: str, predictions: Sequence[Tagged], sentences: Sequence[Sentence]
    ) -> list[str]:
        """Writes a line for each word, with its tag if that is known and the one predicted: what conlleval reads."""
        path = os.path.join(folder, f"{split}_predictions.txt")
        lines = []
        for sentence, (tags, _) in zip(sentences, predictions, strict=True):
            columns = [sentence.words, tags] if sentence.tags is None else [sentence.words, sentence.tags, tags]
            lines += ["\t".join(row) for row in zip(*columns, strict=True)] + [""]
        files.write_text(path, "\n".join(lines) + "\n")
        return [path]


class FolderTaggingTask(TaggingTask):
    """Tags for the words of a folder's CoNLL or CoNLL-U files.

    The folder holds a file for each part, with train, dev (or valid) and test in their names. With tag_column "none"
    the test part is predicted, else it is scored where there is one.

    Args:
        options: the folder, its columns, and how long sentences are cut.
        labels: as for TaggingTask.
    """

    def __init__(self, options: TaggingOptions, labels: Sequence[str] | None = None) -> None:
        self._options = options
        super().__init__(options, labels)
        if options.tag_column == "none":
            self.eval_splits, self.test_splits = (), (TEST,)
        else:
            has_test = data_files.has(options.data_dir, TEST, _PATTERNS[TEST])
            self.eval_splits, self.test_splits = (DEV, TEST) if has_test else (DEV,), ()

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
    """Tags for the words of a table's rows.

    Args:
        options: the files, their columns, and how long sentences are cut.
        labels: as for TaggingTask.
    """

    def __init__(self, options: TableOptions, labels: Sequence[str] | None = None) -> None:
        self._options = options
        super().__init__(options, labels)
        self.eval_splits = (DEV,) if options.eval_file else ()
        self.test_splits = (TEST,) if options.predict_file else ()

    def task_spec(self, max_seq_length: int) -> dict[str, Any]:
        remembered = {name: getattr(self._options, name) for name in ("columns", "text_column", "label_column")}
        return {**super().task_spec(max_seq_length), "table": remembered}

    def _read_part(self, split: str, bad_rows: BadRows, tags: Collection[str] | None) -> list[Sentence]:
        path = table.part_of(self._options, split)
        rows = table.rows_in(self._options, path, bad_rows)
        column = None if split == TEST else self._options.label_column
        return conll.from_rows(rows, path, bad_rows, self._options.text_column, column, tags)
