"""The models that are served: their versions are loaded, exchanged while requests go on, and unloaded.

Everything but the loading itself happens in the event loop, so that nothing needs a lock.
"""

import asyncio
import contextlib
import gc
import glob
import itertools
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from official_bert.checkpoints import checksums
from official_bert.errors import UserError
from official_bert.inference import exports, loading
from official_bert.inference.predictor import PARALLEL_BATCHES, Predictor
from official_bert.serving import logs
from official_bert.serving.batching import Batcher
from official_bert.serving.json_api import RequestError
from official_bert.serving.metrics import Metrics
from official_bert.serving.options import Options
from official_bert.utils import files

# Patterns of a version's files besides the graph.
_STAMPED = (("variables", "*"), ("assets*", "*"), (checksums.CHECKSUM_FILE,))


class VersionFiles(NamedTuple):
    """The files of a version at one look: the stamp changes when they do."""

    folder: str
    stamp: tuple[Any, ...]
    has_checksums: bool  # which tell whether all of it is there


class Version:
    """A version of a model, from when its folder appears to when its last request is answered.

    Attributes:
        state: START, LOADING, AVAILABLE, UNLOADING or END, as TensorFlow Serving says.
        error: why it could not be loaded, else empty.
        files_seen: its files when it was loaded, or last could not be.
        is_checked: whether it was loaded, or could not be, with checksums.
    """

    def __init__(self, number: int, files_seen: VersionFiles) -> None:
        self.number, self.files_seen, self.is_checked = number, files_seen, files_seen.has_checksums
        self.state, self.error = "LOADING", ""
        self.users = 0
        self.model: Predictor | None = None
        self.batcher: Batcher | None = None

    def is_superseded_by(self, files_now: VersionFiles) -> bool:
        """Whether to load it from its files as they are now."""
        if self.error:
            return files_now != self.files_seen
        if self.state == "AVAILABLE":  # the rest of an export may have come after it was taken for another tool's
            return files_now != self.files_seen and not self.is_checked
        return self.state == "END"


class Model:
    """A model by its name, with those of its versions that are served.

    Args:
        name: as in the address.
        folder: holds a folder for each version, named by its number.

    Attributes:
        is_arriving: whether the last look saw a version that may still be being copied.
    """

    def __init__(self, name: str, folder: str, pools: "Pools", options: Options, metrics: Metrics) -> None:
        self.name = name
        self.versions: dict[int, Version] = {}
        self.is_arriving = False
        self._last_look: dict[int, VersionFiles] = {}
        self._folder, self._pools, self._options, self._metrics = folder, pools, options, metrics

    @property
    def available(self) -> list[Version]:
        """The versions that answer, oldest first."""
        return [version for _, version in sorted(self.versions.items()) if version.state == "AVAILABLE"]

    def find(self, version: str | None) -> Version:
        """Returns the version with this number, or the newest one if it is None.

        Raises:
            RequestError: 404 where there is no such version, 503 where none is loaded yet.
        """
        available = {each.number: each for each in self.available}
        if not available:
            raise RequestError(503, f"{self.name} is being loaded; try again later", retry_after=1)
        if version is None:
            return available[max(available)]
        # Compared as text: Python refuses to read numbers of thousands of digits.
        digits = version.lstrip("0") or "0"
        for number, each in available.items():
            if str(number) == digits:
                return each
        shown = digits if len(digits) <= 20 else f"{digits[:20]}..."
        raise RequestError(
            404, f"version {shown} of {self.name} is not served; there are {', '.join(map(str, available))}"
        )

    @contextlib.contextmanager
    def in_use(self, version: Version) -> Iterator[tuple[Predictor, Batcher]]:
        """Keeps a version loaded for as long as a request needs it."""
        assert version.model
        assert version.batcher
        version.users += 1
        try:
            yield version.model, version.batcher
        finally:
            version.users -= 1
            self._unload_if_done(version)

    async def refresh(self) -> None:
        """Looks at the folder: loads what is new, then lets go of what is old.

        An export is loaded when its checksums are right. A model without checksums, of which nobody knows whether
        all of it is there, is loaded when two looks have seen the same.
        """
        loop = asyncio.get_running_loop()
        look = await loop.run_in_executor(self._pools.loader, versions_in, self._folder)
        last_look, self._last_look = self._last_look, look
        wanted = sorted(look)[-self._options.versions :]
        self.is_arriving = False
        for number in wanted:
            known, seen = self.versions.get(number), look[number]
            if known and not known.is_superseded_by(seen):
                continue
            if seen == last_look.get(number) or (known is None and seen.has_checksums):
                await self._load(number, seen)
            else:
                self.is_arriving = True
        for version in self.available:
            # The newest that answers stays whatever happens to its folder, until another does.
            others = [each for each in self.available if each is not version]
            if version.number not in wanted and any(each.number in wanted for each in others):
                self._let_go(version)
        self.versions = {n: each for n, each in self.versions.items() if each.state != "END" or n in look}
        if self.available:
            self._metrics.version.labels(self.name).set(self.available[-1].number)

    async def _load(self, number: int, files_seen: VersionFiles) -> None:
        version, before = Version(number, files_seen), self.versions.get(number)
        if before is None or before.state == "END":
            self.versions[number] = version
        loop = asyncio.get_running_loop()
        start = loop.time()
        try:
            model = await loop.run_in_executor(self._pools.loader, _loaded, files_seen.folder, self._options)
        except Exception as error:
            version.state, version.error = "END", str(error)
            self._metrics.loads.labels(self.name, "failed").inc()
            logs.warning("a version cannot be loaded", model=self.name, version=number, error=str(error))
            if before:
                before.files_seen = files_seen  # what is loaded goes on
            return
        version.model = model
        version.batcher = Batcher(
            model,
            self.name,
            self._pools.computing,
            self._pools.parsing,
            model.parallel_batches,
            self._options,
            self._metrics,
        )
        version.state = "AVAILABLE"
        self._metrics.loads.labels(self.name, "loaded").inc()
        logs.info("loaded", model=self.name, version=number, kind=model.kind, seconds=round(loop.time() - start, 2))
        self.versions[number] = version
        if before and before.state == "AVAILABLE":
            self._let_go(before)

    def _let_go(self, version: Version) -> None:
        version.state = "UNLOADING"
        logs.info("unloading", model=self.name, version=version.number)
        self._unload_if_done(version)

    def _unload_if_done(self, version: Version) -> None:
        if version.state == "UNLOADING" and not version.users:
            version.model = version.batcher = None
            version.state = "END"
            logs.info("unloaded", model=self.name, version=version.number)
            self._pools.loader.submit(gc.collect)  # TensorFlow's functions refer to each other in circles


