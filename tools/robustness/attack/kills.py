"""Commands that are killed, at any moment and again, and given once more: they end with the same result, to the bit."""

import contextlib
import pathlib
import random
import re
import shutil
import signal
import time
from typing import TYPE_CHECKING

from official_bert.tokenization.exact import SPECIAL_TOKENS
from tests.conftest import WORDS
from tools.robustness.attack import processes, samples
from tools.robustness.attack.commands import COMMANDS, MAKE_RECORDS, Command
from tools.robustness.attack.processes import NotHeldError, Running
from tools.robustness.attack.variants import EVALUATED

if TYPE_CHECKING:
    from tools.robustness.attack.campaign import Case

NEEDS = tuple(command.name for command in COMMANDS)
_TRAINING = ("pretrain", "finetune")
_SIGNALS = (signal.SIGKILL,) * 4 + (signal.SIGTERM, signal.SIGINT)
_AFTER_A_LINE = 0.05  # seconds at most
# How a process that is asked to stop may end: done, stopped as asked, or by the signal itself.
_STOPPED = (0, 130, 143, -signal.SIGTERM, -signal.SIGINT)
_LOG = "train.jsonl"
# TensorBoard's events and the model card are not read again.
_NOT_READ = ("events.out", ".md", ".lock")

# What a run that goes on has more of than one that was not stopped.
_MORE_OF = re.compile(r"events\.out|/ckpt-[0-9]+\.(index|data-[^/]*)$|notices\.jsonl$")


def attack(case: "Case") -> None:
    """Kills one of the commands, or begins another one anew."""
    command = COMMANDS[case.number % len(COMMANDS)]
    if command is MAKE_RECORDS and case.rng.random() < 0.3:
        _kill_and_begin_anew(case)
    else:
        kill_and_repeat(case, command)


def kill_and_repeat(case: "Case", command: Command) -> None:
    """Kills a command some times, perhaps damages a file of a training run, and gives it again."""
    rng, is_variant = case.rng, command not in COMMANDS
    out = case.folder / "out"
    out.mkdir()
    case.what, case.tried = f"{command.name}, killed", 0
    trains = command.program in _TRAINING
    with contextlib.ExitStack() as stack:
        for _ in range(rng.choice([2, 3, 4] if is_variant else [1, 1, 2, 3])):
            stack.callback(_kill(case, command, out).end_group)
        case.tried = max(case.tried, 1)
        damaged = trains and not is_variant and rng.random() < 0.4 and _damage_one(out, rng)
        if damaged:
            case.done += damaged
            case.what = f"{command.name}, killed and a file damaged"
        ended = processes.run(command.program, command.arguments(case.samples.folder, out))
    ended.check((0, 1) if damaged else (0,))
    if ended.code == 0:
        # Lines of a log that are gone are not found; those that are there are compared.
        case.samples.check_result(command, out, _LOG if damaged and f"/{_LOG}: " in damaged else None)
        if not damaged:
            check_nothing_left(case.samples.folder / command.name, out)


def _kill(case: "Case", command: Command, out: pathlib.Path) -> Running:
    """Starts a command and kills it at some moment; what it has started may still run."""
    rng = case.rng
    number = rng.choice(_SIGNALS) if command in COMMANDS else signal.SIGKILL
    group = rng.random() < 0.5
    running = processes.start(command.program, command.arguments(case.samples.folder, out))
    when = _wait_for_a_moment(running, rng, case.samples.seconds(command.name), command)
    ended = running.kill(number, group)
    if number == signal.SIGKILL:
        if ended.code not in (0, -number):
            ended.check((0,))
    else:
        ended.check(_STOPPED)
    reached = f"at {ended.last_line[-60:]!r}" if ended.code else "after its end"
    case.done += f"{signal.Signals(number).name} {when}, {reached}; "
    _check_whole(case, command, out)
    if ended.code:
        case.tried += 1
    elif command not in COMMANDS:  # so that there is something to kill the next time
        shutil.rmtree(out)
        out.mkdir()
    return running


