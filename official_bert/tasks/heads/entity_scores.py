"""Precision, recall and F1 of named entities, as CoNLL's conlleval and seqeval (in its default mode) count them.

An entity is right if its first word, its last word and its type are. Tags are IOB1, IOB2 (BIO), BIOES or BILOU: a
prefix, a dash, a type; or prefixes without types. What begins and ends an entity is decided as conlleval does it for
any mixture of these, so that a model's impossible sequences (an I after an O, a change of type within) count as they
do there.
"""

import collections
from collections.abc import Iterable, Sequence

Entity = tuple[str, int, int]

_OUTSIDE = "O"
# The prefixes of each scheme; of those that hold all of a set of tags, the first is meant.
_SCHEMES = {"BI": "IOB1 or IOB2", "BIES": "BIOES", "BILU": "BILOU"}
_AS_BIOES = {"L": "E", "U": "S"}  # BILOU's last and unit are the end and single of BIOES


def scheme_of(tags: Iterable[str]) -> str | None:
    """Returns the name of the scheme of entities that tags are of; None where they are not, as classes of words.

    IOB1 and IOB2 have the same tags; how entities are counted does not depend on which one it is.
    """
    prefixes, types = set(), set()
    for tag in set(tags) - {_OUTSIDE}:
        prefix, dash, kind = tag.partition("-")
        if bool(dash) != bool(kind):
            return None
        prefixes.add(prefix)
        types.add(kind)
    untyped = "" in types
    if _OUTSIDE not in tags or not prefixes & set("BIUS") or (untyped and (types != {""} or not prefixes & set("BI"))):
        return None
    name = next((name for known, name in _SCHEMES.items() if prefixes <= set(known)), None)
    return f"{name} without types" if name and untyped else name


def entities(tags: Sequence[str]) -> list[Entity]:
    """Returns the entities of a sentence: type, number of the first word, number of the last."""
    spans = []
    start = 0
    before, type_before = _OUTSIDE, ""
    for number, tag in enumerate([*tags, _OUTSIDE]):
        prefix, _, kind = tag.partition("-")
        prefix = _AS_BIOES.get(prefix, prefix)
        changes = kind != type_before
        ends = before in "ES" or (before in "BI" and prefix in "BSO") or changes
        begins = prefix in "BS" or (prefix in "IE" and before in "ESO") or changes
        if before != _OUTSIDE and ends:
            spans.append((type_before, start, number - 1))
        if prefix != _OUTSIDE and begins:
            start = number
        before, type_before = prefix, kind
    return spans


def score(right: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, float]:
    """Returns precision, recall, f1 and accuracy of the words, from 0 to 1; and the first three for each type.

    A mean over nothing is 0, as in conlleval.

    Args:
        right: the tags of each sentence's words.
        predicted: those that a model gave, as many.
    """
    counts: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0, 0])  # right, predicted, both
    for right_tags, predicted_tags in zip(right, predicted, strict=True):
        right_ones, predicted_ones = set(entities(right_tags)), set(entities(predicted_tags))
        for column, group in enumerate((right_ones, predicted_ones, right_ones & predicted_ones)):
            for kind, _, _ in group:
                counts[kind][column] += 1
    total = [sum(each[column] for each in counts.values()) for column in range(3)]
    result = _measures("", total) | {"accuracy": accuracy(right, predicted)}
    for kind in sorted(set(counts) - {""}):  # entities without types are all counted above
        result |= _measures(f"{kind}_", counts[kind])
    return result


def accuracy(right: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> float:
    """Returns the share of words with the right tag, from 0 to 1."""
    pairs = [
        pair for sentences in zip(right, predicted, strict=True) for pair in zip(*sentences, strict=True)
    ]  # fmt: skip
    return sum(right_tag == predicted_tag for right_tag, predicted_tag in pairs) / max(len(pairs), 1)


def _measures(prefix: str, counts: Sequence[int]) -> dict[str, float]:
    right, predicted, both = counts
    return {
        f"{prefix}precision": both / predicted if predicted else 0.0,
        f"{prefix}recall": both / right if right else 0.0,
        f"{prefix}f1": 2 * both / (right + predicted) if both else 0.0,
    }
