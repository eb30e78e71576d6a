"""What a tokenizer makes of the text, and the words that would gain most from a piece of their own."""

import collections
import dataclasses
import heapq

from data_gen.vocabulary.report import Figures, measure
from data_gen.vocabulary.word_counts import WordCounts
from official_bert.adaptation import texts
from official_bert.errors import UserError
from official_bert.tokenization.casing import Casing
from official_bert.tokenization.exact import CONTINUATION, MAX_CHARACTERS_PER_WORD, UNK, WordpieceTokenizer, parse_vocab
from official_bert.utils import files
from official_bert.utils.progress import waiting

_MOST_WORDS = 1_000_000  # different ones, counted at once
_FEWEST = 5  # of a word in the text, to be proposed: what is rarer is hardly learned
_SHOWN, _SHOWN_CHARACTERS = 20, 10


@dataclasses.dataclass(frozen=True)
class Proposal:
    """A word that might be a piece."""

    word: str
    count: int  # how often it was counted
    pieces: list[str]  # what it is cut into
    saved: int  # tokens that it would save, after the words proposed before it


def count(path: str, casing: Casing) -> WordCounts:
    """Counts the words of a file of texts, as the tokenizer separates them."""
    counts = WordCounts(casing, _MOST_WORDS)
    with waiting("counting words"):
        counts.add(texts.sentences(path))
    return counts


def propose(vocab: str, counts: dict[str, int], number: int) -> list[Proposal]:
    """Returns at most so many words, those first that save most tokens.

    A word of n pieces saves n - 1 tokens each time; one that is [UNK] counts as two, as that token tells nothing. What
    words proposed earlier save of a word, which may begin with one of them, counts no more.
    """
    pieces = parse_vocab(vocab)
    cutter = WordpieceTokenizer(pieces)

    def saved(word: str) -> int:
        cut = cutter.pieces(word)
        return counts[word] * (1 if cut == [UNK] else len(cut) - 1)

    candidates = [word for word, count in counts.items() if count >= _FEWEST and len(word) <= MAX_CHARACTERS_PER_WORD]
    heap = [(-saved(word), word) for word in candidates if saved(word)]
    before = {word: cutter.pieces(word) for _, word in heap}
    heapq.heapify(heap)
    proposals: list[Proposal] = []
    while heap and len(proposals) < number:
        expected, word = heapq.heappop(heap)
        now = saved(word)
        if now < -expected:
            if now:
                heapq.heappush(heap, (-now, word))
            continue
        proposals.append(Proposal(word, counts[word], before[word], now))
        pieces[word] = len(pieces)
        cutter = WordpieceTokenizer(pieces)
    return proposals


def read_new_words(path: str) -> list[str]:
    """Returns the words of a file, one a line, empty lines left out.

    Raises:
        UserError: there is none, or one holds white space.
    """
    words = [line.strip() for line in files.read_text(path).splitlines() if line.strip()]
    if not words:
        raise UserError(f"{path} holds no word; write one on each line")
    for word in words:
        if len(word.split()) > 1:
            raise UserError(f"{path} has {word!r}, which holds white space; write one word on each line")
    return words


def describe(vocab: str, counts: dict[str, int]) -> str:
    """Returns what a tokenizer makes of words that occur so often: pieces, words cut to bits, unknown characters."""
    pieces = parse_vocab(vocab)
    figures = measure(pieces, counts)
    cutter = WordpieceTokenizer(pieces)
    unknown: collections.Counter[str] = collections.Counter()
    for word, number in counts.items():
        if cutter.pieces(word) == [UNK]:
            unknown.update(
                {each: number for each in set(word) if each not in pieces and CONTINUATION + each not in pieces}
            )
    described = (
        f"the tokenizer makes of the text {figures.pieces_per_word:.3f} pieces a word; {100 * figures.shattered:.2f} % "
        f"of the words are cut into three or more, {100 * figures.unknown:.3f} % are {UNK}"
    )
    if unknown:
        shown = ", ".join(f"{each!r} {number:,}" for each, number in unknown.most_common(_SHOWN_CHARACTERS))
        more = f" and {len(unknown) - _SHOWN_CHARACTERS:,} more" if len(unknown) > _SHOWN_CHARACTERS else ""
        described += f"\ncharacters that make words {UNK}, with the number of words: {shown}{more}"
    return described


def describe_proposals(proposals: list[Proposal], figures: Figures, words: int) -> str:
    """Returns a table of the first proposals; `figures` and the number of words are of the text they are for."""
    if not proposals:
        return f"no word of several pieces occurs {_FEWEST} times: there is none to add"
    lines = ["words that would save most tokens as pieces of their own (--new_words=N adds the first N):"]
    for each in proposals[:_SHOWN]:
        lines.append(f"  {each.word:<20} {each.count:9,} times  {' '.join(each.pieces)}")
    tokens = figures.pieces_per_word * words
    shares = [
        f"the first {number:,} {100 * sum(each.saved for each in proposals[:number]) / tokens:.1f} %"
        for number in (100, 300, 1000, 3000)
        if number <= len(proposals)
    ]
    if shares:
        lines.append(f"of the text's tokens would be saved by {', '.join(shares)}")
    return "\n".join(lines)
