"""Access to remote files: through TensorFlow for schemes that it supports, such as gs://, and otherwise through fsspec.

fsspec needs an additional package for each kind of storage, such as s3fs for s3://. Files are uploaded only when they
are complete, because a storage service may keep the beginning of a file whose writer failed.
"""

import contextlib
import functools
import glob
import os
import posixpath
import tempfile
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from official_bert.errors import UserError
from official_bert.utils import extras

TEMPORARY_PREFIX = "official_bert-"  # of folders in the system's temporary folder
TEMPORARY_SUFFIX = ".writing-"  # with hexadecimal digits, of files that are written next to their final path

# In object storage, an upload is atomic. Folders are only prefixes of names, and creating one would create a bucket.
_OBJECT_STORES = {"s3", "s3a", "abfs", "abfss", "az"}


def temporary_name(path: str) -> str:
    """Returns a unique name for a temporary file in the same folder as `path`."""
    return f"{path}{TEMPORARY_SUFFIX}{uuid.uuid4().hex[:12]}"


@contextlib.contextmanager
def _temporary_file(path: str, remove: Callable[[str], Any]) -> Iterator[str]:
    """Yields a temporary name for an upload to `path`, and removes the file if the upload fails."""
    temporary = temporary_name(path)
    try:
        yield temporary
    except BaseException:
        with contextlib.suppress(Exception):  # it may not exist
            remove(temporary)
        raise


class TensorFlowFiles:
    """Operations on remote files whose scheme TensorFlow supports."""

    def __init__(self) -> None:
        import tensorflow as tf  # slow, and most files are local

        self._gfile = gfile = tf.io.gfile
        self.exists, self.is_folder, self.matches = gfile.exists, gfile.isdir, gfile.glob
        self.make_folder, self.remove, self.remove_folder = gfile.makedirs, gfile.remove, gfile.rmtree

    def supports(self, path: str) -> bool:
        """Returns whether TensorFlow supports the scheme of a path."""
        return path.split("://")[0] in self._gfile.get_registered_schemes()

    def open(self, path: str) -> Any:
        return self._gfile.GFile(path, "rb")

    def upload(self, local: str, path: str) -> None:
        self._gfile.makedirs(os.path.dirname(path))
        with _temporary_file(path, self.remove) as temporary:
            self._gfile.copy(local, temporary)
            self._gfile.rename(temporary, path, overwrite=True)

    def local_copy(self, path: str) -> str:
        return path  # TensorFlow reads it directly

    def list_folder(self, path: str) -> list[str]:
        return [name.rstrip("/") for name in self._gfile.listdir(path)]  # some file systems mark folders with a slash

    def size(self, path: str) -> int:
        return int(self._gfile.stat(path).length)

    def modified(self, path: str) -> int:
        return int(self._gfile.stat(path).mtime_nsec)


