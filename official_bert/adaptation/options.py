"""The flags of adapt."""

import dataclasses
import functools

from data_gen.options import EXCLUDE_TEXTS, NO_WHOLE_WORDS, TEXT, WORD_BOUNDARIES, TextOptions
from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.optimization.choices import MIRRORED, ONE_DEVICE, AdamOptions, dtype_option
from official_bert.tokenization.casing import STRIP_ACCENTS
from official_bert.utils import files
from official_bert.utils.flags import HARDWARE, MODEL, TRAINING, option

OBJECTIVES = AUTO, PAIRS, MASKED_LM = ("auto", "pairs", "mlm")

_model = functools.partial(option, group=MODEL)
_text = functools.partial(option, group=TEXT)
_words = functools.partial(option, group="vocabulary")
_records = functools.partial(option, group="records")
_training = functools.partial(option, group=TRAINING)

# The default learning rate for this hidden size. For other sizes it is in inverse proportion.
_LEARNING_RATE, _HIDDEN_SIZE = 5e-5, 768
_PARTS = 10  # Warm-up takes one of ten parts of the training, and an evaluation follows each part.


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdaptationOptions(TextOptions, AdamOptions):
    """The flags of adapt: the model, the text that it is adapted to, and the settings of the training."""

    init: str = _model(dataclasses.MISSING, "Weights: a checkpoint of any format, or a name (hf://, google://).")
    vocab_file: str | None = _model(None, "Vocabulary, if --init does not contain one.")
    do_lower_case: bool | None = _model(None, "Whether the vocabulary is uncased, if --init does not state it.")
    strip_accents: bool | None = _model(None, STRIP_ACCENTS)
    output_dir: str = _model(dataclasses.MISSING, "Folder of the model; pass it again to resume.", resumable=True)

    input_file: list[str] = _text(dataclasses.MISSING, "Text of your domain, in any format that make-records reads.")
    general_file: list[str] = _text(
        [], "General text that measures forgetting, and that --general_share mixes into the training text."
    )
    general_share: float = _text(0.0, "Share of general text in the training text.", min=0, below=1)
    exclude_texts: list[str] = _text([], EXCLUDE_TEXTS)
    heldout_share: float = _text(0.05, "Share of the documents held out for evaluation.", above=0, below=1)
    new_words: int = _words(0, "Number of words to add to the vocabulary, chosen to save the most tokens.", min=0)
    new_words_file: str | None = _words(None, "File of the words to add instead, one per line.")

    objective: str = _records(
        AUTO,
        "pairs: masked tokens and next sentences; mlm: masked tokens; auto: pairs if most of the text is in documents "
        "of several sentences.",
        OBJECTIVES,
    )
    max_seq_length: int = _records(128, "Length of the records, in tokens.", min=5)
    max_predictions_per_seq: int = _records(20, "Maximum number of predicted tokens per record.", min=1)
    masked_lm_prob: float = _records(0.15, "Share of tokens to predict.", above=0, below=1)
    do_whole_word_mask: bool = _records(False, "Whether all pieces of a word are masked together.")
    word_boundaries: str | None = _records(None, WORD_BOUNDARIES)
    dupe_factor: int | None = _records(
        None,
        "Number of passes over the text, with new masks each time. Defaults to the passes of training, at most 10.",
        min=1,
    )

    train_batch_size: int = _training(32, "Records per step, over all devices and micro-batches.", min=1)
    learning_rate: float | None = _training(
        None,
        f"Peak learning rate. Defaults to {_LEARNING_RATE:g} x {_HIDDEN_SIZE} / the model's hidden size.",
        above=0,
    )
    num_train_steps: int = _training(2000, "Number of training steps.", min=1)
    num_warmup_steps: int | None = _training(None, "Warm-up steps. Defaults to a tenth of all steps.", min=0)
    gradient_accumulation_steps: int = _training(
        1, "Number of micro-batches per step on each device: less memory, the same step.", min=1
    )
    random_seed: int = _training(12345, "Random seed.", min=0)
    eval_steps: int | None = _training(
        None, "Steps between evaluations. Defaults to a tenth of all steps.", resumable=True, min=1
    )
    save_checkpoints_steps: int | None = _training(
        None, "Steps between checkpoints. Defaults to --eval_steps.", resumable=True, min=1
    )
    log_steps: int = _training(100, "Steps between lines of the log.", resumable=True, min=1)

    distribution_strategy: str = option(
        ONE_DEVICE,
        "Where to run: one device, or all devices of this machine.",
        (ONE_DEVICE, MIRRORED),
        group=HARDWARE,
        resumable=True,
    )
    dtype: str = dtype_option()

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("input_file", "output_dir"):
            if not getattr(self, name):
                raise UserError(f"--{name} is empty; expected {'text files' if name == 'input_file' else 'a folder'}")
        if files.is_remote(self.output_dir):
            raise UserError(
                f"{self.output_dir} is not a local folder; pass a local --output_dir and copy it afterwards"
            )
        if self.general_share and not self.general_file:
            raise UserError("--general_share needs --general_file, the text to mix in")
        if self.word_boundaries is not None and not self.do_whole_word_mask:
            raise UserError(NO_WHOLE_WORDS)
        if self.new_words and self.new_words_file:
            raise UserError("--new_words and --new_words_file cannot be combined; pass one of them")

    @property
    def text_files(self) -> dict[str, list[str]]:
        """The file names and patterns of each flag that names text files. Flags that are not set are left out."""
        patterns = {name: getattr(self, name) for name in ("input_file", "general_file", "exclude_texts")}
        patterns["new_words_file"] = [self.new_words_file] if self.new_words_file else []
        return {flag: value for flag, value in patterns.items() if value}

    def resolve_defaults(self, config: BertConfig) -> "AdaptationOptions":
        """Returns the options with defaults that suit the model in place of None. Only dupe_factor may stay None.

        Raises:
            UserError: If `max_seq_length` exceeds the number of the model's positions.
        """
        config.check_length(self.max_seq_length, "the model of --init")
        part = max(1, self.num_train_steps // _PARTS)
        eval_steps = self.eval_steps or part
        scaled_rate = _LEARNING_RATE * _HIDDEN_SIZE / config.hidden_size
        return dataclasses.replace(
            self,
            learning_rate=scaled_rate if self.learning_rate is None else self.learning_rate,
            num_warmup_steps=part if self.num_warmup_steps is None else self.num_warmup_steps,
            eval_steps=eval_steps,
            save_checkpoints_steps=self.save_checkpoints_steps or eval_steps,
        )
