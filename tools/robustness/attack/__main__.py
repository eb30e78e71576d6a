"""Attacks the project from outside and reports the cases that it did not withstand: `make attack`."""

import argparse
import functools
import json
import os
import pathlib
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from tools.robustness.attack import contradictions, damage, kills, processes, requests, samples
from tools.robustness.attack.cases import Case, NotHeldError
from tools.robustness.attack.processes import Running


class Kind(NamedTuple):
    """A kind of attack: the function that tries a case, and the share of the time to spend on this kind."""

    attack: Callable[[Case], None]
    share: float


KINDS = {
    "kills": Kind(kills.attack, 10),
    "damage": Kind(damage.attack, 5),
    "requests": Kind(requests.attack, 4),
    "contradictions": Kind(contradictions.attack, 1),
}
_PARALLEL_CASES = 2
_CASE_SECONDS = 1500.0  # for a case; each process within it has less time
_DATA_BYTES = 6 << 30


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.robustness.attack", description=__doc__)
    parser.add_argument("--only", default=",".join(KINDS), help="kinds to try, separated by commas")
    parser.add_argument("--seed", type=int, help="seed of all cases; random by default")
    parser.add_argument("--minutes", type=float, default=27.0, help="how long to start cases, without the samples")
    parser.add_argument("--case", type=int, help="number of the first case; one case only, unless --cases is given")
    parser.add_argument("--cases", type=int, help="number of cases of each kind")
    arguments = parser.parse_args()
    kinds = arguments.only.split(",")
    if unknown := sorted(set(kinds) - KINDS.keys()):
        parser.error(f"--only contains {', '.join(unknown)}; expected kinds from {', '.join(KINDS)}")
    seed = random.randrange(10**6) if arguments.seed is None else arguments.seed
    num_cases = 1 if arguments.case is not None and arguments.cases is None else arguments.cases
    print(f"seed {seed}", flush=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="attack-", ignore_cleanup_errors=True) as temporary:
        tempfile.tempdir = os.environ["TMPDIR"] = temporary
        folder = pathlib.Path(temporary, "samples")
        processes.import_all()
        samples.make(folder)
        print(f"made the samples in {time.monotonic() - started:.0f} seconds", flush=True)
        cases = []
        for case in run_cases(kinds, seed, arguments.case or 0, num_cases, 60 * arguments.minutes, folder):
            state = f"NOT HELD ({case.error.strip().splitlines()[-1][:120]})" if case.error else "held"
            print(f"{case.kind} {case.number}: {state}: {case.what}: {case.done[:160]!r}", flush=True)
            cases.append(case)
    print(f"\n{format_table(cases)}\n")
    failures = [case for case in cases if case.error]
    for case in failures:
        print(f"NOT HELD: --only={case.kind} --seed={seed} --case={case.number}: {case.what}: {case.done}")
        print("  " + case.error.strip().replace("\n", "\n  ") + "\n")
    minutes, tried = (time.monotonic() - started) / 60, sum(case.tried for case in cases)
    print(f"seed {seed}: {tried:,} tried, {len(failures)} not held, {minutes:.1f} minutes")
    return 1 if failures else 0


def run_cases(
    kinds: Sequence[str], seed: int, first: int, num_cases: int | None, seconds: float, sample_folder: pathlib.Path
) -> Iterator[Case]:
    """Runs cases in separate processes, several at a time, and yields each case when it ends.

    Args:
        kinds: Kinds of attack.
        seed: Seed of all cases.
        first: Number of the first case to run of each kind.
        num_cases: Number of cases to run of each kind. No limit if None.
        seconds: Time after which no more cases are started, except that the first case of each kind always is.
        sample_folder: Folder of the samples (see samples.py).
    """
    end, active = time.monotonic() + seconds, list[tuple[Case, Running]]()
    numbers, spent = dict.fromkeys(kinds, first), dict.fromkeys(kinds, 0.0)
    while True:
        is_over = time.monotonic() > end
        startable = [
            kind for kind in kinds if numbers[kind] == first or not (is_over or numbers[kind] - first == num_cases)
        ]
        if startable and len(active) < _PARALLEL_CASES:
            kind = min(startable, key=lambda kind: (spent[kind] / KINDS[kind].share, numbers[kind]))
            case = Case(
                kind, numbers[kind], seed, pathlib.Path(tempfile.mkdtemp(prefix=f"{kind}-")), sample_folder, kind
            )
            active.append((case, processes.start_function(functools.partial(_run_case, case))))
            numbers[kind] += 1
            continue
        if not active:
            return
        time.sleep(0.02)
        for case, running in list(active):
            if running.poll() or running.seconds > _CASE_SECONDS:
                active.remove((case, running))
                spent[case.kind] += running.seconds
                _collect(case, running)
                yield case
                shutil.rmtree(case.folder, ignore_errors=True)


def _report_path(case: Case) -> pathlib.Path:
    return case.folder.with_suffix(".json")


def _run_case(case: Case) -> None:
    """Tries a case in this process and writes the outcome to a file."""
    resource.setrlimit(resource.RLIMIT_DATA, (_DATA_BYTES, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    try:
        KINDS[case.kind].attack(case)
    except NotHeldError as problem:
        case.error = str(problem)
    except Exception:  # either the program or the attack is wrong
        case.error = traceback.format_exc()[-3000:]
    _report_path(case).write_text(json.dumps([case.what, case.done, case.tried, case.error]))


def _collect(case: Case, running: Running) -> None:
    """Fills in the outcome of a case whose process has ended, from the file that it wrote, or takes too long."""
    case.seconds = round(running.seconds, 1)
    if running.poll() is None:
        case.error = f"the case takes more than {_CASE_SECONDS:.0f} seconds"
    running.end_group()
    if _report_path(case).exists():
        case.what, case.done, case.tried, case.error = json.loads(_report_path(case).read_text())
        _report_path(case).unlink()
    if not case.error:
        try:
            running.finish().check((0,))
        except NotHeldError as problem:
            case.error = str(problem)


def format_table(cases: Sequence[Case]) -> str:
    """Returns a Markdown table of the numbers of attempts, by kind and target, with totals."""
    rows: dict[tuple[str, str], list[float]] = {}
    for case in cases:
        for key in ((case.kind, case.what), (case.kind, ""), ("all", "")):
            row = rows.setdefault(key, [0, 0, 0.0])
            row[0] += max(case.tried, 1)  # the failed attempt may not be counted yet
            row[1] += bool(case.error)
            row[2] += case.seconds
    lines = ["| kind | what | tried | held | not held | seconds |", "|---|---|---|---|---|---|"]
    order = [*KINDS, "all"]
    for kind, what in sorted(rows, key=lambda key: (not key[1], order.index(key[0]), key[1])):
        tried, failed, seconds = rows[kind, what]
        lines.append(f"| {kind} | {what} | {tried:,.0f} | {tried - failed:,.0f} | {failed:.0f} | {seconds:,.0f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
