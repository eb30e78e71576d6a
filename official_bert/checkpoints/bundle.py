"""TensorFlow's checkpoint files, .index and .data: what Google's TF1 checkpoints, model garden's and ours consist of.

They carry checksums of every tensor, which TensorFlow compares when it reads.
"""

import contextlib
import os
import re
import tempfile
import weakref
from collections.abc import Iterator, Mapping

import tensorflow as tf

from official_bert.checkpoints.checkpoint import Array
from official_bert.checkpoints.tensors import Source
from official_bert.errors import UserError
from official_bert.utils import files

# What TensorFlow raises for a damaged or missing file: its own errors, and others where its C++ code meets Python's.
_READ_ERRORS = (ValueError, IndexError, RuntimeError, tf.errors.OpError)

_known_whole: set[tuple[object, ...]] = set()


def find_prefix(path: str) -> str:
    """Returns a checkpoint's path without .index, from a folder, one of its files or that path itself.

    Raises:
        UserError: there is none, or several in a folder that does not say which is the newest.
    """
    if files.exists(f"{path}.index"):
        return path
    base = re.sub(r"\.(index|data-\d+-of-\d+)$", "", path)
    if base != path and files.exists(f"{base}.index"):
        return base
    if not files.is_folder(path):
        raise UserError(
            f"there is no readable checkpoint {path}; give a folder, or the path of a checkpoint without .index"
        )
    prefixes = _prefixes_in(path)
    numbered = list_checkpoints(path)
    if numbered and len(numbered) == len(prefixes):
        # Of several, the newest that can be read; what is wrong with a single one is said when it is read.
        return (find_newest_complete(path) if len(numbered) > 1 else None) or numbered[0]
    if len(prefixes) > 1 and (newest := _named_by_state_file(path)):
        return newest
    if len(prefixes) != 1:
        names = ", ".join(f"{os.path.basename(name)}.index" for name in prefixes)
        raise UserError(
            f"{path} has {len(prefixes)} checkpoints ({names or 'no .index file'}) and its file named checkpoint does "
            "not say which is the newest; give the path of one without .index"
        )
    return prefixes[0]


def is_bundle(path: str) -> bool:
    """Whether there is a checkpoint of TensorFlow's at the path, whole or not."""
    return files.exists(f"{path}.index") or bool(_prefixes_in(path))


def _prefixes_in(folder: str) -> list[str]:
    """The paths without .index of all checkpoints in a folder. Its name may hold [ and *: nothing is globbed."""
    if not files.is_folder(folder):
        return []
    names = files.list_folder(folder)
    return [os.path.join(folder, name.removesuffix(".index")) for name in names if name.endswith(".index")]


def _named_by_state_file(folder: str) -> str | None:
    """The checkpoint that TensorFlow's file named checkpoint calls the newest; None where it says nothing of use."""
    try:
        newest = tf.train.latest_checkpoint(folder)
    except _READ_ERRORS:
        return None
    return str(newest) if newest else None


def list_checkpoints(folder: str, name: str | None = None) -> list[str]:
    """Returns the paths of the numbered checkpoints in a folder (ckpt-20, model.ckpt-20), the highest number first.

    TensorFlow's file named checkpoint is not asked: it may be damaged, or older than the checkpoints. The folder may be
    missing. `name` is what stands before the number; None where all must have the same, or none is returned.
    """
    matches = [(prefix, re.fullmatch(r"(.+)-(\d+)", os.path.basename(prefix))) for prefix in _prefixes_in(folder)]
    numbers = {prefix: int(match[2]) for prefix, match in matches if match and name in (None, match[1])}
    if name is None and len({match[1] for _, match in matches if match}) > 1:
        return []
    return sorted(numbers, key=lambda prefix: numbers[prefix], reverse=True)


def find_newest_complete(folder: str, name: str | None = None) -> str | None:
    """Returns the numbered checkpoint with the highest number that can be read as a whole; None where there is none.

    One that is cut short or damaged is passed over with a warning; one with an empty index was never saved as a whole.
    The arguments are those of `list_checkpoints`.

    Raises:
        UserError: there are checkpoints, but none that can be read.
    """
    damaged = []
    for prefix in list_checkpoints(folder, name):
        if not files.size(f"{prefix}.index"):
            print(f"{prefix} was not saved as a whole and is passed over", flush=True)
            continue
        damage = find_damage(prefix)
        if damage is None:
            return prefix
        print(f"warning: {prefix} is damaged and passed over: {damage}", flush=True)
        damaged.append(prefix)
    if damaged:
        raise UserError(
            f"none of the checkpoints {', '.join(damaged)} can be read; restore one from a copy, or begin anew in "
            "another folder"
        )
    return None


