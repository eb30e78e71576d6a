"""The options of each task and their defaults. Imports neither TensorFlow nor NumPy, so that --help is fast."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Self, TypeVar

from official_bert.errors import UserError
from official_bert.kinds.names import OBJECTIVES
from official_bert.modeling.choices import MEAN, VECTOR_POOLINGS
from official_bert.modeling.head_input import HEADS, LINEAR, LSTM_UNITS, HeadInput
from official_bert.utils.flags import DATA, MODEL, TRAINING, ValidatedOptions, option

LABEL_KINDS = ("classification", "multi_label", "regression", "tagging")

GLUE = ("cola", "sst-2", "mrpc", "sts-b", "qqp", "mnli", "qnli", "rte", "wnli", "ax")
XNLI, SQUAD, SQUAD_V2, SWAG, CODAH, TAGGING, TABLE = "xnli", "squad", "squad_v2", "swag", "codah", "tagging", "table"
EMBEDDINGS = "embeddings"

_WINDOWS_HELP = "Number of tokens between the starts of two windows of a long text. Their logits are averaged."
_NO_WINDOWS = "none, long texts are truncated"

Spec = TypeVar("Spec")  # a KindSpec


@dataclasses.dataclass(frozen=True)
class Defaults:
    """The default training settings of a task, taken from the original's scripts."""

    train_batch_size: int = 32
    learning_rate: float = 5e-5
    num_train_epochs: float = 3.0
    max_seq_length: int = 128


def _get_default(field: Any) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskOptions(ValidatedOptions):
    """Options that all tasks have. Base class of the options of each task."""

    defaults: ClassVar[Defaults] = Defaults()

    data_dir: str | None = option(None, "Folder with the files of the task.", group=DATA, resumable=True)
    head: str = option(
        LINEAR,
        "Head on the encoder: linear, or bilstm for a two-layer BiLSTM before the linear layer. The others freeze the "
        "encoder and put that BiLSTM on its embeddings or hidden layers, such as sum_last_four.",
        HEADS,
        group=MODEL,
    )
    lstm_units: int = option(LSTM_UNITS, "Number of units in each direction of a BiLSTM.", group=MODEL, min=1)

    @property
    def head_input(self) -> HeadInput:
        """What the task's output layer reads: the encoder's output, or additional layers on top of it."""
        return HeadInput(self.head, self.lstm_units)

    def make_spec(self, kind: type[Spec], **settings: Any) -> Spec:
        """Creates a KindSpec, such as a ClassificationSpec, with the options that are fields of the spec, too.

        Args:
            kind: The class of the spec.
            settings: Other fields of the spec, and fields whose values differ from the options.
        """
        names = {field.name for field in dataclasses.fields(kind)} - settings.keys()  # type: ignore[arg-type]
        return kind(**{name: getattr(self, name) for name in names if hasattr(self, name)}, **settings)

    def list_given(self, flags: Collection[str] = ()) -> set[str]:
        """Returns the names of the options that the user set: those in `flags`, and those without default values."""
        fields = dataclasses.fields(self)
        return {each.name for each in fields if each.name in flags or getattr(self, each.name) != _get_default(each)}

    def merge_trained(self, task_spec: Mapping[str, Any], flags: Collection[str] = ()) -> Self:
        """Returns a copy in which options that the user did not set have the values in a fine-tuned model's task.json.

        Args:
            task_spec: The contents of task.json.
            flags: Names of the options that the user set, even if to their defaults.
        """
        names = {field.name for field in dataclasses.fields(self)} - self.list_given(flags)
        return dataclasses.replace(self, **{name: task_spec[name] for name in names if name in task_spec})


