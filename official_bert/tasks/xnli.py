"""The task XNLI (Conneau et al., arXiv:1809.05053): natural language inference in fifteen languages.

As in the original, the training data are MultiNLI translated into the language (multinli/multinli.train.LANGUAGE.tsv).
The dev and test data are the rows of the language in xnli.dev.tsv and xnli.test.tsv.
"""

import os
from typing import Any

from official_bert.errors import UserError
from official_bert.kinds.classification.spec import ClassificationSpec
from official_bert.kinds.text_spec import TextExample
from official_bert.tasks.options import XNLI, XnliOptions
from official_bert.tasks.task import TEST, TRAIN
from official_bert.tasks.text_task import TextTask
from official_bert.utils import files, tables
from official_bert.utils.bad_rows import BadRows

_LABELS = ("contradiction", "entailment", "neutral")
_RENAMED = {"contradictory": "contradiction"}  # The name in the training data.
_TRAIN_COLUMNS = ("premise", "hypo", "label")
_COLUMNS = ("sentence1", "sentence2", "gold_label", "language")


class XnliTask(TextTask):
    """The task XNLI in one language.

    Args:
        options: The language and the data folder.
    """

    def __init__(self, options: XnliOptions) -> None:
        self._options = options
        super().__init__(XNLI, options.make_spec(ClassificationSpec, labels=_LABELS, pair=True))

    def read(self, split: str, bad_rows: BadRows) -> list[TextExample]:
        if not self._options.data_dir:
            raise UserError("--data_dir is missing; expected the folder of multinli/ and xnli.dev.tsv")
        name = f"multinli/multinli.train.{self._options.language}.tsv" if split == TRAIN else f"xnli.{split}.tsv"
        path = os.path.join(self._options.data_dir, name)
        if not files.exists(path):
            raise UserError(f"{path} does not exist; --data_dir must be the folder of multinli/ and xnli.dev.tsv")
        return self.read_file(path, split, bad_rows)

    def task_spec(self, max_seq_length: int) -> dict[str, Any]:
        return {**super().task_spec(max_seq_length), "language": self._options.language}

    def read_file(self, path: str, split: str, bad_rows: BadRows) -> list[TextExample]:
        """Reads the rows in the task's language from a file in the format of the split's file."""
        language = self._options.language
        columns = _TRAIN_COLUMNS if split == TRAIN else _COLUMNS
        examples, languages = [], set()
        for number, row in tables.read_rows(path, bad_rows, wanted=columns, has_longer_rows=True):
            text_a, text_b, label, *others = (row[column] for column in columns)
            languages |= {*others}
            if others not in ([], [language]):
                continue
            label = _RENAMED.get(label, label)
            if label not in _LABELS:
                bad_rows.add(path, number, f"unknown label {label!r}; expected one of {', '.join(_LABELS)}")
            elif split != TEST and not (text_a.strip() and text_b.strip()):
                bad_rows.add(path, number, f"an empty text in {columns[0]} or {columns[1]}; expected a sentence")
            else:
                examples.append(TextExample(str(int(number) - 2), text_a, text_b, _LABELS.index(label)))
        if not examples:
            found = f", only in {', '.join(sorted(languages))}" if languages else ""
            reason = bad_rows.first_reason(path)
            raise UserError(f"{path} has no examples in --language={language}{found}{reason}")
        return examples
