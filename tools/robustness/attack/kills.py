"""Kills commands, runs them twice at the same time, or lets them run out of disk space, and runs them again."""

import contextlib
import ctypes
import pathlib
import random
import re
import resource
import signal
import subprocess
import time

from tools.robustness.attack import processes, samples
from tools.robustness.attack.cases import Case, NotHeldError
from tools.robustness.attack.damage import damage_file
from tools.robustness.attack.processes import Running
from tools.robustness.attack.samples import COMMANDS, Command

_SIGNALS = (signal.SIGKILL,) * 4 + (signal.SIGTERM, signal.SIGINT)
# A process that is asked to stop may finish, stop with an exit code for it, or be ended by the signal itself.
_STOPPED = (0, 130, 143, -signal.SIGTERM, -signal.SIGINT)
_NEW_MOUNT_NAMESPACE = 0x20000  # CLONE_NEWNS
_LOG = "train.jsonl"
# A resumed run reads neither TensorBoard events nor its report.
_NOT_READ = ("events.out", ".png", ".html", ".md", ".lock")
# A resumed run has more of these files than an undisturbed one.
_EXTRA_FILES = re.compile(r"events\.out|/ckpt-[0-9]+\.(index|data-[^/]*)$|notices\.jsonl$")


def attack(case: Case) -> None:
    """Disturbs a command. When it is run again, its result must equal the result of an undisturbed run."""
    command, out = COMMANDS[case.number % len(COMMANDS)], case.folder / "out"
    out.mkdir()
    disturb = case.rng.choices([_kill_and_repeat, _run_twice, _fill_disk], [3, 1, 1])[0]
    disturb(case, command, out)


def _finish(case: Case, command: Command, out: pathlib.Path) -> None:
    """Runs a command to its end, and checks that its result equals the sample."""
    ended = processes.run(command.name, command.arguments(case.samples, out))
    ended.check((0, 1) if command.writes_once else (0,))
    samples.check_result(case.samples, command, out)


def _kill_and_repeat(case: Case, command: Command, out: pathlib.Path) -> None:
    """Kills a command several times, possibly damages a file of a training run, and runs the command to its end."""
    case.what, case.tried = f"{command.name}, killed", 0
    with contextlib.ExitStack() as stack:
        for _ in range(case.rng.choice([1, 1, 2, 3])):
            stack.callback(_kill(case, command, out).end_group)
            case.tried += 1
        damages_file = command.is_training and case.rng.random() < 0.4
        damaged = damage_file(out, case.rng, _NOT_READ) if damages_file else ""
        if not damaged:
            _finish(case, command, out)
            _check_nothing_left(case.samples / command.name, out)
            return
        case.done += damaged
        case.what = f"{command.name}, killed and a file damaged"
        ended = processes.run(command.name, command.arguments(case.samples, out))
        ended.check()
        if ended.code == 0:  # lost lines of a log are not detected; the remaining lines are compared
            samples.check_result(case.samples, command, out, _LOG if f"/{_LOG}: " in damaged else "")


def _kill(case: Case, command: Command, out: pathlib.Path) -> Running:
    """Starts a command and kills it at a random moment. Processes that it has started may still be running."""
    number = case.rng.choice(_SIGNALS)
    running = processes.start(command.name, command.arguments(case.samples, out))
    moment = _wait_for_moment(running, case.rng, samples.read_seconds(case.samples, command), command)
    ended = running.kill(number, group=case.rng.random() < 0.5)
    if number != signal.SIGKILL:
        ended.check((*_STOPPED, 1) if command.writes_once else _STOPPED)
    elif ended.code != -number:
        ended.check((0, 1) if command.writes_once else (0,))
    reached = f"at {ended.last_line[-60:]!r}" if ended.code else "after its end"
    case.done += f"{signal.Signals(number).name} {moment}, {reached}; "
    _check_complete_files(case, command, out)
    return running


