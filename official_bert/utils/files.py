"""Reads and writes files, local ones and those on remote file systems such as gs:// and s3:// (see remote.py).

Files are written atomically: a local file is written under a temporary name and renamed, a remote one is written to a
local temporary file and uploaded.
"""

import collections
import contextlib
import errno
import fcntl
import glob as local_glob
import hashlib
import json
import lzma
import os
import re
import shlex
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from official_bert.errors import UserError
from official_bert.utils.file_kinds import check_text
from official_bert.utils.remote import (
    TEMPORARY_PREFIX,
    TEMPORARY_SUFFIX,
    TensorFlowFiles,
    file_system,
    temporary_name,
)
from official_bert.utils.signals import check_interrupted

MAX_JSON_BYTES = 64 << 20  # for settings; the largest tokenizer.json of a BERT model has about 10 MB

_UPLOADING = ".writing"  # a file that marks a remote folder while its files are uploaded
# The operating system's reason in the messages of failed writes by HDF5 and Rust libraries.
_WRITE_FAILURE = re.compile(
    r"errno = \d+, error message = '(?P<hdf5>[^']*)'|I/O error: (?P<rust>.*) \(os error \d+\)"
    r"|IoError\(Os \{.*message: \"(?P<older_rust>[^\"]*)\""
)


def is_remote(path: str) -> bool:
    """Returns whether a path is on a file system other than the local one."""
    return "://" in path


def make_absolute(path: str) -> str:
    """Returns the absolute path of a local file, and a remote path unchanged."""
    return path if is_remote(path) else os.path.abspath(path)


def normalize_path(path: str) -> str:
    """Returns a local path without redundant parts (os.path.normpath), and a remote path unchanged."""
    return path if is_remote(path) else os.path.normpath(path)


def refuse_overwriting(path: str, flag: str, inputs: Iterable[str]) -> None:
    """Raises a UserError if an output file is also an input file, even if spelled differently or linked.

    Args:
        path: The output file.
        flag: The flag that named the output file, without dashes.
        inputs: The input files.
    """
    for input_file in inputs:
        if is_same_file(path, input_file):
            same = "" if input_file == path else f" (the same file as {input_file})"
            raise UserError(f"--{flag} would write {path}, which is an input{same}; pass another name")


def note_replacement(path: str) -> None:
    """Prints a note if an output file exists, because it will be replaced when the new one is complete."""
    if exists(path):
        print(f"note: {path} exists and will be replaced when the new file is complete", flush=True)


def is_same_file(path: str, other: str) -> bool:
    """Returns whether two paths name the same file, even if spelled differently or linked. The file need not exist."""
    if is_remote(path) or is_remote(other):
        (*scheme, name), (*other_scheme, other_name) = path.partition("://"), other.partition("://")
        return scheme == other_scheme and os.path.normpath(name) == os.path.normpath(other_name)
    if os.path.exists(path) and os.path.exists(other):
        return os.path.samefile(path, other)  # includes hard links
    return os.path.realpath(path) == os.path.realpath(other)


def work_path(path: str) -> str:
    """Returns a local path that can serve as the prefix of temporary working files for an output file.

    This is the path itself if it is local, or else a unique name in the current folder.
    """
    if not is_remote(path):
        return path
    return f"{os.path.basename(path)}-{hashlib.sha256(path.encode()).hexdigest()[:8]}"


def resolve_links(path: str) -> str:
    """Returns the absolute path of a local file with symbolic links resolved, and a remote path unchanged."""
    return path if is_remote(path) else os.path.realpath(path)


def open_bytes(path: str) -> Any:
    """Opens a file for reading bytes."""
    return file_system(path).open(path) if is_remote(path) else open(path, "rb")


def check_regular(path: str) -> None:
    """Raises a UserError if a local path exists but is not a regular file. Reading pipes and devices may never end."""
    if not is_remote(path) and os.path.exists(path) and not os.path.isfile(path):
        kind = "a folder" if os.path.isdir(path) else "a pipe, device or socket"
        raise UserError(f"{path} is {kind}; expected a regular file")


