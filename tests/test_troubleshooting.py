"""The messages in docs/guides/troubleshooting.md equal those in the code."""

import ast
import re

import pytest

from tests.conftest import ROOT
from tests.test_structure import MODULES

PAGE = (ROOT / "docs" / "guides" / "troubleshooting.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
MESSAGES = [line for block in BLOCKS for line in block.splitlines() if not line.startswith(('{"instances', '{"inputs'))]


@pytest.fixture(scope="module")
def fixed_parts() -> set[str]:
    """Returns the literal parts of all strings in the code, split at their placeholders."""
    parts = set()
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                parts.add(node.value)
    return parts


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message[:40])
def test_a_message_is_that_of_the_code(message: str, fixed_parts: set[str]):
    """At least a quarter of each message matches literal strings in the code. The rest fills in their placeholders."""
    message = message.replace('\\"', '"').removeprefix("error: ").removeprefix("warning: ")
    covered = set()
    for part in sorted(fixed_parts, key=len, reverse=True):
        if len(part) >= 8 and (start := message.find(part)) >= 0:
            covered |= set(range(start, start + len(part)))
    assert len(covered) >= len(message) / 4, "".join(c for i, c in enumerate(message) if i not in covered)


def test_twenty_problems_are_listed():
    problems = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
    linked = re.findall(r"\[([^\]]+)\]\(#", PAGE)
    assert sorted(problems) == sorted(linked)
    assert len(problems) >= 20