def _wait_for_moment(running: Running, rng: random.Random, seconds: float, command: Command) -> str:
    """Waits for a random time, or for a random output line of a training run. Returns a description of the moment."""
    if command.is_training and rng.random() < 0.6:
        lines, pause = rng.randrange(1, 40), rng.uniform(0, 0.05)
        running.wait(until=lambda: running.output.count("\n") >= lines)
        time.sleep(pause)
        return f"after {lines} lines"
    moment = rng.uniform(0, 1.1 * seconds)
    running.wait(until=lambda: running.seconds > moment)
    return f"after {moment:.2f} seconds"


def _check_complete_files(case: Case, command: Command, out: pathlib.Path) -> None:
    """Raises NotHeldError if a file already has its final name, but not its final contents."""
    if command.is_training:
        return  # its files change until the end
    expected, found = command.read_result(case.samples / command.name), command.read_result(out)
    names = expected if command.writes_once and found else found
    for name in names:
        if name in expected and found.get(name) != expected[name]:
            raise NotHeldError(f"after the kill {name} is incomplete")


def _check_nothing_left(undisturbed: pathlib.Path, out: pathlib.Path) -> None:
    """Raises NotHeldError if the output folder contains other files than after an undisturbed run."""

    def list_names(folder: pathlib.Path) -> set[str]:
        names = {str(path.relative_to(folder)) for path in folder.rglob("*")}
        return {name for name in names if not _EXTRA_FILES.search(name)}

    if differing := list_names(undisturbed) ^ list_names(out):
        raise NotHeldError(f"additional or missing files: {', '.join(sorted(differing)[:5])}")


def _run_twice(case: Case, command: Command, out: pathlib.Path) -> None:
    """Starts a command twice with the same output folder, once through a link, and possibly kills the first.

    At least one of the two must succeed, and the other must succeed or report that the output is in use.
    """
    case.what = f"{command.name}, twice at once"
    link = case.folder / "link"
    link.symlink_to(out)
    first = processes.start(command.name, command.arguments(case.samples, out))
    pause = case.rng.choice([0.0, 0.2, samples.read_seconds(case.samples, command)]) * case.rng.random()
    time.sleep(pause)
    second = processes.start(command.name, command.arguments(case.samples, link))
    case.done = f"second after {pause:.2f} seconds"
    if case.rng.random() < 0.25:
        time.sleep(case.rng.random())
        first.kill(signal.SIGKILL, group=True)
        case.done += ", the first killed"
        second.finish().check()
        _finish(case, command, out)
        return
    both = [first.finish(), second.finish()]
    for ended in both:
        ended.check()
        if ended.code and not command.writes_once and "is in use" not in ended.output:
            raise NotHeldError(f"refused for another reason: {ended.last_line}")
    if all(ended.code for ended in both):
        raise NotHeldError(f"both were refused: {both[0].last_line} {both[1].last_line}")
    samples.check_result(case.samples, command, out)


def _fill_disk(case: Case, command: Command, out: pathlib.Path) -> None:
    """Runs a command on a disk that becomes full (or under a limit of file sizes), and then again with enough space."""
    kilobytes = case.rng.randrange(4, 300)
    case.what, case.done = f"{command.name}, full disk", f"{kilobytes} kB"
    limits = {} if _mount_small_disk(out, kilobytes) else {resource.RLIMIT_FSIZE: kilobytes << 10}
    processes.run(command.name, command.arguments(case.samples, out), limits).check()
    if not limits:
        subprocess.run(["mount", "-o", "remount,size=1g", str(out)], check=True)
    _finish(case, command, out)


def _mount_small_disk(folder: pathlib.Path, kilobytes: int) -> bool:
    """Mounts a small file system that only this process can see. Returns False if the user is not allowed to."""
    mounts = (
        ["mount", "--make-rprivate", "/"],
        ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "none", str(folder)],
    )
    is_private = ctypes.CDLL(None).unshare(_NEW_MOUNT_NAMESPACE) == 0
    return is_private and all(subprocess.run(command, capture_output=True).returncode == 0 for command in mounts)
