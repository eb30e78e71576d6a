"""From text files to TFRecord files: the whole of create_pretraining_data, without its flags."""

import dataclasses
import os
import random
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from official_bert import files, manifest, tokenization
from data_gen import documents, fast_pipeline, masking, text_formats, writer
from data_gen.instances import Instance, Law, instances_of_document
from official_bert.command_line import option
from official_bert.errors import UserError
from official_bert.fast_tokenization import FastTokenizer
from official_bert.progress import Progress

# Places within a record are numbers of 16 bits on their way.
_MOST_PLACES = 2**16 - 1


@dataclasses.dataclass(frozen=True)
class Options:
    """What create_pretraining_data is told: the original's flags and defaults."""

    input_file: list[str] = option(
        dataclasses.MISSING,
        "Text files or glob patterns, separated by commas: a sentence per line, an empty line between documents.",
    )
    output_file: list[str] = option(
        dataclasses.MISSING, "TFRecord files to write, separated by commas, filled in turn."
    )
    vocab_file: str = option(dataclasses.MISSING, "The vocabulary, a piece per line.")
    do_lower_case: bool = option(True, "Whether the vocabulary is uncased: text is lower-cased, accents are dropped.")
    do_whole_word_mask: bool = option(False, "Whether all pieces of a word are masked together.")
    max_seq_length: int = option(128, "Length of every record, in tokens.")
    max_predictions_per_seq: int = option(20, "The most tokens to predict in a record.")
    random_seed: int = option(12345, "The seed of everything random.")
    dupe_factor: int = option(
        None,
        "How often the text is used, with other masks and cuts each time; unless it is given, 10 times, but once with "
        "--masking=dynamic.",
    )
    masked_lm_prob: float = option(0.15, "The share of tokens to predict.")
    short_seq_prob: float = option(0.1, "How likely a document is cut into sequences shorter than the maximum.")
    drop_invalid_utf8: bool = option(False, "Whether bytes that are not UTF-8 are dropped instead of being an error.")
    masking: str = option(
        "static",
        "static: tokens are hidden here, once for each use of the text; dynamic: while training, anew each epoch.",
        ("static", "dynamic"),
    )
    algorithm: str = option(
        "fast",
        "fast: on all cores and in little memory; reference: the original's own, record by record, in memory.",
        ("fast", "reference"),
    )
    input_format: str = option("auto", "How the text is laid out; auto finds it out.", text_formats.FORMATS)
    language: str = option("en", "The text's language, an ISO code: by its rules paragraphs are cut into sentences.")
    json_field: str = option("text", "Where the text is in JSON lines.")
    num_shards: int = option(1, "Files to write for one --output_file, named NAME-00000-of-00008 before its ending.")
    shard_size_mb: int = option(0, "Write as many files as make them about this large, instead of --num_shards.")
    gzip: bool = option(False, "Whether the record files are compressed; run_pretraining finds that out.")
    num_workers: int = option(os.cpu_count() or 1, "Processes that make instances, and threads that read text.")
    block_tokens: int = option(
        400_000,
        "Tokens of text that a process handles at once; its memory is about 40 MB, and 45 MB for each million of them. "
        "A document is never cut, so that a longer one is held whole.",
    )

    def __post_init__(self) -> None:
        if self.dupe_factor is None:
            object.__setattr__(self, "dupe_factor", 1 if self.masking == "dynamic" else 10)
        if self.max_seq_length < 5:
            raise UserError(
                f"--max_seq_length is {self.max_seq_length}; two segments and 3 special tokens need 5 or more"
            )
        for name in ("max_seq_length", "max_predictions_per_seq"):
            if getattr(self, name) > _MOST_PLACES:
                raise UserError(f"--{name} is {getattr(self, name):,}; expected at most {_MOST_PLACES:,}")
        if self.shard_size_mb < 0:
            raise UserError(f"--shard_size_mb is {self.shard_size_mb}; expected at least 1, or 0 to go by --num_shards")
        for name in ("max_predictions_per_seq", "dupe_factor", "num_shards", "num_workers", "block_tokens"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name} is {getattr(self, name)}; expected at least 1")
        if not 0 < self.masked_lm_prob < 1:
            raise UserError(f"--masked_lm_prob is {self.masked_lm_prob}; expected a share between 0 and 1")
        if not 0 <= self.short_seq_prob <= 1:
            raise UserError(f"--short_seq_prob is {self.short_seq_prob}; expected a probability from 0 to 1")
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
        if len(set(self.output_file)) < len(self.output_file):
            raise UserError(f"--output_file names a file twice: {', '.join(self.output_file)}")

    @property
    def stem(self) -> str:
        """What manifest, working folder and numbered shards are named after: the first output without its ending."""
        return os.path.splitext(self.output_file[0])[0]


