"""A job on Beam: what its workers share, and the corpus in a folder that all of them reach."""

import atexit
import contextlib
import dataclasses
import fcntl
import hashlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np

from data_gen.options import RecordOptions
from data_gen.text import token_store
from data_gen.text.token_store import TokenStore
from official_bert.utils import beam_runner, files

# The files of a part or corpus. The last one exists only if all are complete.
CORPUS_FILES = (token_store.IDS, token_store.SENTENCES, token_store.DOCUMENTS, token_store.COMPLETE)


@dataclasses.dataclass(frozen=True)
class Job:
    """What every worker knows of the job."""

    options: RecordOptions  # with paths that hold on every machine; the vocabulary is in the working folder
    inputs: list[str]  # text files
    folder: str  # the working folder
    flags: dict[str, Any]  # for the manifest

    def new(self, name: str) -> str:
        """Returns a path in the working folder that is unique."""
        return os.path.join(self.folder, f"{name}-{uuid.uuid4().hex[:12]}")

    @property
    def error(self) -> str:
        """The file of a worker's error message."""
        return os.path.join(self.folder, "error.txt")

    @property
    def formats(self) -> str:
        """The file with the formats of the input files, a line each."""
        return os.path.join(self.folder, "formats.txt")

    def reporting_errors(self) -> contextlib.AbstractContextManager[None]:
        """Within its context a user's error is written to a file, because a runner shows no more than a traceback."""
        return beam_runner.reporting_errors(self.error)


@contextlib.contextmanager
def written_folder(folder: str) -> Iterator[str]:
    """Yields a local folder to write; on leaving, its files are in `folder`, which may be remote."""
    if not files.is_remote(folder):
        yield folder
        return
    with tempfile.TemporaryDirectory() as scratch:
        local = os.path.join(scratch, "written")
        yield local
        copy_corpus(local, folder)


def copy_corpus(source: str, target: str) -> None:
    for name in CORPUS_FILES:
        files.copy(os.path.join(source, name), os.path.join(target, name))


def open_corpus(corpus: str, dtype: np.dtype) -> TokenStore:
    """Opens the corpus. A remote one is copied to the disk of this machine once, for all of its processes."""
    if not files.is_remote(corpus):
        return TokenStore(corpus, dtype)
    name = f"official_bert-{hashlib.sha256(corpus.encode()).hexdigest()[:16]}"
    local = os.path.join(tempfile.gettempdir(), name)
    with _locked(f"{local}.lock"):
        if not os.path.exists(os.path.join(local, token_store.COMPLETE)):
            copy_corpus(corpus, local)
            atexit.register(_remove, local)
        return TokenStore(local, dtype)


def _remove(folder: str) -> None:
    # Processes that have its files open can still read them; others would copy the corpus again.
    with _locked(f"{folder}.lock"):
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    """Holds a lock against other processes of this machine, and other threads."""
    with open(path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
