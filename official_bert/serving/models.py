"""The served models: loads their versions, replaces them while requests continue, and unloads them.

Only loading happens in a thread. Everything else happens in the event loop, so that no locks are needed.
"""

import asyncio
import contextlib
import gc
import glob
import itertools
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from official_bert.checkpoints import checksums
from official_bert.errors import UserError
from official_bert.inference import backends, exports, reference_answers
from official_bert.inference.predictor import Predictor
from official_bert.serving import logs
from official_bert.serving.batching import Batcher, Pools
from official_bert.serving.json_api import RequestError
from official_bert.serving.metrics import Metrics
from official_bert.serving.options import ServingOptions
from official_bert.utils import files

# Patterns of the files of a version, in addition to its graph.
_FILE_PATTERNS = (("variables", "*"), ("assets*", "*"), (checksums.CHECKSUM_FILE,))
# While the server starts: maximum time between two looks at a version without checksums, however long --reload_seconds.
_ARRIVING_SECONDS = 2.0


class VersionFiles(NamedTuple):
    """The folder of a version, and a stamp that changes if one of its files does.

    Attributes:
        folder: The version's folder.
        stamp: Paths, sizes and times of the files.
        has_checksums: Whether the version has a checksum file, which lists all its files.
    """

    folder: str
    stamp: tuple[Any, ...]
    has_checksums: bool


class Version:
    """A version of a model.

    Attributes:
        state: LOADING, AVAILABLE, UNLOADING or END, as in TensorFlow Serving.
        error: Why the version could not be loaded, or empty.
        files: The version's files when it was loaded or last failed to load.
        is_checked: Whether the files were checked against checksums when they were loaded.
        num_users: Number of requests that are using the version.
        model: The loaded model. Only set in the states AVAILABLE and UNLOADING.
        batcher: The batcher of the model. Only set in the same states.
    """

    model: Predictor
    batcher: Batcher

    def __init__(self, number: int, version_files: VersionFiles) -> None:
        self.number, self.files, self.is_checked = number, version_files, version_files.has_checksums
        self.state, self.error = "LOADING", ""
        self.num_users = 0

    def should_reload(self, files_now: VersionFiles) -> bool:
        """Returns whether the version must be loaded again because its files have changed, or because it was unloaded.

        Args:
            files_now: The current files of the version.
        """
        if self.error:
            return files_now != self.files
        if self.state == "AVAILABLE":
            # Without checksums, the rest of an export may have arrived later.
            return files_now != self.files and not self.is_checked
        return self.state == "END"


class Model:
    """A served model with all its versions.

    Args:
        name: Name of the model in the URL.
        folder: Folder that contains a folder for each version, named by its number.
        pools: The server's thread pools.
        options: The options of the server.
        metrics: The server's metrics.

    Attributes:
        is_arriving: Whether `refresh` last found a version that may still be being copied.
    """

    def __init__(self, name: str, folder: str, pools: Pools, options: ServingOptions, metrics: Metrics) -> None:
        self.name = name
        self.versions: dict[int, Version] = {}
        self.is_arriving = False
        self._last_found: dict[int, VersionFiles] = {}
        self._folder, self._pools, self._options, self._metrics = folder, pools, options, metrics

    @property
    def available(self) -> list[Version]:
        """The versions that answer requests, oldest first."""
        return [version for _, version in sorted(self.versions.items()) if version.state == "AVAILABLE"]

    def find(self, digits: str | None) -> Version:
        """Returns the version with a number, or the newest version that is available.

        Args:
            digits: The number in the URL. If None, the newest version is returned.

        Raises:
            RequestError: If the version does not exist (404), or no version has been loaded yet (503).
        """
        available = {each.number: each for each in self.available}
        if not available:
            raise RequestError(503, f"{self.name} is being loaded; try again later", retry_after=1)
        # Versions have 18 digits at most, and Python refuses to parse numbers of thousands of digits.
        number = max(available) if digits is None else int(digits.lstrip("0")[:20] or 0)
        if number not in available:
            raise RequestError(
                404, f"version {number} of {self.name} is not served; available: {', '.join(map(str, available))}"
            )
        return available[number]

    @contextlib.contextmanager
    def hold(self, version: Version) -> Iterator[tuple[Predictor, Batcher]]:
        """Keeps a version loaded while a request uses it. Yields its model and its batcher."""
        version.num_users += 1
        try:
            yield version.model, version.batcher
        finally:
            version.num_users -= 1
            self._unload_if_unused(version)

    async def refresh(self) -> None:
        """Loads the new versions in the folder, then unloads the old ones.

        A new version with a checksum file is loaded if its files match it. Without a checksum file the version may be
        incomplete, so it is loaded when two calls have found the same files.
        """
        found = await asyncio.get_running_loop().run_in_executor(self._pools.loader, find_versions, self._folder)
        last_found, self._last_found = self._last_found, found
        wanted = sorted(found)[-self._options.versions :]
        self.is_arriving = False
        for number in wanted:
            known, version_files = self.versions.get(number), found[number]
            if known and not known.should_reload(version_files):
                continue
            if version_files == last_found.get(number) or (known is None and version_files.has_checksums):
                await self._load(number, version_files)
            else:
                self.is_arriving = True
        for version in self.available:
            # The newest available version stays until another wanted one can answer, even if its folder is removed.
            others = [each for each in self.available if each is not version]
            if version.number not in wanted and any(each.number in wanted for each in others):
                self._unload(version)
        self.versions = {n: each for n, each in self.versions.items() if each.state != "END" or n in found}
        if self.available:
            self._metrics.version.labels(self.name).set(self.available[-1].number)

    async def _load(self, number: int, version_files: VersionFiles) -> None:
        version, before = Version(number, version_files), self.versions.get(number)
        if before is None or before.state == "END":
            self.versions[number] = version
        loop = asyncio.get_running_loop()
        start = loop.time()
        try:
            model = await loop.run_in_executor(self._pools.loader, _load_model, version_files.folder, self._options)
        except Exception as error:
            version.state, version.error = "END", str(error)
            self._metrics.loads.labels(self.name, "failed").inc()
            logs.warning("a version cannot be loaded", model=self.name, version=number, error=str(error))
            if before:
                before.files = version_files  # The loaded model stays.
            return
        version.model = model
        version.batcher = Batcher(model, self.name, self._pools, self._options, self._metrics)
        version.state = "AVAILABLE"
        self._metrics.loads.labels(self.name, "loaded").inc()
        logs.info("loaded", model=self.name, version=number, kind=model.kind, seconds=round(loop.time() - start, 2))
        self.versions[number] = version
        if before and before.state == "AVAILABLE":
            self._unload(before)

    def _unload(self, version: Version) -> None:
        version.state = "UNLOADING"
        logs.info("unloading", model=self.name, version=version.number)
        self._unload_if_unused(version)

    def _unload_if_unused(self, version: Version) -> None:
        if version.state == "UNLOADING" and not version.num_users:
            del version.model, version.batcher
            version.state = "END"
            logs.info("unloaded", model=self.name, version=version.number)
            self._pools.loader.submit(gc.collect)  # TensorFlow's functions have reference cycles.