@dataclasses.dataclass
class Summary:
    """What was made.

    Attributes:
        documents: documents in the text.
        text_tokens: word pieces in the text.
        unknown: how many of these are [UNK].
        instances: records written.
        positions: record length times records.
        tokens: positions that are not padding.
        maskable: tokens that are neither [CLS] nor [SEP].
        predictions: tokens to be predicted.
        random_next: records whose second segment comes from elsewhere.
    """

    documents: int
    text_tokens: int
    unknown: int
    instances: int = 0
    positions: int = 0
    tokens: int = 0
    maskable: int = 0
    predictions: int = 0
    random_next: int = 0

    def add(self, instance: Instance, max_seq_length: int) -> None:
        """Counts one instance."""
        self.instances += 1
        self.positions += max_seq_length
        self.tokens += len(instance.input_ids)
        self.maskable += len(instance.input_ids) - 3
        self.predictions += len(instance.masked_lm_ids)
        self.random_next += instance.is_random_next

    def statistics(self) -> dict[str, int]:
        """Returns the counts under the names that a manifest has."""
        names = {"documents": "text_documents", "unknown": "text_unknown"}
        return {names.get(name, name): value for name, value in dataclasses.asdict(self).items()}

    @classmethod
    def of(cls, statistics: dict[str, int]) -> "Summary":
        """Returns the counts of a manifest."""
        names = {"documents": "text_documents", "unknown": "text_unknown"}
        return cls(**{field.name: statistics[names.get(field.name, field.name)] for field in dataclasses.fields(cls)})

    def _predicted(self) -> str:
        if not self.predictions:
            return "to be chosen while training, anew each epoch"
        return f"{100 * self.predictions / self.maskable:.1f} % of the tokens of text"

    def __str__(self) -> str:
        return "\n".join(
            (
                f"documents         {self.documents:,}",
                f"tokens in text    {self.text_tokens:,}, {100 * self.unknown / self.text_tokens:.2f} % of them [UNK]",
                f"instances         {self.instances:,}",
                f"tokens            {self.tokens:,}",
                f"random next       {100 * self.random_next / self.instances:.1f} % of the instances",
                f"to be predicted   {self._predicted()}",
                f"padding           {100 * (1 - self.tokens / self.positions):.1f} % of all positions",
            )
        )


def create_pretraining_data(options: Options) -> Summary:
    """Reads the text, makes the instances, writes the records and beside them a manifest.

    The fast algorithm's records depend on text, vocabulary, flags and seed alone: not on the number of workers, nor on
    where a run was stopped and taken up again. The reference algorithm holds all in memory, as the original does, and
    for the same text, flags and seed its records equal those of the original script.

    Raises:
        UserError: something about the input, the vocabulary or the output is wrong.
    """
    paths, tokenizer = checked(options)
    law = law_of(options, tokenizer.vocab)
    source = manifest.describe_source(flags_that_matter(options), options.vocab_file, paths)
    path = manifest.manifest_path(options.stem)
    done = manifest.completed(source, path)
    if done:
        print("these records are complete already")
        return Summary.of(done.statistics)
    make = _reference if options.algorithm == "reference" else _fast
    return make(options, paths, tokenizer, law, source)


def checked(options: Options) -> tuple[list[str], tokenization.FullTokenizer]:
    """Returns the text files and the tokenizer, if these are good and the records can be written.

    Raises:
        UserError: something about the input, the vocabulary or the output is wrong.
    """
    paths = files.expand(options.input_file, "input_file")
    for path in options.output_file:
        files.refuse_overwriting(path, "output_file", [*paths, options.vocab_file])
    tokenizer = tokenization.FullTokenizer(options.vocab_file, options.do_lower_case)
    _warn_of_too_few_predictions(options)
    for path in options.output_file:
        files.check_writable(path)
    return paths, tokenizer


def where(options: Options) -> str:
    """Returns where the records are that were made, and the manifest, for a reader."""
    described = manifest.manifest_path(options.stem)
    made = manifest.Manifest.read(described).shards
    names = options.output_file
    if [shard.file for shard in made] != list(map(os.path.basename, names)):
        names = [_numbered(options, "*", len(made))]
    return f"records: {', '.join(names)}\nmanifest: {described}"


def law_of(options: Options, vocab: dict[str, int]) -> Law:
    """Returns the law that the flags and the vocabulary give."""
    return Law(
        max_seq_length=options.max_seq_length,
        max_predictions_per_seq=options.max_predictions_per_seq if options.masking == "static" else 0,
        masked_lm_prob=options.masked_lm_prob,
        short_seq_prob=options.short_seq_prob,
        do_whole_word_mask=options.do_whole_word_mask,
        cls=vocab[tokenization.CLS],
        sep=vocab[tokenization.SEP],
        vocabulary=masking.MaskingVocabulary.of(vocab),
    )


