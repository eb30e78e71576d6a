"""Word boundaries for whole-word masking in text that BERT's tokenizer splits into smaller units, such as Chinese.

A segmenter or a list of words finds the words of a text. All tokens of a word are masked together. To tell which tokens
belong together, the id of each token that continues a word is marked: an offset (`get_continuation_mark`) is added to
it, which is larger than all ids of the vocabulary.
"""

import collections
import dataclasses
import functools
import hashlib
import importlib.metadata
import itertools
import re
from collections.abc import Iterator, Mapping

import numpy as np

from official_bert.errors import UserError
from official_bert.tokenization.exact import CONTINUATION, Ids, Splits
from official_bert.tokenization.fast import FastTokenizer
from official_bert.utils import extras, files

JIEBA = "jieba"
SEGMENTERS = (JIEBA,)

_SURROGATE = re.compile("[\ud800-\udfff]")  # The segmenter rejects surrogates.


@dataclasses.dataclass(frozen=True)
class WordBoundaries:
    """Splits text into words with a segmenter or a list of words.

    Attributes:
        segmenter: Name of the segmenter, or None if a list of words is used.
        words: The text of the list of words, one per line.
    """

    segmenter: str | None
    words: str = ""

    @property
    def identity(self) -> str:
        """Text for the manifest that identifies the version of the segmenter or the contents of the list of words."""
        if self.segmenter:
            return f"{self.segmenter}: rjieba {importlib.metadata.version('rjieba')}"
        return f"sha256: {hashlib.sha256(self.words.encode()).hexdigest()}"

    def find_spans(self, text: str) -> Iterator[tuple[int, int, bool]]:
        """Splits a text into parts that cover it. Yields the start and end of each part, and whether it is a word."""
        if self.segmenter:
            import rjieba

            ends = itertools.accumulate(map(len, rjieba.cut(_SURROGATE.sub("\ufffd", text))))
            for start, end in itertools.pairwise(itertools.chain([0], ends)):
                yield start, end, True
            return
        start_of_rest = position = 0
        while position < len(text):
            for length in self._lengths.get(text[position], ()):
                if text[position : position + length] in self._words:
                    break
            else:
                position += 1
                continue
            if start_of_rest < position:
                yield start_of_rest, position, False
            yield position, position + length, True
            start_of_rest = position = position + length
        if start_of_rest < len(text):
            yield start_of_rest, len(text), False

    @functools.cached_property
    def _words(self) -> frozenset[str]:
        return frozenset(_split_words(self.words))

    @functools.cached_property
    def _lengths(self) -> Mapping[str, list[int]]:
        """For each character that begins words, the lengths of these words in descending order."""
        lengths = collections.defaultdict(set)
        for word in self._words:
            lengths[word[0]].add(len(word))
        return {first: sorted(some, reverse=True) for first, some in lengths.items()}


def load(name: str | None) -> WordBoundaries | None:
    """Returns the word boundaries for the value of --word_boundaries, or None if the value is None.

    Raises:
        UserError: If the value is neither a segmenter nor a file, the segmenter's package is not installed, or the file
            contains no words or a word with white space.
    """
    if name is None:
        return None
    if name in SEGMENTERS:
        try:
            import rjieba  # noqa: F401
        except ModuleNotFoundError as error:
            raise extras.explain_missing_package(error, JIEBA) or error from error
        return WordBoundaries(name)
    if not files.exists(name):
        raise UserError(
            f"--word_boundaries is {name!r}, which is neither a file nor a segmenter; pass a file with one word per "
            f"line, or {', '.join(SEGMENTERS)}"
        )
    text = files.read_text(name)
    for number, line in enumerate(text.splitlines(), start=1):
        if len(line.split()) > 1:
            raise UserError(
                f"line {number:,} of --word_boundaries={name} is {line.strip()!r}, which contains white space; write "
                "one word per line"
            )
    if not _split_words(text):
        raise UserError(f"--word_boundaries={name} contains no words; write one word per line")
    return WordBoundaries(None, text)


def _split_words(text: str) -> list[str]:
    return [word for line in text.splitlines() if (word := line.strip())]


def get_continuation_mark(vocab: Mapping[str, int]) -> int:
    """Returns the offset that is added to the ids of tokens that continue the previous word: the largest id plus 1."""
    return max(vocab.values()) + 1


class MarkingTokenizer:
    """A tokenizer that marks the ids of tokens that continue the previous word.

    Tokens that begin with "##" are not marked, because they always continue the previous word.

    Attributes:
        tokenizer: The tokenizer that computes the ids.
        vocab: The vocabulary: the id of each token.
    """

    def __init__(self, tokenizer: FastTokenizer, boundaries: WordBoundaries) -> None:
        self.tokenizer, self.vocab, self._boundaries = tokenizer, tokenizer.vocab, boundaries
        self._mark = get_continuation_mark(self.vocab)
        self._continues = np.zeros(self._mark, bool)
        self._continues[[i for token, i in self.vocab.items() if token.startswith(CONTINUATION)]] = True

    def encode(self, texts: list[str]) -> tuple[Ids, Splits]:
        """Returns token ids and row splits of texts, like FastTokenizer.encode, with marks added to the ids."""
        ids, splits = self.tokenizer.encode(texts)
        ids = ids.copy()
        spans = [list(self._boundaries.find_spans(text)) for text in texts]
        parts = [text[start:end] for text, some in zip(texts, spans, strict=True) for start, end, _ in some]
        part_ids, part_splits = self.tokenizer.encode(parts)
        # Usually no token spans several parts. Then the ids of the parts equal the ids of the text.
        joined = ~self._continues[part_ids]
        joined[part_splits[:-1][np.diff(part_splits) > 0]] = False
        is_word = np.array([word for some in spans for *_, word in some], bool)
        joined &= np.repeat(is_word, np.diff(part_splits))
        text_splits = part_splits[np.cumsum([0, *map(len, spans)])]
        for number, text in enumerate(texts):
            of_text = ids[splits[number] : splits[number + 1]]
            of_parts = slice(text_splits[number], text_splits[number + 1])
            if np.array_equal(of_text, part_ids[of_parts]):
                of_text[joined[of_parts]] += self._mark
            else:
                of_text[self._find_continuations(text, spans[number])] += self._mark
        return ids, splits

    def _find_continuations(self, text: str, spans: list[tuple[int, int, bool]]) -> list[int]:
        """Returns the indices of the tokens of a text that continue the previous word.

        Args:
            text: The text.
            spans: The parts of the text from `WordBoundaries.find_spans`.
        """
        owner = np.full(len(text), -1)
        for number, (start, end, is_word) in enumerate(spans):
            owner[start:end] = number if is_word else -1
        numbers = []
        tokens, before = 0, -1  # The number of tokens so far, and the part in which the previous token ends.
        for word, origins in self.tokenizer.basic_tokenizer.tokenize_with_origins(text):
            if before >= 0 and owner[min(origins)] == before:
                numbers.append(tokens)
            before = owner[max(origins)]
            tokens += len(self.tokenizer.wordpiece_tokenizer.pieces(word))
        return numbers
