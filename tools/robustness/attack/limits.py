"""Few descriptors, little memory (shared, too), a full disk: an error, and afterwards the command ends as unharmed."""

import os
import pathlib
import random
import resource
import subprocess
from typing import TYPE_CHECKING

from tools.robustness.attack import processes
from tools.robustness.attack.commands import COMMANDS
from tools.robustness.attack.processes import NotHeldError

if TYPE_CHECKING:
    from tools.robustness.attack.campaign import Case

NEEDS = tuple(command.name for command in COMMANDS)
_SHARED_MEMORY = pathlib.Path("/dev/shm")  # of this process' namespace alone
_MEMORY_ENDS = ("MemoryError", "bad_alloc", "Cannot allocate memory", "out of memory", "Resource exhausted", "OOM")


def attack(case: "Case") -> None:
    """Runs a command under a limit, and then without."""
    rng, command = case.rng, COMMANDS[case.number % len(COMMANDS)]
    kind = rng.choice(["descriptors", "memory", "file size", "full disk", "shared memory"])
    case.what = f"{command.name}, {kind}"
    out = case.folder / "out"
    out.mkdir()
    arguments = command.arguments(case.samples.folder, out)
    mounted = {"full disk": out, "shared memory": _SHARED_MEMORY}.get(kind)
    if mounted and not _mounted(mounted, 1024 if mounted == _SHARED_MEMORY else rng.randrange(4, 300), case):
        case.what, kind, mounted = f"{command.name}, file size", "file size", None  # not everybody may mount
    try:
        limits = {} if mounted else _limits(kind, rng, case)
        ended = processes.run(command.name, arguments, limits=limits)
        if kind == "memory":
            _check_out_of_memory(ended)
        else:
            ended.check()
        if kind == "shared memory":
            case.done += f", exit code {ended.code}"
        if mounted:
            _remount(mounted)
        ended = processes.run(command.name, arguments)
        ended.check((0,))
        case.samples.check_result(command, out)
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(mounted)], check=False, capture_output=True)


def _limits(kind: str, rng: random.Random, case: "Case") -> dict[int, int]:
    if kind == "descriptors":
        here = len(os.listdir("/proc/self/fd"))
        number, value = resource.RLIMIT_NOFILE, here + rng.randrange(2, 40)
    elif kind == "memory":
        pages = int(pathlib.Path("/proc/self/statm").read_text().split()[5])
        number, value = resource.RLIMIT_DATA, pages * resource.getpagesize() + (rng.randrange(1, 400) << 20)
    else:
        number, value = resource.RLIMIT_FSIZE, rng.randrange(1, 200_000)
    case.done = f"at most {value:,}"
    return {number: value}


def _check_out_of_memory(ended: processes.Ended) -> None:
    """Without memory TensorFlow ends the process itself: that is all right if it is neither silent nor a success."""
    if ended.code in (0, 1) and processes.TRACEBACK not in ended.output:
        ended.check()
    elif ended.code not in (-6, -11) and not any(word in ended.output for word in _MEMORY_ENDS):
        raise NotHeldError(f"exit code {ended.code} without memory: {ended.output[-1500:]}")


def _mounted(folder: pathlib.Path, kilobytes: int, case: "Case") -> bool:
    case.done = f"{kilobytes} kB"
    command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "none", str(folder)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def _remount(folder: pathlib.Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=1g", str(folder)], check=True, capture_output=True)
