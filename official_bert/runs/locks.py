"""Locks on outputs: only one process at a time may write or resume a run.

On a local file system, the lock is the kernel's (flock) on a small file, which is removed at the end. The kernel
releases the lock when the process ends for any reason. On other file systems, such as remote ones, a lock file states
the host, process and time of its owner, who renews it regularly. The lock is valid until it has not been renewed for
ten minutes, or until its process, if it ran on this host, has ended.
"""

import contextlib
import fcntl
import json
import os
import platform
import time
import uuid
from collections.abc import Iterator

from official_bert.errors import UserError
from official_bert.utils import files
from official_bert.utils.progress import call_repeatedly

LOCK_FILE = ".lock"

_RENEWAL_SECONDS = 60.0
_STALE_SECONDS = 600.0  # A lock that was not renewed for this time is void. Clocks of machines may differ.


@contextlib.contextmanager
def lock_folder(folder: str, flag: str) -> Iterator[None]:
    """Locks a folder within this context. Creates the folder if it does not exist.

    Also removes temporary files that killed processes have left in the folder.

    Args:
        folder: The folder.
        flag: The flag whose value is the folder, without dashes, for error messages.

    Raises:
        UserError: If another process holds the lock, or the folder is on a file system that cannot store checkpoints,
            or cannot be written.
    """
    try:
        files.check_holds_runs(folder)
    except UserError as error:
        raise UserError(f"--{flag}: {error}") from error
    is_new = not files.exists(folder)
    files.make_folder(folder)
    try:
        with _lock(os.path.join(folder, LOCK_FILE), folder, flag):
            files.remove_unfinished(folder)
            yield
    finally:
        if is_new and not files.is_remote(folder):
            with contextlib.suppress(OSError):  # It is not empty.
                os.rmdir(folder)


@contextlib.contextmanager
def lock_file(path: str, flag: str) -> Iterator[None]:
    """Locks an output file within this context, with a hidden file next to it. See `lock_folder`."""
    path = files.resolve_links(path)
    folder, name = os.path.split(path)
    files.make_folder(folder or ".")
    with _lock(os.path.join(folder, f".{name}{LOCK_FILE}"), path, flag):
        yield


@contextlib.contextmanager
def _lock(path: str, output: str, flag: str) -> Iterator[None]:
    descriptor = None if files.is_remote(path) else _flock(path, output, flag)
    if descriptor is None:
        with _hold_lock_file(path, output, flag):
            yield
        return
    try:
        yield
    finally:
        # Removed while it is locked: a process that opened it before detects the removal and opens a new file.
        with contextlib.suppress(OSError):
            os.remove(path)
        os.close(descriptor)


def _flock(path: str, output: str, flag: str) -> int | None:
    """Locks a local lock file and returns its file descriptor, or None if the file system does not support locks.

    Args:
        path: The lock file.
        output: The output that it protects, for error messages.
        flag: The flag whose value is the output, without dashes.

    Raises:
        UserError: If another process holds the lock, or the file cannot be written.
    """
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise UserError(f"--{flag}: cannot write {path}: {error.strerror}. Pass another --{flag}.") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(descriptor, 1000).decode(errors="replace")
            os.close(descriptor)
            raise _in_use_error(output, flag, holder) from error
        except OSError:
            os.close(descriptor)
            return None
        with contextlib.suppress(FileNotFoundError):  # Removed after it was opened, by its owner.
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, _describe_owner("").encode())
                return descriptor
        os.close(descriptor)


@contextlib.contextmanager
def _hold_lock_file(path: str, output: str, flag: str) -> Iterator[None]:
    if files.exists(path) and _is_held(before := files.read_text(path)):
        raise _in_use_error(output, flag, before)
    token = uuid.uuid4().hex
    files.write_text(path, _describe_owner(token))
    if token not in (now := files.read_text(path)):  # Another process wrote at the same time.
        raise _in_use_error(output, flag, now)

    def renew() -> None:
        with contextlib.suppress(UserError):  # The next renewal is soon enough.
            files.write_text(path, _describe_owner(token))

    try:
        with call_repeatedly(renew, _RENEWAL_SECONDS):
            yield
    finally:
        files.remove(path)


def _describe_owner(token: str) -> str:
    """Returns the contents of a lock file of this process. `token` makes them unique."""
    return json.dumps({"host": platform.node(), "process": os.getpid(), "time": time.time(), "token": token})


def _is_held(content: str) -> bool:
    """Returns whether the process that wrote `content` into a lock file may still be running."""
    try:
        owner = files.parse_json(content, "the lock file")
        if owner["host"] == platform.node():
            with contextlib.suppress(PermissionError):  # It exists and belongs to another user.
                os.kill(int(owner["process"]), 0)  # Only checks whether the process exists.
        return time.time() - float(owner["time"]) < _STALE_SECONDS
    except ProcessLookupError:
        return False
    except (ValueError, KeyError, TypeError):  # The file is incomplete.
        return False


def _in_use_error(output: str, flag: str, holder: str) -> UserError:
    try:
        owner = files.parse_json(holder, "the lock file")
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(owner["time"]))
        who = f"process {owner['process']} on {owner['host']}, {since}"
    except (ValueError, KeyError, TypeError):
        who = "another process"
    return UserError(f"--{flag}: {output} is in use ({who}). Wait until that process ends, or pass another --{flag}.")
