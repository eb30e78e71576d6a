"""Reading and writing files, local or on the file systems of remote.py (gs://, s3://).

A file that is written here appears under its name whole or not at all: a local one is written beside, then renamed; a
remote one is written on this machine, then sent.
"""

import contextlib
import fcntl
import functools
import glob as local_glob
import hashlib
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from official_bert.errors import UserError
from official_bert.utils.file_kinds import check_text
from official_bert.utils.remote import TEMPORARY, UNFINISHED, TensorFlowFiles, file_system, new_name
from official_bert.utils.signals import check_interrupted

MAX_JSON_BYTES = 64 << 20  # of a file of settings; the largest tokenizer.json of a BERT has some 10 MB

_SENDING = ".writing"  # is in a remote folder while its files are sent
# How HDF5 and Rust word a refusal to write, each in its own class of error.
_REFUSED = re.compile(
    r"errno = \d+, error message = '(?P<hdf5>[^']*)'|I/O error: (?P<rust>.*) \(os error \d+\)"
    r"|IoError\(Os \{.*message: \"(?P<older_rust>[^\"]*)\""
)


def is_remote(path: str) -> bool:
    """Whether the path names a file system other than the local one."""
    return "://" in path


def make_absolute(path: str) -> str:
    """Returns a local path from the root on, and a remote one as it is."""
    return path if is_remote(path) else os.path.abspath(path)


def normalize_path(path: str) -> str:
    """Returns the one spelling of a path that others of the same file can be compared with."""
    return path if is_remote(path) else os.path.normpath(path)


def refuse_overwriting(path: str, flag: str, inputs: Iterable[str]) -> None:
    """Raises a UserError if a file to be written is one of those that are read, in any spelling or by any link.

    `flag` is where it was given, without dashes.
    """
    for read in inputs:
        if is_same_file(path, read):
            also = "" if read == path else f", the same file as {read}"
            raise UserError(
                f"--{flag} would write {path}, which is an input{also}; writing would destroy it; give another name"
            )


def is_same_file(path: str, other: str) -> bool:
    """Whether two names, in any spelling or by any link, are one file, which need not be there yet."""
    if is_remote(path) or is_remote(other):
        (*scheme, name), (*other_scheme, other_name) = path.partition("://"), other.partition("://")
        return scheme == other_scheme and os.path.normpath(name) == os.path.normpath(other_name)
    if os.path.exists(path) and os.path.exists(other):
        return os.path.samefile(path, other)  # hard links, too
    return os.path.realpath(path) == os.path.realpath(other)


def work_path(path: str) -> str:
    """Returns the name on which those of unfinished work are made: `path`, or of a remote one a name in this folder."""
    if not is_remote(path):
        return path
    return f"{os.path.basename(path)}-{hashlib.sha256(path.encode()).hexdigest()[:8]}"


def resolve_links(path: str) -> str:
    """Returns the path of the file itself: without links, and from the root on; a remote one as it is."""
    return path if is_remote(path) else os.path.realpath(path)


def open_bytes(path: str) -> Any:
    """Opens a file of bytes for reading."""
    return file_system(path).open(path) if is_remote(path) else open(path, "rb")


def check_regular(path: str) -> None:
    """Raises a UserError if a local path is neither missing nor a regular file: a pipe or device never ends."""
    if not is_remote(path) and os.path.exists(path) and not os.path.isfile(path):
        kind = "a folder" if os.path.isdir(path) else "a pipe, device or socket"
        raise UserError(f"{path} is {kind}; expected a regular file")


@contextlib.contextmanager
def explain_read_errors(path: str) -> Iterator[None]:
    """Raises a UserError that names the file where reading it fails."""
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError as error:
        raise UserError(f"there is no file {path}") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    except Exception as error:  # TensorFlow's own error classes, for remote paths only
        if not is_remote(path):
            raise
        if type(error).__name__ == "NotFoundError":
            raise UserError(f"there is no file {path}") from error
        raise UserError(f"cannot read {path}: {error}") from error


def read_bytes(path: str) -> bytes:
    """Returns the file's content; a missing or unreadable file is a UserError that names it."""
    check_regular(path)
    with explain_read_errors(path), open_bytes(path) as reader:
        return bytes(reader.read())


def sha256(path: str) -> str:
    """Returns the SHA-256 of a file's content; a missing or unreadable file is a UserError that names it."""
    check_regular(path)
    with explain_read_errors(path), open_bytes(path) as reader:
        digest = hashlib.sha256()
        while chunk := reader.read(1 << 20):
            digest.update(chunk)
        return digest.hexdigest()