class Models:
    """The models of a server.

    Args:
        options: The options of the server.
        metrics: The server's metrics.

    Raises:
        UserError: If a folder does not exist or contains no version.
    """

    def __init__(self, options: ServingOptions, metrics: Metrics) -> None:
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
            raise RequestError(404, f"no model is named {name!r}; the models are {', '.join(self._models)}")
        return self._models[name]

    @property
    def ready(self) -> bool:
        """Whether every model has a version that can answer requests."""
        return all(model.available for model in self)

    async def load(self) -> None:
        """Loads all models. If a version may still be being copied, waits for it.

        Raises:
            UserError: If no version of a model can be loaded.
        """
        for model in self:
            await model.refresh()
            while model.is_arriving and not model.available:
                await asyncio.sleep(min(self._seconds, _ARRIVING_SECONDS))
                await model.refresh()
            if not model.available:
                errors = [f"version {each.number}: {each.error}" for each in model.versions.values()]
                raise UserError(f"no version of {model.name} can be loaded; " + "; ".join(errors))

    async def watch(self) -> None:
        """Periodically loads new versions of all models, until it is canceled. Errors are logged."""
        while True:
            await asyncio.sleep(self._seconds)
            for model in self:
                try:
                    await model.refresh()
                except Exception as error:
                    logs.error("cannot look for versions", error, model=model.name)


def _load_model(folder: str, options: ServingOptions) -> Predictor:
    model = backends.load_predictor(folder, options.threads)
    reference_answers.check_answers(folder, model)  # This also makes the first request fast.
    return model


def find_versions(folder: str) -> dict[int, VersionFiles]:
    """Returns the files of each version in a model's folder, by version number."""
    versions = {}
    for number, version_folder in exports.list_versions(folder).items():
        graph = exports.find_graph(version_folder)
        if graph is not None:
            escaped = glob.escape(version_folder)
            matches = [files.glob(os.path.join(escaped, *pattern)) for pattern in _FILE_PATTERNS]
            stamp = tuple((path, *files.size_and_time(path)) for path in itertools.chain([graph], *matches))
            has_checksums = files.exists(os.path.join(version_folder, checksums.CHECKSUM_FILE))
            versions[number] = VersionFiles(version_folder, stamp, has_checksums)
    return versions


def _check_folder(name: str, folder: str) -> None:
    if not files.exists(folder):
        raise UserError(f"--model: the folder {folder} of {name} does not exist; pass the folder of an export")
    if find_versions(folder):
        return
    if exports.find_graph(folder):
        parent, number = os.path.split(files.make_absolute(folder.rstrip("/")))
        advice = (
            f"pass the folder that contains it, {parent}" if number.isdecimal() else f"move its files to {folder}/1"
        )
        raise UserError(f"--model: {folder} is one version of a model; {advice}")
    raise UserError(f"--model: {exports.explain_missing_export(folder)}")
