"""Precision, recall and F1 of named entities, counted as in CoNLL's conlleval and in seqeval (default mode).

A predicted entity is correct if its first word, its last word and its type are. Tags follow IOB1, IOB2 (BIO), BIOES,
BILOU, BMES or BMEWO. They consist of a prefix, a dash and a type (B-PER, but also B_PER, PER-B or PER_B), or of a
prefix only. As in conlleval, sequences that mix these schemes or break their rules (such as an I after an O) are
counted too.
"""

import collections
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from official_bert.kinds.scores import class_scores

Entity = tuple[str, int, int]

_OUTSIDE = "O"
# The prefixes of each scheme. The first scheme that contains all prefixes of a set of tags is chosen.
_SCHEMES = {"BI": "IOB1 or IOB2", "BIES": "BIOES", "BILU": "BILOU", "BMES": "BMES", "BMEW": "BMEWO"}
# The prefixes of other schemes that mean the same as one of BIOES: middle, last, unit and whole.
_AS_BIOES = {"M": "I", "L": "E", "U": "S", "W": "S"}
_WORD_SEGMENTS = {"B", "M", "E", "S"}  # tags of characters that segment text into words


class Scheme(NamedTuple):
    """A tagging scheme, such as BIOES, and how its tags are written.

    Attributes:
        name: Name of the scheme.
        separator: The character between prefix and type.
        type_first: Whether the type comes before the prefix, as in PER-B.
    """

    name: str
    separator: str = "-"
    type_first: bool = False

    def split(self, tag: str) -> tuple[str, str]:
        """Splits a tag into prefix and type: "B-PER" becomes ("B", "PER"). The type may be empty."""
        if self.type_first:
            kind, _, prefix = tag.rpartition(self.separator)
        else:
            prefix, _, kind = tag.partition(self.separator)
        return prefix, kind


_DASHED = Scheme("BIOES")


def detect_scheme(tags: Iterable[str]) -> Scheme | None:
    """Returns the tagging scheme of the given tags, or None if they do not mark entities (such as part-of-speech tags).

    IOB1 and IOB2 cannot be told apart by their tags, and have the same entities.
    """
    tags = set(tags)
    if tags == _WORD_SEGMENTS:
        return Scheme("BMES without types")
    inside = tags - {_OUTSIDE}
    if inside == tags or not inside:
        return None
    for separator in "-_":
        if any(tag.strip(separator) != tag for tag in inside):
            continue
        for type_first in (False, True):
            layout = Scheme("", separator, type_first)
            if name := _scheme_name({layout.split(tag) for tag in inside}):
                is_usual = layout == Scheme("") or name.endswith("types")
                return layout._replace(name=name if is_usual else f"{name} (written as in {min(inside)})")
    return None


def _scheme_name(parts: set[tuple[str, str]]) -> str | None:
    prefixes, types = {prefix for prefix, _ in parts}, {kind for _, kind in parts}
    is_untyped = types == {""}
    if ("" in types and not is_untyped) or not prefixes & set("BI" if is_untyped else "BIUSW"):
        return None
    name = next((name for known, name in _SCHEMES.items() if prefixes <= set(known)), None)
    return f"{name} without types" if name and is_untyped else name


def entities(tags: Sequence[str], scheme: Scheme = _DASHED) -> list[Entity]:
    """Returns the entities of a sentence as tuples of type, index of the first word and index of the last word."""
    spans = []
    start = 0
    before, type_before = _OUTSIDE, ""
    for number, tag in enumerate([*tags, _OUTSIDE]):
        prefix, kind = scheme.split(tag)
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


def score(
    right: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], scheme: Scheme = _DASHED
) -> dict[str, float]:
    """Returns precision, recall and F1 of all entities and of each type, and the accuracy of the tags, from 0 to 1.

    Undefined values are 0, as in conlleval.

    Args:
        right: The correct tags of each sentence.
        predicted: The predicted tags of each sentence.
        scheme: The tagging scheme.
    """
    counts: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0, 0])  # right, predicted, both
    for right_tags, predicted_tags in zip(right, predicted, strict=True):
        right_ones, predicted_ones = set(entities(right_tags, scheme)), set(entities(predicted_tags, scheme))
        for column, group in enumerate((right_ones, predicted_ones, right_ones & predicted_ones)):
            for kind, _, _ in group:
                counts[kind][column] += 1
    total = [sum(each[column] for each in counts.values()) for column in range(3)]
    result = _score_counts("", total) | {"accuracy": accuracy(right, predicted)}
    for kind in sorted(set(counts) - {""}):  # entities without types are all counted above
        result |= _score_counts(f"{kind}_", counts[kind])
    return result


def accuracy(right: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> float:
    """Returns the share of words with the correct tag, from 0 to 1.

    Args:
        right: The correct tags of each sentence.
        predicted: The predicted tags of each sentence.
    """
    pairs = [pair for tags in zip(right, predicted, strict=True) for pair in zip(*tags, strict=True)]
    return sum(right_tag == predicted_tag for right_tag, predicted_tag in pairs) / max(len(pairs), 1)


def _score_counts(prefix: str, counts: Sequence[int]) -> dict[str, float]:
    right, predicted, both = counts
    scores = class_scores(both, predicted, right)
    return {f"{prefix}{name}": scores[name] for name in ("precision", "recall", "f1")}