def find_damage(prefix: str) -> str | None:
    """Reads a checkpoint, which compares its checksums; returns what is wrong, or None where it is whole."""
    try:
        source = open_bundle(prefix)
        stats = [tf.io.gfile.stat(path) for path in (f"{prefix}.index", *_data_files(prefix))]
        identity = (prefix, *((stat.length, stat.mtime_nsec) for stat in stats))
        if identity not in _known_whole:  # those that were read once are not read again
            for name in source.shapes:
                source.read(name)
            _known_whole.add(identity)
    except UserError as error:
        return str(error)
    return None


@contextlib.contextmanager
def plain_path(prefix: str) -> Iterator[str]:
    """Yields a path of a checkpoint that TensorFlow can read within this context.

    It takes [, * and ? in a path for a pattern; a local folder of such a name is read through a link to it.
    """
    if files.is_remote(prefix) or not re.search(r"[*?\[\\]", prefix):
        yield prefix
        return
    folder, name = os.path.split(os.path.abspath(prefix))
    with tempfile.TemporaryDirectory() as temporary:
        link = os.path.join(temporary, "checkpoints")
        os.symlink(folder, link)
        yield os.path.join(link, name)


def open_bundle(prefix: str) -> Source:
    """Opens a checkpoint by its path without .index; reading a damaged tensor raises a UserError."""
    for path in (f"{prefix}.index", *_data_files(prefix)):
        files.check_regular(path)
    opened = contextlib.ExitStack()  # as long as the reader, which opens its files late
    try:
        reader = tf.train.load_checkpoint(opened.enter_context(plain_path(prefix)))
        shapes = {name: tuple(shape) for name, shape in reader.get_variable_to_shape_map().items()}
    except _READ_ERRORS as error:
        opened.close()
        raise UserError(
            f"{prefix}.index is missing or damaged: {_first_line(error)}; give a folder, or a path without .index"
        ) from error

    missing = _missing_data_files(prefix)
    if missing:
        opened.close()
        raise UserError(
            f"{prefix}.index is there, but not {', '.join(missing)} beside it; copy the checkpoint's every file"
        )

    def read(name: str) -> Array:
        try:
            value: Array = reader.get_tensor(name)
        except _READ_ERRORS as error:
            where = ", ".join(_data_files(prefix)) or f"{prefix}.data-*"
            raise UserError(
                f"{name} in {where} is damaged: {_first_line(error)}; restore the file from a copy"
            ) from error
        return value

    weakref.finalize(read, opened.close)
    return Source(prefix, shapes, read)


def _data_files(prefix: str) -> list[str]:
    folder, base = os.path.split(prefix)
    names = files.list_folder(folder or ".") if files.exists(folder or ".") else []
    return [os.path.join(folder, name) for name in names if name.startswith(f"{base}.data-")]


def _missing_data_files(prefix: str) -> list[str]:
    """The data files that should stand beside an index and do not; the name of each tells how many there are."""
    held = [os.path.basename(path) for path in _data_files(prefix)]
    counts = {match[1] for name in held if (match := re.search(r"\.data-\d+-of-(\d+)$", name))}
    if len(counts) > 1:  # files of several checkpoints; reading will tell
        return []
    count = counts.pop() if counts else "00001"
    names = [f"{os.path.basename(prefix)}.data-{number:05}-of-{count}" for number in range(int(count))]
    return [name for name in names if name not in held]


def _first_line(error: Exception) -> str:
    return str(error).split("\n")[0]


def write_bundle(prefix: str, tensors: Mapping[str, Array]) -> None:
    """Writes tensors by their names, in the names' order, as TF1's Saver did: PREFIX.index and one data file."""
    names = sorted(tensors)
    try:
        tf.raw_ops.SaveV2(
            prefix=prefix,
            tensor_names=names,
            shape_and_slices=[""] * len(names),
            tensors=[tf.constant(tensors[name]) for name in names],
        )
    except tf.errors.OpError as error:
        raise UserError(f"cannot write {prefix}: {_first_line(error)}") from error