def read_text(path: str) -> str:
    """Returns the content of a UTF-8 file, as `decode` does."""
    return decode(path, read_bytes(path))


def decode(path: str, content: bytes) -> str:
    """Returns the text of a UTF-8 file without its byte-order mark.

    Raises:
        UserError: If the content is a file of another kind, or is not UTF-8; names the file and the line.
    """
    check_text(path, content)
    try:
        return content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise not_utf8(path, content.count(b"\n", 0, error.start) + 1, error) from error


def not_utf8(path: str, line: int, error: UnicodeDecodeError, column: str = "") -> UserError:
    """Returns the error for a line of a file that is not UTF-8."""
    byte = f"byte 0x{error.object[error.start]:02x}{column}"
    return UserError(
        f"{path}, line {line}: {byte} is not UTF-8; convert the file to UTF-8, as from Latin-1 by: iconv -f LATIN1 "
        f"-t UTF-8 {shlex.quote(path)} > NEW_FILE"
    )


def parse_json(text: str, source: str) -> Any:
    """Returns the value of a JSON text; whatever is wrong with it is a UserError that names the source."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{source} is not valid JSON: {error}") from error
    except RecursionError as error:
        raise UserError(f"{source} nests its values too deeply to be read") from error
    except ValueError as error:  # a number of thousands of digits
        raise UserError(f"{source} holds a value that cannot be read: {error}") from error


def parse_json_line(line: str) -> Any:
    """Returns the value of a line of JSON lines; a UserError says what is wrong with it, without naming a source.

    NaN and Infinity, which Python's parser takes although they are no JSON, are refused.
    """
    try:
        return json.loads(line, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise UserError("not valid JSON: it nests its values too deeply to be read") from error
    except ValueError as error:  # also for a number of thousands of digits
        raise UserError(f"not valid JSON: {error}") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no value of JSON; null stands for a missing one")


def read_json(path: str, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """Returns the value in a JSON file; a missing, too large or wrong one is a UserError that names it."""
    check_regular(path)
    if exists(path) and size(path) > max_bytes:
        raise UserError(f"{path} has {size(path):,} bytes; expected a JSON file of at most {max_bytes:,}")
    return parse_json(read_text(path), path)


def read_json_object(path: str, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Returns the object in a JSON file, as `read_json`; any other value is a UserError that names the file."""
    values = read_json(path, max_bytes)
    if not isinstance(values, dict):
        raise UserError(f"{path} holds {type(values).__name__}; expected a JSON object")
    return values


@contextlib.contextmanager
def write_folder_atomically(path: str) -> Iterator[str]:
    """Yields a local folder to write in; on leaving without an error it becomes `path`, else it is removed.

    A local one is renamed. The files of a remote one are sent one by one; until the last is there, `is_unfinished`.

    Raises:
        UserError: there is something under that name, or the file system refuses the write.
    """
    path = path.rstrip("/")
    if exists(path) and (not is_folder(path) or list_folder(path)) and not is_unfinished(path):
        raise UserError(f"{path} is there already; give the name of a new or empty folder")
    if is_remote(path):
        with explain_write_errors(path), tempfile.TemporaryDirectory(prefix=TEMPORARY) as local:
            yield local
            check_interrupted()
            _send_folder(local, path)
        return
    with explain_write_errors(path), temporary_folder_beside(path) as beside:
        yield beside
        check_interrupted()
        remove_folder(path)
        os.replace(beside, path)


def _send_folder(local: str, path: str) -> None:
    remove_folder(path)
    mark = os.path.join(path, _SENDING)
    try:
        write_text(mark, "The files of this folder are being sent, or the process that sent them was killed.\n")
        for folder, _, names in os.walk(local):
            for name in names:
                whole = os.path.join(folder, name)
                file_system(path).send(whole, os.path.join(path, os.path.relpath(whole, local)))
        remove(mark)
    except BaseException:
        remove_folder(path)
        raise


def is_unfinished(path: str) -> bool:
    """Whether not all files of a remote folder are there: they are being sent, or the sender was killed."""
    return is_remote(path) and exists(os.path.join(path, _SENDING))


def local_copy(path: str) -> str:
    """Returns a path by which TensorFlow, and what reads local files, can read a file or folder.

    It is the path itself, but of what neither this machine nor TensorFlow has: of that it is a copy in the temporary
    folder, which is removed when this process ends.

    Raises:
        UserError: the folder is unfinished.
    """
    if not is_remote(path):
        return path
    if is_unfinished(path):
        raise UserError(
            f"{path} is not complete: its files are still being sent, or the command that sent them was killed: give "
            "that command again"
        )
    return file_system(path).local_copy(path)


