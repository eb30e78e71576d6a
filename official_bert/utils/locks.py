"""One process at a time for an output: two that write or resume the same one would mix what they write.

On a local file system the lock is the kernel's (flock) on a small file that is removed at the end: it ends with the
process, however that ends. Where there are no such locks, on remote file systems for instance, that file is a mark with
its owner's host, process and time, which the owner renews; it counts until it is old, or its process on this host is
gone.
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
from official_bert.utils.progress import repeating

LOCK_FILE = ".lock"

_RENEWED_EVERY = 60.0  # seconds
_STALE_AFTER = 600.0  # seconds without renewal; clocks of two machines may differ by some


@contextlib.contextmanager
def lock_folder(folder: str, flag: str) -> Iterator[None]:
    """Keeps other processes from writing into a folder within this context; makes the folder where it is missing.

    What processes that were killed have left in it is removed, also of files that will not be written again.

    `flag` is what names the folder, without dashes, for the error.

    Raises:
        UserError: another process holds the lock, or the folder cannot be written, or cannot hold a run.
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
            with contextlib.suppress(OSError):  # it is not empty
                os.rmdir(folder)


@contextlib.contextmanager
def lock_file(path: str, flag: str) -> Iterator[None]:
    """Keeps other processes from writing a file within this context, by a hidden file beside it.

    `flag` and errors are as for `lock_folder`.
    """
    path = files.real(path)
    folder, name = os.path.split(path)
    files.make_folder(folder or ".")
    with _lock(os.path.join(folder, f".{name}{LOCK_FILE}"), path, flag):
        yield


@contextlib.contextmanager
def _lock(path: str, output: str, flag: str) -> Iterator[None]:
    descriptor = None if files.is_remote(path) else _flock(path, output, flag)
    if descriptor is None:
        with _mark(path, output, flag):
            yield
        return
    try:
        yield
    finally:
        # Removed while it is locked: who has opened it before sees that it is gone, and opens another.
        with contextlib.suppress(OSError):
            os.remove(path)
        os.close(descriptor)


def _flock(path: str, output: str, flag: str) -> int | None:
    """Locks a file and returns its descriptor; None where the file system has no such locks."""
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise UserError(f"--{flag}: cannot write {path}: {error.strerror}; give another --{flag}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(descriptor, 1000).decode(errors="replace")
            os.close(descriptor)
            raise _in_use(output, flag, holder) from error
        except OSError:
            os.close(descriptor)
            return None
        with contextlib.suppress(FileNotFoundError):  # removed since it was opened, by the process that had locked it
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, _owner("").encode())
                return descriptor
        os.close(descriptor)


@contextlib.contextmanager
def _mark(path: str, output: str, flag: str) -> Iterator[None]:
    if files.exists(path) and _counts(before := files.read_text(path)):
        raise _in_use(output, flag, before)
    token = uuid.uuid4().hex
    files.write_text(path, _owner(token))
    if token not in (now := files.read_text(path)):  # another process was as quick
        raise _in_use(output, flag, now)

    def renew() -> None:
        with contextlib.suppress(UserError):  # the next renewal is soon enough
            files.write_text(path, _owner(token))

    try:
        with repeating(renew, _RENEWED_EVERY):
            yield
    finally:
        files.remove(path)


def _owner(token: str) -> str:
    """What the lock's file says of this process."""
    return json.dumps({"host": platform.node(), "process": os.getpid(), "time": time.time(), "token": token})


def _counts(mark: str) -> bool:
    """Whether a mark's owner may still be at work."""
    try:
        owner = files.parse_json(mark, "the mark")
        if owner["host"] == platform.node():
            os.kill(int(owner["process"]), 0)  # asks whether there is such a process
        return time.time() - float(owner["time"]) < _STALE_AFTER
    except ProcessLookupError:
        return False
    except PermissionError:  # there is, of another user
        return True
    except (ValueError, KeyError, TypeError):  # cut short, while it was written
        return False


def _in_use(output: str, flag: str, holder: str) -> UserError:
    try:
        owner = files.parse_json(holder, "the mark")
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(owner["time"]))
        who = f"process {owner['process']} on {owner['host']}, {since}"
    except (ValueError, KeyError, TypeError):
        who = "another process"
    return UserError(
        f"--{flag}: {output} is in use ({who}); two processes would mix what they write: wait until that one ends, or "
        f"give another --{flag}"
    )
