"""Hypothesis strategies for malformed files: JSON with unexpected values, and tables with broken lines."""

import json
from typing import Any

from hypothesis import strategies as st

_MAX_LINE = 100_000  # characters; longer lines are not repeated
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
    match draw(st.integers(0, 12)):
        case 0:
            text = text[: draw(st.integers(0, len(text)))]
        case 1:
            text = "[" * 200_000 + text
        case 2:
            text = text.replace("1", "1" * 5000, 1)
        case 3:
            text = "\ufeff" + text
    return text.encode("utf-8", "surrogatepass")


@st.composite
def odd_json_lines(draw: st.DrawFn, valid: Any) -> bytes:
    """Three lines of JSON with a malformed second line."""
    line = json.dumps(valid).encode()
    return b"\n".join([line, draw(odd_json(valid)), line, b""])


@st.composite
def odd_lines(draw: st.DrawFn, valid: list[str], separator: str) -> bytes:
    """Lines of a text file with some lines changed, repeated or removed."""
    lines = list(valid)
    for _ in range(draw(st.integers(1, 5))):
        at = draw(st.integers(0, max(len(lines) - 1, 0)))
        line = lines[at] if lines else ""
        cells, place = line.split(separator), draw(st.integers(0, len(line)))
        match draw(st.sampled_from(["cell", "cell", "replace", "repeat", "remove", "lengthen", "insert"])):
            case "cell":
                cells[draw(st.integers(0, len(cells) - 1))] = draw(odd_text)
                lines[at : at + 1] = [separator.join(cells)]
            case "replace":
                lines[at : at + 1] = [draw(odd_text)]
            case "repeat":
                lines[at:at] = [line]
            case "remove":
                lines[at : at + 1] = []
            case "lengthen" if len(line) < _MAX_LINE:
                lines[at : at + 1] = [separator.join(cells * draw(st.integers(2, 300)))]
            case "insert":
                lines[at : at + 1] = [line[:place] + draw(odd_text) + line[place:]]
    text = draw(st.sampled_from(["\n", "\n", "\r\n", "\r"])).join(lines) + draw(st.sampled_from(["\n", "", "\n\n"]))
    content = text.encode("utf-8", "surrogatepass" if draw(st.booleans()) else "ignore")
    place = draw(st.integers(0, len(content)))
    return content[:place] + draw(st.just(b"") | st.binary(max_size=8)) + content[place:]
