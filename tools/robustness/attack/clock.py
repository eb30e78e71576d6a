"""The clock is set back, or on, while commands run and between them: they end in the same result, and leave nothing.

A small library that is loaded before all others answers in the place of the C library's clock; files keep the times
that the kernel gives them. Without a C compiler the clock stays what it is, and files alone come from the future.
"""

import ctypes
import os
import pathlib
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from tools.robustness.attack import processes, serving
from tools.robustness.attack.commands import COMMANDS
from tools.robustness.attack.kills import check_nothing_left
from tools.robustness.attack.samples import SERVED

if TYPE_CHECKING:
    from tools.robustness.attack.campaign import Case

NEEDS = (*(command.name for command in COMMANDS), SERVED)
_LIBRARY = "clock.so"
_SHIFTS = (-3600.0, -86_400.0, -5.0, -400 * 86_400.0, 3600.0)


def environment(samples: pathlib.Path) -> dict[str, str]:
    """What the processes of this kind are started with; makes the library where it is missing."""
    library = samples / _LIBRARY
    compiler = shutil.which("cc")
    if not library.exists() and compiler:
        source = pathlib.Path(__file__).with_name("clock.c")
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
    return {"LD_PRELOAD": str(library)} if library.exists() else {}


def attack(case: "Case") -> None:
    """Sets the clock while a command runs, perhaps kills it, and gives it again at yet another time."""
    rng = case.rng
    if rng.random() < 0.2:
        _new_version(case)
        return
    command = COMMANDS[case.number % len(COMMANDS)]
    case.what = f"{command.name}, the clock set"
    out = case.folder / "out"
    out.mkdir()
    arguments, seconds = command.arguments(case.samples.folder, out), case.samples.seconds(command.name)
    running = processes.start(command.program, arguments, before=_shifted(case, rng.uniform(0, seconds)))
    if rng.random() < 0.7:
        end = time.monotonic() + rng.uniform(0.2, 1.1) * seconds
        running.wait(until=lambda: time.monotonic() > end)
        running.kill(signal.SIGKILL, group=rng.random() < 0.5)
        case.done += "killed; "
        if rng.random() < 0.5:
            _date_from_the_future(case, out)
        ended = processes.run(command.program, arguments, before=_shifted(case, rng.uniform(0, seconds)))
    else:
        ended = running.done()
    running.end_group()
    ended.check((0,))
    case.samples.check_result(command, out)
    check_nothing_left(case.samples.folder / command.name, out)
    processes.run(command.program, arguments, before=_shifted(case, 0.0)).check((0, 1))  # it is done, or there
    case.samples.check_result(command, out)


def _shifted(case: "Case", after: float) -> Callable[[], None]:
    """What sets the clock of a new process, after some seconds."""
    shift = case.rng.choice(_SHIFTS)
    case.done += f"{shift:+,.0f} s after {after:.1f} s; "
    if "LD_PRELOAD" not in os.environ:
        return lambda: None

    def set_clock() -> None:
        os.environ["ATTACK_CLOCK"] = f"{time.monotonic() + after} {shift}"
        ctypes.CDLL(None).attack_clock_read()

    return set_clock


def _date_from_the_future(case: "Case", folder: pathlib.Path) -> None:
    """Gives files times as if they had been written before the clock was set back; some are older than before."""
    rng: random.Random = case.rng
    case.done += "files of the future; "
    for path in sorted(folder.rglob("*")):
        shifted = time.time() - rng.choice(_SHIFTS)
        os.utime(path, (shifted, shifted))


def _new_version(case: "Case") -> None:
    """A version appears for a server whose clock is set, and then the first one goes."""
    case.what = "serve, the clock set"
    whole, folder = case.samples.folder / SERVED / "size" / "1", case.folder / "size"
    shutil.copytree(whole, folder / "1")
    server, address = serving.started(
        case, ["--reload_seconds=0.2"], models=[folder], before=_shifted(case, case.rng.uniform(0, 20))
    )
    beside = case.folder / "beside"
    shutil.copytree(whole, beside)
    _date_from_the_future(case, beside)
    time.sleep(case.rng.uniform(0, 3))
    beside.rename(folder / "2")
    serving.wait_for_versions(address, ["2"])
    shutil.rmtree(folder / "2")
    serving.wait_for_versions(address, ["1"])
    serving.check_answers(address)
    server.kill(signal.SIGTERM, group=False).check((0,))