@contextlib.contextmanager
def explain_read_errors(path: str, position: Callable[[], str] = lambda: "the start") -> Iterator[None]:
    """Converts errors within the context, in which a file is read or decompressed, to UserErrors that name the file.

    Args:
        path: The file.
        position: Function that describes how far the file was read, for messages.
    """
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist") from error
    except EOFError as error:
        raise UserError(
            f"{path} ends within its compressed data, after {position()} of the text; copy or download it again"
        ) from error
    except (OSError, zlib.error, lzma.LZMAError) as error:
        raise UserError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    except Exception as error:  # the error classes of TensorFlow's and fsspec's file systems
        if not is_remote(path):
            raise
        if type(error).__name__ == "NotFoundError":
            raise UserError(f"{path} does not exist") from error
        raise UserError(f"cannot read {path}: {error or type(error).__name__}") from error


def read_bytes(path: str) -> bytes:
    """Returns the content of a file. Raises a UserError if it is missing or unreadable."""
    check_regular(path)
    with explain_read_errors(path), open_bytes(path) as reader:
        return bytes(reader.read())


def sha256(path: str, progress: Callable[[int], None] | None = None) -> str:
    """Returns the SHA-256 of a file as hexadecimal digits. Raises a UserError if the file is missing or unreadable.

    Args:
        path: The file.
        progress: Function that is called with the number of bytes of each block that was read, or None.
    """
    check_regular(path)
    with explain_read_errors(path), open_bytes(path) as reader:
        digest = hashlib.sha256()
        while chunk := reader.read(1 << 20):
            digest.update(chunk)
            if progress:
                progress(len(chunk))
        return digest.hexdigest()


def read_text(path: str) -> str:
    """Returns the text of a UTF-8 file without its byte order mark. Raises a UserError like `decode`."""
    return decode(path, read_bytes(path))


def decode(path: str, content: bytes) -> str:
    """Decodes the content of a UTF-8 file and drops a byte order mark.

    Args:
        path: The file, for error messages.
        content: The content of the file.

    Raises:
        UserError: If the content is not UTF-8 text. The message names the file and the line.
    """
    check_text(path, content)
    try:
        return content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(describe_invalid_utf8(path, line, error)) from error


def describe_invalid_utf8(path: str, line: int, error: UnicodeDecodeError, column: str = "") -> str:
    """Returns the error message for a line that is not UTF-8. It suggests a command to convert the file.

    Args:
        path: The file.
        line: The line's number, counted from 1.
        error: The error that decoding raised.
        column: The name of the table column with the invalid text, or "" if the text is not in a table.
    """
    return (
        f"{path}, line {line}: byte 0x{error.object[error.start]:02x}{column} is not UTF-8; convert the file to UTF-8, "
        f"as from Latin-1 by: iconv -f LATIN1 -t UTF-8 {shlex.quote(path)} > NEW_FILE"
    )


def parse_json(text: str, source: str = "", strict: bool = False) -> Any:
    """Returns the value of a JSON text.

    Args:
        text: The text.
        source: Where the text is from, to start error messages with. Defaults to nothing.
        strict: Whether to reject NaN and Infinity, which are not valid JSON, and objects that contain a key twice.
            Python's parser accepts both.

    Raises:
        UserError: If the text is not valid JSON.
    """
    try:
        return _STRICT_JSON.decode(text) if strict else json.loads(text)
    except (RecursionError, ValueError) as error:  # ValueError also for numbers with thousands of digits
        reason = "its values are nested too deeply" if isinstance(error, RecursionError) else error
        raise UserError(f"{source} is not valid JSON: {reason}" if source else f"not valid JSON: {reason}") from error


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value; use null for a missing value")


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        ((key, _),) = collections.Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {key!r} occurs twice in an object")
    return values


_STRICT_JSON = json.JSONDecoder(parse_constant=_reject_constant, object_pairs_hook=_make_object)


