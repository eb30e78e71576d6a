"""Downloads that break off, from a server that plays the hub: an error of one line, and the next try has the whole."""

import hashlib
import os
import pathlib
import signal
import tempfile
import threading
import time
from typing import TYPE_CHECKING

from tools.robustness.attack import processes
from tools.robustness.attack.processes import NotHeldError, Running
from tools.robustness.attack.samples import CHECKPOINTS

if TYPE_CHECKING:
    from tests.checkpoints.hub_server import Server
    from tools.robustness.attack.campaign import Case

NEEDS = (CHECKPOINTS,)
_NAMES = ("hf://owner/name", "google://uncased_L-2_H-128_A-2")
_LONGEST_PAUSE = 0.02  # seconds between the tries of huggingface_hub, which waits for longer
_RESULT = ("model.safetensors", "vocab.txt", "config.json")


def attack(case: "Case") -> None:
    """Has downloads break off once or several times, and then not any more."""
    from tests.checkpoints import hub_server

    rng, given = case.rng, case.samples.folder / CHECKPOINTS
    name = _NAMES[case.number % len(_NAMES)]
    case.what = name.split(":")[0]
    with hub_server.Server() as server:
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        server.takes_ranges = rng.random() < 0.5
        server.add_repository("owner/name", given / "hugging_face", ["main"])
        server.publish(hub_server.google_zip(given / "tf1"))
        sizes = [len(content) for content, _ in server.files.values()]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            for number in range(rng.choice([1, 2, 3])):
                way = rng.choice([_cut, _silent, _killed])
                way(case, server, name, case.folder / f"broken{number}", sizes)
                server.most_bytes, server.before_answer = None, lambda path: None
            outs = [case.folder / "first", case.folder / "second"]
            both = [_start(case, server, name, out) for out in outs[: rng.choice([1, 2])]]
            for running in both:
                running.done().check((0,))
        finally:
            server.shutdown()
    _check_result(case, name, outs[: len(both)])


def _start(case: "Case", server: "Server", name: str, out: pathlib.Path) -> Running:
    """Starts to convert what has this name."""
    temporary = case.folder / "temporary"
    temporary.mkdir(exist_ok=True)

    def before() -> None:
        from huggingface_hub import constants

        from official_bert.checkpoints import google_models

        constants.ENDPOINT = server.address
        constants.HUGGINGFACE_CO_URL_TEMPLATE = server.address + "/{repo_id}/resolve/{revision}/{filename}"
        constants.HF_HUB_CACHE = str(case.folder / "hub")
        os.environ[google_models.CACHE_VARIABLE] = str(case.folder / "cache")
        google_models.ADDRESS = server.address
        tempfile.tempdir = str(temporary)
        sleep = time.sleep
        time.sleep = lambda seconds: sleep(min(float(seconds), _LONGEST_PAUSE))

    arguments = [f"--from={name}", f"--to={out}", "--to_format=hugging_face"]
    return processes.start("convert", arguments, before=before)


def _cut(case: "Case", server: "Server", name: str, out: pathlib.Path, sizes: list[int]) -> None:
    """Files end after some bytes, though more were announced."""
    server.most_bytes = case.rng.choice([0, 1, case.rng.randrange(max(sizes)), case.rng.randrange(2000)])
    case.done += f"at most {server.most_bytes:,} bytes; "
    _start(case, server, name, out).done().check()


def _silent(case: "Case", server: "Server", name: str, out: pathlib.Path, sizes: list[int]) -> None:
    """After some requests, connections are closed without an answer."""
    answered = case.rng.randrange(12)
    before = len(server.asked)

    def close(path: str) -> None:
        if len(server.asked) - before > answered:
            raise ConnectionResetError

    server.before_answer = close
    case.done += f"{answered} answers; "
    _start(case, server, name, out).done().check()


def _killed(case: "Case", server: "Server", name: str, out: pathlib.Path, sizes: list[int]) -> None:
    """The process is killed while it downloads."""
    requests, pause = case.rng.randrange(1, 14), case.rng.uniform(0, 0.05)
    before = len(server.asked)
    server.before_answer = lambda path: time.sleep(0.02)
    running = _start(case, server, name, out)
    running.wait(until=lambda: len(server.asked) - before >= requests)
    time.sleep(pause)
    ended = running.kill(signal.SIGKILL, group=True)
    if ended.code not in (0, -signal.SIGKILL):
        ended.check((0,))
    case.done += f"killed after {requests} requests; "


def _check_result(case: "Case", name: str, outs: list[pathlib.Path]) -> None:
    """Raises NotHeldError unless the model is that of the server's files, and nothing half is left."""
    whole = case.folder / "whole"
    source = case.samples.folder / CHECKPOINTS / ("hugging_face" if name.startswith("hf:") else "tf1")
    processes.run("convert", [f"--from={source}", f"--to={whole}", "--to_format=hugging_face"]).check((0,))
    expected = _digests(whole)
    if any(_digests(out) != expected for out in outs):
        raise NotHeldError("the model is another one than that of the files")
    left = [path for path in (case.folder / "temporary").rglob("*") if path.is_file()]
    # In its own cache, hub, huggingface_hub leaves the .incomplete files of processes that were killed.
    for cache, suffixes in (("hub", ()), ("cache", (".incomplete", ".zip"))):
        paths = (case.folder / cache).rglob("*")
        left += [path for path in paths if "writing-" in path.name or path.suffix in suffixes]
    if left:
        raise NotHeldError(f"left are {', '.join(str(path.relative_to(case.folder)) for path in left)}")


def _digests(folder: pathlib.Path) -> list[str]:
    return [hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in _RESULT]
