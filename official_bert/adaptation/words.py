"""Finds new words in the text, and makes the model that training starts from (first stage)."""

import collections
import dataclasses
import heapq
import json
import os
from collections.abc import Mapping

import numpy as np

from data_gen.vocabulary.report import Figures, measure
from data_gen.vocabulary.word_counts import WordCounts
from official_bert.adaptation import records
from official_bert.adaptation.options import AdaptationOptions
from official_bert.checkpoints import resize
from official_bert.checkpoints.checkpoint import MASKED_LM, PARTS, PRETRAINING, LoadedModel, LoadOverrides
from official_bert.checkpoints.formats import own
from official_bert.checkpoints.formats.all_formats import FORMATS
from official_bert.checkpoints.loading import open_model
from official_bert.checkpoints.tensors import keep_parts
from official_bert.checkpoints.vocabulary import split_vocab
from official_bert.errors import UserError
from official_bert.modeling.pretraining_model import build_pretraining_model
from official_bert.tokenization.casing import Casing
from official_bert.tokenization.exact import CONTINUATION, MAX_CHARACTERS_PER_WORD, UNK, WordpieceTokenizer, parse_vocab
from official_bert.utils import files
from official_bert.utils.counting import join_first
from official_bert.utils.progress import report_elapsed_time

INITIAL, ORIGINAL, WORDS_FILE = "initial", "original", "words.json"
NEW_WORD_ROWS = "unused_first"  # See resize.add_tokens.

_MAX_WORDS = 1_000_000  # Different words counted at the same time.
_MIN_COUNT = 5  # A rarer word is not proposed, because training hardly changes its embedding.
_MAX_PROPOSED = 3000
_MAX_PROPOSALS_SHOWN, _MAX_CHARACTERS_SHOWN = 20, 10


@dataclasses.dataclass(frozen=True)
class Proposal:
    """A word in the text that could be added to the vocabulary."""

    word: str
    count: int  # Occurrences in the text.
    pieces: list[str]  # The pieces that the vocabulary cuts it into now.
    saved: int  # Tokens that it would save, after the words proposed before it.


def read_checkpoint(options: AdaptationOptions) -> tuple[LoadedModel, list[str]]:
    """Reads the checkpoint of --init. Returns it without task heads, and lines for the terminal that describe it.

    Raises:
        UserError: If it cannot be read, has no vocabulary, or its model cannot be trained as a masked LM.
    """
    overrides = LoadOverrides(
        vocab_file=options.vocab_file, do_lower_case=options.do_lower_case, strip_accents=options.strip_accents
    )
    checkpoint = keep_parts(open_model(options.init, overrides), PRETRAINING, "pre-training")
    checkpoint.require_vocab()
    config = checkpoint.config
    config.require_masked_lm()
    new = [part for part in PARTS if part in PRETRAINING and part not in checkpoint.parts]
    first = (
        f"weights from {options.init} ({FORMATS[checkpoint.source.format].title} checkpoint): "
        f"{config.num_hidden_layers} layers of {config.hidden_size}, {checkpoint.casing.kind} vocabulary of "
        f"{config.vocab_size:,} tokens"
    )
    lines = [first, *(f"note: {note}" for note in checkpoint.notes)]
    if new:
        lines.append(f"it has no {', no '.join(new)}: new weights are used")
    return dataclasses.replace(checkpoint, labels=None, kind=None, task_spec=None, notes=()), lines


def make_initial_model(options: AdaptationOptions, checkpoint: LoadedModel, new_words: list[str], work: str) -> None:
    """Counts words, adds new ones to the vocabulary and writes the initial model.

    If words are added, also writes the original model without them, for comparison.

    Args:
        options: The options of adapt.
        checkpoint: The checkpoint of --init.
        new_words: The words of --new_words_file. Empty if words are chosen by their frequency.
        work: The working folder, with the texts.

    Raises:
        UserError: If the text contains no words.
    """
    vocab, casing = str(checkpoint.vocab), checkpoint.casing
    counted = count_words(os.path.join(work, records.TEXTS, records.DOMAIN), casing)
    counts = counted.counts
    if not counts:
        raise UserError("the text contains no words; pass other text")
    print(describe_words(vocab, counts), flush=True)
    if not options.new_words_file:
        proposals = propose_words(vocab, counts, max(options.new_words, _MAX_PROPOSED))
        print(describe_proposals(proposals, count_tokens(vocab, counts)), flush=True)
        new_words = [each.word for each in proposals[: options.new_words]]
        if len(new_words) < options.new_words:
            print(f"warning: --new_words is {options.new_words:,}, but only {len(new_words):,} words can be added")
    grown = resize.add_tokens(checkpoint, new_words, NEW_WORD_ROWS)[0] if new_words else checkpoint
    facts: dict[str, object] = {"new_words": new_words, "has_masked_lm": MASKED_LM in checkpoint.parts}
    for name, file in (("domain", records.HELDOUT), ("general", records.GENERAL_HELDOUT)):
        path = os.path.join(work, records.TEXTS, file)
        if files.exists(path):
            heldout_counts = count_words(path, casing).counts
            facts[f"{name}_words"] = sum(heldout_counts.values())
            facts[f"{name}_before"] = count_tokens(vocab, heldout_counts)
            facts[f"{name}_after"] = count_tokens(str(grown.vocab), heldout_counts)
    facts["tokens"] = count_tokens(str(grown.vocab), counts) * 2**counted.halvings
    files.write_text(os.path.join(work, WORDS_FILE), json.dumps(facts))
    if new_words:
        replaced = len(new_words) - (len(split_vocab(str(grown.vocab))) - len(split_vocab(vocab)))
        print(f"{len(new_words):,} words added, {replaced:,} of them in place of unused pieces", flush=True)
        _write_model(checkpoint, options.random_seed, os.path.join(work, ORIGINAL))
    _write_model(grown, options.random_seed, os.path.join(work, INITIAL))


