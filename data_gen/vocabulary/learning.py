"""Learns a WordPiece vocabulary from text, and reports on it."""

import dataclasses

from data_gen.options import VocabularyOptions
from data_gen.text import formats
from data_gen.vocabulary import report, wordpiece_training
from data_gen.vocabulary.word_counts import WordCounts
from official_bert.errors import UserError
from official_bert.tokenization import exact
from official_bert.utils import files, row_files
from official_bert.utils.counting import pluralize

# Without --heldout_file, every so many documents one is kept from learning.
_HELDOUT_EVERY = 50


@dataclasses.dataclass(frozen=True)
class Learned:
    """A vocabulary, and what it was learned from."""

    pieces: list[str]  # in the order of ids
    text: WordCounts  # the words that were counted
    heldout: WordCounts  # those of text that was kept from learning
    letters: int  # the different letters of the text
    covered: int  # how many of these have a piece
    coverage: float  # the share of the text's letters, each as often as it occurs, that have one


def learn(options: VocabularyOptions) -> Learned:
    """Learns a vocabulary: the special tokens, then letters, then pieces by their frequency.

    Words are those of the exact tokenizer, so that the vocabulary cuts text as it will be cut.

    Raises:
        UserError: the text is missing or empty, or the size too small for its letters.
    """
    text, heldout = _count(options)
    if not text.counts:
        raise UserError("the input holds no text to learn from")
    if options.heldout_file and not heldout.counts:
        raise UserError(f"--heldout_file={','.join(options.heldout_file)} holds no text")
    counts = {word: count for word, count in text.counts.items() if len(word) <= exact.MAX_CHARACTERS_PER_WORD}
    letters = wordpiece_training.count_letters(counts)
    covered = wordpiece_training.select_common_letters(letters, options.character_coverage)
    if len(covered) < len(letters):
        # A word with an unknown letter is unknown as a whole: its pieces would be of no use.
        counts = {word: count for word, count in counts.items() if covered.issuperset(word)}
    special = wordpiece_training.list_special_pieces(options.layout, options.do_lower_case)
    pieces = wordpiece_training.learn_pieces(counts, special, options.vocab_size, options.min_frequency)
    coverage = sum(letters[letter] for letter in covered) / max(letters.total(), 1)
    return Learned(pieces, text, heldout, len(letters), len(covered), coverage)


def _count(options: VocabularyOptions) -> tuple[WordCounts, WordCounts]:
    """Returns the words to learn from, and those of the text held out."""
    paths = row_files.expand(options.input_file, "input_file")
    heldout_paths = row_files.expand(options.heldout_file, "heldout_file") if options.heldout_file else []
    both = sorted(set(paths) & set(heldout_paths))
    if both:
        raise UserError(f"--heldout_file names {both[0]}, which --input_file names too; give text not learned from")
    compared = [options.compare_with] if options.compare_with else []
    files.refuse_overwriting(options.vocab_file, "vocab_file", [*paths, *heldout_paths, *compared])
    text, heldout = (WordCounts(options.casing, options.max_words) for _ in range(2))
    for number, document in enumerate(formats.read_files("counting words", paths, options), start=1):
        held = not heldout_paths and number % _HELDOUT_EVERY == 0
        (heldout if held else text).add(document)
    for document in formats.read_files("counting words", heldout_paths, options):
        heldout.add(document)
    return text, heldout


def _describe_counts(text: WordCounts) -> str:
    sample = f"one sentence in {2**text.halvings:,} of " if text.halvings else ""
    words = sum(text.counts.values())
    return (
        f"{sample}{pluralize(text.documents, 'document')}, {pluralize(words, 'word')}, {len(text.counts):,} different"
    )


def _report(learned: Learned, options: VocabularyOptions, other: dict[str, int] | None) -> str:
    coverage = f"{100 * learned.coverage:.3f} % of the text"
    lines = [
        f"learned from {_describe_counts(learned.text)}",
        f"letters that have a piece: {learned.covered:,} of {learned.letters:,}, {coverage}",
    ]
    if not learned.heldout.counts:
        lines.append(
            f"nothing was held out, as the text has fewer than {_HELDOUT_EVERY} documents; --heldout_file gives other"
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


def learn_and_report(options: VocabularyOptions) -> None:
    """Learns a vocabulary, writes it, and prints what it was learned from and how it cuts text.

    Raises:
        UserError: as `learn`; or the vocabulary cannot be written, or the other one cannot be read.
    """
    files.check_writable(options.vocab_file)
    other = None
    if options.compare_with:
        other = exact.load_vocab(options.compare_with)
        exact.check_special_tokens(other, options.compare_with)
    learned = learn(options)
    files.write_text(options.vocab_file, "".join(piece + "\n" for piece in learned.pieces))
    print(f"{options.vocab_file}: {pluralize(len(learned.pieces), 'piece')}")
    if len(learned.pieces) < options.vocab_size:
        print(
            f"{options.vocab_size:,} were asked for, but no more pieces occur {options.min_frequency} times in the text"
        )
    print(_report(learned, options, other))