def check_holds_runs(path: str) -> None:
    """Raises a UserError if a folder cannot hold a run: TensorFlow writes checkpoints, and logs that grow."""
    if is_remote(path) and not isinstance(file_system(path), TensorFlowFiles):
        raise UserError(
            f"{path} cannot hold checkpoints and logs that are written while a run goes on; give a folder of this "
            f"machine or of gs://, and send the model afterwards: official-bert convert --from=FOLDER --to={path}"
        )


@contextlib.contextmanager
def write_atomically(path: str) -> Iterator[str]:
    """Yields a local path to write to; on leaving without an error that file becomes `path`, else it is removed.

    That path has the same name in a folder of its own. What else is written there is moved beside `path`; a file of
    several parts is gone from before the first to after the last is moved, so that no two are mixed.

    Raises:
        UserError: the folder cannot be made, or the file system refuses the write (a full disk, say).
    """
    if is_remote(path):
        folder, name = os.path.split(path)
        with explain_write_errors(path), tempfile.TemporaryDirectory(prefix=TEMPORARY) as local:
            yield os.path.join(local, name)
            check_interrupted()
            _move_parts(local, name, path, lambda part, to: file_system(to).send(part, to))
        return
    path = os.path.realpath(path)  # what a link points to is replaced, not the link
    if os.path.exists(path) and not os.path.isfile(path):
        raise UserError(f"{path} is not an ordinary file; give the name of one, or of none")
    folder, name = os.path.split(path)
    make_folder(folder)
    with explain_write_errors(path), temporary_folder_beside(path) as beside:
        yield os.path.join(beside, name)
        check_interrupted()
        _move_parts(beside, name, path, os.replace)


def _move_parts(source: str, name: str, path: str, move: Callable[[str, str], None]) -> None:
    parts = [part for part in os.listdir(source) if part != name]
    if parts:
        remove(path)
    for part in [*parts, name]:
        move(os.path.join(source, part), os.path.join(os.path.dirname(path), part))


@contextlib.contextmanager
def temporary_folder_beside(path: str) -> Iterator[str]:
    """Yields a new folder beside a local `path`, and removes it on leaving, unless it was renamed.

    Meanwhile it is locked, so that other processes, which remove what is not, know that it is in use.
    """
    folder, name = os.path.split(path)
    make_folder(folder or ".")
    remove_unfinished(folder or ".", re.escape(name))
    beside, descriptor = _locked_folder(path)
    try:
        yield beside
    finally:
        os.close(descriptor)
        remove_folder(beside)


def _locked_folder(path: str) -> tuple[str, int]:
    while True:
        beside = new_name(path)
        os.mkdir(beside)
        with contextlib.suppress(FileNotFoundError):  # taken for a leftover before it was locked
            descriptor = os.open(beside, os.O_RDONLY)
            with contextlib.suppress(OSError):  # this file system has no such locks: then nothing is removed either
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.exists(beside):
                return beside, descriptor
            os.close(descriptor)


def remove_unfinished(folder: str, names: str = ".*") -> None:
    """Removes what processes that were killed have left of files that they wrote into a folder, and says so.

    A file that is sent to a remote folder leaves nothing there that is unfinished.

    Args:
        folder: where to look.
        names: a regular expression of the files' whole names.
    """
    if is_remote(folder):
        return
    for left in _unfinished_in(folder):
        if not re.fullmatch(rf"(?s:{names}){re.escape(UNFINISHED)}[0-9a-f]+", left):
            continue
        whole = os.path.join(folder, left)
        try:
            descriptor = os.open(whole, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:  # gone, or not ours
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_folder(whole) if os.path.isdir(whole) else remove(whole)
            print(f"removed {whole}, which a process that was killed has left", file=sys.stderr)
        except OSError:  # it is being written
            pass
        finally:
            os.close(descriptor)


@functools.cache  # a run that writes many files into a folder looks for them once
def _unfinished_in(folder: str) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if UNFINISHED in name]
    except OSError:
        return []


