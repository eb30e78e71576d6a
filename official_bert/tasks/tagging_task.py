"""Tagging as a task of run_finetuning.

T tokens of all windows
"""

import abc
import collections
import itertools
import os
from collections.abc import Collection, Sequence

import numpy as np

from official_bert.modeling import task_models
from official_bert.tasks import data_files, entity_scores, tabular, tagging
from official_bert.tasks.options import TAGGING, TableOptions, TaggingOptions
from official_bert.tasks.tagging import Sentence, Window
from official_bert.tasks.task import (
    DEV,
    EXAMPLE,
    LABELS,
    NO_LABEL,
    TEST,
    TRAIN,
    Features,
    Outcome,
    Outputs,
    Task,
    from_rows,
)
from official_bert.tokenization.fast import FastTokenizer
from official_bert.utils import files, tables
from official_bert.utils.bad_rows import SKIP, BadRows

# What the files of each part are called: ours, CoNLL-2003's, and those of Universal Dependencies.
_PATTERNS = {
    TRAIN: ("train.*", "*.train", "*train*.conllu", "*train*"),
    DEV: ("dev.*", "valid.*", "*.testa", "*dev*.conllu", "*dev*", "*valid*"),
    TEST: ("test.*", "*.testb", "*test*.conllu", "*test*"),
}
_WORD = "word"  # in Features.details, [T]: the number of the word that is tagged at this token, or -1

Tagged = tuple[list[str], list[float]]


class TaggingTask(Task):
    """Tags for words; a subclass says where the sentences come from.

    The score is the F1 of entities if the tags are those of entities (see entity_scores), else the share of words with
    the right tag; a note says which.

    Args:
        doc_stride: tokens from one window of a long sentence to the next, about; None for half a window.
        labels: the tags of a model that is there, in the order of its logits; None for those of the training part,
            sorted.

    Raises:
        UserError: the labels are to come from a training part, and there is none.
    """

    name = TAGGING
    kind = task_models.TAGGING

    def __init__(self, doc_stride: int | None, labels: Sequence[str] | None) -> None:
        # Bad rows are shown when the file is read for training.
        known = labels or tagging.tags_of(self._read_part(TRAIN, BadRows(SKIP, silent=True), None))
        self.labels: tuple[str, ...] = tuple(known)
        self._number_of = {label: number for number, label in enumerate(self.labels)}
        self.scheme = entity_scores.scheme_of(self.labels)
        self.best_metric = "f1" if self.scheme else "accuracy"
        self._doc_stride = doc_stride
        self.settings = {"doc_stride": doc_stride} if doc_stride else {}

    @abc.abstractmethod
    def _read_part(self, split: str, bad_rows: BadRows, tags: Collection[str] | None) -> list[Sentence]:
        """The sentences of a part; those with other tags than `tags` are bad rows, unless that is None."""

    def notes(self) -> list[str]:
        if self.scheme:
            return [f"the tags are entities in {self.scheme}, which are scored as conlleval counts them"]
        shown = tables.names_shown(list(self.labels))
        return [f"the tags ({shown}) are of no scheme of entities (IOB1, IOB2, BIOES, BILOU); accuracy is their score"]

    def read(self, split: str, bad_rows: BadRows) -> list[Sentence]:
        if split == TRAIN:
            return self._read_part(split, bad_rows, self._number_of)
        sentences = self._read_part(split, bad_rows, None)
        unknown = collections.Counter(
            tag for each in sentences for tag in each.tags or () if tag not in self._number_of
        )
        if unknown:
            print(
                f"note: {unknown.total():,} words of the {split} part have tags that the model does not know "
                f"({tables.names_shown(sorted(unknown))}); they count as wrong"
            )
        return sentences

    def featurize(self, sentences: Sequence[Sentence], tokenizer: FastTokenizer, max_seq_length: int) -> Features:
        words = [each.words for each in sentences]
        windows = tagging.cut_into_windows(words, tokenizer.exact, max_seq_length, self._doc_stride)
        return features_of(windows, sentences, self._number_of)

    def decode(self, outputs: Outputs, features: Features, sentences: Sequence[Sentence]) -> list[Tagged]:
        counts = [len(each.words) for each in sentences]
        tags, probabilities = tagging.tags_from_logits(counts, windows_of(features), outputs, self.labels)
        return list(zip(tags, probabilities, strict=True))

    def metrics(self, predictions: Sequence[Tagged], sentences: Sequence[Sentence]) -> dict[str, float]:
        expected, predicted = [each.tags or () for each in sentences], [tags for tags, _ in predictions]
        if self.scheme:
            return entity_scores.score(expected, predicted)
        return {"accuracy": entity_scores.accuracy(expected, predicted)}

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

    def outcomes(self, predictions: Sequence[Tagged], sentences: Sequence[Sentence]) -> list[Outcome]:
        return [
            Outcome(
                text=" ".join(sentence.words),
                expected=" ".join(sentence.tags or ()),
                predicted=" ".join(tags),
                correct=list(sentence.tags or ()) == tags,
                certainty=min(probabilities, default=None),
            )
            for sentence, (tags, probabilities) in zip(sentences, predictions, strict=True)
        ]


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
        super().__init__(options.doc_stride, labels)
        if options.tag_column == "none":
            self.eval_splits, self.test_splits = (), (TEST,)
        else:
            has_test = data_files.has(options.data_dir, TEST, _PATTERNS[TEST])
            self.eval_splits, self.test_splits = (DEV, TEST) if has_test else (DEV,), ()

    def _read_part(self, split: str, bad_rows: BadRows, tags: Collection[str] | None) -> list[Sentence]:
        path = data_files.find(self._options.data_dir, split, _PATTERNS[split])
        return tagging.read(path, bad_rows, self._options.tag_column, self._options.word_column, tags)


