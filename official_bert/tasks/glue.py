"""The nine tasks of GLUE (Wang et al., arXiv:1804.07461) and its diagnostic set, in the file format of the release.

The classes are in the same order as in the original. The files are tab-separated and do not use quoting.
"""

import dataclasses
import os
from collections.abc import Callable, Sequence

import numpy as np

from official_bert.errors import UserError
from official_bert.kinds import scores
from official_bert.kinds.classification.spec import ClassificationSpec
from official_bert.kinds.features import Array
from official_bert.kinds.input_adapters import to_number
from official_bert.kinds.regression.spec import RegressionSpec
from official_bert.kinds.text_spec import TextExample
from official_bert.tasks import data_files
from official_bert.tasks.options import GlueOptions
from official_bert.tasks.task import DEV, TEST, TRAIN
from official_bert.tasks.text_task import TextTask
from official_bert.utils import files, tables
from official_bert.utils.bad_rows import BadRowError, BadRows

_BINARY = ("0", "1")
_ENTAILS = ("entailment", "not_entailment")
_RELATIONS = ("contradiction", "entailment", "neutral")
_MATTHEWS = ("matthews_correlation", "accuracy")
_HIGHEST_SCORE = 5.0  # STS-B: from 0 to 5

# The scores of the original, as functions of the predicted and the expected labels.
_SCORES: dict[str, Callable[[Array, Array], float]] = {
    "accuracy": scores.accuracy,
    "f1": scores.f1,
    "matthews_correlation": scores.matthews,
    "pearson": scores.pearson,
    "spearman": scores.spearman,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class GlueSpec:
    """The scores and the file format of a GLUE task.

    Attributes:
        scores: Names of the scores. The first score selects the best checkpoint.
        submission: Name of the file to submit to the leaderboard, by test split.
        text_a: Column of the first text.
        text_b: Column of the second text, or None.
        label: Column of the label.
        labels: Class names in the files and submissions. None if labels are scores (regression).
        splits: Possible file names without .tsv, by split. The first file that exists is used.
        eval_splits: Splits to evaluate on.
        test_splits: Splits to predict.
        without_header: Column names by split, for files without a header.
    """

    scores: tuple[str, ...] = ("accuracy",)
    submission: dict[str, str]
    text_a: str
    text_b: str | None = None
    label: str = "label"
    labels: tuple[str, ...] | None
    splits: dict[str, tuple[str, ...]] = dataclasses.field(
        default_factory=lambda: {split: (split,) for split in (TRAIN, DEV, TEST)}
    )
    eval_splits: tuple[str, ...] = (DEV,)
    test_splits: tuple[str, ...] = (TEST,)
    without_header: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)


def read_file(spec: GlueSpec, path: str, split: str, bad_rows: BadRows) -> list[TextExample]:
    """Reads the examples of a split from a file in the format of GLUE's release.

    Args:
        spec: The GLUE task.
        path: The file.
        split: Name of the split, which determines the columns.
        bad_rows: Handles invalid rows.

    Raises:
        UserError: If the file lacks a column or has no examples.
    """
    columns = spec.without_header.get(split)
    wanted = [spec.text_a, *([spec.text_b] if spec.text_b else [])]
    needed = [*wanted, *([spec.label] if split.startswith(DEV) else [])]
    first = 1 if columns else 2
    examples = []
    for number, values in tables.read_rows(path, bad_rows, columns, needed, has_longer_rows=True):
        with bad_rows.handle_error(path, number):
            label = _parse_label(values[spec.label], spec.labels) if spec.label in values else None
            # Every row of a test split is predicted: leaderboards need all of them.
            if not split.startswith(TEST) and not all(values[name].strip() for name in wanted):
                raise BadRowError(f"an empty text in {' or '.join(wanted)}; expected a sentence")
            name, text_b = values.get("index", str(int(number) - first)), values[spec.text_b] if spec.text_b else None
            examples.append(TextExample(name, values[spec.text_a], text_b, label))
    if not examples:
        raise UserError(f"{path} has no examples{bad_rows.first_reason(path)}")
    return examples


def _find_file(spec: GlueSpec, data_dir: str | None, split: str) -> str:
    names = spec.splits.get(split)
    if names is None:
        raise UserError(
            f"the task has no {split} split, only {', '.join(spec.splits)}. To predict the diagnostic set, pass the "
            "--output_dir of a run on mnli as --init, and --do_predict"
        )
    return data_files.find(data_dir, split, [f"{name}.tsv" for name in names])


def _parse_label(text: str, labels: tuple[str, ...] | None) -> float:
    """Converts the text of a label to the index of the class, or to a score if `labels` is None."""
    if labels is None:
        value = to_number(text)
        if not 0.0 <= value <= _HIGHEST_SCORE:
            raise BadRowError(f"score {text!r}; expected a number from 0 to {_HIGHEST_SCORE:g}")
        return value
    if text not in labels:
        raise BadRowError(f"unknown label {text!r}; expected one of {', '.join(labels)}")
    return labels.index(text)