def _write_model(checkpoint: LoadedModel, seed: int, folder: str) -> None:
    """Writes a complete pre-training model into a new folder. Parts that the checkpoint lacks get random weights."""
    if files.exists(folder):
        return
    model = build_pretraining_model(checkpoint.config, seed=seed)
    new = {variable.path: np.asarray(variable) for variable in model.variables}
    with files.write_folder_atomically(folder) as temporary:
        own.write(dataclasses.replace(checkpoint, weights={**new, **checkpoint.weights}, step=None), temporary)


def count_words(path: str, casing: Casing) -> WordCounts:
    """Counts the words in a text file of the working folder, as the tokenizer separates them."""
    counts = WordCounts(casing, _MAX_WORDS)
    with report_elapsed_time("counting words"):
        counts.add(records.read_sentences(path))
    return counts


def count_tokens(vocab: str, counts: dict[str, int]) -> float:
    """Returns the number of tokens that a vocabulary splits words into.

    Args:
        vocab: The text of a vocab.txt.
        counts: The number of occurrences of each word, of at least one word.
    """
    return measure(parse_vocab(vocab), counts).pieces_per_word * sum(counts.values())


def propose_words(vocab: str, counts: Mapping[str, int], number: int) -> list[Proposal]:
    """Returns at most `number` words to add to the vocabulary, sorted by the number of tokens that they save.

    A word that is split into n tokens saves n - 1 tokens per occurrence. [UNK] counts as two tokens, because it carries
    no information. If an earlier proposal is a prefix of a word, only the additional savings of the word count.

    Args:
        vocab: The text of a vocab.txt.
        counts: The number of occurrences of each word.
        number: Maximum number of words.
    """
    pieces = parse_vocab(vocab)
    tokenizer = WordpieceTokenizer(pieces)

    def count_saved(word: str) -> int:
        cut = tokenizer.pieces(word)
        return counts[word] * (1 if cut == [UNK] else len(cut) - 1)

    candidates = [
        word for word, count in counts.items() if count >= _MIN_COUNT and len(word) <= MAX_CHARACTERS_PER_WORD
    ]
    heap = [(-count_saved(word), word) for word in candidates if count_saved(word)]
    before = {word: tokenizer.pieces(word) for _, word in heap}
    heapq.heapify(heap)
    proposals: list[Proposal] = []
    while heap and len(proposals) < number:
        expected, word = heapq.heappop(heap)
        saved = count_saved(word)
        if saved < -expected:
            if saved:
                heapq.heappush(heap, (-saved, word))
            continue
        proposals.append(Proposal(word, counts[word], before[word], saved))
        pieces[word] = len(pieces)
        tokenizer = WordpieceTokenizer(pieces)
    return proposals


def describe_words(vocab: str, counts: dict[str, int]) -> str:
    """Returns lines about how a vocabulary splits words: tokens per word, words of many tokens, unknown characters."""
    pieces = parse_vocab(vocab)
    figures: Figures = measure(pieces, counts)
    tokenizer = WordpieceTokenizer(pieces)
    unknown: collections.Counter[str] = collections.Counter()
    for word, number in counts.items():
        if tokenizer.pieces(word) == [UNK]:
            unknown.update({each: number for each in set(word) if not {each, CONTINUATION + each} & pieces.keys()})
    description = (
        f"the text has {figures.pieces_per_word:.3f} tokens per word; {100 * figures.shattered:.2f} % of the words are "
        f"split into three or more, {100 * figures.unknown:.3f} % are {UNK}"
    )
    if unknown:
        shown = join_first([f"{each!r} {number:,}" for each, number in unknown.most_common()], _MAX_CHARACTERS_SHOWN)
        description += f"\ncharacters that make words {UNK}, with the number of words: {shown}"
    return description


def describe_proposals(proposals: list[Proposal], tokens: float) -> str:
    """Returns a table, as text, of the first proposed words. `tokens` is the number of tokens in the whole text."""
    if not proposals:
        return f"no words to propose: no word of several pieces occurs {_MIN_COUNT} times"
    lines = ["words whose addition would save the most tokens (--new_words=N adds the first N):"]
    lines += [
        f"  {each.word:<20} {each.count:9,} times  {' '.join(each.pieces)}" for each in proposals[:_MAX_PROPOSALS_SHOWN]
    ]
    shares = [
        f"the first {number:,} {100 * sum(each.saved for each in proposals[:number]) / tokens:.1f} %"
        for number in (100, 300, 1000, 3000)
        if number <= len(proposals)
    ]
    return "\n".join(lines + ([f"share of the text's tokens saved: {', '.join(shares)}"] if shares else []))