@contextlib.contextmanager
def explain_write_errors(path: str) -> Iterator[None]:
    """Raises the file system's refusal to write within this context as a UserError that names the file."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error
    except Exception as error:
        if type(error).__module__.startswith("tensorflow."):  # its own class for a full disk or a closed connection
            raise UserError(f"cannot write {path}: {error}") from error
        if refused := _REFUSED.search(str(error)):
            raise UserError(f"cannot write {path}: {refused[refused.lastgroup or 0]}") from error
        raise


def write_bytes(path: str, content: bytes | memoryview) -> None:
    """Writes a whole file."""
    with write_atomically(path) as beside, open(beside, "wb") as writer:
        writer.write(content)


def write_text(path: str, text: str) -> None:
    """Writes a whole UTF-8 file."""
    write_bytes(path, text.encode("utf-8"))


def copy(source: str, target: str) -> None:
    """Copies a file, from any file system to any; the copy appears whole."""
    with open_bytes(source) as reader, write_atomically(target) as beside, open(beside, "wb") as writer:
        shutil.copyfileobj(reader, writer, 1 << 22)


def check_writable(path: str) -> None:
    """Raises a UserError unless a file of that name can be written."""
    probe = f"{path}.probe"
    with contextlib.ExitStack() as stack, write_atomically(probe) as beside, open(beside, "wb"):
        stack.callback(remove, probe)


def make_folder(path: str) -> None:
    """Makes the folder and its parents where they are missing."""
    try:
        if is_remote(path):
            file_system(path).make_folder(path)
        else:
            os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {path}: {error.strerror or error}") from error


def move(source: str, target: str) -> None:
    """Moves a local file over whatever stands under the target's name."""
    if is_remote(target):
        with explain_write_errors(target):
            file_system(target).send(source, target)
        os.remove(source)
    else:
        os.replace(source, target)


def list_folder(path: str) -> list[str]:
    """Returns the names in a folder."""
    return sorted(file_system(path).list_folder(path) if is_remote(path) else os.listdir(path))


def remove(path: str) -> None:
    """Removes the file if it is there."""
    if not is_remote(path):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # another process may have removed it
            os.remove(path)
    elif exists(path):
        file_system(path).remove(path)


def remove_folder(path: str) -> None:
    """Removes the folder, with all that is in it, if it is there."""
    if not is_remote(path):
        shutil.rmtree(path, ignore_errors=True)
    elif exists(path):
        file_system(path).remove_folder(path)


def exists(path: str) -> bool:
    """Whether there is a file or folder of that name."""
    return file_system(path).exists(path) if is_remote(path) else os.path.exists(path)


def is_folder(path: str) -> bool:
    """Whether there is a folder of that name."""
    return file_system(path).is_folder(path) if is_remote(path) else os.path.isdir(path)


def size(path: str) -> int:
    """Returns the file's length in bytes."""
    return file_system(path).size(path) if is_remote(path) else os.path.getsize(path)


def size_and_time(path: str) -> tuple[int, int]:
    """Returns the file's length in bytes and when it was last changed, in nanoseconds of an epoch."""
    if is_remote(path):
        return size(path), file_system(path).changed(path)
    local = os.stat(path)
    return local.st_size, local.st_mtime_ns


def glob(pattern: str) -> list[str]:
    """Returns the files that match a pattern, sorted."""
    return sorted(file_system(pattern).matches(pattern) if is_remote(pattern) else local_glob.glob(pattern))


def expand(patterns: list[str], flag: str) -> list[str]:
    """Returns the files that the names and glob patterns stand for, in the order given and sorted within a pattern.

    `flag` is where they were given, without dashes, for the error.

    Raises:
        UserError: nothing was given, or a pattern matches no file.
    """
    patterns = [pattern.strip() for pattern in patterns if pattern.strip()]
    if not patterns:
        raise UserError(f"--{flag} is empty; give one or more files or glob patterns, separated by commas")
    paths = []
    for pattern in patterns:
        # A name that exists is taken as it is, even with [ or * in it.
        matches = [pattern] if os.path.exists(pattern) else glob(pattern)
        folders = [match for match in matches if not is_remote(match) and os.path.isdir(match)]
        matches = [match for match in matches if is_remote(match) or os.path.isfile(match)]
        if not matches and folders:
            raise UserError(f"--{flag}: {folders[0]} is a folder; for all files in it give {folders[0]}/*")
        if not matches:
            raise UserError(f"--{flag}: no file matches {pattern!r} (looked in {os.getcwd()})")
        for match in matches:
            check_utf8(match, f"--{flag}: the name")
        paths.extend(matches)
    return paths


def check_utf8(text: str, what: str) -> None:
    """Raises a UserError, which begins with `what`, if a text from the system, such as a file's name, is not UTF-8.

    Python stands halves of surrogates for such bytes; TensorFlow, JSON and terminals take none.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        byte = ord(text[error.start]) & 0xFF
        raise UserError(
            f"{what} {text!a} holds the byte 0x{byte:02x}, which is not UTF-8; expected UTF-8: rename the file "
            "or folder"
        ) from error
