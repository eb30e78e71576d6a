"""Counts words in text of any length, with bounded memory."""

import collections
import random
from collections.abc import Iterable

from official_bert.tokenization.casing import Casing
from official_bert.tokenization.exact import MAX_CHARACTERS_PER_WORD, BasicTokenizer
from official_bert.tokenization.fast import TEXT_END, FastBasicTokenizer

_BATCH_CHARACTERS = 1 << 16  # Sentences are counted in batches that fit into the processor's cache.

# More occurrences (half a gigabyte of English) do not improve the statistics, and the trainer reads them one by one.
_MAX_OCCURRENCES = 100_000_000


class WordCounts:
    """Counts of words, as the exact tokenizer separates them, in all sentences or in a random sample of the sentences.

    When there are more than `max_words` different words, all counts are halved, and from then on only a random half of
    the sentences is counted. This can happen repeatedly. Odd counts are rounded up or down at random, so that rare
    words keep their share. Words with a count of 0 are removed. The result is like counting a random sample of all
    sentences. The random generator is seeded, so the same sentences in the same order always give the same counts.

    Args:
        casing: The tokenizer's settings for lower-casing and accents.
        max_words: Maximum number of different words.

    Attributes:
        documents: Number of documents added.
        halvings: How often the counts were halved: one in 2 ** halvings sentences is counted.
    """

    def __init__(self, casing: Casing, max_words: int) -> None:
        self.documents = 0
        self.halvings = 0
        self._counts: collections.Counter[str] = collections.Counter()
        self._occurrences = 0
        self._max_words = max_words
        self._tokenizer = FastBasicTokenizer(BasicTokenizer(casing.do_lower_case, casing.strip_accents))
        self._random = random.Random(0)
        self._waiting: list[str] = []
        self._waiting_characters = 0

    @property
    def counts(self) -> dict[str, int]:
        """The number of occurrences of each word. Words of more than 200 characters are truncated to 201.

        The tokenizer converts such long words to [UNK].
        """
        self._count_waiting()
        return self._counts

    def add(self, document: Iterable[str]) -> None:
        """Counts the words in the sentences of a document."""
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
        while len(self._counts) > self._max_words or self._occurrences > _MAX_OCCURRENCES:
            self._halve()

    def _halve(self) -> None:
        draw = self._random.getrandbits
        halves = {word: (count + draw(1)) // 2 if count % 2 else count // 2 for word, count in self._counts.items()}
        self._counts = collections.Counter({word: count for word, count in halves.items() if count})
        self._occurrences = sum(self._counts.values())
        self.halvings += 1
