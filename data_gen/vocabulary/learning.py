"""Learns a WordPiece vocabulary from text, and reports on it."""

import dataclasses
import itertools

from data_gen.options import VocabularyOptions
from data_gen.text import formats
from data_gen.vocabulary import report, wordpiece_training
from data_gen.vocabulary.word_counts import WordCounts
from official_bert.errors import UserError
from official_bert.tokenization import exact
from official_bert.utils import files, row_files
from official_bert.utils.counting import pluralize

_HELDOUT_EVERY = 50  # Without --heldout_file, one of this many documents is held out.


@dataclasses.dataclass(frozen=True)
class Learned:
    """A learned vocabulary, and figures about it for the report.

    Attributes:
        pieces: The pieces in the order of their ids.
        text: The word counts that the vocabulary was learned from.
        heldout: The word counts of the held-out text.
        letters: Number of different letters (characters) in the text.
        covered: Number of different letters for which the vocabulary has a piece.
        coverage: Share of all occurrences of letters in the text for which the vocabulary has a piece.
    """

    pieces: list[str]
    text: WordCounts
    heldout: WordCounts
    letters: int
    covered: int
    coverage: float


def learn(options: VocabularyOptions) -> Learned:
    """Learns a vocabulary: special tokens, then letters, then longer pieces in the order in which they were learned.

    The exact tokenizer, which will use the vocabulary, splits the text into words.

    Raises:
        UserError: If the text is missing or empty, or the size is too small for its letters.
    """
    text, heldout = _count_words(options)
    if options.heldout_file and not heldout.counts:
        raise UserError(f"--heldout_file={','.join(options.heldout_file)} contains no text")
    counts = {word: count for word, count in text.counts.items() if len(word) <= exact.MAX_CHARACTERS_PER_WORD}
    if not counts:
        raise UserError(f"--input_file contains no text to learn from{_describe_long_words(text.counts)}")
    letters = wordpiece_training.count_letters(counts)
    covered = wordpiece_training.select_common_letters(letters, options.character_coverage)
    if len(covered) < len(letters):
        # A word with an unknown letter becomes [UNK], so its pieces would be useless.
        counts = {word: count for word, count in counts.items() if covered.issuperset(word)}
    special = wordpiece_training.list_special_pieces(options.layout, options.do_lower_case)
    pieces = wordpiece_training.learn_pieces(counts, special, options.vocab_size, options.min_frequency)
    coverage = sum(letters[letter] for letter in covered) / max(letters.total(), 1)
    return Learned(pieces, text, heldout, len(letters), len(covered), coverage)


def _count_words(options: VocabularyOptions) -> tuple[WordCounts, WordCounts]:
    """Counts the words of the text, and separately of the held-out text."""
    paths = row_files.expand(options.input_file, "input_file")
    heldout_paths = row_files.expand(options.heldout_file, "heldout_file") if options.heldout_file else []
    both = sorted(set(paths) & set(heldout_paths))
    if both:
        raise UserError(f"{both[0]} is in both --input_file and --heldout_file; pass other held-out text")
    compared = [options.compare_with] if options.compare_with else []
    files.refuse_overwriting(options.vocab_file, "vocab_file", [*paths, *heldout_paths, *compared])
    text, heldout = (WordCounts(options.casing, options.max_words) for _ in range(2))
    for number, document in enumerate(formats.read_files("counting words", paths, options), start=1):
        held = not heldout_paths and number % _HELDOUT_EVERY == 0
        (heldout if held else text).add(document)
    for document in formats.read_files("counting words", heldout_paths, options):
        heldout.add(document)
    return text, heldout


def _describe_long_words(counts: dict[str, int]) -> str:
    """Returns text with the number of words that are too long for any piece, or "" if there are none."""
    count = sum(count for word, count in counts.items() if len(word) > exact.MAX_CHARACTERS_PER_WORD)
    limit = f"longer than {exact.MAX_CHARACTERS_PER_WORD} characters and always [UNK]"
    return f" ({pluralize(count, 'word')} {limit})" if count else ""


def _describe_counts(text: WordCounts) -> str:
    sample = f"one sentence in {2**text.halvings:,} of " if text.halvings else ""
    words = sum(text.counts.values())
    return (
        f"{sample}{pluralize(text.documents, 'document')}, {pluralize(words, 'word')}, {len(text.counts):,} different"
        f"{_describe_long_words(text.counts)}"
    )


def _format_report(learned: Learned, options: VocabularyOptions, other: dict[str, int] | None) -> str:
    coverage = f"{100 * learned.coverage:.3f} % of the text"
    lines = [
        f"learned from {_describe_counts(learned.text)}",
        f"letters that have a piece: {learned.covered:,} of {learned.letters:,}, {coverage}",
    ]
    if not learned.heldout.counts:
        lines.append(
            f"nothing was held out, because the text has fewer than {_HELDOUT_EVERY} documents; pass --heldout_file"
        )
        return "\n".join(lines)
    source = ",".join(options.heldout_file) or f"every {_HELDOUT_EVERY}th document, not learned from"
    accents = "" if options.casing.strip_accents else " with accents"
    case = f"lower case{accents}" if options.do_lower_case else "as written"
    lines.append(f"held-out text ({source}; {case}): {_describe_counts(learned.heldout)}")
    vocabularies = {options.vocab_file: {piece: index for index, piece in enumerate(learned.pieces)}}
    if options.compare_with and other:
        vocabularies[options.compare_with] = other
    figures = {name: report.measure(vocab, learned.heldout.counts) for name, vocab in vocabularies.items()}
    return "\n".join([*lines, report.format_table(figures)])


def _has_other_content(path: str, content: bytes, length: int | None = None) -> bool:
    """Returns whether a file exists whose first `length` bytes (None means all) are not `content`."""
    return files.exists(path) and files.read_bytes(path)[:length] != content


def _format_vocab(pieces: list[str]) -> bytes:
    return "".join(piece + "\n" for piece in pieces).encode()


def learn_and_report(options: VocabularyOptions) -> None:
    """Learns a vocabulary, writes it and prints a report.

    Raises:
        UserError: See `learn`. Also if the vocabulary cannot be written or --compare_with cannot be read.
    """
    files.check_writable(options.vocab_file)
    special = _format_vocab(wordpiece_training.list_special_pieces(options.layout, options.do_lower_case))
    if _has_other_content(options.vocab_file, special, len(special)):
        raise UserError(
            f"--vocab_file={options.vocab_file} exists and is not a vocabulary of this command; pass another name, or "
            "remove the file"
        )
    other = None
    if options.compare_with:
        other = exact.load_vocab(options.compare_with)
        exact.check_special_tokens(other, options.compare_with)
    learned = learn(options)
    content = _format_vocab(learned.pieces)
    if _has_other_content(options.vocab_file, content):
        names = (f"{options.vocab_file}.new{number or ''}" for number in itertools.chain([0], itertools.count(2)))
        new_file = next(name for name in names if not _has_other_content(name, content))
        files.write_bytes(new_file, content)
        raise UserError(
            f"--vocab_file={options.vocab_file} exists and is another vocabulary, which may belong to records or "
            f"models; it was not replaced. The new one is {new_file}; rename it"
        )
    files.write_bytes(options.vocab_file, content)
    print(f"{options.vocab_file}: {pluralize(len(learned.pieces), 'piece')}")
    if len(learned.pieces) < options.vocab_size:
        print(
            f"--vocab_size is {options.vocab_size:,}, but no more pieces occur {options.min_frequency} times in the "
            "text"
        )
    print(_format_report(learned, options, other))
