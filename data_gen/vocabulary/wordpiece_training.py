"""Learns the pieces (tokens) of a WordPiece vocabulary from word counts."""

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
    """Returns the first pieces of a vocabulary: special tokens and, in the "release" layout, [unused...] pieces.

    Args:
        layout: "compact" or "release". The ids of [PAD], [UNK], [CLS], [SEP] and [MASK] are 0 to 4 in "compact", and 0
            and 100 to 103 in "release".
        do_lower_case: For "release": whether to follow the uncased release with its 994 [unused...] pieces, or the
            cased release with 101.
    """
    if layout == "compact":
        return list(exact.SPECIAL_TOKENS)
    pad, *others = exact.SPECIAL_TOKENS
    before, after = (
        [f"[unused{number}]" for number in numbers] for numbers in (_UNUSED_UNCASED if do_lower_case else _UNUSED_CASED)
    )
    return [pad, *before, *others, *after]


def count_letters(counts: dict[str, int]) -> collections.Counter[str]:
    """Counts the characters of words. Each word counts as often as it occurs."""
    frequencies: collections.Counter[str] = collections.Counter()
    for word, count in counts.items():
        for letter in word:
            frequencies[letter] += count
    return frequencies


def select_common_letters(frequencies: collections.Counter[str], coverage: float) -> set[str]:
    """Returns the most frequent letters that together make up the share `coverage` of the text.

    If letters are equally frequent, the alphabetically first ones are taken.
    """
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
    """Learns the pieces of a vocabulary.

    Args:
        counts: The number of occurrences of each word. The order does not matter.
        special: The first pieces of the vocabulary.
        vocab_size: Number of pieces to return. Fewer are returned if no more pieces are frequent enough.
        min_frequency: How often two adjacent pieces must occur to be merged into one.

    Returns:
        `special`, then letters at the start of words, then letters inside words, then letters without "##" that start
        no word of the text, then the learned pieces.

    Raises:
        UserError: If `vocab_size` is too small for the special pieces and the letters.
    """
    words = sorted(counts)
    # All letters are initial pieces. Otherwise the trainer would number them in the order of a hash table and break
    # ties by these numbers, so each run would learn a different vocabulary.
    letters = sorted({word[0] for word in words})
    letters += sorted({exact.CONTINUATION + letter for word in words for letter in word[1:]})
    letters += sorted({letter for word in words for letter in word} - {*letters})
    initial = [*special, *letters]
    if len(initial) > vocab_size:
        unused = len(special) - len(exact.SPECIAL_TOKENS)
        layout = f", {unused:,} of them [unused] because of --layout=release" if unused else ""
        raise UserError(
            f"--vocab_size is {vocab_size:,}, but the special tokens ({len(special):,}{layout}) and the letters of the "
            f"text ({len(letters):,}) need {len(initial):,}; pass a larger size, or leave out rare letters "
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
    tokenizer.train_from_iterator(_repeat_words(words, counts), trainer)
    vocab = tokenizer.get_vocab()
    return sorted(vocab, key=vocab.__getitem__)


def _repeat_words(words: list[str], counts: dict[str, int]) -> Iterator[str]:
    """Yields text in which each word occurs as often as its count, because the trainer does not accept counts."""
    progress = Progress("training", sum(counts.values()), "words")
    for word in words:
        for start in range(0, counts[word], _WORDS_AT_ONCE):
            yield " ".join([word] * min(_WORDS_AT_ONCE, counts[word] - start))
        progress.advance(counts[word])
