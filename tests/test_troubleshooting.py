"""The messages in docs/guides/troubleshooting.md equal those in the code."""

import re

from tests.conftest import ROOT
from tests.test_structure import NAMES, parse, read

PAGE = read(ROOT / "docs" / "guides" / "troubleshooting.md")
BLOCKS = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
MESSAGES = [line for block in BLOCKS for line in block.splitlines() if not line.startswith(('{"instances', '{"inputs'))]


def test_messages_on_the_page_occur_in_the_code():
    """At least a quarter of each message matches literal strings in the code. The rest fills in their placeholders."""
    fixed_parts = set().union(*(parse(path).strings for path in NAMES.values()))
    parts = sorted((part for part in fixed_parts if len(part) >= 8), key=len, reverse=True)
    for message in MESSAGES:
        message = message.replace('\\"', '"').removeprefix("error: ").removeprefix("warning: ")
        covered = set()
        for part in parts:
            if (start := message.find(part)) >= 0:
                covered |= set(range(start, start + len(part)))
        assert len(covered) >= len(message) / 4, "".join(c for i, c in enumerate(message) if i not in covered)


def test_twenty_problems_are_listed():
    problems = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
    linked = re.findall(r"\[([^\]]+)\]\(#", PAGE)
    assert sorted(problems) == sorted(linked)
    assert len(problems) >= 20