@dataclasses.dataclass(frozen=True, kw_only=True)
class GlueOptions(TaskOptions):
    """Options of the GLUE tasks, such as mrpc and cola."""

    doc_stride: int | None = option(None, _WINDOWS_HELP, shown_default=_NO_WINDOWS, min=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class XnliOptions(TaskOptions):
    """Options of the XNLI task."""

    language: str = option("zh", "Language code as in XNLI: ar, bg, de, ...")
    doc_stride: int | None = option(None, _WINDOWS_HELP, min=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadOptions(TaskOptions):
    """Options of the SQuAD v1.1 task."""

    defaults: ClassVar[Defaults] = Defaults(max_seq_length=384)

    train_file: str | None = option(None, "SQuAD JSON file to train on.", shown_default="in --data_dir")
    eval_file: str | None = option(None, "SQuAD JSON file to evaluate on.", shown_default="in --data_dir")
    predict_file: str | None = option(None, "SQuAD JSON file to predict.", shown_default="in --data_dir")
    doc_stride: int = option(128, "Number of tokens between the starts of two windows of a long context.", min=1)
    max_query_length: int = option(64, "Maximum number of tokens of a question. Longer questions are truncated.", min=1)
    max_answer_length: int = option(30, "Maximum number of tokens of an answer.", min=1)
    n_best_size: int = option(20, "Number of answers to keep for each question.", min=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadV2Options(SquadOptions):
    """Options of the SQuAD v2.0 task, in which questions may have no answer."""

    null_score_diff_threshold: float = option(
        0.0,
        "Predict that a question has no answer if the no-answer score exceeds the best answer's score by more than "
        "this. Without --do_train, it replaces the model's threshold.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultipleChoiceOptions(TaskOptions):
    """Options of the SWAG and CODAH tasks."""

    defaults: ClassVar[Defaults] = Defaults(train_batch_size=16, learning_rate=2e-5)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggingOptions(TaskOptions):
    """Options of the tagging task, which reads CoNLL and CoNLL-U files."""

    doc_stride: int | None = option(
        None,
        "Approximate number of tokens between the starts of two windows of a long sentence.",
        shown_default="half a window",
        min=1,
    )
    tag_column: str = option(
        "",
        "Column of the tags: upos or xpos in CoNLL-U, otherwise an index from 0, or -1 for the last column. none: "
        "the files have no tags.",
        shown_default="upos in CoNLL-U, else -1",
    )
    word_column: int = option(0, "Column of the word, as an index from 0. Ignored for CoNLL-U.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowsOptions(TaskOptions):
    """Options of tasks whose examples are rows of the user's own files.

    Attributes:
        label_flags: The flags that name the columns of labels, for messages.
    """

    label_flags: ClassVar[str] = "--label_column"

    train_file: str | None = option(
        None,
        "File to train on: CSV, TSV, JSON lines or Parquet, or tfds:NAME#SPLIT for TensorFlow Datasets.",
        resumable=True,
    )
    eval_file: str | None = option(None, "File to evaluate on, in one of the formats of --train_file.")
    predict_file: str | None = option(None, "File to predict, in one of the formats of --train_file.", resumable=True)
    columns: list[str] = option([], "Names of the columns, for CSV and TSV files without a header.")
    text_column: str = option(
        "text", "Column of the text, or of the first text of a pair. Several comma-separated columns are joined."
    )

    def merge_trained(self, task_spec: Mapping[str, Any], flags: Collection[str] = ()) -> Self:
        """Does the same as TaskOptions.merge_trained, also for the column names of the training table."""
        return super().merge_trained({**task_spec, **task_spec.get("table", {})}, flags)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableOptions(RowsOptions):
    """Options of the table task."""

    text_pair_column: str | None = option(None, "Column of the second text of a pair.")
    label_column: str = option("label", "Column of the label.")
    label_names: list[str] = option([], "Names of the classes, in the sorted order of the labels in the training data.")
    label_kind: str = option("classification", "Kind of the labels. tagging has one label per word.", LABEL_KINDS)
    label_separator: str = option(";", "Separator between the labels of a multi_label row.")
    doc_stride: int | None = option(None, _WINDOWS_HELP, shown_default=_NO_WINDOWS, min=1)
    # Not a flag: labels of the training data that correspond to label_names, from the task.json of a fine-tuned model.
    label_values: Sequence[str] = dataclasses.field(default=(), metadata={"resumable": True})

    def merge_trained(self, task_spec: Mapping[str, Any], flags: Collection[str] = ()) -> Self:
        kind = {"label_kind": task_spec["kind"]} if task_spec["kind"] in LABEL_KINDS else {}
        return super().merge_trained({**task_spec, **kind}, flags)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddingsOptions(RowsOptions):
    """Options of the embeddings task, which learns sentence vectors from pairs or triplets of texts."""

    defaults: ClassVar[Defaults] = Defaults(train_batch_size=64)
    label_flags: ClassVar[str] = "--negative_column or --score_column"

    text_pair_column: str = option("text_pair", "Column of the text that is related to the first one.")
    negative_column: str = option("negative", "Optional column of a text that is not related to the first one.")
    score_column: str = option("score", "Optional column of the similarity score of a pair.")
    score_range: list[str] = option(
        ["0", "1"], "Scores that correspond to cosine similarities of 0 and 1, such as 0,5 for STS-B.", items=float
    )
    objective: str | None = option(
        None,
        "Loss: ranking, a softmax over the cosine similarities of all second texts in a batch; cosine, which fits the "
        "scores of pairs; or triplet, which separates related from unrelated texts by a margin.",
        OBJECTIVES,
        group=TRAINING,
        shown_default="cosine if the training data has scores, otherwise ranking",
    )
    scale: float = option(20.0, "Factor of the cosine similarities, for --objective=ranking.", group=TRAINING)
    margin: float = option(
        5.0,
        "With --objective=triplet: how much farther the negative must be than the positive (Euclidean).",
        group=TRAINING,
    )
    dimensions: list[str] = option(
        [],
        "Sizes to which vectors can be shortened after training (Matryoshka), such as 256,128,64.",
        group=TRAINING,
        items=int,
    )
    pooling: str = option(
        MEAN,
        "Vector of a text: the mean or maximum over its tokens, the vector of [CLS], or the pooler's output.",
        VECTOR_POOLINGS,
        group=MODEL,
    )
    normalize: bool = option(True, "Scale vectors to length 1.", group=MODEL)


# Option classes by value of --task.
TASK_OPTIONS: dict[str, type[TaskOptions]] = {
    **dict.fromkeys(GLUE, GlueOptions),
    XNLI: XnliOptions,
    SQUAD: SquadOptions,
    SQUAD_V2: SquadV2Options,
    SWAG: MultipleChoiceOptions,
    CODAH: MultipleChoiceOptions,
    TAGGING: TaggingOptions,
    TABLE: TableOptions,
    EMBEDDINGS: EmbeddingsOptions,
}


def get_options_class(task: str) -> type[TaskOptions]:
    """Returns the class of a task's options.

    Raises:
        UserError: If the task is unknown.
    """
    if task not in TASK_OPTIONS:
        raise UserError(f"unknown task {task!r}; expected one of {', '.join(TASK_OPTIONS)}")
    return TASK_OPTIONS[task]
