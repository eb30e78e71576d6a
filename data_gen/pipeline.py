"""From text files to TFRecord files: the whole of create_pretraining_data, without its flags."""

import dataclasses
import os
import random
import sys

from official_bert import files, tokenization
from data_gen import documents, masking, writer
from data_gen.instances import Instance, Law, instances_of_document
from official_bert.command_line import option
from official_bert.errors import UserError
from official_bert.progress import Progress


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
    dupe_factor: int = option(10, "How often the text is used, with other masks and cuts each time.")
    masked_lm_prob: float = option(0.15, "The share of tokens to predict.")
    short_seq_prob: float = option(0.1, "How likely a document is cut into sequences shorter than the maximum.")
    drop_invalid_utf8: bool = option(False, "Whether bytes that are not UTF-8 are dropped instead of being an error.")

    def __post_init__(self) -> None:
        if self.max_seq_length < 5:
            raise UserError(
                f"--max_seq_length is {self.max_seq_length}; two segments and 3 special tokens need 5 or more"
            )
        for name in ("max_predictions_per_seq", "dupe_factor"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name} is {getattr(self, name)}; expected at least 1")
        if not 0 < self.masked_lm_prob < 1:
            raise UserError(f"--masked_lm_prob is {self.masked_lm_prob}; expected a share between 0 and 1")
        if not 0 <= self.short_seq_prob <= 1:
            raise UserError(f"--short_seq_prob is {self.short_seq_prob}; expected a probability from 0 to 1")
        if not any(self.output_file):
            raise UserError("--output_file is empty; give one or more files, separated by commas")
        if len(set(self.output_file)) < len(self.output_file):
            raise UserError(f"--output_file names a file twice: {', '.join(self.output_file)}")


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

    def __str__(self) -> str:
        return "\n".join(
            (
                f"documents         {self.documents:,}",
                f"tokens in text    {self.text_tokens:,}, {100 * self.unknown / self.text_tokens:.2f} % of them [UNK]",
                f"instances         {self.instances:,}",
                f"tokens            {self.tokens:,}",
                f"random next       {100 * self.random_next / self.instances:.1f} % of the instances",
                f"to be predicted   {100 * self.predictions / self.maskable:.1f} % of the tokens of text",
                f"padding           {100 * (1 - self.tokens / self.positions):.1f} % of all positions",
            )
        )


def create_pretraining_data(options: Options) -> Summary:
    """Reads the text, makes the instances, writes the records; all of it is held in memory, as in the original.

    For the same text, flags and seed the records equal those of the original script.

    Raises:
        UserError: something about the input, the vocabulary or the output is wrong.
    """
    paths = files.expand(options.input_file, "input_file")
    for path in options.output_file:
        if os.path.abspath(path) in map(os.path.abspath, paths):
            raise UserError(f"--output_file names {path}, which is an input; writing would destroy it")
    tokenizer = tokenization.FullTokenizer(options.vocab_file, options.do_lower_case)
    vocab = tokenizer.vocab
    wanted = masking.number_to_predict(options.max_seq_length, options.masked_lm_prob, options.max_seq_length)
    if options.max_predictions_per_seq < wanted:
        print(
            f"warning: --max_predictions_per_seq is {options.max_predictions_per_seq}, but --masked_lm_prob="
            f"{options.masked_lm_prob} of {options.max_seq_length} tokens are {wanted}: full records will have fewer "
            f"predictions than asked for; pass --max_predictions_per_seq={wanted}",
            file=sys.stderr,
        )

    def encode(sentence: str) -> list[int]:
        return tokenizer.convert_tokens_to_ids(tokenizer.tokenize(sentence))

    lines = documents.read_lines(paths, options.drop_invalid_utf8)
    corpus = documents.read_corpus(lines, encode, vocab[tokenization.UNK])
    law = Law(
        max_seq_length=options.max_seq_length,
        max_predictions_per_seq=options.max_predictions_per_seq,
        masked_lm_prob=options.masked_lm_prob,
        short_seq_prob=options.short_seq_prob,
        do_whole_word_mask=options.do_whole_word_mask,
        cls=vocab[tokenization.CLS],
        sep=vocab[tokenization.SEP],
        vocabulary=masking.MaskingVocabulary.of(vocab),
    )
    made, summary = _make_instances(corpus, law, options.dupe_factor, random.Random(options.random_seed))
    writer.write(made, len(made), options.output_file, options.max_seq_length, options.max_predictions_per_seq)
    return summary


def _make_instances(
    corpus: documents.Corpus, law: Law, dupe_factor: int, rng: random.Random
) -> tuple[list[Instance], Summary]:
    summary = Summary(len(corpus.documents), corpus.tokens, corpus.unknown)
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
    return made, summary
