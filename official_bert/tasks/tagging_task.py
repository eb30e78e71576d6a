"""Tagging as a task of run_finetuning.

T tokens of all windows
"""

import collections
import itertools
import os
from collections.abc import Callable, Collection, Sequence

import numpy as np

from official_bert import files, finetuned, task_models
from official_bert.fast_tokenization import FastTokenizer
from official_bert.finetuning_options import Options
from official_bert.tasks import data_files, entity_scores, tabular, tagging
from official_bert.tasks.bad_rows import SKIP, BadRows
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

# What the files of each part are called: ours, CoNLL-2003's, and those of Universal Dependencies.
_PATTERNS = {
    TRAIN: ("train.*", "*.train", "*train*.conllu", "*train*"),
    DEV: ("dev.*", "valid.*", "*.testa", "*dev*.conllu", "*dev*", "*valid*"),
    TEST: ("test.*", "*.testb", "*test*.conllu", "*test*"),
}
_WORD = "word"  # in Features.details, [T]: the number of the word that is tagged at this token, or -1

Tagged = tuple[list[str], list[float]]


def make_task(options: Options) -> Task:
    """Returns the task of the folder that the options name.

    Its labels are those of the model, where a fine-tuned one is there to go on with, else the training data's.
    """
    return task(options.data_dir or "", _labels(options), options.tag_column, options.word_column, options.doc_stride)


def make_table_task(options: Options) -> Task:
    """Returns the task of the table that the options describe, with labels as those of `make_task`.

    Raises:
        UserError: the labels are to come from a training file, and there is none.
    """

    def read(folder: str | None, split: str, bad_rows: BadRows, tags: Collection[str] | None) -> list[Sentence]:
        path = tabular.part_of(options, split)
        rows = tabular.rows_in(options, path, bad_rows)
        column = None if split == TEST else options.label_column
        source = tabular.source_name(options, path)
        return tagging.from_rows(rows, source, bad_rows, options.text_column, column, tags)

    return _task(
        read,
        options.data_dir,
        _labels(options),
        options.doc_stride,
        eval_splits=(DEV,) if options.eval_file else (),
        test_splits=(TEST,) if options.predict_file else (),
    )


def task(
    data_dir: str,
    labels: Sequence[str] | None = None,
    tag_column: str = "",
    word_column: int = 0,
    doc_stride: int | None = None,
) -> Task:
    """Returns the task of a folder of CoNLL or CoNLL-U files.

    With tag_column "none" the test part is predicted, else it is scored where there is one. The score is the F1 of
    entities if the tags are those of entities (O, B-, I-, E-, S-), else the share of words with the right tag.

    Args:
        data_dir: holds a file for each part, with train, dev (or valid) and test in their names.
        labels: the tags, in the order of a model's logits; None for those of the training part, sorted.
        tag_column: which column the tag is in (see `tagging.read`).
        word_column: which one the word is in.
        doc_stride: tokens from one window of a long sentence to the next, about; None for half a window.

    Raises:
        UserError: the labels are to come from a training part, and there is none.
    """

    def read(folder: str | None, split: str, bad_rows: BadRows, tags: Collection[str] | None) -> list[Sentence]:
        path = data_files.find(folder or "", split, _PATTERNS[split])
        return tagging.read(path, bad_rows, tag_column, word_column, tags)

    is_untagged, has_test = tag_column == "none", data_files.has(data_dir, TEST, _PATTERNS[TEST])
    return _task(
        read,
        data_dir,
        labels,
        doc_stride,
        eval_splits=() if is_untagged else (DEV, TEST) if has_test else (DEV,),
        test_splits=(TEST,) if is_untagged else (),
    )


def _labels(options: Options) -> list[str] | None:
    """The tags of the model to go on with, if there is one; else the training data tell them."""
    for folder in (options.output_dir, options.init):
        if finetuned.is_finetuned(folder) and not options.do_train:
            return list(finetuned.load_description(folder)["labels"])
    return None


def _task(
    read: Callable[[str | None, str, BadRows, Collection[str] | None], list[Sentence]],
    data_dir: str | None,
    labels: Sequence[str] | None,
    doc_stride: int | None,
    eval_splits: tuple[str, ...],
    test_splits: tuple[str, ...],
) -> Task:
    """The task of what `read` reads, given a folder, a part, whom to tell of bad rows, and the tags that may be."""
    # Bad rows are told of when the file is read for training.
    known = labels or tagging.tags_of(read(data_dir, TRAIN, BadRows(SKIP, silent=True), None))
    number_of = {label: number for number, label in enumerate(known)}
    of_entities = entity_scores.is_entity_scheme(known)

    def read_known(folder: str | None, split: str, bad_rows: BadRows) -> list[Sentence]:
        if split == TRAIN:
            return read(folder, split, bad_rows, number_of)
        sentences = read(folder, split, bad_rows, None)
        unknown = collections.Counter(tag for each in sentences for tag in each.tags or () if tag not in number_of)
        if unknown:
            print(
                f"note: {unknown.total():,} words of the {split} part have tags that the model does not know "
                f"({', '.join(sorted(unknown))}); they count as wrong"
            )
        return sentences

    def featurize(sentences: Sequence[Sentence], tokenizer: FastTokenizer, max_seq_length: int) -> Features:
        words = [each.words for each in sentences]
        windows = tagging.cut_into_windows(words, tokenizer.exact, max_seq_length, doc_stride)
        return features_of(windows, sentences, number_of)

    def decode(outputs: Outputs, features: Features, sentences: Sequence[Sentence]) -> list[Tagged]:
        counts = [len(each.words) for each in sentences]
        tags, probabilities = tagging.tags_from_logits(counts, windows_of(features), outputs, known)
        return list(zip(tags, probabilities, strict=True))

    def metrics(predictions: Sequence[Tagged], sentences: Sequence[Sentence]) -> dict[str, float]:
        right, said = [each.tags or () for each in sentences], [tags for tags, _ in predictions]
        if of_entities:
            return entity_scores.score(right, said)
        return {"accuracy": entity_scores.accuracy(right, said)}

    return Task(
        name="tagging",
        kind=task_models.TAGGING,
        labels=tuple(known),
        pair=False,
        read=read_known,
        read_tfds=read_known,
        featurize=featurize,
        decode=decode,
        metrics=metrics,
        best_metric="f1" if of_entities else "accuracy",
        write_predictions=write_predictions,
        outcomes=outcomes,
        eval_splits=eval_splits,
        test_splits=test_splits,
        settings={"doc_stride": doc_stride} if doc_stride else {},
    )


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


def write_predictions(
    folder: str, split: str, predictions: Sequence[Tagged], sentences: Sequence[Sentence]
) -> list[str]:
    """Writes a line for each word, with its tag if that is known and the one predicted: what conlleval reads."""
    path = os.path.join(folder, f"{split}_predictions.txt")
    lines = []
    for sentence, (tags, _) in zip(sentences, predictions, strict=True):
        columns = [sentence.words, tags] if sentence.tags is None else [sentence.words, sentence.tags, tags]
        lines += ["\t".join(row) for row in zip(*columns, strict=True)] + [""]
    files.write_text(path, "\n".join(lines) + "\n")
    return [path]


def outcomes(predictions: Sequence[Tagged], sentences: Sequence[Sentence]) -> list[Outcome]:
    """Returns for each sentence its words, the tags expected and those predicted."""
    return [
        Outcome(
            " ".join(sentence.words), " ".join(sentence.tags or ()), " ".join(tags), list(sentence.tags or ()) == tags
        )
        for sentence, (tags, _) in zip(sentences, predictions, strict=True)
    ]