def check_nothing_left(whole: pathlib.Path, out: pathlib.Path) -> None:
    """Raises NotHeldError if there are files that an unharmed run does not leave."""

    def names(folder: pathlib.Path) -> set[str]:
        paths = {str(path.relative_to(folder)) for path in folder.rglob("*")}
        return {path for path in paths if not _MORE_OF.search(path)}

    if differing := names(whole) ^ names(out):
        raise NotHeldError(f"there is too much or too little: {', '.join(sorted(differing)[:5])}")


def _kill_and_begin_anew(case: "Case") -> None:
    """Kills make-records without its workers, removes what it left, and makes others at once: none is of the first."""
    case.what = "make-records, killed and begun anew with another vocabulary"
    out, vocab, unharmed = (case.folder / name for name in ("out", "other.txt", "unharmed"))
    out.mkdir()
    special, words = WORDS[: len(SPECIAL_TOKENS)], WORDS[len(SPECIAL_TOKENS) :]
    vocab.write_text("".join(f"{word}\n" for word in [*special, *reversed(words)]))
    unharmed.mkdir()
    others = {
        folder: [*MAKE_RECORDS.arguments(case.samples.folder, folder), f"--vocab_file={vocab}"]
        for folder in (out, unharmed)
    }
    processes.run(MAKE_RECORDS.name, others[unharmed]).check((0,))
    running = processes.start(MAKE_RECORDS.name, MAKE_RECORDS.arguments(case.samples.folder, out))
    when = _wait_for_a_moment(running, case.rng, case.samples.seconds(MAKE_RECORDS.name), MAKE_RECORDS)
    running.kill(signal.SIGKILL, group=False)
    case.done = f"killed {when}"
    shutil.rmtree(out)
    out.mkdir()
    processes.run(MAKE_RECORDS.name, others[out]).check((0,))
    running.end_group()
    if MAKE_RECORDS.result(out) != MAKE_RECORDS.result(unharmed):
        raise NotHeldError("the records are others than without the run before")
    processes.run("verify-records", [f"--manifest={out}/train.manifest.json", f"--vocab_file={vocab}"]).check((0,))


def _wait_for_a_moment(running: Running, rng: random.Random, seconds: float, command: Command) -> str:
    """Waits for a moment within the command: after some time, or after a line that a training run prints."""
    if command.program in _TRAINING and command is not EVALUATED and rng.random() < 0.6:
        lines, more = rng.randrange(1, 40), rng.uniform(0, _AFTER_A_LINE)
        running.wait(until=lambda: running.output.count("\n") >= lines)
        time.sleep(more)
        return f"after {lines} lines"
    moment = rng.uniform(0, (1.1 if command in COMMANDS else 0.7) * seconds)
    end = time.monotonic() + moment
    running.wait(until=lambda: time.monotonic() > end)
    return f"after {moment:.2f} seconds"


def _check_whole(case: "Case", command: Command, out: pathlib.Path) -> None:
    """Raises NotHeldError if a file is there under its final name, but not whole."""
    if command.program in (*_TRAINING, "reproduce"):
        return  # their files change until the end
    expected = command.result(case.samples.folder / command.name)
    for name, digest in command.result(out).items():
        if name in expected and digest != expected[name]:
            raise NotHeldError(f"after the kill {name} is there, but it is not whole")


def _damage_one(out: pathlib.Path, rng: random.Random) -> str:
    """Damages a file of a run that was killed, and says how; nothing where there is none."""
    paths = sorted(
        path for path in out.rglob("*") if path.is_file() and not any(part in path.name for part in _NOT_READ)
    )
    if not paths:
        return ""
    path = rng.choice(paths)
    content, how = samples.damage(path.read_bytes(), rng)
    path.write_bytes(content)
    return f"{path.relative_to(out)}: {how}"