def read_json(path: str, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """Returns the value in a JSON file. Raises a UserError if it is missing, too large or not valid JSON."""
    check_regular(path)
    if exists(path) and size(path) > max_bytes:
        raise UserError(f"{path} has {size(path):,} bytes; expected a JSON file of at most {max_bytes:,}")
    return parse_json(read_text(path), path)


def read_json_object(path: str, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Returns the object in a JSON file as a dict. Raises a UserError like `read_json`, or if it is another value."""
    values = read_json(path, max_bytes)
    if not isinstance(values, dict):
        raise UserError(f"{path} contains {type(values).__name__}; expected a JSON object")
    return values


@contextlib.contextmanager
def write_folder_atomically(path: str) -> Iterator[str]:
    """Yields a temporary local folder. On exit it is moved to `path`, or removed after an exception.

    If `path` is local, the folder is renamed. If it is remote, the files are uploaded one by one, and `is_unfinished`
    returns True for `path` until all are uploaded.

    Raises:
        UserError: If `path` cannot be written or already exists, unless it is an empty or unfinished folder.
    """
    path = path.rstrip("/")
    if exists(path) and (not is_folder(path) or list_folder(path)) and not is_unfinished(path):
        raise UserError(f"{path} already exists; pass the name of a new or empty folder")
    with explain_write_errors(path), create_temporary_folder(path) as temporary:
        yield temporary
        check_interrupted()
        if is_remote(path):
            _upload_folder(temporary, path)
        else:
            remove_folder(path)
            os.replace(temporary, path)


def _upload_folder(local: str, path: str) -> None:
    remove_folder(path)
    marker = os.path.join(path, _UPLOADING)
    try:
        write_text(marker, "The files of this folder are being uploaded, or the upload was interrupted.\n")
        for folder, _, names in os.walk(local):
            for name in names:
                file = os.path.join(folder, name)
                file_system(path).upload(file, os.path.join(path, os.path.relpath(file, local)))
        remove(marker)
    except BaseException:
        remove_folder(path)
        raise


def is_unfinished(path: str) -> bool:
    """Returns whether a remote folder is incomplete, because its upload is still running or was interrupted."""
    return is_remote(path) and exists(os.path.join(path, _UPLOADING))


def local_copy(path: str) -> str:
    """Returns a path of a file or folder that TensorFlow can read.

    This is the path itself if it is local or TensorFlow supports its scheme. Otherwise it is a downloaded copy, which
    is removed when the process ends.

    Raises:
        UserError: If a remote folder is incomplete.
    """
    if not is_remote(path):
        return path
    if is_unfinished(path):
        raise UserError(
            f"{path} is not complete: its files are still being uploaded, or the upload was interrupted. Wait for "
            "the upload, or run the command that writes these files again."
        )
    return file_system(path).local_copy(path)


@contextlib.contextmanager
def link_to_plain_path(path: str) -> Iterator[str]:
    """Yields a path under which TensorFlow can read a folder or a checkpoint within this context.

    TensorFlow treats [, * and ? in a path as a pattern. A local path with such characters is read through a symbolic
    link.

    Args:
        path: A folder, or the path of a checkpoint without .index.
    """
    if is_remote(path) or not re.search(r"[*?\[\\]", path):
        yield path
        return
    folder, name = (path, "") if os.path.isdir(path) else os.path.split(path)
    with tempfile.TemporaryDirectory() as temporary:
        link = os.path.join(temporary, "link")
        os.symlink(os.path.abspath(folder), link)
        yield os.path.join(link, name) if name else link


def check_holds_runs(path: str) -> None:
    """Raises a UserError if TensorFlow cannot write checkpoints and logs on the file system of a folder."""
    if is_remote(path) and not isinstance(file_system(path), TensorFlowFiles):
        raise UserError(
            f"{path} cannot store checkpoints and logs during a run. Pass a local folder or one on gs://, and copy the "
            f"model afterwards: official-bert convert --from=FOLDER --to={path}"
        )


@contextlib.contextmanager
def write_atomically(path: str) -> Iterator[str]:
    """Yields a temporary local path to write to. On exit the file is moved to `path`, or removed after an exception.

    The temporary path has the same file name, in a temporary folder. Other files that the caller writes into this
    folder are moved as well, before the file itself. In this case an old file at `path` is removed first, so that files
    of two versions are never mixed.

    Raises:
        UserError: If the folder cannot be created or the file cannot be written, such as on a full disk.
    """
    path = resolve_links(path)  # replaces the target of a link, not the link
    check_regular(path)
    folder, name = os.path.split(path)
    with explain_write_errors(path), create_temporary_folder(path) as temporary:
        yield os.path.join(temporary, name)
        check_interrupted()
        parts = [part for part in os.listdir(temporary) if part != name]
        if parts:
            remove(path)
        for part in [*parts, name]:
            move(os.path.join(temporary, part), os.path.join(folder, part))


@contextlib.contextmanager
def create_temporary_folder(path: str) -> Iterator[str]:
    """Yields a new local temporary folder for files that are then moved to `path`.

    The folder is next to a local path, and in the system's temporary folder for a remote one. It is removed on exit,
    unless the caller renamed it. Next to a path, it is locked within the context, because other processes remove
    temporary folders that are not locked.
    """
    if is_remote(path):
        with tempfile.TemporaryDirectory(prefix=TEMPORARY_PREFIX) as temporary:
            yield temporary
        return
    folder, name = os.path.split(path)
    make_folder(folder or ".")
    remove_unfinished(folder or ".", re.escape(name))
    temporary, descriptor = _make_locked_folder(path)
    try:
        yield temporary
    finally:
        os.close(descriptor)
        remove_folder(temporary)


def _make_locked_folder(path: str) -> tuple[str, int]:
    """Returns a new temporary folder next to `path`, and its open descriptor, which holds the lock."""
    while True:
        temporary = temporary_name(path)
        os.mkdir(temporary)
        with contextlib.suppress(FileNotFoundError):  # another process removed the folder before it was locked
            descriptor = os.open(temporary, os.O_RDONLY)
            with contextlib.suppress(OSError):  # without support for locks, nothing is removed either
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.exists(temporary):
                return temporary, descriptor
            os.close(descriptor)


def remove_unfinished(folder: str, names: str = ".*") -> None:
    """Removes temporary files that killed processes left in a local folder, and prints their names.

    Args:
        folder: The folder. Remote folders never contain temporary files.
        names: A regular expression for the final names of the files, to remove only their temporary files. Defaults to
            all.
    """
    pattern = os.path.join(local_glob.escape(folder), f"*{TEMPORARY_SUFFIX}*")
    for path in local_glob.glob(pattern, include_hidden=True):
        if not re.fullmatch(rf"(?s:{names}){re.escape(TEMPORARY_SUFFIX)}[0-9a-f]+", os.path.basename(path)):
            continue
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:  # removed in the meantime, or not permitted
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_folder(path) if os.path.isdir(path) else remove(path)
            print(f"removed {path}, which an interrupted process left", file=sys.stderr)
        except OSError:  # it is being written
            pass
        finally:
            os.close(descriptor)


def is_disk_full(error: OSError) -> bool:
    """Returns whether an error reports a full disk, an exhausted quota, or a file larger than the system allows."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def explain_write_errors(path: str) -> Iterator[None]:
    """Converts errors within the context, in which a file is written, to UserErrors that name the file."""
    try:
        yield
    except OSError as error:
        advice = "; free some space" if is_disk_full(error) else ""
        raise UserError(f"cannot write {path}: {error.strerror or error}{advice}") from error
    except Exception as error:
        if type(error).__module__.startswith("tensorflow."):  # such as for a full disk
            raise UserError(f"cannot write {path}: {error}") from error
        if failure := _WRITE_FAILURE.search(str(error)):
            raise UserError(f"cannot write {path}: {failure[failure.lastgroup or 0]}") from error
        raise


def write_bytes(path: str, content: bytes | memoryview) -> None:
    """Writes a file atomically."""
    with write_atomically(path) as temporary, open(temporary, "wb") as writer:
        writer.write(content)


def write_text(path: str, text: str) -> None:
    """Writes a UTF-8 file atomically."""
    write_bytes(path, text.encode("utf-8"))


def copy(source: str, target: str) -> None:
    """Copies a file atomically. Source and target may be on different file systems, local or remote."""
    with open_bytes(source) as reader, write_atomically(target) as temporary, open(temporary, "wb") as writer:
        shutil.copyfileobj(reader, writer, 1 << 22)


def reset_permissions(path: str) -> None:
    """Gives a local file the permissions of a new file. Some libraries create files that only their owner can read."""
    umask = os.umask(0o022)
    os.umask(umask)
    os.chmod(path, 0o666 & ~umask)


def check_writable(path: str) -> None:
    """Raises a UserError if a file cannot be created or overwritten."""
    check_regular(path)
    probe = f"{path}.probe"
    with contextlib.ExitStack() as stack, write_atomically(probe) as temporary, open(temporary, "wb"):
        stack.callback(remove, probe)


def make_folder(path: str) -> None:
    """Creates a folder and its parents if they are missing."""
    try:
        if is_remote(path):
            file_system(path).make_folder(path)
        else:
            os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot create the folder {path}: {error.strerror or error}") from error


def move(source: str, target: str) -> None:
    """Moves a local file to a local or remote path, and replaces any file there."""
    if is_remote(target):
        with explain_write_errors(target):
            file_system(target).upload(source, target)
        os.remove(source)
    else:
        os.replace(source, target)


def list_folder(path: str) -> list[str]:
    """Returns the sorted names of the files in a folder."""
    return sorted(file_system(path).list_folder(path) if is_remote(path) else os.listdir(path))


def remove(path: str) -> None:
    """Removes a file if it exists."""
    if not is_remote(path):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # another process may have removed it
            os.remove(path)
    elif exists(path):
        file_system(path).remove(path)


def remove_folder(path: str) -> None:
    """Removes a folder and its content if it exists."""
    if not is_remote(path):
        shutil.rmtree(path, ignore_errors=True)
    elif exists(path):
        file_system(path).remove_folder(path)


def exists(path: str) -> bool:
    """Returns whether a file or folder exists."""
    return file_system(path).exists(path) if is_remote(path) else os.path.exists(path)


def is_folder(path: str) -> bool:
    """Returns whether a path is an existing folder."""
    return file_system(path).is_folder(path) if is_remote(path) else os.path.isdir(path)


def size(path: str) -> int:
    """Returns the size of a file in bytes."""
    return file_system(path).size(path) if is_remote(path) else os.path.getsize(path)


def size_and_time(path: str) -> tuple[int, int]:
    """Returns the size of a file in bytes, and the time of its last change in nanoseconds."""
    with explain_read_errors(path):
        if is_remote(path):
            return size(path), file_system(path).modified(path)
        local = os.stat(path)
        return local.st_size, local.st_mtime_ns


def check_unchanged(states: Mapping[str, tuple[int, int] | None]) -> None:
    """Raises a UserError if the `size_and_time` of a file differs from its value in `states`, unless that is None."""
    for path, before in states.items():
        if before is not None and size_and_time(path) != before:
            raise UserError(f"{path} changed while it was read; run the same command again")


def glob(pattern: str) -> list[str]:
    """Returns the sorted paths that match a glob pattern."""
    return sorted(file_system(pattern).matches(pattern) if is_remote(pattern) else local_glob.glob(pattern))


def expand(patterns: list[str], flag: str) -> list[str]:
    """Returns the files that match the patterns, in the order of the patterns and sorted within each pattern.

    Args:
        patterns: File names and glob patterns.
        flag: The flag that contains them, without dashes, for error messages.

    Raises:
        UserError: If the list is empty, or nothing matches a pattern.
    """
    patterns = [pattern.strip() for pattern in patterns if pattern.strip()]
    if not patterns:
        raise UserError(f"--{flag} is empty; pass one or more files or glob patterns, separated by commas")
    paths = []
    for pattern in patterns:
        # The name of an existing file may contain [ or *.
        matches = [pattern] if os.path.exists(pattern) else glob(pattern)
        folders = [match for match in matches if not is_remote(match) and os.path.isdir(match)]
        matches = [match for match in matches if is_remote(match) or os.path.isfile(match)]
        if not matches and folders:
            raise UserError(f"--{flag}: {folders[0]} is a folder; for all files in it pass {folders[0]}/*")
        if not matches:
            raise UserError(f"--{flag}: no file matches {pattern!r} (looked in {os.getcwd()})")
        for match in matches:
            check_utf8(match, f"--{flag}: the name")
        paths.extend(matches)
    return paths


def check_utf8(text: str, what: str) -> None:
    """Raises a UserError if text from the operating system, such as a file name, is not valid UTF-8.

    Python represents invalid bytes in it by surrogates, which TensorFlow, JSON and terminals reject.

    Args:
        text: The text.
        what: What the text is, to start the message with, such as "the argument".
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        byte = ord(text[error.start]) & 0xFF
        raise UserError(
            f"{what} {text!a} contains the byte 0x{byte:02x}, which is not UTF-8. Rename the file or folder."
        ) from error
