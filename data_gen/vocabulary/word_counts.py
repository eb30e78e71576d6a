"""How often each word occurs in text of any length, in bounded memory."""

import collections
import random
from collections.abc import Iterable

from official_bert.tokenization.casing import Casing
from official_bert.tokenization.exact import MAX_CHARACTERS_PER_WORD, BasicTokenizer
from official_bert.tokenization.fast import TEXT_END, FastBasicTokenizer

# Sentences are counted together up to so many characters: few enough to stay in the processor's cache.
_BATCH_CHARACTERS = 1 << 16

# Statistics do not get better for more words than these (half a gigabyte of English), and the trainer takes them one
# by one.
_MOST_OCCURRENCES = 100_000_000


class WordCounts:
    """The words of the exact tokenizer and how often they occur, or those of an even sample of the sentences.

    When there are too many words, all counts are halved (odd ones are rounded up or down by lot, so that rare words
    keep their share; those that reach 0 are forgotten), and of the sentences that follow only every second is counted,
    chosen by lot: the counts are as if all text had been sampled at this rate. The lots are those of a seeded
    generator, so that the same sentences in the same order always give the same counts.

    Args:
        casing: what words are brought to.
        max_words: how many different words are held at the most.

    Attributes:
        documents: how many were added.
        halvings: one sentence in 2 ** halvings is counted.
    """

    def __init__(self, casing: Casing, max_words: int) -> None:
        self.documents = 0
        self.halvings = 0
        self._counts: collections.Counter[str] = collections.Counter()
        self._occurrences = 0
        self._max_words = max_words
        self._tokenizer = FastBasicTokenizer(BasicTokenizer(*casing))
        self._random = random.Random(0)
        self._waiting: list[str] = []
        self._waiting_characters = 0

    @property
    def counts(self) -> dict[str, int]:
        """The words and how often they were counted.

        A word of over 200 characters, which the tokenizer does not cut, stands here as its first 201.
        """
        self._count_waiting()
        return self._counts

    def add(self, document: Iterable[str]) -> None:
        """Counts the words of a document's sentences."""
        self.documents += 1
        for sentence in document:
            if self.halvings and self._random.random() >= 0.5**self.halvings:
                continue
            self._waiting.append(sentence)
            self._waiting_characters += len(sentence)
            if self._waiting_characters >= _BATCH_CHARACTERS:
                self._count_waiting()

    def _count_waiting(self) -> None:
        words = [word for word in self._tokenizer.words(self._waiting) if word != TEXT_END]
        self._waiting, self._waiting_characters = [], 0
        if max(map(len, words), default=0) > MAX_CHARACTERS_PER_WORD:
            words = [word[: MAX_CHARACTERS_PER_WORD + 1] for word in words]
        self._counts.update(words)
        self._occurrences += len(words)
        while len(self._counts) > self._max_words or self._occurrences > _MOST_OCCURRENCES:
            self._halve()

    def _halve(self) -> None:
        lot = self._random.getrandbits
        halves = {word: (count + lot(1)) // 2 if count % 2 else count // 2 for word, count in self._counts.items()}
        self._counts = collections.Counter({word: count for word, count in halves.items() if count})
        self._occurrences = sum(self._counts.values())
        self.halvings += 1
