"""The flags of adapt."""

import dataclasses

from data_gen.options import EXCLUDE_TEXTS, NO_WHOLE_WORDS, TEXT, WORD_BOUNDARIES, TextOptions
from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.optimization.choices import MIRRORED, ONE_DEVICE, dtype_option
from official_bert.tokenization.casing import STRIP_ACCENTS
from official_bert.utils import files
from official_bert.utils.flags import HARDWARE, MODEL, TRAINING, option

VOCABULARY, RECORDS = "vocabulary", "records"  # headings of --help

OBJECTIVES = AUTO, PAIRS, MASKED_LM = ("auto", "pairs", "mlm")

# The default rate for this width; of other widths it is larger or smaller in inverse proportion.
_RATE, _WIDTH = 5e-5, 768
_PARTS = 10  # of the training: warm-up is one of them, and after each there is an evaluation


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(TextOptions):
    """What is adapted to which text, and how."""

    init: str = option(
        dataclasses.MISSING, "The weights: a checkpoint of any format, or a name (hf://, google://).", group=MODEL
    )
    vocab_file: str | None = option(None, "The vocabulary, where --init has none.", group=MODEL)
    do_lower_case: bool | None = option(
        None, "Whether the vocabulary is uncased, where --init does not say it.", group=MODEL
    )
    strip_accents: bool | None = option(None, STRIP_ACCENTS, group=MODEL)
    output_dir: str = option(
        dataclasses.MISSING, "Folder of the adapted model; given again, goes on.", group=MODEL, resumable=True
    )

    input_file: list[str] = option(dataclasses.MISSING, "Text, as make-records takes it: the domain.", group=TEXT)
    general_file: list[str] = option(
        [], "Likewise: other text, to see what is forgotten of it, and to mix in.", group=TEXT
    )
    general_share: float = option(0.0, "The share of general text in what is trained on.", group=TEXT, min=0, below=1)
    exclude_texts: list[str] = option([], EXCLUDE_TEXTS, group=TEXT)
    heldout_share: float = option(
        0.05, "The share of the text, by document, that is held out to be evaluated on.", group=TEXT, above=0, below=1
    )
    new_words: int = option(
        0, "How many words to add to the vocabulary: those that save most tokens.", group=VOCABULARY, min=0
    )
    new_words_file: str | None = option(None, "The words to add, one a line, instead.", group=VOCABULARY)

    objective: str = option(
        AUTO,
        "pairs: masked tokens and next sentences, as in pre-training; mlm: masked tokens alone; auto: pairs where most "
        "of the text is in documents of several sentences.",
        OBJECTIVES,
        group=RECORDS,
    )
    max_seq_length: int = option(128, "Length of the records, in tokens.", group=RECORDS, min=1)
    max_predictions_per_seq: int = option(20, "The most tokens to predict in a record.", group=RECORDS, min=1)
    masked_lm_prob: float = option(0.15, "The share of tokens to predict.", group=RECORDS, above=0, below=1)
    do_whole_word_mask: bool = option(False, "Whether all pieces of a word are masked together.", group=RECORDS)
    word_boundaries: str | None = option(None, WORD_BOUNDARIES, group=RECORDS)
    dupe_factor: int | None = option(
        None,
        "How often the text is used, with other masks and cuts each time; by default as often as the training reads "
        "it, at most 10 times.",
        group=RECORDS,
        min=1,
    )

    train_batch_size: int = option(32, "Records in a step, over all devices and micro-batches.", group=TRAINING, min=1)
    learning_rate: float | None = option(
        None,
        f"The highest learning rate; by default {_RATE:g} for a model of width {_WIDTH}, and in inverse proportion to "
        "the width.",
        group=TRAINING,
        above=0,
    )
    num_train_steps: int = option(2000, "Steps in all.", group=TRAINING, min=1)
    num_warmup_steps: int | None = option(
        None, "Steps in which the learning rate rises from 0; by default a tenth of all.", group=TRAINING, min=0
    )
    gradient_accumulation_steps: int = option(
        1, "Parts that each device's share of a batch is cut into: less memory, the same step.", group=TRAINING, min=1
    )
    random_seed: int = option(12345, "The seed of everything random.", group=TRAINING, min=0)
    eval_steps: int | None = option(
        None,
        "Steps between evaluations on what is held out; by default a tenth of all.",
        group=TRAINING,
        resumable=True,
        min=1,
    )
    save_checkpoints_steps: int | None = option(
        None, "Steps between checkpoints; by default as --eval_steps.", group=TRAINING, resumable=True, min=1
    )
    log_steps: int = option(100, "Steps between lines of the log.", group=TRAINING, resumable=True, min=1)

    distribution_strategy: str = option(
        ONE_DEVICE,
        "Where to run: one device, or all of this machine.",
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
            raise UserError(f"{self.output_dir} is not on this machine; adapt there, then copy the folder")
        if self.general_share and not self.general_file:
            raise UserError("--general_share mixes in --general_file, which is not given")
        if self.word_boundaries is not None and not self.do_whole_word_mask:
            raise UserError(NO_WHOLE_WORDS)
        if self.new_words and self.new_words_file:
            raise UserError("--new_words and --new_words_file exclude each other; give one")

    def resolved(self, config: BertConfig) -> "Options":
        """Returns the options with the defaults for a model in place of None, but for dupe_factor.

        Raises:
            UserError: the model cannot read records of this length.
        """
        if self.max_seq_length > config.max_position_embeddings:
            raise UserError(
                f"--max_seq_length is {self.max_seq_length}, but the model of --init reads "
                f"{config.max_position_embeddings} tokens; give at most that"
            )
        part = max(1, self.num_train_steps // _PARTS)
        eval_steps = self.eval_steps or part
        return dataclasses.replace(
            self,
            learning_rate=_RATE * _WIDTH / config.hidden_size if self.learning_rate is None else self.learning_rate,
            num_warmup_steps=part if self.num_warmup_steps is None else self.num_warmup_steps,
            eval_steps=eval_steps,
            save_checkpoints_steps=self.save_checkpoints_steps or eval_steps,
        )
