"""The flags of the commands of data_gen."""

import dataclasses
import os
from typing import ClassVar

from official_bert.data.masking_rates import BERT_RATES, MaskingRates
from official_bert.data.sentence_objectives import NEXT_SENTENCE, NONE, SENTENCE_OBJECTIVES
from official_bert.errors import UserError
from official_bert.tokenization.added_tokens import parse_added_token
from official_bert.tokenization.casing import ADDED_TOKENS, Casing, make_casing
from official_bert.utils import files
from official_bert.utils.flags import ValidatedOptions, option

# Headings of --help.
TEXT, RECORDS, MASKING, VOCABULARY, SPEED = ("text", "records", "masking", "vocabulary", "speed and memory")

WORD_BOUNDARIES = (
    "Word segmentation for --do_whole_word_mask in languages that BERT's tokenizer splits into smaller units, such as "
    "Chinese: jieba (a segmenter), or a file with one word per line (longest match from the left)."
)
NO_WHOLE_WORDS = "--word_boundaries needs --do_whole_word_mask"
EXCLUDE_TEXTS = (
    "Evaluation files, separated by commas (tables as for fine-tuning, or one text per line). Documents that contain "
    "one of their texts are left out."
)
TEXT_FORMATS = ("auto", "sentences", "paragraphs", "wikiextractor", "jsonl")
STRIP_ACCENTS = "Whether to strip accents from lower-cased text. Defaults to true."
VOCABULARY_LAYOUTS = ("compact", "release")

_MAX_POSITIONS = 2**16 - 1  # Instances on disk store positions in 16 bits.
_MAX_SHARDS = 99_999


@dataclasses.dataclass(frozen=True)
class TextOptions(ValidatedOptions):
    """The flags of commands that read text: its files and their format."""

    detects_paragraphs: ClassVar[bool] = True  # Whether --input_format=auto may split lines into sentences.

    input_file: list[str] = option(
        dataclasses.MISSING,
        "Text files or glob patterns, separated by commas. Also folders of Hugging Face datasets, and tfds:NAME.",
        group=TEXT,
    )

    _: dataclasses.KW_ONLY

    input_format: str = option(
        "auto",
        "Format of the text. auto detects it, but make-records splits lines of plain text into sentences only if you "
        "pass paragraphs: as in the original, each line is a sentence.",
        TEXT_FORMATS,
        group=TEXT,
    )
    language: str = option(
        "en",
        "ISO code of the language whose rules split paragraphs into sentences. If it has none, general rules apply.",
        group=TEXT,
    )
    text_field: str = option(
        "text", "Field or column of the text in JSON lines, Parquet and other files of rows.", group=TEXT
    )
    drop_invalid_utf8: bool = option(False, "Whether to drop bytes that are not UTF-8 instead of stopping.", group=TEXT)


