"""The text of a plan: read once, a part of it held out, counted, and a vocabulary learned from it."""

import collections
import dataclasses
import math
import os

from adaptation import texts, words
from adaptation.options import Options as AdaptationOptions
from data_gen.options import TextOptions, VocabularyOptions
from data_gen.vocabulary import learning
from official_bert.errors import UserError
from official_bert.tokenization.casing import UNCASED
from official_bert.tokenization.exact import WordpieceTokenizer
from official_bert.utils import files
from planning.options import Options
from planning.recipe import vocabulary_size

TEXT_FILE, HELDOUT_FILE, VOCAB_FILE = texts.DOMAIN, texts.HELDOUT, "vocab.txt"
_LEAST_TOKENS = 2000
_LEAST_HELDOUT = 1000  # characters: on fewer the loss of one model differs much from that of an equal one
_TOKENS_PER_WORD = 1.2  # with a vocabulary of the size that its text gets


@dataclasses.dataclass(frozen=True)
class TextCounts:
    """What there is in a text.

    Attributes:
        tokens: how many are trained on.
        heldout_characters: how many are held out.
        unigram_entropy: of its tokens, in nats: the loss of guessing by frequency.
        vocab_size: the number of pieces of its vocabulary.
        pairs: whether most of it is in documents of several sentences.
    """

    tokens: float
    heldout_characters: int
    unigram_entropy: float
    vocab_size: int
    pairs: bool


def prepare(options: Options, folder: str) -> TextCounts:
    """Writes the text, what is held out of it and a vocabulary into a folder, and counts.

    Raises:
        UserError: the text cannot be read, or is too short.
    """
    # The way of adapt: which documents are held out depends on their contents alone.
    reading = {field.name: getattr(options, field.name) for field in dataclasses.fields(TextOptions)}
    share = options.heldout_share
    facts = texts.prepare(
        AdaptationOptions(init="none", output_dir=folder, heldout_share=share, **reading), folder
    )  # fmt: skip
    path = os.path.join(folder, TEXT_FILE)
    counted = words.count(path, UNCASED)
    number = sum(counted.counts.values()) * 2**counted.halvings
    wanted = vocabulary_size(number * _TOKENS_PER_WORD)
    vocab_file = os.path.join(folder, VOCAB_FILE)
    settings = VocabularyOptions(
        input_file=[path], vocab_file=vocab_file, vocab_size=wanted, input_format="sentences"
    )  # fmt: skip
    pieces = learning.learn(settings).pieces
    files.write_text(vocab_file, "".join(piece + "\n" for piece in pieces))
    frequencies = _piece_counts(pieces, counted.counts)
    tokens = frequencies.total() * 2**counted.halvings
    if tokens < _LEAST_TOKENS:
        raise UserError(
            f"--input_file holds {tokens:,} tokens to train on; expected at least {_LEAST_TOKENS:,}: give more text, "
            f"hold less than --heldout_share={share:g} of it out, or adapt released weights to it (official-bert adapt)"
        )
    if facts.heldout_characters < _LEAST_HELDOUT:
        raise UserError(
            f"--heldout_share={share:g} holds {facts.heldout_characters:,} characters of the text out; expected at "
            f"least {_LEAST_HELDOUT:,} to measure a loss on: give a larger share, or more text"
        )
    entropy = -sum(n / frequencies.total() * math.log(n / frequencies.total()) for n in frequencies.values())
    return TextCounts(tokens, facts.heldout_characters, entropy, len(pieces), facts.pairs)


def _piece_counts(pieces: list[str], word_counts: dict[str, int]) -> collections.Counter[str]:
    tokenizer = WordpieceTokenizer({piece: index for index, piece in enumerate(pieces)})
    counts: collections.Counter[str] = collections.Counter()
    for word, count in word_counts.items():
        for piece in tokenizer.pieces(word):
            counts[piece] += count
    return counts
