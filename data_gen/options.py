"""The flags of the commands of data_gen."""

import dataclasses
import os
from typing import ClassVar

from official_bert.data.masking_rates import BERT_RATES, MaskingRates
from official_bert.data.sentence_objectives import NEXT_SENTENCE, NONE, SENTENCE_OBJECTIVES
from official_bert.errors import UserError
from official_bert.tokenization.casing import Casing, make_casing
from official_bert.utils import files
from official_bert.utils.flags import ValidatedOptions, option

# Headings of --help.
TEXT, RECORDS, MASKING, VOCABULARY, SPEED = ("text", "records", "masking", "vocabulary", "speed and memory")

WORD_BOUNDARIES = (
    "What is a word for --do_whole_word_mask where BERT's rules cut words apart, as in Chinese: jieba (segmenter), or "
    "a file of words, one a line, the longest of which is taken from the left."
)
NO_WHOLE_WORDS = "--word_boundaries says what is masked together; it goes with --do_whole_word_mask"
EXCLUDE_TEXTS = (
    "Evaluation files, separated by commas (tables as for fine-tuning, or a text on each line): documents that hold "
    "one of their texts are left out."
)
TEXT_FORMATS = ("auto", "sentences", "paragraphs", "wikiextractor", "jsonl")
STRIP_ACCENTS = "Whether lower-cased text loses its accents; by default it does."
VOCABULARY_LAYOUTS = ("compact", "release")

# The spooled instances hold positions within a record as numbers of 16 bits.
_MOST_POSITIONS = 2**16 - 1
_MOST_SHARDS = 99_999


@dataclasses.dataclass(frozen=True)
class TextOptions(ValidatedOptions):
    """The flags of commands that read text, which say where it is and how it is stored."""

    detects_paragraphs: ClassVar[bool] = True  # whether --input_format=auto may split lines into sentences

    input_file: list[str] = option(
        dataclasses.MISSING,
        "Text files or glob patterns, separated by commas; also folders of Hugging Face's datasets, and tfds:NAME.",
        group=TEXT,
    )

    _: dataclasses.KW_ONLY

    input_format: str = option(
        "auto",
        "How text is laid out. auto detects it, but make-records never splits lines of plain text unless you pass "
        "paragraphs: as in the original, each line is a sentence.",
        TEXT_FORMATS,
        group=TEXT,
    )
    language: str = option(
        "en", "The text's language, an ISO code: by its rules paragraphs are cut into sentences.", group=TEXT
    )
    text_field: str = option(
        "text", "The field or column that holds the text, of JSON lines, Parquet and other files of rows.", group=TEXT
    )
    drop_invalid_utf8: bool = option(
        False, "Whether bytes that are not UTF-8 are dropped instead of being an error.", group=TEXT
    )