@dataclasses.dataclass(frozen=True)
class RecordOptions(TextOptions):
    """The flags of make-records: the flags of the original's script with the same defaults, and additional ones."""

    detects_paragraphs: ClassVar[bool] = False  # As in the original, a line of plain text is a sentence.

    output_file: list[str] = option(
        dataclasses.MISSING,
        "TFRecord files to write, separated by commas. Records are written to them in turn.",
        group=RECORDS,
    )
    vocab_file: str = option(dataclasses.MISSING, "Vocabulary file, one piece per line.", group=TEXT)
    do_lower_case: bool = option(
        True, "Whether to lower-case text and strip accents, for uncased vocabularies.", group=TEXT
    )
    strip_accents: bool | None = option(None, STRIP_ACCENTS, group=TEXT)
    added_tokens_file: str | None = option(
        None,
        "A model's tokenizer_config.json. The added tokens that it lists are kept as single tokens.",
        group=TEXT,
    )
    exclude_texts: list[str] = option([], EXCLUDE_TEXTS, group=TEXT)
    do_whole_word_mask: bool = option(False, "Whether to mask all pieces of a word together.", group=MASKING)
    word_boundaries: str | None = option(None, WORD_BOUNDARIES, group=MASKING)
    max_seq_length: int = option(128, "Length of every record, in tokens.", group=RECORDS, min=5, max=_MAX_POSITIONS)
    max_predictions_per_seq: int = option(
        20, "Maximum number of masked tokens to predict per record.", group=RECORDS, min=1, max=_MAX_POSITIONS
    )
    random_seed: int = option(12345, "Random seed.", group=RECORDS, min=0)
    dupe_factor: int = option(
        None,
        "Number of passes over the text, with different masks and segments each time.",
        group=RECORDS,
        shown_default="10; 1 with --masking=dynamic",
        min=1,
    )
    masked_lm_prob: float = option(0.15, "Share of tokens to predict.", group=MASKING, above=0, below=1)
    masking_rates: str = option(
        str(BERT_RATES),
        "Percentages of predicted tokens that are replaced by [MASK], kept, and replaced by a random token.",
        group=MASKING,
    )
    sentence_objective: str = option(
        NEXT_SENTENCE,
        f"{NEXT_SENTENCE}: predict whether segment b follows segment a; {NONE}: one segment of complete sentences, "
        "across documents (RoBERTa).",
        SENTENCE_OBJECTIVES,
        group=RECORDS,
    )
    short_seq_prob: float = option(
        0.1, "Probability of making sequences shorter than the maximum length.", group=RECORDS, min=0, max=1
    )
    masking: str = option(
        "static",
        "static: mask tokens in the records, once per pass over the text; dynamic: mask during training, again in each "
        "epoch.",
        ("static", "dynamic"),
        group=MASKING,
    )
    algorithm: str = option(
        "fast",
        "fast: uses all cores and little memory; reference: the original's algorithm, for plain text, all in memory.",
        ("fast", "reference"),
        group=SPEED,
    )
    num_shards: int = option(
        1,
        "Number of files for one --output_file, named like NAME-00000-of-00008.tfrecord.",
        group=RECORDS,
        min=1,
        max=_MAX_SHARDS,
    )
    shard_size_mb: int = option(0, "Approximate size of a file in MB, instead of --num_shards.", group=RECORDS, min=0)
    gzip: bool = option(False, "Whether to compress the record files. pretrain detects it.", group=RECORDS)
    num_workers: int = option(os.cpu_count() or 1, "Number of worker processes.", group=SPEED, min=1)
    block_tokens: int = option(
        400_000,
        "Tokens that a process handles at a time. A process needs about 40 MB, plus 45 MB per million tokens. "
        "Documents are never split, so a longer document needs more.",
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
        if self.word_boundaries is not None and self.added_tokens_file is not None:
            raise UserError("--word_boundaries and --added_tokens_file cannot be combined; pass one of them")
        if self.word_boundaries is not None and self.masking == "dynamic":
            raise UserError(
                "--word_boundaries needs --masking=static, because unmasked records do not contain word boundaries"
            )
        if not any(self.output_file):
            raise UserError("--output_file is empty; pass one or more files, separated by commas")
        if len(self.output_file) > 1 and (self.num_shards > 1 or self.shard_size_mb):
            raise UserError("--num_shards and --shard_size_mb cannot be combined with several --output_file")
        if self.num_shards > 1 and self.shard_size_mb:
            raise UserError(
                f"--num_shards={self.num_shards} and --shard_size_mb={self.shard_size_mb} cannot be combined; pass one "
                "of them"
            )
        if self.algorithm == "reference" and (self.num_shards > 1 or self.shard_size_mb or self.gzip):
            raise UserError("--num_shards, --shard_size_mb and --gzip need --algorithm=fast")
        if self.algorithm == "reference" and self.input_format not in ("auto", "sentences"):
            raise UserError("--algorithm=reference supports only --input_format=sentences")
        if self.algorithm == "reference" and self.masking == "dynamic":
            raise UserError("--masking=dynamic needs --algorithm=fast")

    @property
    def casing(self) -> Casing:
        """The tokenizer's settings from the flags: lower-casing, stripping of accents, and added tokens."""
        path = self.added_tokens_file
        added = files.read_json_object(path).get(ADDED_TOKENS, []) if path else []
        if path and not added:
            raise UserError(
                f"--added_tokens_file={path} lists no {ADDED_TOKENS}; remove the flag if the model has none. For a "
                "model in another format, pass the tokenizer_config.json that official-bert convert writes"
            )
        return make_casing(self.do_lower_case, self.strip_accents, map(parse_added_token, added))

    @property
    def stem(self) -> str:
        """The first output path without its extension.

        The names of the manifest, the working folder and numbered shards start with it.
        """
        return os.path.splitext(self.output_file[0])[0]

    @property
    def work_folder(self) -> str:
        """The folder for unfinished work: next to the records, or in the current folder if the records are remote."""
        return f"{files.work_path(self.stem)}.work"


@dataclasses.dataclass(frozen=True)
class VocabularyOptions(TextOptions):
    """The flags of learn-vocabulary."""

    vocab_file: str = option(dataclasses.MISSING, "Vocabulary file to write, one piece per line.", group=VOCABULARY)
    vocab_size: int = option(30_522, "Number of pieces, including special tokens.", group=VOCABULARY, min=1)
    do_lower_case: bool = option(True, "Whether to learn an uncased vocabulary.", group=TEXT)
    strip_accents: bool | None = option(None, STRIP_ACCENTS, group=TEXT)
    layout: str = option(
        "compact",
        "Ids of the special tokens. compact: [PAD] [UNK] [CLS] [SEP] [MASK] are 0 to 4. release, as in Google's "
        "English vocabularies: [PAD] 0, [UNK] 100, [CLS] 101, [SEP] 102, [MASK] 103, and [unused] pieces (101 "
        "if cased, 994 if uncased).",
        VOCABULARY_LAYOUTS,
        group=VOCABULARY,
    )
    character_coverage: float = option(
        1.0,
        "Share of the text's letters with a piece. Words with rarer letters become [UNK].",
        group=VOCABULARY,
        above=0,
        max=1,
    )
    min_frequency: int = option(
        2, "Minimum number of occurrences of a piece in the counted text.", group=VOCABULARY, min=1
    )
    max_words: int = option(
        1_000_000,
        "Maximum number of different words to count, at about 1.2 KB of memory each. If the text has more, an even "
        "sample is counted.",
        group=VOCABULARY,
    )
    heldout_file: list[str] = option(
        [],
        "Held-out text for the report, like --input_file. Defaults to every 50th document of --input_file.",
        group=TEXT,
    )
    compare_with: str | None = option(None, "Another vocabulary to compare with in the report.", group=VOCABULARY)

    @property
    def casing(self) -> Casing:
        """The tokenizer's settings from the flags: lower-casing and stripping of accents."""
        return make_casing(self.do_lower_case, self.strip_accents)

    def __post_init__(self) -> None:
        super().__post_init__()
        make_casing(self.do_lower_case, self.strip_accents)
        if self.max_words < self.vocab_size:
            raise UserError(
                f"--max_words is {self.max_words:,}, but --vocab_size is {self.vocab_size:,}; pass at least that many"
            )


@dataclasses.dataclass(frozen=True)
class InspectionOptions(ValidatedOptions):
    """The flags of inspect-records."""

    input_file: list[str] = option(dataclasses.MISSING, "Record files or glob patterns, separated by commas.")
    vocab_file: str = option(dataclasses.MISSING, "The vocabulary that the records were made with.")
    num_records: int = option(3, "Number of records to show. The statistics are over all records.", min=0)
    report: str | None = option(None, "HTML page to write, with the records and statistics.")


@dataclasses.dataclass(frozen=True)
class VerificationOptions(ValidatedOptions):
    """The flags of verify-records."""

    input_file: list[str] = option(
        [], "Record files or glob patterns, separated by commas. Manifests in the same folders are read too."
    )
    manifest: str | None = option(None, "Manifest that lists the record files to check. Replaces --input_file.")
    vocab_file: str | None = option(None, "The vocabulary that the records were made with.")
    bert_config_file: str | None = option(None, "Configuration of the model to train.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.input_file) == bool(self.manifest):
            raise UserError("pass either --input_file, the record files, or --manifest, the file that lists them")


@dataclasses.dataclass(frozen=True)
class ProseOptions(ValidatedOptions):
    """The flags of python-docs."""

    output_file: str = option(
        dataclasses.MISSING, "Text file to write: one sentence per line, empty lines between documents."
    )
    heldout_file: str = option(dataclasses.MISSING, "Text file to write for 5 % of the documents, for evaluation.")
