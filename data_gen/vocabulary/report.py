"""Measures how vocabularies split held-out text into pieces."""

import dataclasses

from official_bert.tokenization.exact import UNK, WordpieceTokenizer


@dataclasses.dataclass(frozen=True)
class Figures:
    """Measurements of how a vocabulary splits some words. Shares are from 0 to 1 and count each occurrence of a word.

    Attributes:
        size: Number of pieces of the vocabulary.
        pieces_per_word: Mean number of pieces of a word. [UNK] counts as one.
        whole: Share of words that are a single piece.
        unknown: Share of words that become [UNK].
        shattered: Share of words that are split into three or more pieces.
    """

    size: int
    pieces_per_word: float
    whole: float
    unknown: float
    shattered: float


def measure(vocab: dict[str, int], counts: dict[str, int]) -> Figures:
    """Measures how a vocabulary splits the words of a text into pieces.

    Args:
        vocab: The id of each piece.
        counts: The number of occurrences of each word. Must not be empty.
    """
    tokenizer = WordpieceTokenizer(vocab)
    words = pieces = whole = unknown = shattered = 0
    for word, count in counts.items():
        cut = tokenizer.pieces(word)
        words += count
        pieces += count * len(cut)
        whole += count * (cut == [word])
        shattered += count * (len(cut) >= 3)
        unknown += count * (cut == [UNK])  # No word of a text is "[UNK]", because brackets are separate words.
    return Figures(len(vocab), pieces / words, whole / words, unknown / words, shattered / words)


def format_table(figures: dict[str, Figures]) -> str:
    """Returns a table as text, with a heading and a line for each vocabulary.

    Args:
        figures: The measurements, by the name of the vocabulary.
    """
    width = max(map(len, figures))
    lines = [f"{'':{width}}  {'pieces':>8}  {'pieces per word':>15}  {'whole words':>11}  {'[UNK]':>8}"]
    for name, each in figures.items():
        lines.append(
            f"{name:{width}}  {each.size:8,}  {each.pieces_per_word:15.3f}  {100 * each.whole:9.2f} %  "
            f"{100 * each.unknown:6.3f} %"
        )
    return "\n".join(lines)
