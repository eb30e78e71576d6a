"""Messages only name flags that the reader of the message can pass."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator

import pytest

from official_bert.utils.flags import list_flags
from official_bert_cli import COMMANDS, load
from tests.test_structure import NAMES, find_reachable, ours_among

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
    unknown = [
        f"{module}: --{flag} in {message!r}"
        for module in sorted(flags)
        for message in _messages(module)
        for flag in _FLAG.findall(message)
        if flag not in flags[module] and f"no{flag}" not in flags[module] and not _NAMES_COMMAND.search(message)
    ]
    assert not unknown, "\n".join(unknown)
