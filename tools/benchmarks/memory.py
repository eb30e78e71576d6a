"""The most memory that processes have held, from Linux' /proc."""

import contextlib
import dataclasses
import pathlib


@dataclasses.dataclass
class Peak:
    """The most that a process has held, in MiB."""

    memory: float = 0.0  # pages of mapped files included
    own: float = 0.0  # without them, at the moments that it was looked at


def note_memory(first: int, peaks: dict[int, Peak]) -> None:
    """Notes the most that a process and those begun by it, or by one of those, have held so far, by their numbers."""
    status: dict[int, dict[str, str]] = {}
    for path in pathlib.Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            status[int(path.parent.name)] = dict(line.split(":", 1) for line in path.read_text().splitlines())
    noted = {first} & status.keys()
    while more := {number for number, each in status.items() if int(each["PPid"]) in noted} - noted:
        noted |= more
    for number in noted:
        if "VmHWM" in status[number]:  # which one that has ended and is not waited for does not have
            peak = peaks.setdefault(number, Peak())
            peak.memory, own = (int(status[number][name].split()[0]) / 1024 for name in ("VmHWM", "RssAnon"))
            peak.own = max(peak.own, own)


def largest(peaks: dict[int, Peak]) -> Peak:
    """Returns the most that any of the processes has held of each kind."""
    return Peak(*(max((getattr(each, name) for each in peaks.values()), default=0.0) for name in ("memory", "own")))
