"""How well vocabularies cut text that they were not learned from."""

import dataclasses

from official_bert.tokenization.exact import UNK, WordpieceTokenizer


@dataclasses.dataclass(frozen=True)
class Figures:
    """What a vocabulary makes of some words."""

    size: int  # its number of pieces
    pieces_per_word: float  # the mean number of pieces that a word is cut into; [UNK] is one
    whole: float  # the share of words that are a piece as a whole
    unknown: float  # the share of words that become [UNK]
    shattered: float  # the share of words that are cut into three pieces or more


def measure(vocab: dict[str, int], counts: dict[str, int]) -> Figures:
    """Cuts words, of which there is at least one, as often as they occur, with the exact tokenizer."""
    tokenizer = WordpieceTokenizer(vocab)
    words = pieces = whole = unknown = shattered = 0
    for word, count in counts.items():
        cut = tokenizer.pieces(word)
        words += count
        pieces += count * len(cut)
        whole += count * (cut == [word])
        shattered += count * (len(cut) >= 3)
        unknown += count * (cut == [UNK])  # no word of a text is "[UNK]": brackets are words of their own
    return Figures(len(vocab), pieces / words, whole / words, unknown / words, shattered / words)


def format_table(figures: dict[str, Figures]) -> str:
    """Returns a line for the figures of each vocabulary, by its name, under a heading."""
    width = max(map(len, figures))
    lines = [f"{'':{width}}  {'pieces':>8}  {'pieces per word':>15}  {'whole words':>11}  {'[UNK]':>8}"]
    for name, each in figures.items():
        lines.append(
            f"{name:{width}}  {each.size:8,}  {each.pieces_per_word:15.3f}  {100 * each.whole:9.2f} %  "
            f"{100 * each.unknown:6.3f} %"
        )
    return "\n".join(lines)
