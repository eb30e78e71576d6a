"""From words and their frequencies to the pieces of a vocabulary."""

import collections
from collections.abc import Iterator

import tokenizers

from official_bert.errors import UserError
from official_bert.tokenization import exact
from official_bert.utils.progress import Progress

# The numbers of the [unusedN] of Google's English vocabularies: those before [UNK], and those after [MASK].
_UNUSED_UNCASED = (range(99), range(99, 994))
_UNUSED_CASED = (range(1, 100), range(100, 102))

_WORDS_AT_ONCE = 10_000


def list_special_pieces(layout: str, do_lower_case: bool) -> list[str]:
    """Returns the pieces that stand before the letters: special tokens and, in the releases' layout, unused places.

    Args:
        layout: one of `VOCABULARY_LAYOUTS`: "compact" has [PAD], [UNK], [CLS], [SEP], [MASK] as 0 to 4; "release" has
            them as 0 and 100 to 103.
        do_lower_case: which release's unused places: 994 of the uncased, 101 of the cased one.
    """
    if layout == "compact":
        return list(exact.SPECIAL_TOKENS)
    pad, *others = exact.SPECIAL_TOKENS
    before, after = (
        [f"[unused{number}]" for number in numbers] for numbers in (_UNUSED_UNCASED if do_lower_case else _UNUSED_CASED)
    )
    return [pad, *before, *others, *after]


def count_letters(counts: dict[str, int]) -> collections.Counter[str]:
    """Returns how often each character occurs in words that occur so often."""
    frequencies: collections.Counter[str] = collections.Counter()
    for word, count in counts.items():
        for letter in word:
            frequencies[letter] += count
    return frequencies


def select_common_letters(frequencies: collections.Counter[str], coverage: float) -> set[str]:
    """Returns the fewest letters that make up at least this share of all; of equally frequent ones the first."""
    letters: set[str] = set()
    wanted = coverage * frequencies.total()
    reached = 0
    for letter, frequency in sorted(frequencies.items(), key=lambda item: (-item[1], item[0])):
        if reached >= wanted:
            break
        letters.add(letter)
        reached += frequency
    return letters


def learn_pieces(counts: dict[str, int], special: list[str], vocab_size: int, min_frequency: int) -> list[str]:
    """Learns pieces that words are cut into.

    Args:
        counts: words and how often they occur; their order does not matter.
        special: the vocabulary's first pieces.
        vocab_size: how many pieces to return; fewer if no more are frequent enough.
        min_frequency: how often two pieces must meet to be joined.

    Returns:
        `special`, then the letters, those that begin words first, then what was learned.

    Raises:
        UserError: the size is too small for the letters.
    """
    words = sorted(counts)
    # Every letter is an initial piece, both as a word's first letter and as a later one. Otherwise the trainer numbers
    # the later ones in the order of a hash table and breaks ties by these numbers: each run would learn another
    # vocabulary.
    letters = sorted({word[0] for word in words})
    letters += sorted({exact.CONTINUATION + letter for word in words for letter in word[1:]})
    initial = [*special, *letters]
    if len(initial) > vocab_size:
        raise UserError(
            f"--vocab_size is {vocab_size:,}, but the special tokens and the letters of the text alone are "
            f"{len(initial):,}: {len(special):,} and {len(letters):,}; give more, or leave rare letters out "
            "(--character_coverage=0.9995)"
        )
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=initial,
        continuing_subword_prefix=exact.CONTINUATION,
        show_progress=False,
    )
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token=exact.UNK))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.train_from_iterator(_repeated(words, counts), trainer)
    vocab = tokenizer.get_vocab()
    return sorted(vocab, key=vocab.__getitem__)


def _repeated(words: list[str], counts: dict[str, int]) -> Iterator[str]:
    """Each word as often as it occurs, in pieces of text that stay small: the trainer takes no counts."""
    progress = Progress("giving words to the trainer", sum(counts.values()), "words")
    done = 0
    for word in words:
        for start in range(0, counts[word], _WORDS_AT_ONCE):
            yield " ".join([word] * min(_WORDS_AT_ONCE, counts[word] - start))
        done += counts[word]
        progress.update(done)