@dataclasses.dataclass(frozen=True)
class RecordOptions(TextOptions):
    """The flags of make-records: the original's with their defaults, and more."""

    detects_paragraphs: ClassVar[bool] = False  # as in the original, a line of plain text is a sentence

    output_file: list[str] = option(
        dataclasses.MISSING, "TFRecord files to write, separated by commas, filled in turn.", group=RECORDS
    )
    vocab_file: str = option(dataclasses.MISSING, "The vocabulary, a piece per line.", group=TEXT)
    do_lower_case: bool = option(
        True, "Whether the vocabulary is uncased: text is lower-cased, accents are dropped.", group=TEXT
    )
    strip_accents: bool | None = option(None, STRIP_ACCENTS, group=TEXT)
    exclude_texts: list[str] = option([], EXCLUDE_TEXTS, group=TEXT)
    do_whole_word_mask: bool = option(False, "Whether all pieces of a word are masked together.", group=MASKING)
    word_boundaries: str | None = option(None, WORD_BOUNDARIES, group=MASKING)
    max_seq_length: int = option(128, "Length of every record, in tokens.", group=RECORDS, min=5, max=_MOST_POSITIONS)
    max_predictions_per_seq: int = option(
        20, "The most tokens to predict in a record.", group=RECORDS, min=1, max=_MOST_POSITIONS
    )
    random_seed: int = option(12345, "The seed of everything random.", group=RECORDS, min=0)
    dupe_factor: int = option(
        None,
        "How often the text is used, with other masks and cuts each time.",
        group=RECORDS,
        shown_default="10; 1 with --masking=dynamic",
        min=1,
    )
    masked_lm_prob: float = option(0.15, "The share of tokens to predict.", group=MASKING, above=0, below=1)
    masking_rates: str = option(
        str(BERT_RATES),
        "Of the tokens to predict, the percentages that become [MASK], stay, and become a random token.",
        group=MASKING,
    )
    sentence_objective: str = option(
        NEXT_SENTENCE,
        f"{NEXT_SENTENCE}: b follows a, or comes from elsewhere; {NONE}: one segment of whole sentences, across "
        "documents (RoBERTa).",
        SENTENCE_OBJECTIVES,
        group=RECORDS,
    )
    short_seq_prob: float = option(
        0.1, "How likely a document is cut into sequences shorter than the maximum.", group=RECORDS, min=0, max=1
    )
    masking: str = option(
        "static",
        "static: tokens are masked here, once for each use of the text; dynamic: while training, anew each epoch.",
        ("static", "dynamic"),
        group=MASKING,
    )
    algorithm: str = option(
        "fast",
        "fast: on all cores and in little memory; reference: the original's own, record by record, in memory.",
        ("fast", "reference"),
        group=SPEED,
    )
    num_shards: int = option(
        1,
        "Files to write for one --output_file, named NAME-00000-of-00008 before its ending.",
        group=RECORDS,
        min=1,
        max=_MOST_SHARDS,
    )
    shard_size_mb: int = option(
        0, "Write as many files as make them about this large, instead of --num_shards.", group=RECORDS, min=0
    )
    gzip: bool = option(False, "Whether the record files are compressed; pretrain detects that.", group=RECORDS)
    num_workers: int = option(
        os.cpu_count() or 1, "Processes that make instances, and threads that read text.", group=SPEED, min=1
    )
    block_tokens: int = option(
        400_000,
        "Tokens of text that a process handles at once; its memory is about 40 MB, and 45 MB for each million of them. "
        "A document is never cut, so that a longer one is held whole.",
        group=SPEED,
        min=1,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        make_casing(self.do_lower_case, self.strip_accents)
        if self.dupe_factor is None:
            object.__setattr__(self, "dupe_factor", 1 if self.masking == "dynamic" else 10)
        MaskingRates.parse(self.masking_rates)
        if self.word_boundaries is not None and not self.do_whole_word_mask:
            raise UserError(NO_WHOLE_WORDS)
        if self.word_boundaries is not None and self.masking == "dynamic":
            raise UserError(
                "--word_boundaries goes with --masking=static: records that are masked while training do not say where "
                "words begin"
            )
        if not any(self.output_file):
            raise UserError("--output_file is empty; give one or more files, separated by commas")
        if len(self.output_file) > 1 and (self.num_shards > 1 or self.shard_size_mb):
            raise UserError("several --output_file are given; --num_shards and --shard_size_mb go with one")
        if self.algorithm == "reference" and (self.num_shards > 1 or self.shard_size_mb or self.gzip):
            raise UserError("--num_shards, --shard_size_mb and --gzip go with --algorithm=fast")
        if self.algorithm == "reference" and self.input_format not in ("auto", "sentences"):
            raise UserError("--algorithm=reference reads the original's format alone, --input_format=sentences")
        if self.algorithm == "reference" and self.masking == "dynamic":
            raise UserError("--masking=dynamic goes with --algorithm=fast")

    @property
    def casing(self) -> Casing:
        """What the text is brought to before it is cut."""
        return make_casing(self.do_lower_case, self.strip_accents)

    @property
    def stem(self) -> str:
        """The first output without its ending: manifest, working folder and numbered shards are named after it."""
        return os.path.splitext(self.output_file[0])[0]

    @property
    def work_folder(self) -> str:
        """The folder of unfinished work: beside the records, or of remote ones in the current folder."""
        return f"{files.work_path(self.stem)}.work"


@dataclasses.dataclass(frozen=True)
class VocabularyOptions(TextOptions):
    """The flags of learn-vocabulary."""

    vocab_file: str = option(dataclasses.MISSING, "The vocabulary to write, a piece per line.", group=VOCABULARY)
    vocab_size: int = option(30_522, "The number of pieces, special tokens included.", group=VOCABULARY, min=1)
    do_lower_case: bool = option(True, "Whether the vocabulary is to be uncased.", group=TEXT)
    strip_accents: bool | None = option(None, STRIP_ACCENTS, group=TEXT)
    layout: str = option(
        "compact",
        "compact: [PAD] [UNK] [CLS] [SEP] [MASK] from 0, then pieces; release: [PAD] 0, [UNK] 100, [CLS] 101, [SEP] "
        "102, [MASK] 103 and the unused pieces of Google's English vocabulary (cased: 101, uncased: 994).",
        VOCABULARY_LAYOUTS,
        group=VOCABULARY,
    )
    character_coverage: float = option(
        1.0,
        "The share of the text's letters that pieces are to cover; words with rarer letters become [UNK].",
        group=VOCABULARY,
        above=0,
        max=1,
    )
    min_frequency: int = option(
        2, "How often a piece must occur in the text that was counted to be taken.", group=VOCABULARY, min=1
    )
    max_words: int = option(
        1_000_000,
        "How many different words to hold at the most, at about 1.2 KB of memory each; of text with more, an even "
        "sample is counted.",
        group=VOCABULARY,
    )
    heldout_file: list[str] = option(
        [],
        "Text for the report, as --input_file; otherwise every 50th document is kept from learning for it.",
        group=TEXT,
    )
    compare_with: str | None = option(None, "Another vocabulary, for the report.", group=VOCABULARY)

    @property
    def casing(self) -> Casing:
        """What the text is brought to before it is cut."""
        return make_casing(self.do_lower_case, self.strip_accents)

    def __post_init__(self) -> None:
        super().__post_init__()
        make_casing(self.do_lower_case, self.strip_accents)
        if self.max_words < self.vocab_size:
            raise UserError(
                f"--max_words is {self.max_words:,}, but --vocab_size is {self.vocab_size:,}; give at least that many"
            )


@dataclasses.dataclass(frozen=True)
class InspectionOptions(ValidatedOptions):
    """The flags of inspect-records."""

    input_file: list[str] = option(dataclasses.MISSING, "Record files or glob patterns, separated by commas.")
    vocab_file: str = option(dataclasses.MISSING, "The vocabulary that the records were made with.")
    num_records: int = option(3, "How many of the first records are shown; the statistics are of all.", min=0)
    report: str | None = option(None, "An HTML page to write, with the records and statistics; it needs no other file.")


@dataclasses.dataclass(frozen=True)
class VerificationOptions(ValidatedOptions):
    """The flags of verify-records."""

    input_file: list[str] = option(
        [], "Record files or glob patterns, separated by commas; manifests beside them are read."
    )
    manifest: str | None = option(None, "A manifest, whose files are to be checked; instead of --input_file.")
    vocab_file: str | None = option(None, "The vocabulary that the records were made with.")
    bert_config_file: str | None = option(None, "The configuration of the model that is to be trained.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.input_file) == bool(self.manifest):
            raise UserError("give either --input_file, the record files, or --manifest, the file that names them")


@dataclasses.dataclass(frozen=True)
class ProseOptions(ValidatedOptions):
    """The flags of python-docs."""

    output_file: str = option(
        dataclasses.MISSING, "Text file to write: a sentence per line, empty lines between documents."
    )
    heldout_file: str = option(dataclasses.MISSING, "Text file for one document in twenty, to evaluate on.")