class FsspecFiles:
    """Operations on remote files through fsspec. Failed operations raise UserErrors."""

    def __init__(self, path: str) -> None:
        import fsspec

        try:
            self._store, _ = fsspec.url_to_fs(path)
        except ImportError as error:  # fsspec's message names the package
            cause = error.__cause__
            raise (
                isinstance(cause, ModuleNotFoundError) and extras.explain_missing_package(cause, "remote")
            ) or UserError(f"cannot use {path}: {error}") from error
        except ValueError as error:  # unknown scheme
            raise UserError(f"cannot use {path}: {error}") from error
        store = self._store
        store.invalidate_cache()  # other processes may have written files
        read = functools.partial(_convert_errors, "read")
        self.exists, self.is_folder = read(store.exists), read(store.isdir)
        self.open, self.remove = read(store.open), _convert_errors("remove", store.rm_file)
        self._has_own_mv = type(store).mv is not fsspec.AbstractFileSystem.mv
        protocols = store.protocol
        self._is_object_store = bool(_OBJECT_STORES & {*([protocols] if isinstance(protocols, str) else protocols)})

    def size(self, path: str) -> int:
        with _explain_errors("read", path):
            size: int | None = self._store.size(path)
        if size is None:  # an HTTP server may leave it out
            raise UserError(f"{path} cannot be used: the server does not report its size. Download it first.")
        return size

    def upload(self, local: str, path: str) -> None:
        with _explain_errors("write", path):
            if self._is_object_store:
                self._store.put_file(local, path)
                return
            self._store.makedirs(posixpath.dirname(path), exist_ok=True)
            with _temporary_file(path, self.remove) as temporary:
                self._store.put_file(local, temporary)
                self._move(temporary, path)

    def _move(self, source: str, target: str) -> None:
        if self._has_own_mv:
            self._store.mv(source, target)
        else:  # fsspec's mv copies, too, but interprets [ and * as patterns
            self._store.cp_file(source, target)
            self._store.rm_file(source)

    def local_copy(self, path: str) -> str:
        with _explain_errors("read", path):
            described = self._store.find(path, detail=True)
            if not described:
                return path
            root = self._store._strip_protocol(path).rstrip("/")
            for name in described:
                if ".." in name.removeprefix(root).split("/"):  # it would leave the folder of the copy
                    raise UserError(f"cannot download {path}: the file name {name!r} contains a folder ..; rename it")
            # Size, time, hash and so on: a changed file is downloaded again.
            return _download(self._store, root, tuple(sorted((name, str(described[name])) for name in described)))

    def make_folder(self, path: str) -> None:
        if not self._is_object_store:
            with _explain_errors("create the folder", path):
                self._store.makedirs(path, exist_ok=True)

    def list_folder(self, path: str) -> list[str]:
        with _explain_errors("read", path):
            names = [name.rstrip("/") for name in self._store.ls(path, detail=False)]
        # A folder that was created as an empty file lists itself.
        return [posixpath.basename(name) for name in names if name != self._store._strip_protocol(path).rstrip("/")]

    def remove_folder(self, path: str) -> None:
        with _explain_errors("remove", path):
            if not glob.has_magic(path):
                self._store.rm(path, recursive=True)
                return
            for name in self._store.find(path):  # rm interprets the path as a pattern
                self._store.rm_file(name)
            if not self._is_object_store:
                for folder in sorted(self._store.find(path, withdirs=True), reverse=True):
                    self._store.rmdir(folder)

    def modified(self, path: str) -> int:
        with _explain_errors("read", path):
            return int(self._store.modified(path).timestamp() * 1e9)

    def matches(self, pattern: str) -> list[str]:
        with _explain_errors("read", pattern):
            return [self._store.unstrip_protocol(name) for name in self._store.glob(pattern)]


def file_system(path: str) -> TensorFlowFiles | FsspecFiles:
    """Returns the object through which a remote path is read and written.

    Raises:
        UserError: If neither TensorFlow nor fsspec supports the scheme, or a package is missing.
    """
    tensorflow_files = TensorFlowFiles()
    return tensorflow_files if tensorflow_files.supports(path) else FsspecFiles(path)


@contextlib.contextmanager
def _explain_errors(action: str, path: str) -> Iterator[None]:
    try:
        yield
    except (UserError, FileNotFoundError):  # files.py reports missing files
        raise
    except Exception as error:  # from Python, the storage's package, or a library that it uses
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"cannot {action} {path}: {reason}") from error


def _convert_errors(action: str, operation: Callable[[str], Any]) -> Callable[[str], Any]:
    """Returns an operation on a path whose errors are converted to UserErrors."""

    def run(path: str) -> Any:
        with _explain_errors(action, path):
            return operation(path)

    return run


@functools.cache
def _download_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix=TEMPORARY_PREFIX)  # removed when the process ends


@functools.cache
def _download(store: Any, root: str, versions: tuple[tuple[str, str], ...]) -> str:
    """Downloads a file or a folder once per process, and returns the local path.

    Args:
        store: The fsspec file system.
        root: The remote file or folder.
        versions: The path and the version of each remote file. If a version has changed, the files are downloaded
            again.
    """
    target = os.path.join(tempfile.mkdtemp(dir=_download_folder().name), posixpath.basename(root))
    names = [name for name, _ in versions]
    store.get(names, [target + name.removeprefix(root) for name in names])
    return target
