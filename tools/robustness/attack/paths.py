"""Odd names of inputs and outputs: the same result, or a clear line."""

import os
import pathlib
import random
import shutil
from typing import TYPE_CHECKING

from tools.robustness.attack import processes
from tools.robustness.attack.commands import COMMANDS
from tools.robustness.attack.processes import NotHeldError

if TYPE_CHECKING:
    from tools.robustness.attack.campaign import Case

NEEDS = tuple(command.name for command in COMMANDS)
_NOBODY = 65534
# No commas: they separate the names in a list of files.
_NAMES = (
    "run[1]", "a b", " a", "a ", "line\nbreak", "tab\tbed", "ünï-cödé", "中文", "😀", "e\u0301", "\u202eleft", "*", "?",
    "[!a]", "{a}", "~", "$HOME", "`id`", "%s", "#", "a;b", "a&b", "-dash", "--flag=x", "...", "a'b", 'a"b',
    "back\\slash", "x" * 200, "byte\udcff", "\x7f", "=", "a:b", "gs:", ".hidden", "CON", "a.b.c",
)  # fmt: skip


def attack(case: "Case") -> None:
    """Gives a command an odd path."""
    rng, command = case.rng, COMMANDS[case.number % len(COMMANDS)]
    place = rng.choice([_odd_output, _odd_output, _odd_input, _odd_input, _linked, _misplaced, _read_only])
    given, out, may_fail, before = place(case, rng)
    case.what = f"{command.name}, {place.__name__.strip('_').replace('_', ' ')}"
    inputs = _content(case.samples.folder)
    ended = processes.run(command.name, command.arguments(given, out), before=before)
    ended.check((0, 1) if may_fail else (0,))
    if ended.code == 0:
        case.samples.check_result(command, out)
    if _content(case.samples.folder) != inputs:
        raise NotHeldError("an input was changed")


def _content(folder: pathlib.Path) -> dict[str, tuple[int, int]]:
    """Size and time of change of each sample."""
    paths = [path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(".lock")]
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in paths}


Place = tuple[pathlib.Path, pathlib.Path, bool, object]


def _odd_name(case: "Case", rng: random.Random) -> str:
    name = rng.choice(_NAMES)
    if rng.random() < 0.3:
        name += "".join(rng.choices("ab[]{}*?!~ \n\t'\"\\é中", k=rng.randrange(1, 6)))
    case.done = ascii(name)
    return name


def _odd_output(case: "Case", rng: random.Random) -> Place:
    out = case.folder / _odd_name(case, rng)
    out.mkdir()
    return case.samples.folder, out, _is_not_text(out), None


def _odd_input(case: "Case", rng: random.Random) -> Place:
    given = case.folder / _odd_name(case, rng)
    shutil.copytree(case.samples.folder, given, ignore=shutil.ignore_patterns("events.out*"))
    out = case.folder / "out"
    out.mkdir()
    # Names of inputs are patterns too, and spaces around them do not count.
    return given, out, _is_not_text(given) or given.name != given.name.strip(), None


def _is_not_text(path: pathlib.Path) -> bool:
    """Whether a name is not UTF-8: no library beneath takes such a name."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return True
    return False


def _linked(case: "Case", rng: random.Random) -> Place:
    """The folder to write into, or that of the inputs, is a link."""
    real, link = case.folder / "real", case.folder / "link"
    case.done = rng.choice(["output", "input", "chain"])
    if case.done == "input":
        link.symlink_to(case.samples.folder)
        real.mkdir()
        return link, real, False, None
    real.mkdir()
    if case.done == "chain":
        (case.folder / "middle").symlink_to("real")
        link.symlink_to("middle")
    else:
        link.symlink_to("real")
    return case.samples.folder, link, False, None


def _misplaced(case: "Case", rng: random.Random) -> Place:
    """What should be a folder is not there, a file, a pipe, or a link that leads nowhere."""
    out = case.folder / "out"
    case.done = rng.choice(["deep", "file", "pipe", "nowhere", "loop", "long"])
    if case.done == "deep":
        out = out / "a" / "b" / "c"
    elif case.done == "file":
        out.write_text("precious")
    elif case.done == "pipe":
        os.mkfifo(out)
    elif case.done == "nowhere":
        out.symlink_to(case.folder / "not" / "there")
    elif case.done == "loop":
        out.symlink_to("out")
    else:
        out = out / "/".join(["long" * 50] * 25)
    return case.samples.folder, out, True, None


def _read_only(case: "Case", rng: random.Random) -> Place:
    """A folder in which the user may not write; as root the command becomes another user first."""
    out = case.folder / "out"
    out.mkdir()
    out.chmod(0o555)
    os.chmod(case.folder, 0o755)
    is_root = os.getuid() == 0

    def before() -> None:
        os.setgroups([])
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)

    case.done = "read-only"
    return case.samples.folder, out, True, before if is_root else None
