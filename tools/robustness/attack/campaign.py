"""Tries the cases of a kind in a process of its own, watched from outside: a crash or a hang is a case not held."""

import contextlib
import dataclasses
import json
import os
import pathlib
import random
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from typing import Any

from official_bert.utils.signals import end_with_parent
from tests.conftest import ROOT
from tools.robustness.attack import (
    browser,
    changed,
    clock,
    contradictions,
    damage,
    downloads,
    fitting,
    fuzz,
    kills,
    limits,
    paths,
    processes,
    serving,
    together,
    variant_kills,
    writers,
)
from tools.robustness.attack.processes import NotHeldError
from tools.robustness.attack.samples import Samples

# The kinds, with their share of the time.
KINDS = {
    "kills": (kills, 9),
    "damage": (damage, 5),
    "fuzz": (fuzz, 4),
    "serving": (serving, 5),
    "together": (together, 3),
    "paths": (paths, 3),
    "limits": (limits, 4),
    "contradictions": (contradictions, 2),
    "writers": (writers, 3),
    "fitting": (fitting, 3),
    "changed": (changed, 1),
    "clock": (clock, 3),
    "browser": (browser, 2),
    "downloads": (downloads, 2),
    "variant_kills": (variant_kills, 6),
}
_CASE_SECONDS = 1500.0  # for a case; each process within it has less
_MOST_MEGABYTES = 1500  # that a case within the process may take beyond what was taken before
_DATA_BYTES = 6 << 30


@dataclasses.dataclass
class Case:
    """A case that is tried.

    Attributes:
        number: it and the seed decide all.
        rng: what decides.
        folder: an empty one, for this case.
        samples: what is attacked.
        what: what is attacked, and how: a row of the table.
        done: what was done, to be shown if it does not hold.
        tried: how many attempts it made.
    """

    number: int
    rng: random.Random
    folder: pathlib.Path
    samples: Samples
    what: str = ""
    done: str = ""
    tried: int = 1


@dataclasses.dataclass(frozen=True)
class Result:
    """What became of a case: `seen` is empty if it was held; `seconds` is how long it took."""

    kind: str
    number: int
    what: str
    done: str
    tried: int
    seen: str
    seconds: float = 0.0


def work(kind: str, seed: int, first: int, folder: pathlib.Path) -> None:
    """Tries the cases of a kind from a number on, for ever; tells each one's beginning and result on standard output.

    What is printed otherwise goes to standard error.
    """
    end_with_parent(os.getppid())
    told = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_DATA, (_DATA_BYTES, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    module = KINDS[kind][0]
    processes.import_all()
    given = Samples(folder)
    number = first
    while True:
        case_folder = pathlib.Path(tempfile.mkdtemp(prefix=f"{number}-"))
        case = Case(number, random.Random(f"{seed} {kind} {number}"), case_folder, given, what=kind)
        told.write(json.dumps({"begins": number}) + "\n")
        before, since = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
        seen = ""
        try:
            module.attack(case)
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
            if grown > _MOST_MEGABYTES:
                raise NotHeldError(f"{grown:,.0f} MB more memory")
        except NotHeldError as error:
            seen = str(error)
        except Exception:  # of the program or of the attack: both are to be looked at
            seen = traceback.format_exc()[-3000:]
        finally:
            with contextlib.suppress(OSError):
                subprocess.run(["chmod", "-R", "u+rwx", str(case_folder)], check=False, capture_output=True)
                shutil.rmtree(case_folder, ignore_errors=True)
        result = Result(kind, number, case.what, case.done, case.tried, seen, round(time.monotonic() - since, 1))
        told.write(json.dumps(dataclasses.asdict(result)) + "\n")
        number += 1


def results(
    kind: str, seed: int, first: int, most: int | None, seconds: float, folder: pathlib.Path
) -> Iterator[Result]:
    """Yields the results of a kind's cases.

    Args:
        kind: one of KINDS.
        seed: of all cases.
        first: the first case's number.
        most: the number of cases, or None.
        seconds: after which no case begins; the first one always does.
        folder: of the samples.
    """
    end, count = time.monotonic() + seconds, 0
    while True:
        with _worker(kind, seed, first + count, folder) as worker:
            for result in _told_by(worker, kind, first + count):
                yield result
                count += 1
                if time.monotonic() > end or (most is not None and count >= most):
                    return


@contextlib.contextmanager
def _worker(kind: str, seed: int, first: int, folder: pathlib.Path) -> Iterator[subprocess.Popen[str]]:
    command = [
        *(("unshare", "--mount") if os.getuid() == 0 and shutil.which("unshare") else ()),  # full disks are its own
        *(sys.executable, "-m", "tools.robustness.attack", f"--work={kind}", f"--seed={seed}", f"--case={first}"),
        f"--samples={folder}",
    ]
    environment = {
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        "OFFICIAL_BERT_TUNE_MALLOC": "0",
    }
    if kind == "clock":
        environment |= clock.environment(folder)
    with (
        tempfile.TemporaryDirectory(prefix=f"attack-{kind}-", ignore_cleanup_errors=True) as temporary,
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **environment, "TMPDIR": temporary},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        ) as worker,
    ):
        worker.log = log  # type: ignore[attr-defined]
        try:
            yield worker
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()


def _told_by(worker: subprocess.Popen[str], kind: str, first: int) -> Iterator[Result]:
    """Yields the results of a worker until it ends; then, or if it takes too long, what it did not hold."""
    assert worker.stdout
    number = first
    while True:
        ready, _, _ = select.select([worker.stdout], [], [], _CASE_SECONDS)
        line = worker.stdout.readline() if ready else ""
        if not line:
            seen = f"the case takes more than {_CASE_SECONDS:.0f} seconds"
            if ready:
                worker.log.seek(0)  # type: ignore[attr-defined]
                tail = worker.log.read()[-1500:]  # type: ignore[attr-defined]
                seen = f"the process ended with {worker.wait()}: {tail}"
            yield Result(kind, number, kind, "", 1, seen)
            return
        message: dict[str, Any] = json.loads(line)
        if "begins" in message:
            number = message["begins"]
        else:
            yield Result(**message)


def make_samples(kinds: list[str], folder: pathlib.Path) -> None:
    """Makes the samples that kinds of attack need."""
    needs = tuple(dict.fromkeys(need for kind in kinds for need in KINDS[kind][0].NEEDS))
    if needs:
        processes.import_all()
    Samples(folder).make(needs)


def table(all_results: list[Result]) -> str:
    """Returns the table of cases tried and held, by kind and what was attacked, and in the end by kind alone."""
    order = list(KINDS)
    rows: dict[tuple[str, str], list[float]] = {}
    for result in all_results:
        for key in ((result.kind, result.what), (result.kind, ""), ("all", "")):
            row = rows.setdefault(key, [0, 0, 0.0])
            row[0] += result.tried
            row[1] += 1 if result.seen else 0
            row[2] += result.seconds
    lines = ["| kind | what | tried | held | not held | seconds |", "|---|---|---|---|---|---|"]
    by_kind = sorted(rows, key=lambda key: (not key[1], order.index(key[0]) if key[0] in order else len(order), key[1]))
    for key in by_kind:
        tried, lost, seconds = rows[key]
        lines.append(f"| {key[0]} | {key[1]} | {tried:,.0f} | {tried - lost:,.0f} | {lost:.0f} | {seconds:,.0f} |")
    return "\n".join(lines)