class Pools:
    """The server's threads."""

    def __init__(self) -> None:
        self.computing = ThreadPoolExecutor(PARALLEL_BATCHES, "compute")
        self.parsing = ThreadPoolExecutor(1, "parse")
        self.loader = ThreadPoolExecutor(1, "load")

    def shut_down(self, seconds: float | None = None) -> bool:
        """Ends the threads after their current work. Returns whether they ended within so many seconds."""
        pools = (self.computing, self.parsing, self.loader)
        for pool in pools:
            pool.shutdown(wait=False, cancel_futures=True)

        def wait() -> None:
            for pool in pools:
                pool.shutdown()

        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        waiting.join(seconds)
        return not waiting.is_alive()


class Models:
    """All models of the server.

    Raises:
        UserError: a folder is not there, or has no version.
    """

    def __init__(self, options: Options, metrics: Metrics) -> None:
        self.pools = Pools()
        self._seconds = options.reload_seconds
        self._models = {}
        for name, folder in options.folders().items():
            _check_folder(name, folder)
            self._models[name] = Model(name, folder, self.pools, options, metrics)

    def __iter__(self) -> Iterator[Model]:
        return iter(self._models.values())

    def __getitem__(self, name: str) -> Model:
        if name not in self._models:
            raise RequestError(404, f"there is no model {name!r}; there are {', '.join(self._models)}")
        return self._models[name]

    @property
    def ready(self) -> bool:
        """Whether every model has a version that answers."""
        return all(model.available for model in self)

    async def load(self) -> None:
        """Loads what is there; waits for versions that may still be being copied.

        Raises:
            UserError: a model has no version that can be loaded.
        """
        for model in self:
            await model.refresh()
            while model.is_arriving and not model.available:
                await asyncio.sleep(self._seconds)
                await model.refresh()
            if not model.available:
                errors = [f"version {each.number}: {each.error}" for each in model.versions.values()]
                raise UserError(f"no version of {model.name} can be loaded; " + "; ".join(errors))

    async def watch(self) -> None:
        """Looks for new versions for ever; what goes wrong with one model is logged and tried again."""
        while True:
            await asyncio.sleep(self._seconds)
            for model in self:
                try:
                    await model.refresh()
                except Exception as error:
                    logs.error("cannot look for versions", error, model=model.name)


def _loaded(folder: str, options: Options) -> Predictor:
    model = loading.load(folder, options.threads)
    model.warm_up(options.max_batch_size)
    return model


def versions_in(folder: str) -> dict[int, VersionFiles]:
    """Returns the files of each version in a model's folder."""
    versions = {}
    for number, version_folder in exports.list_versions(folder).items():
        graph = exports.find_graph(version_folder)
        if graph is not None:
            escaped = glob.escape(version_folder)
            parts = [files.glob(os.path.join(escaped, *part)) for part in _STAMPED]
            stamp = tuple((path, *files.size_and_time(path)) for path in itertools.chain([graph], *parts))
            has_checksums = files.exists(os.path.join(version_folder, checksums.CHECKSUM_FILE))
            versions[number] = VersionFiles(version_folder, stamp, has_checksums)
    return versions


def _check_folder(name: str, folder: str) -> None:
    if not files.exists(folder):
        raise UserError(f"--model: there is no folder {folder} for {name}; give the --export_dir of an export")
    if versions_in(folder):
        return
    if exports.find_graph(folder):
        above, number = os.path.split(files.make_absolute(folder.rstrip("/")))
        advice = f"give the folder above it, {above}" if number.isdecimal() else f"move its files to {folder}/1"
        raise UserError(f"--model: {folder} is one version of a model; {advice}")
    raise UserError(f"--model: {exports.explain_missing_export(folder)}")
