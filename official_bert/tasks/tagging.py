"""The task "tagging": tags words. Reads a folder of CoNLL or CoNLL-U files, or a table."""

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
from official_bert.utils.counting import pluralize

# File names by split, including the names in CoNLL-2003 and Universal Dependencies.
_PATTERNS = {
    TRAIN: ("train.*", "*.train", "*train*.conllu", "*train*"),
    DEV: ("dev.*", "valid.*", "*.testa", "*dev*.conllu", "*dev*", "*valid*"),
    TEST: ("test.*", "*.testb", "*test*.conllu", "*test*"),
}


class TaggingTask(Task):
    """Tags the words in CoNLL or CoNLL-U files of a folder, or in the rows of tables.

    A folder has a file for each split, whose name contains train, dev (or valid) or test. The test file is optional. It
    can be predicted, and is also scored unless tag_column is "none".

    Args:
        options: The folder or the tables, their columns and the window stride.
        labels: Tags of an existing model, in the order of its logits. None to use the sorted tags of the training data.

    Raises:
        UserError: If `labels` is None and the training data are missing.
    """

    spec: TaggingSpec

    def __init__(self, options: TaggingOptions | TableOptions, labels: Sequence[str] | None = None) -> None:
        self._options = options
        # Bad rows are reported later, when the file is read for training.
        known = labels or conll.collect_tags(self._read_part(TRAIN, BadRows(SKIP, silent=True), None))
        spec = options.make_spec(TaggingSpec, labels=tuple(known))
        if isinstance(options, TableOptions):
            super().__init__(TAGGING, spec, options)
            return
        super().__init__(TAGGING, spec)
        if options.tag_column == "none":
            self.eval_splits = ()
            return
        paths = {}
        for split in (DEV, TEST):
            with contextlib.suppress(UserError):
                paths[split] = data_files.find(options.data_dir, split, _PATTERNS[split])
        # Without a *.testb, the pattern *test* matches the *.testa of CoNLL-2003.
        self.test_splits = (TEST,) if TEST in paths and paths[TEST] != paths.get(DEV) else ()
        self.eval_splits = (DEV, *self.test_splits)

    def _read_part(self, split: str, bad_rows: BadRows, tags: Collection[str] | None) -> list[Sentence]:
        """Reads the sentences of a split. If `tags` is not None, sentences with other tags are invalid rows."""
        options = self._options
        if isinstance(options, TaggingOptions):
            path = data_files.find(options.data_dir, split, _PATTERNS[split])
            return conll.read(path, bad_rows, options.tag_column, options.word_column, tags)
        path = table.get_path(options, split)
        column = None if split == TEST else options.label_column
        return conll.read_rows(
            table.read_rows(options, path, bad_rows), path, bad_rows, options.text_column, column, tags
        )

    def task_spec(self, max_seq_length: int) -> dict[str, Any]:
        options, task_spec = self._options, super().task_spec(max_seq_length)
        if isinstance(options, TableOptions):
            names = ("columns", "text_column", "label_column")
            return {**task_spec, "table": {name: getattr(options, name) for name in names}}
        changed = {"tag_column": options.tag_column, "word_column": options.word_column}
        default = TaggingOptions()
        return task_spec | {name: value for name, value in changed.items() if value != getattr(default, name)}

    def notes(self) -> list[str]:
        if scheme := self.spec.scheme:
            note = f"the tags mark entities in the scheme {scheme.name}; they are scored like conlleval"
        else:
            names, schemes = tables.format_names(list(self.spec.labels)), "IOB1, IOB2, BIOES, BILOU, BMES, BMEWO"
            note = f"the tags ({names}) do not follow an entity scheme ({schemes}); they are scored by accuracy"
        return [note, *table_labels.find_doubtful_classes(self.spec.labels)]

    def read(self, split: str, bad_rows: BadRows) -> list[Sentence]:
        if split == TRAIN:
            return self._read_part(split, bad_rows, self.spec.labels)
        sentences = self._read_part(split, bad_rows, None)
        unknown = collections.Counter(
            tag for each in sentences for tag in each.tags or () if tag not in self.spec.labels
        )
        if unknown:
            print(
                f"note: the {split} split has {pluralize(unknown.total(), 'word')} with tags that the model was not "
                f"trained on ({tables.format_names(sorted(unknown))}), which count as wrong"
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
