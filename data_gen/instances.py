"""Sentence pairs from documents (paper, section 3.1, task 2, and appendix A.2), in the original's order of draws."""

import dataclasses
import random
from collections.abc import Iterator

from data_gen import masking
from data_gen.documents import Document
from official_bert.tokenization import pairs


@dataclasses.dataclass(frozen=True)
class Instance:
    """One training example, not yet padded.

    Attributes:
        input_ids: [CLS] a [SEP] b [SEP], after masking.
        segment_ids: 0 for the first segment, 1 for the second.
        masked_lm_positions: positions to predict, ascending.
        masked_lm_ids: the ids to predict.
        is_random_next: whether b comes from elsewhere.
    """

    input_ids: list[int]
    segment_ids: list[int]
    masked_lm_positions: list[int]
    masked_lm_ids: list[int]
    is_random_next: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class InstanceConfig:
    """The settings that instances are made by: the flags of the same names, and the vocabulary.

    With a max_predictions_per_seq of 0 nothing is masked.
    """

    max_seq_length: int
    max_predictions_per_seq: int
    masked_lm_prob: float
    short_seq_prob: float
    do_whole_word_mask: bool
    cls: int
    sep: int
    vocabulary: masking.MaskingVocabulary


def instances_of_document(
    documents: list[Document], index: int, config: InstanceConfig, rng: random.Random
) -> Iterator[Instance]:
    """Yields the instances of one document.

    Sentences are gathered into a chunk until it has the target length, which is drawn once for the document: the full
    length, or with probability `short_seq_prob` a random shorter one. The chunk's first sentences, up to a random cut,
    are segment a. Half the time the rest of the chunk is segment b (label 0). Otherwise b begins at a random sentence
    of another document (label 1), and the rest of the chunk is put back: the next chunk begins with it.

    A chunk of one sentence has no rest, so its b is always random. Therefore more than half of the labels are 1 where
    documents are short or sentences long. The "other" document is the same one if it was drawn ten times in a row, and
    always if there is only one document.
    """
    document = documents[index]
    max_tokens = config.max_seq_length - 3  # [CLS], [SEP], [SEP]
    target = max_tokens
    if rng.random() < config.short_seq_prob:
        target = rng.randint(2, max_tokens)

    chunk: list[list[int]] = []
    chunk_tokens = 0
    position = 0
    while position < len(document):
        chunk.append(document[position])
        chunk_tokens += len(document[position])
        if position == len(document) - 1 or chunk_tokens >= target:
            cut = rng.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
            a = [token for sentence in chunk[:cut] for token in sentence]
            is_random_next = len(chunk) == 1 or rng.random() < 0.5
            if is_random_next:
                b = _random_segment(documents, index, target - len(a), rng)
                position -= len(chunk) - cut
            else:
                b = [token for sentence in chunk[cut:] for token in sentence]
            yield _finish(a, b, is_random_next, max_tokens, config, rng)
            chunk = []
            chunk_tokens = 0
        position += 1


def _random_segment(documents: list[Document], index: int, tokens: int, rng: random.Random) -> list[int]:
    for _ in range(10):
        other = rng.randint(0, len(documents) - 1)
        if other != index:
            break
    document = documents[other]
    segment: list[int] = []
    for sentence in document[rng.randint(0, len(document) - 1) :]:
        segment.extend(sentence)
        if len(segment) >= tokens:
            break
    return segment


def _finish(
    a: list[int], b: list[int], is_random_next: bool, max_tokens: int, config: InstanceConfig, rng: random.Random
) -> Instance:
    pairs.truncate_at_random_ends(a, b, max_tokens, rng)
    ids, segment_ids = pairs.join(config.cls, config.sep, a, b)
    budget = masking.number_to_predict(len(ids), config.masked_lm_prob, config.max_predictions_per_seq)
    masked, positions, labels = masking.mask(ids, budget, config.vocabulary, config.do_whole_word_mask, rng)
    return Instance(masked, segment_ids, positions, labels, is_random_next)