def flags_that_matter(options: Options) -> dict[str, Any]:
    """Those that decide the records' bytes, and the names of the files."""
    ignored = ("input_file", "vocab_file", "num_workers")
    flags = {name: value for name, value in dataclasses.asdict(options).items() if name not in ignored}
    return {**flags, "output_file": [os.path.basename(path) for path in options.output_file]}


def _warn_of_too_few_predictions(options: Options) -> None:
    wanted = masking.number_to_predict(options.max_seq_length, options.masked_lm_prob, options.max_seq_length)
    if options.max_predictions_per_seq < wanted:
        print(
            f"warning: --max_predictions_per_seq is {options.max_predictions_per_seq}, but --masked_lm_prob="
            f"{options.masked_lm_prob} of {options.max_seq_length} tokens are {wanted}: full records will have fewer "
            f"predictions than asked for; pass --max_predictions_per_seq={wanted}",
            file=sys.stderr,
        )


def _fast(
    options: Options,
    paths: list[str],
    tokenizer: tokenization.FullTokenizer,
    law: Law,
    source: dict[str, Any],
) -> Summary:
    found = dict.fromkeys(paths, options.input_format)
    if options.input_format == "auto":
        found = {path: text_formats.found_format(path, options.language) for path in paths}
        print(text_formats.told(list(found.values())))

    def read(path: str) -> Iterator[list[str]]:
        return read_documents(options, path, found[path])

    per_thread = threading.local()

    def encode(sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        if not hasattr(per_thread, "tokenizer"):
            per_thread.tokenizer = FastTokenizer(options.vocab_file, options.do_lower_case)
        encoded: tuple[np.ndarray, np.ndarray] = per_thread.tokenizer.encode(sentences)
        return encoded

    settings = settings_of(options, paths, source)
    return Summary.of(fast_pipeline.create(settings, law, read, encode, tokenizer.vocab).statistics)


def read_documents(options: Options, path: str, format: str) -> Iterator[list[str]]:
    """Yields the documents of a text file, each a list of sentences."""
    return text_formats.read_documents(path, format, options.language, options.json_field, options.drop_invalid_utf8)


def settings_of(options: Options, paths: list[str], source: dict[str, Any]) -> fast_pipeline.Settings:
    """Returns what the fast pipeline must know, of these text files."""
    return fast_pipeline.Settings(
        inputs=paths,
        stem=options.stem,
        name_outputs=lambda size: _shards(options, size),
        vocab_file=options.vocab_file,
        seed=options.random_seed,
        passes=options.dupe_factor,
        block_tokens=options.block_tokens,
        num_workers=options.num_workers,
        compress=options.gzip,
        source=source,
    )


def _shards(options: Options, size: float) -> list[str]:
    count = options.num_shards
    if options.shard_size_mb:
        count = max(1, round(size / (options.shard_size_mb * 1e6)))
    if count == 1:
        return options.output_file
    return [_numbered(options, f"{number:05}", count) for number in range(count)]


def _numbered(options: Options, number: str, count: int) -> str:
    return f"{options.stem}-{number}-of-{count:05}{os.path.splitext(options.output_file[0])[1]}"


def _reference(
    options: Options,
    paths: list[str],
    tokenizer: tokenization.FullTokenizer,
    law: Law,
    source: dict[str, Any],
) -> Summary:
    def encode(sentence: str) -> list[int]:
        return tokenizer.convert_tokens_to_ids(tokenizer.tokenize(sentence))

    lines = documents.read_lines(paths, options.drop_invalid_utf8)
    corpus = documents.read_corpus(lines, encode, tokenizer.vocab[tokenization.UNK])
    summary = Summary(len(corpus.documents), corpus.tokens, corpus.unknown)
    made = _make_instances(corpus, law, options.dupe_factor, random.Random(options.random_seed), summary)
    writer.write(made, options.output_file, options.max_seq_length, options.max_predictions_per_seq)
    if len(made) < len(options.output_file):
        print(f"warning: {len(made)} instances for {len(options.output_file)} files; some are empty", file=sys.stderr)
    shards = []
    for number, path in enumerate(options.output_file):
        count = len(range(number, len(made), len(options.output_file)))
        shards.append(manifest.Shard(os.path.basename(path), count, files.size(path), manifest.sha256(path)))
    described = manifest.Manifest(source, shards, summary.statistics())
    files.write_text(manifest.manifest_path(options.stem), described.to_json())
    return summary


def _make_instances(
    corpus: documents.Corpus, law: Law, dupe_factor: int, rng: random.Random, summary: Summary
) -> list[Instance]:
    rng.shuffle(corpus.documents)
    progress = Progress("making instances", dupe_factor * len(corpus.documents), "documents")
    made: list[Instance] = []
    for number in range(dupe_factor):
        for index in range(len(corpus.documents)):
            for instance in instances_of_document(corpus.documents, index, law, rng):
                summary.add(instance, law.max_seq_length)
                made.append(instance)
            progress.update(number * len(corpus.documents) + index + 1)
    rng.shuffle(made)
    return made
