"""The options of each task, and the settings that it is trained with where the user gives none.

Nothing here imports TensorFlow or NumPy, so that --help is answered at once.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from official_bert.errors import UserError
from official_bert.kinds.names import OBJECTIVES
from official_bert.modeling.choices import MEAN, VECTOR_POOLINGS
from official_bert.modeling.head_input import HEADS, LINEAR, LSTM_UNITS, HeadInput
from official_bert.utils.flags import DATA, MODEL, TRAINING, ValidatedOptions, option

LABEL_KINDS = ("classification", "multi_label", "regression", "tagging")

GLUE = ("cola", "sst-2", "mrpc", "sts-b", "qqp", "mnli", "qnli", "rte", "wnli", "ax")
XNLI, SQUAD, SQUAD_V2, SWAG, CODAH, TAGGING, TABLE = "xnli", "squad", "squad_v2", "swag", "codah", "tagging", "table"
EMBEDDINGS = "embeddings"

_WINDOWS_HELP = "Tokens from one window of a long text to the next; the windows' answers are averaged."
_TEXTS_ARE_CUT = "none, texts are cut"


@dataclasses.dataclass(frozen=True)
class Defaults:
    """Settings for training where the user gives none: those of the original's scripts."""

    train_batch_size: int = 32
    learning_rate: float = 5e-5
    num_train_epochs: float = 3.0
    max_seq_length: int = 128


