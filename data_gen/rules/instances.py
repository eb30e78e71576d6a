"""Makes instances (training examples) from documents: pairs of segments, or single segments.

See the paper, section 3.1, task 2, and appendix A.2. For pairs, random numbers are drawn in the same order as in the
original. vectorized_instances.py makes instances with the same distributions.

A document is a list of sentences, and a sentence is a list of token ids.
"""

import dataclasses
import random
from collections.abc import Iterator

from data_gen.rules import masking
from data_gen.text.documents import Document
from official_bert.data.masking_rates import BERT_RATES, MaskingRates
from official_bert.data.sentence_objectives import NEXT_SENTENCE, NONE
from official_bert.tokenization import pairs, truncation


@dataclasses.dataclass(frozen=True)
class Instance:
    """A training example without padding.

    Attributes:
        input_ids: Token ids of [CLS] a [SEP] b [SEP], or of [CLS] text [SEP], after masking.
        segment_ids: 0 for the first segment, 1 for the second.
        special: Number of [CLS] and [SEP] tokens.
        masked_lm_positions: Positions of the predicted tokens, ascending.
        masked_lm_ids: Ids of the predicted tokens before masking.
        is_random_next: Whether b comes from a random document instead of following a.
    """

    input_ids: list[int]
    segment_ids: list[int]
    special: int
    masked_lm_positions: list[int]
    masked_lm_ids: list[int]
    is_random_next: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class InstanceConfig:
    """The settings for making instances: the flags of the same names, the ids of [CLS] and [SEP], and the vocabulary.

    If max_predictions_per_seq is 0, nothing is masked.
    """

    max_seq_length: int
    max_predictions_per_seq: int
    masked_lm_prob: float
    short_seq_prob: float
    do_whole_word_mask: bool
    cls: int
    sep: int
    vocabulary: masking.MaskingVocabulary
    masking_rates: MaskingRates = BERT_RATES
    sentence_objective: str = NEXT_SENTENCE


def make_instances(documents: list[Document], config: InstanceConfig, rng: random.Random) -> Iterator[list[Instance]]:
    """Yields lists of instances: one list per document, or one for the corpus if instances have a single segment."""
    if config.sentence_objective == NONE:
        yield list(make_full_sentences(documents, config, rng))
        return
    for index in range(len(documents)):
        yield list(make_document_instances(documents, index, config, rng))


def make_document_instances(
    documents: list[Document], index: int, config: InstanceConfig, rng: random.Random
) -> Iterator[Instance]:
    """Yields the instances of one document: pairs of segments a and b.

    Sentences are added to a chunk until it has the target length. This length is drawn once per document: it is the
    full length or, with probability `short_seq_prob`, a random shorter one. The first sentences of the chunk, up to a
    random boundary, are segment a. Half the time, the rest of the chunk is segment b (label 0). Otherwise b starts at a
    random sentence of another document (label 1), and the next chunk starts with the unused rest.

    A chunk of one sentence has no rest, so its b is always random. Therefore more than half of the labels are 1 if
    documents are short or sentences long. The "other" document is the same document if this is drawn ten times in a
    row, which always happens if there is only one.

    Args:
        documents: All documents.
        index: Index of the document.
        config: The settings.
        rng: The random generator.
    """
    document = documents[index]
    max_tokens = config.max_seq_length - 3  # [CLS], [SEP], [SEP]
    target = _draw_target(max_tokens, config, rng)
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
                b = _draw_random_segment(documents, index, target - len(a), rng)
                position -= len(chunk) - cut
            else:
                b = [token for sentence in chunk[cut:] for token in sentence]
            yield _make_instance(a, b, is_random_next, max_tokens, config, rng)
            chunk = []
            chunk_tokens = 0
        position += 1


def make_full_sentences(documents: list[Document], config: InstanceConfig, rng: random.Random) -> Iterator[Instance]:
    """Yields instances of one segment: as many consecutive complete sentences as fit, also from several documents.

    [SEP] separates the documents of an instance. A sentence that is longer than an instance is truncated at both ends.
    The target length is drawn for each instance: it is the maximum or, with probability `short_seq_prob`, less.
    """
    max_tokens = config.max_seq_length - 2  # [CLS], [SEP]
    target = _draw_target(max_tokens, config, rng)
    chunk: list[int] = []
    for document in documents:
        for number, sentence in enumerate(document):
            separator = [config.sep] if chunk and number == 0 else []
            if chunk and len(chunk) + len(separator) + len(sentence) > target:
                yield _make_instance(chunk, None, False, max_tokens, config, rng)
                target = _draw_target(max_tokens, config, rng)
                chunk, separator = [], []
            chunk = [*chunk, *separator, *sentence]
    if chunk:
        yield _make_instance(chunk, None, False, max_tokens, config, rng)


def _draw_target(max_tokens: int, config: InstanceConfig, rng: random.Random) -> int:
    """Draws the number of tokens to aim for: `max_tokens` or, with probability `short_seq_prob`, a smaller number."""
    return rng.randint(2, max_tokens) if rng.random() < config.short_seq_prob else max_tokens


def _draw_random_segment(documents: list[Document], index: int, tokens: int, rng: random.Random) -> list[int]:
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


def _make_instance(
    a: list[int], b: list[int] | None, is_random_next: bool, max_tokens: int, config: InstanceConfig, rng: random.Random
) -> Instance:
    truncation.truncate_pair_at_random_ends(a, b if b is not None else [], max_tokens, rng)
    ids, segment_ids = pairs.join(config.cls, config.sep, a, b)
    budget = masking.number_to_predict(len(ids), config.masked_lm_prob, config.max_predictions_per_seq)
    masked, positions, labels = masking.mask(
        ids, budget, config.vocabulary, config.do_whole_word_mask, rng, config.masking_rates
    )
    special = ids.count(config.cls) + ids.count(config.sep)
    return Instance(masked, segment_ids, special, positions, labels, is_random_next)
