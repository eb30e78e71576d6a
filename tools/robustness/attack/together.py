"""Two processes on one output, in two spellings: one writes, the other says that the output is in use, or waits."""

import os
import pathlib
import random
import time
from typing import TYPE_CHECKING

from tools.robustness.attack import processes
from tools.robustness.attack.commands import COMMANDS
from tools.robustness.attack.processes import NotHeldError

if TYPE_CHECKING:
    from tools.robustness.attack.campaign import Case

NEEDS = tuple(command.name for command in COMMANDS)


def attack(case: "Case") -> None:
    """Starts a command twice, one soon after the other; sometimes kills the first, and gives it again at the end."""
    rng, command = case.rng, COMMANDS[case.number % len(COMMANDS)]
    case.what = f"{command.name}, twice at once"
    out = case.folder / "out"
    out.mkdir()
    spelled = _other_spelling(out, rng)
    first = processes.start(command.name, command.arguments(case.samples.folder, out))
    pause = rng.choice([0.0, rng.uniform(0, 0.2), rng.uniform(0, case.samples.seconds(command.name))])
    time.sleep(pause)
    second = processes.start(command.name, command.arguments(case.samples.folder, spelled))
    case.done = f"second after {pause:.2f} seconds, as {os.path.relpath(spelled, case.folder)}"
    if rng.random() < 0.25:
        time.sleep(rng.uniform(0, 1))
        first.kill(9, group=True)
        case.done += ", the first killed"
        second.done().check()
        last = processes.run(command.name, command.arguments(case.samples.folder, out))
        last.check((0,))
    else:
        ended = [first.done(), second.done()]
        for each in ended:
            each.check()
            if each.code and "is in use" not in each.output:
                raise NotHeldError(f"refused for another reason: {each.last_line}")
        if all(each.code for each in ended):
            raise NotHeldError(f"both were refused: {ended[0].last_line} {ended[1].last_line}")
    case.samples.check_result(command, out)


def _other_spelling(out: pathlib.Path, rng: random.Random) -> pathlib.Path:
    kind = rng.choice(["same", "dots", "link"])
    if kind == "link":
        link = out.parent / "link"
        link.symlink_to(out)
        return link
    return out if kind == "same" else pathlib.Path(f"{out.parent}/./out/../out")