def _default(field: Any) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskOptions(ValidatedOptions):
    """What every task has."""

    defaults: ClassVar[Defaults] = Defaults()

    data_dir: str | None = option(None, "Folder of the task's files.", group=DATA, resumable=True)
    head: str = option(
        LINEAR,
        "What stands on the encoder: the task's own layer; bilstm, a two-layer BiLSTM before it; or a BiLSTM on "
        "features of an encoder that is not trained: its embeddings, a hidden layer, or several.",
        HEADS,
        group=MODEL,
    )
    lstm_units: int = option(LSTM_UNITS, "Units of each direction of a BiLSTM.", group=MODEL, min=1)

    @property
    def head_input(self) -> HeadInput:
        """What the task's layer reads."""
        return HeadInput(self.head, self.lstm_units)

    def with_trained(self, task_spec: Mapping[str, Any]) -> Self:
        """Returns these options with what a fine-tuned model's task.json says, where they have but their defaults."""
        changes = {
            field.name: task_spec[field.name]
            for field in dataclasses.fields(self)
            if field.name in task_spec and getattr(self, field.name) == _default(field)
        }
        return dataclasses.replace(self, **changes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GlueOptions(TaskOptions):
    """Of the tasks of GLUE."""

    doc_stride: int | None = option(None, _WINDOWS_HELP, shown_default=_TEXTS_ARE_CUT, min=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class XnliOptions(TaskOptions):
    """Of XNLI."""

    language: str = option("zh", "The language, as XNLI abbreviates it: ar, bg, de, ...")
    doc_stride: int | None = option(None, _WINDOWS_HELP, min=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadOptions(TaskOptions):
    """Of SQuAD v1.1."""

    defaults: ClassVar[Defaults] = Defaults(max_seq_length=384)

    train_file: str | None = option(None, "SQuAD's JSON to train on.", shown_default="in --data_dir")
    eval_file: str | None = option(None, "SQuAD's JSON to score.", shown_default="in --data_dir")
    predict_file: str | None = option(None, "SQuAD's JSON to answer.", shown_default="in --data_dir")
    doc_stride: int = option(128, "Tokens from one window of a long context to the next.", min=1)
    max_query_length: int = option(64, "Tokens of a question that are kept.", min=1)
    max_answer_length: int = option(30, "Tokens of an answer at most.", min=1)
    n_best_size: int = option(20, "How many answers to keep for each question.", min=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadV2Options(SquadOptions):
    """Of SQuAD v2.0, where a question may have no answer."""

    null_score_diff_threshold: float = option(
        0.0, "There is no answer if that scores by more than this above the best answer."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultipleChoiceOptions(TaskOptions):
    """Of SWAG and CODAH."""

    defaults: ClassVar[Defaults] = Defaults(train_batch_size=16, learning_rate=2e-5)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggingOptions(TaskOptions):
    """Of tagging, from files in the layouts of CoNLL and CoNLL-U."""

    doc_stride: int | None = option(
        None, "Tokens from one window of a long sentence to the next, about.", shown_default="half a window", min=1
    )
    tag_column: str = option(
        "",
        "The tag's column, from 0, or -1 for the last; or upos, xpos; or none.",
        shown_default="upos in CoNLL-U, else -1",
    )
    word_column: int = option(0, "The word's column, from 0; in CoNLL-U it is known.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowsOptions(TaskOptions):
    """Of tasks whose examples are the rows of your own data."""

    train_file: str | None = option(
        None,
        "File to train on: CSV, TSV, JSON lines or Parquet, or tfds:NAME#SPLIT for a data set of TensorFlow Datasets.",
        resumable=True,
    )
    eval_file: str | None = option(None, "One to evaluate on.")
    predict_file: str | None = option(None, "One to predict.", resumable=True)
    columns: list[str] = option([], "The names of the columns, for CSV and TSV files without a header.")
    text_column: str = option(
        "text", "The column of the text, or of a pair's first one; several, with commas between, are joined."
    )

    def with_trained(self, task_spec: Mapping[str, Any]) -> Self:
        """As for other tasks; the columns, too, are those that the model was trained with."""
        return super().with_trained({**task_spec, **task_spec.get("table", {})})


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableOptions(RowsOptions):
    """Of a table: your own data."""

    text_pair_column: str | None = option(None, "The column of a pair's second text.")
    label_column: str = option("label", "The column of the label.")
    label_names: list[str] = option(
        [], "What to call the classes, in the order of the training data's labels (numbers by value)."
    )
    label_kind: str = option("classification", "What a label is; tagging has one for each word.", LABEL_KINDS)
    label_separator: str = option(";", "What stands between the labels of multi_label.")
    doc_stride: int | None = option(None, _WINDOWS_HELP, shown_default=_TEXTS_ARE_CUT, min=1)
    # No flag: what the training data call the classes of label_names, as a fine-tuned model remembers it.
    label_values: Sequence[str] = dataclasses.field(default=(), metadata={"resumable": True})

    def with_trained(self, task_spec: Mapping[str, Any]) -> Self:
        kind = {"label_kind": task_spec["kind"]} if task_spec["kind"] in LABEL_KINDS else {}
        return super().with_trained({**task_spec, **kind})


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddingsOptions(RowsOptions):
    """Of vectors of texts, from pairs and triplets."""

    defaults: ClassVar[Defaults] = Defaults(train_batch_size=64)

    text_pair_column: str = option("text_pair", "The column of the text that belongs to the first one.")
    negative_column: str = option(
        "negative", "The column, where there is one, of a text that does not belong to the first one."
    )
    score_column: str = option("score", "The column, where there is one, of how near a pair's texts are.")
    score_range: list[str] = option(
        ["0", "1"], "The least and the greatest score, which stand for cosines of 0 and 1; of STS-B 0,5.", items=float
    )
    objective: str | None = option(
        None,
        "What is learned: ranking, to find a text's own second one among those of the batch, by a softmax of cosines; "
        "cosine, the scores of pairs; triplet, that the negative is farther away by a margin.",
        OBJECTIVES,
        group=TRAINING,
        shown_default="cosine where there are scores to train on, else ranking",
    )
    scale: float = option(20.0, "Of ranking: what cosines are multiplied by.", group=TRAINING)
    margin: float = option(5.0, "Of triplet: the margin, in Euclidean distance.", group=TRAINING)
    dimensions: list[str] = option(
        [],
        "How many of the first dimensions are to be vectors too, each: such as 256,128,64.",
        group=TRAINING,
        items=int,
    )
    pooling: str = option(
        MEAN,
        "What the vector is: the mean or maximum of the tokens' vectors, that of [CLS], or that behind the pooler.",
        VECTOR_POOLINGS,
        group=MODEL,
    )
    normalize: bool = option(True, "Whether vectors are divided by their lengths.", group=MODEL)


# The options of each task, by the name that --task gives it.
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


def options_class(task: str) -> type[TaskOptions]:
    """Returns the class of a task's options.

    Raises:
        UserError: there is no task of that name.
    """
    if task not in TASK_OPTIONS:
        raise UserError(f"unknown task {task!r}; expected one of {', '.join(TASK_OPTIONS)}")
    return TASK_OPTIONS[task]
