"""The command behind `make attack`."""

import argparse
import concurrent.futures
import os
import pathlib
import random
import sys
import tempfile
import time

from tools.robustness.attack import campaign
from tools.robustness.attack.browser import find_chromium
from tools.robustness.attack.campaign import KINDS, Result

_AT_ONCE = 2  # kinds


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.robustness.attack", description=__doc__)
    parser.add_argument("--only", default=",".join(KINDS), help="kinds, with commas between")
    parser.add_argument("--seed", type=int, help="of all cases; by default another one each time")
    parser.add_argument("--minutes", type=float, default=27.0, help="about how long, on two cores, without the samples")
    parser.add_argument("--case", type=int, help="the number of the first case; alone, unless --cases says how many")
    parser.add_argument("--cases", type=int, help="how many cases of each kind")
    parser.add_argument("--samples", type=pathlib.Path, help="keep what is attacked in this folder")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        campaign.work(arguments.work, arguments.seed, arguments.case, arguments.samples)
    seed = random.randrange(10**6) if arguments.seed is None else arguments.seed
    kinds = [kind for kind in arguments.only.split(",") if kind]
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown or not kinds:
        parser.error(f"--only={arguments.only}: expected some of {', '.join(KINDS)}")
    if "browser" in kinds and not find_chromium():
        print("browser is left out: there is no chromium, chromium-browser or google-chrome; install one", flush=True)
        kinds.remove("browser")
        if not kinds:
            return 1
    print(f"seed {seed}", flush=True)
    since = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="attack-samples-") as temporary:
        folder = arguments.samples or pathlib.Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        campaign.make_samples(kinds, folder)
        print(f"the samples are made ({time.monotonic() - since:.0f} seconds)", flush=True)
        results = _all_results(kinds, seed, arguments, folder)
    print(f"\n{campaign.table(results)}\n")
    lost = [result for result in results if result.seen]
    for result in lost:
        print(f"NOT HELD: --only={result.kind} --seed={seed} --case={result.number}: {result.what}: {result.done}")
        print("  " + result.seen.strip().replace("\n", "\n  ") + "\n")
    minutes = (time.monotonic() - since) / 60
    print(f"seed {seed}: {sum(each.tried for each in results):,} tried, {len(lost)} not held, {minutes:.1f} minutes")
    return 1 if lost else 0


def _all_results(kinds: list[str], seed: int, arguments: argparse.Namespace, folder: pathlib.Path) -> list[Result]:
    at_once = min(_AT_ONCE, len(kinds))
    shares = sum(KINDS[kind][1] for kind in kinds)
    most = 1 if arguments.case is not None and arguments.cases is None else arguments.cases

    def of(kind: str) -> list[Result]:
        seconds = 60 * arguments.minutes * at_once * KINDS[kind][1] / shares
        seen = []
        for result in campaign.results(kind, seed, arguments.case or 0, most, seconds, folder):
            state = f"NOT HELD ({result.seen.strip().splitlines()[-1][:120]})" if result.seen else "held"
            print(f"{kind} {result.number}: {state}: {result.what}: {result.done[:160]!r}", flush=True)
            seen.append(result)
        return seen

    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        futures = [pool.submit(of, kind) for kind in kinds]
        try:
            return [result for future in futures for result in future.result()]
        except KeyboardInterrupt:
            os._exit(130)  # the threads would go on; the processes end with this one


if __name__ == "__main__":
    sys.exit(main())
