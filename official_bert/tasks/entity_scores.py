"""Precision, recall and F1 of named entities, as CoNLL's conlleval and seqeval (in its default mode) count them.

An entity is right if its first word, its last word and its type are. Tags are IOB1, IOB2 (BIO) or IOBES: a prefix, a
dash, a type; what begins and ends an entity is decided as conlleval does it for any mixture of these, so that a model's
impossible sequences (an I after an O, a change of type within) count as they do there.
"""

import collections
import re
from collections.abc import Iterable, Sequence

Entity = tuple[str, int, int]

_OUTSIDE = "O"


def is_entity_scheme(tags: Iterable[str]) -> bool:
    """Whether tags are those of entities, rather than one class for each word."""
    tags = set(tags)
    return len(tags) > 1 and _OUTSIDE in tags and all(tag == _OUTSIDE or re.fullmatch("[BIES]-.+", tag) for tag in tags)


def entities(tags: Sequence[str]) -> list[Entity]:
    """Returns the entities of a sentence: type, number of the first word, number of the last."""
    found = []
    start = 0
    before, type_before = _OUTSIDE, ""
    for number, tag in enumerate([*tags, _OUTSIDE]):
        prefix, _, kind = tag.partition("-")
        changes = kind != type_before
        ends = before in "ES" or (before in "BI" and prefix in "BSO") or changes
        begins = prefix in "BS" or (prefix in "IE" and before in "ESO") or changes
        if before != _OUTSIDE and ends:
            found.append((type_before, start, number - 1))
        if prefix != _OUTSIDE and begins:
            start = number
        before, type_before = prefix, kind
    return found


def score(right: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, float]:
    """Returns precision, recall, f1 and accuracy of the words, from 0 to 1; and the first three for each type.

    A mean over nothing is 0, as in conlleval.

    Args:
        right: the tags of each sentence's words.
        predicted: those that a model gave, as many.
    """
    counts: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0, 0])  # right, predicted, both
    for expected, said in zip(right, predicted, strict=True):
        expected_entities, said_entities = set(entities(expected)), set(entities(said))
        for place, group in enumerate((expected_entities, said_entities, expected_entities & said_entities)):
            for kind, _, _ in group:
                counts[kind][place] += 1
    total = [sum(each[place] for each in counts.values()) for place in range(3)]
    result = _measures("", total) | {"accuracy": accuracy(right, predicted)}
    for kind in sorted(counts):
        result |= _measures(f"{kind}_", counts[kind])
    return result


def accuracy(right: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> float:
    """Returns the share of words with the right tag, from 0 to 1."""
    pairs = [
        pair for sentences in zip(right, predicted, strict=True) for pair in zip(*sentences, strict=True)
    ]  # fmt: skip
    return sum(expected == said for expected, said in pairs) / max(len(pairs), 1)


def _measures(prefix: str, counts: Sequence[int]) -> dict[str, float]:
    expected, said, both = counts
    return {
        f"{prefix}precision": both / said if said else 0.0,
        f"{prefix}recall": both / expected if expected else 0.0,
        f"{prefix}f1": 2 * both / (expected + said) if both else 0.0,
    }
