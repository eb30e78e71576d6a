"""Too few descriptors, too little memory, a full disk: an error, and afterwards the same command ends as unharmed."""

import os
import pathlib
import random
import resource
import subprocess
from typing import TYPE_CHECKING

from robustness.attack import processes
from robustness.attack.commands import COMMANDS
from robustness.attack.processes import NotHeldError

if TYPE_CHECKING:
    from robustness.attack.campaign import Case

NEEDS = tuple(command.name for command in COMMANDS)
_MEMORY_ENDS = ("MemoryError", "bad_alloc", "Cannot allocate memory", "out of memory", "Resource exhausted", "OOM")


def attack(case: "Case") -> None:
    """Runs a command under a limit, and then without."""
    rng, command = case.rng, COMMANDS[case.number % len(COMMANDS)]
    kind = rng.choice(["descriptors", "memory", "file size", "full disk"])
    case.what = f"{command.name}, {kind}"
    out = case.folder / "out"
    out.mkdir()
    arguments = command.arguments(case.samples.folder, out)
    if kind == "full disk" and not _mounted(out, rng.randrange(4, 300), case):
        case.what, kind = f"{command.name}, file size", "file size"  # not everybody may mount
    try:
        limits = {} if kind == "full disk" else _limits(kind, rng, case)
        ended = processes.run(command.name, arguments, limits=limits)
        if kind == "memory":
            _check_out_of_memory(ended)
        else:
            ended.check()
        if kind == "full disk":
            _remount(out)
        ended = processes.run(command.name, arguments)
        ended.check((0,))
        case.samples.check_result(command, out)
    finally:
        if kind == "full disk":
            subprocess.run(["umount", "--lazy", str(out)], check=False, capture_output=True)


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
