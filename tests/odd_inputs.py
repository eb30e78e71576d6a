"""Hypothesis strategies for malformed files: texts that break parsers, and JSON with unexpected values."""

import json
from typing import Any

from hypothesis import strategies as st

# Texts that often break parsers.
_ODD_TEXTS = (
    *("", " ", "\0", "\ufeff", "\r", "\u2028", "\x85", "\ud800", "\\ud800", "\u202e", "😀", "²", "٣", "\t", ";", "a;b"),
    *("nan", "inf", "-0", "1e999", "9" * 5000, "-1", "0x10", "1_000", "True", "null", "[MASK]", "##", "=cmd()"),
    *('"', "'", '"""', "\\", "{", "}", "[" * 2000, "x" * 100_000),
)
odd_text = st.sampled_from(_ODD_TEXTS) | st.text(max_size=20)
_odd_number = st.integers() | st.floats() | st.sampled_from([10**400, -(10**19), 2**31, 2**63, 0, 1, -1])
_odd_value = st.recursive(
    st.none() | st.booleans() | _odd_number | odd_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(odd_text, inner, max_size=4),
    max_leaves=8,
)


@st.composite
def odd_json(draw: st.DrawFn, valid: Any) -> bytes:
    """Returns a JSON file in which values were replaced, removed or added, or whose text was changed."""
    value = json.loads(json.dumps(valid))
    for _ in range(draw(st.integers(1, 3))):
        holder: Any = None
        key: Any = None
        inner = value
        while isinstance(inner, dict | list) and inner and draw(st.integers(0, 4)):
            holder = inner
            key = draw(st.sampled_from(sorted(inner) if isinstance(inner, dict) else range(len(inner))))
            inner = holder[key]
        if holder is None:
            value = draw(_odd_value) if draw(st.integers(0, 9)) == 0 else value
            continue
        match draw(st.sampled_from(["replace", "replace", "replace", "remove", "nest", "add"])):
            case "replace":
                holder[key] = draw(_odd_value)
            case "remove":
                del holder[key]
            case "nest":
                holder[key] = [inner]
            case "add" if isinstance(holder, dict):
                holder[draw(odd_text)] = draw(_odd_value)
    text = json.dumps(value)
    truncated = text[: draw(st.integers(0, len(text)))]
    odd = [truncated, "[" * 200_000 + text, text.replace("1", "1" * 5000, 1), "\ufeff" + text]
    return draw(st.sampled_from([*odd, *[text] * 9])).encode("utf-8", "surrogatepass")
