"""Figures and messages in the documentation equal those in the code, and messages name flags that exist."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from official_bert.utils.flags import list_flags
from official_bert_cli import COMMANDS, load
from tests.make import ROOT, run_python
from tests.test_structure import NAMES, find_reachable, ours_among, parse, read

_FLAG = re.compile(r"(?<![\w-])--(?:no)?([a-z][a-z0-9_]+)(?![\w{-])")
# A message that names a command may name that command's flags.
_NAMES_COMMAND = re.compile(rf"\b({'|'.join(COMMANDS)})\b|dask worker|hf download|zstd")


def _reachable_modules(command: str) -> set[str]:
    """Returns the modules that a command imports, directly or through other modules."""
    source = textwrap.dedent(inspect.getsource(load(command).main))
    names = {module for cls in load(command).options for module in [cls.__module__]}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return set().union(*(find_reachable(module) for module in ours_among(names)))


def _messages(module: str) -> Iterator[str]:
    """Yields the strings of a module that are not docstrings, with `{}` for each placeholder."""
    tree = ast.parse(NAMES[module].read_text(encoding="utf-8"))
    inner = {part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    docstrings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in inner | docstrings:
            yield node.value


@pytest.mark.slow
def test_messages_name_flags_of_a_command_that_can_print_them():
    flags: dict[str, set[str]] = {}  # by module
    for command in COMMANDS:
        variants = [options for variant in load(command).variants.values() for options in variant.options]
        names = {flag.name for cls in (*load(command).options, *variants) for flag in list_flags(cls)}
        for module in _reachable_modules(command):
            flags.setdefault(module, {"help", "flagfile"}).update(names | load(command).refused.keys())
    for module, known in flags.items():
        for message in _messages(module):
            unknown = {flag for flag in _FLAG.findall(message) if not {flag, f"no{flag}"} & known}
            assert not unknown or _NAMES_COMMAND.search(message), f"{module}: {unknown} in {message!r}"


PAGE = read(ROOT / "docs" / "guides" / "troubleshooting.md")
BLOCKS = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
MESSAGES = [line for block in BLOCKS for line in block.splitlines() if not line.startswith(('{"instances', '{"inputs'))]


def test_messages_on_the_page_occur_in_the_code():
    """At least a quarter of each message matches literal strings in the code. The rest fills in their placeholders."""
    fixed_parts = set().union(*(parse(path).strings for path in NAMES.values()))
    parts = [part for part in fixed_parts if len(part) >= 8]
    for message in MESSAGES:
        message = message.replace('\\"', '"').removeprefix("error: ").removeprefix("warning: ")
        found = [range(start, start + len(part)) for part in parts if (start := message.find(part)) >= 0]
        assert len(set().union(*found)) >= len(message) / 4, message


def test_twenty_problems_are_listed():
    problems, linked = re.findall(r"^## (.+)$", PAGE, re.MULTILINE), re.findall(r"\[([^\]]+)\]\(#", PAGE)
    assert sorted(problems) == sorted(linked)
    assert len(problems) >= 20


FOLDER = ROOT / "docs" / "figures"


@pytest.mark.parametrize("name", ["data_flow", "encoder_block", "masking"])
def test_figures_are_up_to_date(name: str):
    drawn = run_python("-B", "-c", f"import {name}; print({name}.draw().to_svg(), end='')", folder=FOLDER).stdout
    assert drawn == (FOLDER / f"{name}.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", sorted([*FOLDER.glob("*.svg"), *FOLDER.glob("*.png")]), ids=lambda path: path.stem)
def test_figures_are_small_and_have_alternative_text(path: Path):
    assert path.stat().st_size < 20_000
    assert path.with_suffix(".py").exists()
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md"))
    assert re.search(rf"!\[[^\]]{{20,}}\]\((\.\./)?figures/{path.name}\)", pages)
