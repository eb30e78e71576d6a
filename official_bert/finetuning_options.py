"""What run_finetuning is told: its flags and their checks."""

import dataclasses

from official_bert.command_line import option
from official_bert.distribution import STRATEGIES
from official_bert.errors import UserError
from official_bert.tasks.bad_rows import POLICIES, STOP

DTYPES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}
SOURCES = FILES, TFDS = ("files", "tfds")

# What may differ between the runs that use one --output_dir; all else decides the weights, and so do the training data.
_FREE = frozenset(
    {
        "output_dir", "do_train", "do_eval", "do_predict", "eval_batch_size", "cache_dir", "distribution_strategy",
        "log_steps",
        "data_dir", "predict_file", "train_file", "vocab_file",
    }
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Options:
    """What run_finetuning is told."""

    task: str = option(dataclasses.MISSING, "What to learn: a task of GLUE by its name, or another that --help lists.")
    init: str = option(
        dataclasses.MISSING,
        "What to start from: a checkpoint of any format, a fine-tuned model's folder, or a bert_config.json for random "
        "weights.",
    )
    output_dir: str = option(dataclasses.MISSING, "Folder of the run. Given again, resumes.")
    data_dir: str | None = option(None, "Folder of the task's files; of TensorFlow Datasets, where it keeps its own.")
    source: str = option(FILES, "Where examples come from: files, or TensorFlow Datasets.", SOURCES)
    tfds_name: str | None = option(
        None, "Of --source=tfds with --task=table: the data set there, such as imdb_reviews or conll2003."
    )
    do_train: bool = option(False, "Whether to train.")
    do_eval: bool = option(False, "Whether to score the best model on the task's evaluation data.")
    do_predict: bool = option(False, "Whether to predict the task's test data, and write what its leaderboard takes.")
    vocab_file: str | None = option(None, "The vocabulary, where --init has none.")
    do_lower_case: bool | None = option(None, "Whether the vocabulary is uncased, where --init does not say it.")
    max_seq_length: int | None = option(None, "The longest sequence, in tokens; None for the task's default.")
    doc_stride: int | None = option(
        None, "Tokens from one window of a long text to the next; None for the task's default, which may be to cut."
    )
    train_batch_size: int | None = option(None, "Rows in a step, over all devices; None for the task's default.")
    eval_batch_size: int = option(64, "Rows that are predicted at once.")
    learning_rate: float | None = option(None, "The highest learning rate; None for the task's default.")
    num_train_epochs: float | None = option(None, "Passes over the training data; None for the task's default.")
    warmup_proportion: float = option(0.1, "The share of the steps in which the rate rises from 0.")
    eval_steps: int | None = option(
        None, "Steps between two evaluations, each of which saves; None for one at the end of every epoch."
    )
    log_steps: int = option(50, "Steps between two losses in the log (train.jsonl, TensorBoard).")
    early_stopping: int = option(0, "Stop after so many evaluations without a better score; 0 never does.")
    class_weights: list[str] = option(
        [], "How much each class weighs, in the order of the labels; or balanced: by how rare it is."
    )
    freeze: list[str] = option([], "Regular expressions of the encoder's layers that stay as they are.")
    layer_decay: float = option(1.0, "The learning rate of each layer by that of the layer above it.")
    dtype: str = option("float32", "What the layers compute in; weights are float32.", tuple(DTYPES))
    distribution_strategy: str = option("one_device", "Which devices train.", STRATEGIES[:2])
    random_seed: int = option(12345, "Of the head's weights, the order of the data and dropout.")
    on_bad_row: str = option(STOP, "What a row that cannot be read does: stop, or skip and count.", POLICIES)
    cache_dir: str | None = option(None, "Folder of features that were made before; None for one in --output_dir.")
    teacher: str | None = option(None, "A fine-tuned model's folder, whose answers the model learns (distillation).")
    temperature: float = option(1.0, "What teacher's and model's logits are divided by in distillation.")
    teacher_weight: float = option(1.0, "The share of the loss that is the teacher's; the rest is the labels'.")
    random_seeds: list[str] = option([], "Several seeds: a run with each, and one table.")
    grid_batch_sizes: list[str] = option([], "Several batch sizes: a run with each, and one table.")
    grid_learning_rates: list[str] = option([], "Several learning rates, likewise; the paper's are 5e-5,3e-5,2e-5.")
    grid_epochs: list[str] = option([], "Several numbers of epochs, likewise; the paper's are 2,3,4.")
    # Of the tasks "squad" and "squad_v2".
    max_query_length: int = option(64, "Of --task=squad: tokens of a question that are kept.")
    max_answer_length: int = option(30, "Of --task=squad: tokens of an answer at most.")
    n_best_size: int = option(20, "Of --task=squad: how many answers to keep for each question.")
    null_score_diff_threshold: float = option(
        0.0, "Of --task=squad_v2: there is no answer if that scores by more than this above the best answer."
    )
    # Of the task "tagging".
    tag_column: str = option("", "Of --task=tagging: the tag's column, from 0, or -1 (the default); or upos, xpos.")
    word_column: int = option(0, "Of --task=tagging: the word's column, from 0; in CoNLL-U it is known.")
    # Of the task "table": your own data.
    train_file: str | None = option(
        None,
        "Of --task=table: a CSV, TSV or JSON lines file to train on; of TensorFlow Datasets, a part, such as train.",
    )
    eval_file: str | None = option(None, "Of --task=table: one to evaluate on.")
    predict_file: str | None = option(None, "Of --task=table: one to predict.")
    text_column: str = option("text", "Of --task=table: the column of the text, or of a pair's first one.")
    text_pair_column: str | None = option(None, "Of --task=table: the column of a pair's second text.")
    label_column: str = option("label", "Of --task=table: the column of the label.")
    label_kind: str = option(
        "classification",
        "Of --task=table: what a label is.",
        ("classification", "multi_label", "regression", "tagging"),
    )
    label_separator: str = option(";", "Of --task=table: what stands between the labels of multi_label.")
    label_min: float | None = option(None, "Of --task=table: the least value that regression takes for right.")
    label_max: float | None = option(None, "Of --task=table: the greatest.")

    def check(self) -> None:
        """Raises a UserError for values that cannot be."""
        if not (self.do_train or self.do_eval or self.do_predict):
            raise UserError("nothing to do: pass --do_train, --do_eval or --do_predict")
        positive = "max_seq_length doc_stride train_batch_size eval_batch_size eval_steps log_steps max_query_length"
        for name in (*positive.split(), "max_answer_length", "n_best_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"--{name} is {value}; expected at least 1")
        for name in ("learning_rate", "num_train_epochs", "temperature"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UserError(f"--{name} is {value}; expected a positive number")
        for name in ("warmup_proportion", "teacher_weight"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise UserError(f"--{name} is {getattr(self, name)}; expected a share from 0 to 1")
        if not 0.0 < self.layer_decay <= 1.0:
            raise UserError(f"--layer_decay is {self.layer_decay}; expected a factor over 0, up to 1")
        if self.early_stopping < 0:
            raise UserError(f"--early_stopping is {self.early_stopping}; expected 0 or more evaluations")

    def decisive(self) -> dict[str, object]:
        """Returns the options that decide the weights that training ends with."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in _FREE}