class TableTaggingTask(TaggingTask):
    """Tags for the words of a table's rows.

    Args:
        options: the files, their columns, and how long sentences are cut.
        labels: as for TaggingTask.
    """

    def __init__(self, options: TableOptions, labels: Sequence[str] | None = None) -> None:
        self._options = options
        super().__init__(options.doc_stride, labels)
        self.eval_splits = (DEV,) if options.eval_file else ()
        self.test_splits = (TEST,) if options.predict_file else ()

    def _read_part(self, split: str, bad_rows: BadRows, tags: Collection[str] | None) -> list[Sentence]:
        path = tabular.part_of(self._options, split)
        rows = tabular.rows_in(self._options, path, bad_rows)
        column = None if split == TEST else self._options.label_column
        source = tabular.source_name(self._options, path)
        return tagging.from_rows(rows, source, bad_rows, self._options.text_column, column, tags)


def features_of(windows: Sequence[Window], sentences: Sequence[Sentence], number_of: dict[str, int]) -> Features:
    """Returns windows as the runner reads them; without targets if the tags are not known."""
    features = from_rows(
        [np.array(window.input_ids, np.int32) for window in windows],
        [np.zeros(len(window.input_ids), np.int32) for window in windows],
        {},
        {EXAMPLE: np.array([window.sentence for window in windows], np.int64)},
    )
    words = np.full(len(features.input_ids), -1, np.int32)
    for window, first in zip(windows, features.splits, strict=False):
        words[first + np.array(window.positions, np.int64)] = window.words
    features.details[_WORD] = words
    if all(sentence.tags is not None for sentence in sentences):
        labels = np.full(len(features.input_ids), NO_LABEL, np.int32)
        for window, first in zip(windows, features.splits, strict=False):
            labels[first : first + len(window.input_ids)] = tagging.label_ids(
                window, sentences[window.sentence], number_of
            )
        features.targets[LABELS] = labels
    return features


def windows_of(features: Features) -> list[Window]:
    """Returns the windows that features were made of."""
    windows = []
    splits = features.splits.tolist()
    for row, (first, last) in enumerate(itertools.pairwise(splits)):
        words = features.details[_WORD][first:last]
        positions = np.flatnonzero(words >= 0)
        windows.append(
            Window(
                sentence=int(features.details[EXAMPLE][row]),
                input_ids=features.input_ids[first:last].tolist(),
                words=words[positions].tolist(),
                positions=positions.tolist(),
            )
        )
    return windows
