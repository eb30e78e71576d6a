"""The reference of a command in Markdown, from the option classes that also make its --help."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from official_bert.utils.command_line import Command
from official_bert.utils.flags import Flag, list_flags
from official_bert_cli import load


def describe_command(name: str) -> str:
    """Returns the summary, examples and flags of a command."""
    command = load(name)
    positional = f" [{command.positional}]" if command.positional else ""
    usage = f"{command.program}{' --flag=value ...' if command.flags() else ''}{positional}"
    examples = [wrap_command(f"{command.program} {example}") for example in command.examples]
    parts = [command.summary, f"```text\n{usage}\n```"]
    if command.before:
        parts += [f"**Before**: {mark_flags(command.before)}.", f"**After**: {mark_flags(command.after)}."]
    if examples:
        parts += ["## Examples", "\n".join(["```bash", *examples, "```"])]
    parts += describe_groups(command.flags(), "##")
    parts += describe_variants(command)
    if command.aliases:
        aliases = [f"`--{old}` is `--{new}`" for old, new in command.aliases.items()]
        parts += ["## Other names", f"Names of google-research/bert are accepted: {', '.join(aliases)}."]
    if command.flags():
        parts.append(
            "`--flagfile=FILE` reads flags from a file, one per line. If a flag is repeated, the last one counts."
        )
    return "\n\n".join(parts)


def wrap_command(command: str) -> str:
    """Breaks a command before flags, into lines of at most 100 characters."""
    first, *flags = command.split(" --")
    lines = [first]
    for flag in flags:
        if len(lines[-1]) + len(flag) > 95:
            lines.append("   ")
        lines[-1] += f" --{flag}"
    return " \\\n".join(lines)


def describe_groups(flags: Sequence[Flag], heading: str) -> list[str]:
    """Returns a heading and a definition list for each group of flags."""
    parts = []
    for group in dict.fromkeys(flag.group for flag in flags):
        parts.append(f"{heading} {group.capitalize()}")
        parts += [describe_flag(flag) for flag in flags if flag.group == group]
    return parts


def describe_flag(flag: Flag) -> str:
    usage, *text = flag.describe().splitlines()
    usage, _, note = usage.strip().partition("  ")
    help = " ".join(line.strip() for line in text)
    return f"`{usage}` {mark_flags(note)}\n: {mark_flags(help)}"


def mark_flags(text: str) -> str:
    """Puts the flags that a text names between backticks."""
    return re.sub(r"(?<![\w=])--\w+", r"`\g<0>`", text)


def describe_variants(command: Command) -> list[str]:
    """Returns the flags that depend on the chooser, once for all values with the same option classes."""
    values_by_options: dict[tuple[type, ...], list[str]] = {}
    for value, variant in command.variants.items():
        values_by_options.setdefault(variant.options, []).append(value)
    parts = []
    for options, values in values_by_options.items():
        parts.append("## " + ", ".join(f"`--{command.chooser}={value}`" for value in values))
        defaults = {value: command.variants[value].shown_defaults for value in values}
        parts += describe_defaults(defaults)
        flags = [flag for each in options for flag in list_flags(each)]
        parts += [describe_flag(flag) for flag in flags]
    return parts


def describe_defaults(defaults: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Returns a table of the defaults that depend on the task: a row for each flag, a column for each set of values."""
    names = dict.fromkeys(name for values in defaults.values() for name in values)
    columns: dict[tuple[str, ...], list[str]] = {}
    for value, own in defaults.items():
        columns.setdefault(tuple(str(own.get(name, "")) for name in names), []).append(value)
    rows = [["default of", *(", ".join(values) for values in columns.values())], ["---"] * (len(columns) + 1)]
    rows += [[f"`--{name}`", *(column[i] for column in columns)] for i, name in enumerate(names)]
    return ["\n".join(f"| {' | '.join(row)} |" for row in rows)] if names else []
