"""Learns a WordPiece vocabulary from text: `python -m data_gen.learn_vocabulary --help`."""

import collections
import dataclasses
from collections.abc import Iterator

import tokenizers

from official_bert import command_line, files, tokenization
from data_gen import text_formats
from official_bert.command_line import option
from official_bert.errors import UserError

_WORDS_AT_ONCE = 10_000


@dataclasses.dataclass(frozen=True)
class Options:
    """What learn_vocabulary is told."""

    input_file: list[str] = option(dataclasses.MISSING, "Text files or glob patterns, separated by commas.")
    vocab_file: str = option(dataclasses.MISSING, "The vocabulary to write, a piece per line.")
    vocab_size: int = option(30_522, "The number of pieces.")
    do_lower_case: bool = option(True, "Whether the vocabulary is to be uncased.")
    min_frequency: int = option(2, "How often a piece must occur to be taken.")
    input_format: str = option("auto", "How the text is laid out; auto finds it out.", text_formats.FORMATS)
    language: str = option("en", "The text's language, an ISO code: by its rules paragraphs are cut into sentences.")
    json_field: str = option("text", "Where the text is in JSON lines.")
    drop_invalid_utf8: bool = option(False, "Whether bytes that are not UTF-8 are dropped instead of being an error.")


def learn(options: Options) -> list[str]:
    """Returns the pieces: the special tokens ([PAD] first), then letters, then what was learned.

    Words are those of the exact tokenizer, so that the vocabulary cuts text as it will be cut.

    Raises:
        UserError: the text is missing or empty.
    """
    basic = tokenization.BasicTokenizer(options.do_lower_case)
    counts: collections.Counter[str] = collections.Counter()
    for path in files.expand(options.input_file, "input_file"):
        documents = text_formats.read_documents(
            path, options.input_format, options.language, options.json_field, options.drop_invalid_utf8
        )
        for document in documents:
            for sentence in document:
                counts.update(basic.tokenize(sentence))
    if not counts:
        raise UserError("the input holds no text to learn from")
    words = sorted(word for word in counts if len(word) <= tokenization.MAX_CHARACTERS_PER_WORD)
    # Every letter is given in advance, as a word's first and as a later one: left to itself the trainer numbers the
    # later ones in the order of a hash table, and breaks ties by these numbers, so that each run learns another
    # vocabulary.
    letters = sorted({word[0] for word in words})
    letters += sorted({tokenization.CONTINUATION + letter for word in words for letter in word[1:]})
    given = [*tokenization.SPECIAL_TOKENS, *letters]
    if len(given) > options.vocab_size:
        raise UserError(
            f"--vocab_size is {options.vocab_size:,}, but the special tokens and the letters of the text alone are "
            f"{len(given):,}; give more"
        )
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=options.vocab_size,
        min_frequency=options.min_frequency,
        special_tokens=given,
        continuing_subword_prefix=tokenization.CONTINUATION,
        show_progress=False,
    )
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token=tokenization.UNK))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.train_from_iterator(_repeated(words, counts), trainer)
    vocab = tokenizer.get_vocab()
    return sorted(vocab, key=vocab.__getitem__)


def _repeated(words: list[str], counts: dict[str, int]) -> Iterator[str]:
    """Each word as often as it occurs, in pieces of text that stay small."""
    for word in words:
        for start in range(0, counts[word], _WORDS_AT_ONCE):
            yield " ".join([word] * min(_WORDS_AT_ONCE, counts[word] - start))


def main(_: list[str]) -> None:
    options = command_line.read(Options)
    pieces = learn(options)
    files.write_text(options.vocab_file, "".join(piece + "\n" for piece in pieces))
    print(f"{options.vocab_file}: {len(pieces):,} pieces")
    if len(pieces) < options.vocab_size:
        print(
            f"{options.vocab_size:,} were asked for, but no more pieces occur {options.min_frequency} times in the text"
        )


if __name__ == "__main__":
    command_line.define(Options)
    command_line.run(main)