_MATCHED, _MISMATCHED = "{}_matched", "{}_mismatched"
_MNLI_SPLITS = [TRAIN, *(name.format(split) for split in (DEV, TEST) for name in (_MATCHED, _MISMATCHED))]

SPECS = {
    "cola": GlueSpec(
        scores=_MATTHEWS, submission={TEST: "CoLA"}, text_a="sentence", labels=_BINARY,
        without_header=dict.fromkeys((TRAIN, DEV), ("source", "label", "star", "sentence")),
    ),
    "sst-2": GlueSpec(
        submission={TEST: "SST-2"}, text_a="sentence", labels=_BINARY,
    ),
    "mrpc": GlueSpec(
        scores=("accuracy", "f1"), submission={TEST: "MRPC"},
        text_a="#1 String", text_b="#2 String", label="Quality", labels=_BINARY,
    ),
    "sts-b": GlueSpec(
        scores=("pearson", "spearman"), submission={TEST: "STS-B"},
        text_a="sentence1", text_b="sentence2", label="score", labels=None,
    ),
    "qqp": GlueSpec(
        scores=("accuracy", "f1"), submission={TEST: "QQP"},
        text_a="question1", text_b="question2", label="is_duplicate", labels=_BINARY,
    ),
    "mnli": GlueSpec(
        submission={_MATCHED.format(TEST): "MNLI-m", _MISMATCHED.format(TEST): "MNLI-mm"},
        text_a="sentence1", text_b="sentence2", label="gold_label", labels=_RELATIONS,
        splits={split: (split,) for split in _MNLI_SPLITS},
        eval_splits=(_MATCHED.format(DEV), _MISMATCHED.format(DEV)),
        test_splits=(_MATCHED.format(TEST), _MISMATCHED.format(TEST)),
    ),
    "qnli": GlueSpec(
        submission={TEST: "QNLI"}, text_a="question", text_b="sentence", labels=_ENTAILS,
    ),
    "rte": GlueSpec(
        submission={TEST: "RTE"}, text_a="sentence1", text_b="sentence2", labels=_ENTAILS,
    ),
    "wnli": GlueSpec(
        submission={TEST: "WNLI"}, text_a="sentence1", text_b="sentence2", labels=_BINARY,
    ),
    # The diagnostic set has no training data. It tests models of mnli.
    "ax": GlueSpec(
        scores=_MATTHEWS, submission={TEST: "AX"}, text_a="sentence1", text_b="sentence2", labels=_RELATIONS,
        splits={TEST: ("AX", "diagnostic")}, eval_splits=(),
    ),
}  # fmt: skip


class GlueTask(TextTask):
    """A GLUE task.

    Args:
        name: Name of the task, a key of SPECS.
        options: The options of the task, such as the data folder.
    """

    def __init__(self, name: str, options: GlueOptions) -> None:
        self._options, self._glue = options, SPECS[name]
        kind = RegressionSpec if self._glue.labels is None else ClassificationSpec
        super().__init__(name, options.make_spec(kind, labels=self._glue.labels, pair=self._glue.text_b is not None))
        self.eval_splits, self.test_splits = self._glue.eval_splits, self._glue.test_splits

    def read(self, split: str, bad_rows: BadRows) -> list[TextExample]:
        return read_file(self._glue, _find_file(self._glue, self._options.data_dir, split), split, bad_rows)

    @property
    def score_names(self) -> tuple[str, ...]:
        two_classes = len(self.spec.labels or ()) == 2
        return (*self._glue.scores, *(scores.TWO_CLASS_SCORES if two_classes else ()))

    def metrics(self, predictions: Array, examples: Sequence[TextExample]) -> dict[str, float]:
        predicted = np.array(self.spec.predicted_labels(predictions))
        expected = np.array([example.label for example in examples])
        values = {name: _SCORES[name](predicted, expected) for name in self._glue.scores}
        if isinstance(self.spec, ClassificationSpec):
            values |= self.spec.two_class_scores(predictions, examples)
        return values

    def write_predictions(
        self, folder: str, split: str, predictions: Array, examples: Sequence[TextExample]
    ) -> list[str]:
        """Writes predictions_<split>.tsv and, for test splits, the file for the leaderboard. Returns their paths.

        The leaderboard needs a class for every row, so min_confidence is not applied in its file.
        """
        paths = super().write_predictions(folder, split, predictions, examples)
        if split not in self._glue.submission:
            return paths
        shown = [
            self.spec.format_label(min(max(label, 0.0), _HIGHEST_SCORE) if self.spec.is_value else label)
            for label in self.spec.predicted_labels(predictions)
        ]
        rows = [f"{example.id}\t{name}" for example, name in zip(examples, shown, strict=True)]
        path = os.path.join(folder, f"{self._glue.submission[split]}.tsv")
        files.write_text(path, "\n".join(["index\tprediction", *rows]) + "\n")
        return [*paths, path]
