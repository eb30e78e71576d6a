"""The file systems of paths with "://": TensorFlow's where it knows the scheme (gs://), else those of fsspec (s3://).

fsspec needs a package for each kind of store. Files are sent whole: a store may keep what was written so far of a file
whose writer has failed.
"""

import contextlib
import functools
import glob
import os
import posixpath
import tempfile
import uuid
from collections.abc import Iterator
from typing import Any

from official_bert.errors import UserError
from official_bert.utils import extras

TEMPORARY = "official_bert-"  # begins the names of folders for files on their way, which a killed process leaves
UNFINISHED = ".writing-"  # what is written has this in its name, and then digits

# Here a file appears when all of it was sent. Folders are but the beginnings of names: who makes one makes a bucket.
_OBJECT_STORES = {"s3", "s3a", "abfs", "abfss", "az"}


def new_name(path: str) -> str:
    """Returns a name beside `path` that no other process, here or elsewhere, has had or will have."""
    return f"{path}{UNFINISHED}{uuid.uuid4().hex[:12]}"


class TensorFlowFiles:
    """The files that TensorFlow reads and writes itself."""

    def __init__(self) -> None:
        import tensorflow as tf  # late: it takes seconds, and most files are local

        self._gfile = tf.io.gfile

    def knows(self, path: str) -> bool:
        """Whether the path has one of TensorFlow's schemes."""
        return path.split("://")[0] in self._gfile.get_registered_schemes()

    def open(self, path: str) -> Any:
        return self._gfile.GFile(path, "rb")

    def send(self, local: str, path: str) -> None:
        beside = new_name(path)
        self._gfile.makedirs(os.path.dirname(path))
        try:
            self._gfile.copy(local, beside)
            self._gfile.rename(beside, path, overwrite=True)
        except BaseException:
            self.remove(beside)
            raise

    def local_copy(self, path: str) -> str:
        return path  # whose readers are TensorFlow's, or say that they want a local file

    def make_folder(self, path: str) -> None:
        self._gfile.makedirs(path)

    def list_folder(self, path: str) -> list[str]:
        return [name.rstrip("/") for name in self._gfile.listdir(path)]  # some mark folders so

    def remove(self, path: str) -> None:
        self._gfile.remove(path)

    def remove_folder(self, path: str) -> None:
        self._gfile.rmtree(path)

    def exists(self, path: str) -> bool:
        return bool(self._gfile.exists(path))

    def is_folder(self, path: str) -> bool:
        return bool(self._gfile.isdir(path))

    def size(self, path: str) -> int:
        return int(self._gfile.stat(path).length)

    def changed(self, path: str) -> int:
        return int(self._gfile.stat(path).mtime_nsec)

    def matches(self, pattern: str) -> list[str]:
        return list(map(str, self._gfile.glob(pattern)))


class FsspecFiles:
    """The files of a store that fsspec knows, as `path` names it. What the store refuses is a UserError."""

    def __init__(self, path: str) -> None:
        import fsspec

        try:
            self._store, _ = fsspec.url_to_fs(path)
        except ImportError as error:  # fsspec's own words name the package
            cause = error.__cause__
            raise (
                isinstance(cause, ModuleNotFoundError) and extras.explain_missing_package(cause, "remote")
            ) or UserError(f"cannot use {path}: {error}") from error
        except ValueError as error:  # nobody knows such paths
            raise UserError(f"cannot use {path}: {error}") from error
        self._store.invalidate_cache()  # of listings: other processes write, too
        protocols = self._store.protocol
        self._is_object_store = bool(_OBJECT_STORES & {*([protocols] if isinstance(protocols, str) else protocols)})

    def open(self, path: str) -> Any:
        with _refusals_explained("read", path):
            return self._store.open(path, "rb")

    def send(self, local: str, path: str) -> None:
        with _refusals_explained("write", path, is_read=False):
            if self._is_object_store:
                self._store.put_file(local, path)
                return
            folder = posixpath.dirname(path)
            beside = posixpath.join(folder, new_name(""))  # mv would take a name with [ or * in it for a pattern
            self._store.makedirs(folder, exist_ok=True)
            try:
                self._store.put_file(local, beside)
                self._store.mv(beside, path)
            except BaseException:
                self.remove(beside)
                raise

    def local_copy(self, path: str) -> str:
        with _refusals_explained("read", path):
            described = self._store.find(path, detail=True)
            if not described:
                return path
            root = self._store._strip_protocol(path).rstrip("/")
            # Size, time, hash, ...: what is changed is fetched again.
            return _fetched(self._store, root, tuple(sorted((name, str(described[name])) for name in described)))

    def make_folder(self, path: str) -> None:
        if not self._is_object_store:
            with _refusals_explained("make the folder", path, is_read=False):
                self._store.makedirs(path, exist_ok=True)

    def list_folder(self, path: str) -> list[str]:
        with _refusals_explained("read", path):
            names = [name.rstrip("/") for name in self._store.ls(path, detail=False)]
        # The folder itself is listed where it was made as an empty file.
        return [posixpath.basename(name) for name in names if name != self._store._strip_protocol(path).rstrip("/")]

    def remove(self, path: str) -> None:
        with _refusals_explained("remove", path):
            self._store.rm_file(path)

    def remove_folder(self, path: str) -> None:
        with _refusals_explained("remove", path):
            if not glob.has_magic(path):
                self._store.rm(path, recursive=True)
                return
            for name in self._store.find(path):  # rm would take the path for a pattern
                self._store.rm_file(name)

    def exists(self, path: str) -> bool:
        with _refusals_explained("read", path):
            return bool(self._store.exists(path))

    def is_folder(self, path: str) -> bool:
        with _refusals_explained("read", path):
            return bool(self._store.isdir(path))

    def size(self, path: str) -> int:
        with _refusals_explained("read", path):
            return int(self._store.size(path))

    def changed(self, path: str) -> int:
        with _refusals_explained("read", path):
            return int(self._store.modified(path).timestamp() * 1e9)

    def matches(self, pattern: str) -> list[str]:
        with _refusals_explained("read", pattern):
            return [self._store.unstrip_protocol(name) for name in self._store.glob(pattern)]


def file_system(path: str) -> TensorFlowFiles | FsspecFiles:
    """Returns the file system of a path with "://".

    Raises:
        UserError: neither TensorFlow nor fsspec knows it, or the package of that store is missing.
    """
    of_tensorflow = TensorFlowFiles()
    return of_tensorflow if of_tensorflow.knows(path) else FsspecFiles(path)


@contextlib.contextmanager
def _refusals_explained(what: str, path: str, is_read: bool = True) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # of Python's, of the store's package, of the library beneath that
        if is_read and isinstance(error, FileNotFoundError):
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"cannot {what} {path}: {reason}") from error


@functools.cache
def _fetched_into() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix=TEMPORARY)  # is removed when the process ends


@functools.cache
def _fetched(store: Any, root: str, described: tuple[tuple[str, str], ...]) -> str:
    """Fetches a file, or all of a folder; returns its path."""
    target = os.path.join(tempfile.mkdtemp(dir=_fetched_into().name), posixpath.basename(root))
    names = [name for name, _ in described]
    inner = [name[len(root) :] for name in names]
    if any(".." in name.split("/") for name in inner):  # a store takes any name
        raise UserError(f"{root} holds a file whose name has ..; it is not fetched")
    store.get(names, [target + name for name in inner])
    return target
