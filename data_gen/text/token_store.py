"""A tokenized corpus on disk, read at any position without holding it in memory.

Three files contain little-endian integers: `ids` (uint16 or uint32, all tokens), `sentences` (int64, the index of the
first token of each sentence, and the end) and `documents` (int64, the index of the first sentence of each document, and
the end). The tokens of a document are adjacent, so a segment is a range of tokens.
"""

import contextlib
import io
import json
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from official_bert.utils import files

_SENTENCES_AT_ONCE = 8192

IDS, SENTENCES, DOCUMENTS, COMPLETE = "ids", "sentences", "documents", "complete.json"
_NAMES = (IDS, SENTENCES, DOCUMENTS)

Encode = Callable[[list[str]], tuple[np.ndarray, np.ndarray]]


def choose_id_dtype(vocab: dict[str, int], marked: bool = False) -> np.dtype:
    """Returns the smallest data type for all ids, with or without the marks of word_boundaries.py."""
    return np.dtype("<u2" if (1 + marked) * (max(vocab.values()) + 1) <= 2**16 else "<u4")


def write_part(
    folder: str,
    documents: Iterable[list[str]],
    encode: Encode,
    dtype: np.dtype,
    unk_ids: Sequence[int],
    other_counts: Callable[[], dict[str, int]] = dict,
) -> None:
    """Tokenizes the documents of one input and writes them to a folder atomically.

    Sentences without tokens and documents without sentences are left out.

    Args:
        folder: The folder to write. If it exists, nothing is done.
        documents: Lists of sentences.
        encode: Returns the ids of some sentences, the index of the first id of each sentence, and the end.
        dtype: Data type of the ids in the file.
        unk_ids: The ids to count as unknown.
        other_counts: Returns additional counts after all documents have been read.
    """
    if os.path.exists(folder):
        return
    with files.create_temporary_folder(folder) as beside:
        summary = _write_documents(beside, documents, encode, dtype, unk_ids) | other_counts()
        with open(os.path.join(beside, COMPLETE), "w") as writer:
            json.dump(summary, writer)
        try:
            os.rename(beside, folder)
        except OSError:
            if not os.path.exists(folder):  # Another worker may have completed the same task.
                raise


def _write_documents(
    folder: str, documents: Iterable[list[str]], encode: Encode, dtype: np.dtype, unk_ids: Sequence[int]
) -> dict[str, int]:
    tokens = sentences = unknown = count = 0
    with contextlib.ExitStack() as stack:
        ids_file, sentences_file, documents_file = _create_files(folder, stack)
        for batch, number_of in _batches(documents):
            ids, splits = encode(batch)
            unknown += sum(int(np.count_nonzero(ids == unk_id)) for unk_id in unk_ids)
            ids_file.write(ids.astype(dtype).data)
            lengths = np.diff(splits)
            kept = lengths > 0
            sentences_file.write((tokens + splits[:-1][kept]).astype("<i8").data)
            # Number of remaining sentences of each document in the batch.
            per_document = np.bincount(number_of[kept])
            starts = sentences + np.cumsum(per_document) - per_document
            documents_file.write(starts[per_document > 0].astype("<i8").data)
            tokens += int(splits[-1])
            sentences += int(kept.sum())
            count += int((per_document > 0).sum())
        sentences_file.write(np.array([tokens], "<i8").data)
        documents_file.write(np.array([sentences], "<i8").data)
    return {"tokens": tokens, "sentences": sentences, "documents": count, "unknown": unknown}


def _batches(documents: Iterable[list[str]]) -> Iterator[tuple[list[str], np.ndarray]]:
    """Yields batches of sentences of complete documents, with the index of each sentence's document in the batch."""
    batch: list[str] = []
    numbers: list[int] = []
    count = 0
    for document in documents:
        batch += document
        numbers += [count] * len(document)
        count += 1
        if len(batch) >= _SENTENCES_AT_ONCE:
            yield batch, np.array(numbers)
            batch, numbers, count = [], [], 0
    if batch:
        yield batch, np.array(numbers)


def join_parts(folder: str, parts: list[str]) -> dict[str, int]:
    """Concatenates parts into one corpus and keeps the parts. Returns the numbers of tokens, documents, ..."""
    totals = {"tokens": 0, "sentences": 0, "documents": 0, "unknown": 0}
    complete = os.path.join(folder, COMPLETE)
    if os.path.exists(complete):
        return files.read_json_object(complete)
    files.make_folder(folder)
    with contextlib.ExitStack() as stack:
        targets = _create_files(folder, stack)
        for part in parts:
            shifts = (None, totals["tokens"], totals["sentences"])
            for name, target, shift in zip(_NAMES, targets, shifts, strict=True):
                for values in _read_chunks(os.path.join(part, name), "<i8" if shift is not None else "u1"):
                    target.write((values if shift is None else values + shift).data)
                if shift is not None:
                    target.seek(-8, os.SEEK_CUR)  # The end of this part is the start of the next one.
                    target.truncate()
            for name, value in files.read_json_object(os.path.join(part, COMPLETE)).items():
                totals[name] = totals.get(name, 0) + value
        for target, end in zip(targets[1:], (totals["tokens"], totals["sentences"]), strict=True):
            target.write(np.array([end], "<i8").data)
    files.write_text(complete, json.dumps(totals))
    return totals


def _create_files(folder: str, stack: contextlib.ExitStack) -> list[io.BufferedWriter]:
    # Python's file objects, because NumPy's tofile can lose the end of a file on a full disk without an error.
    return [stack.enter_context(open(os.path.join(folder, name), "wb")) for name in _NAMES]


def _read_chunks(path: str, dtype: str) -> Iterator[np.ndarray]:
    with open(path, "rb") as reader:
        while len(values := np.fromfile(reader, dtype, 1 << 20)):
            yield values


class TokenStore:
    """A corpus whose files are mapped into memory.

    Attributes:
        ids: All tokens.
        sentences: Index of the first token of each sentence, and the end.
        documents: Index of the first sentence of each document, and the end.
    """

    def __init__(self, folder: str, dtype: np.dtype) -> None:
        self._maps: list[mmap.mmap] = []
        self.ids = self._map_file(os.path.join(folder, IDS), dtype)
        self.sentences = self._map_file(os.path.join(folder, SENTENCES), np.dtype("<i8"))
        self.documents = self._map_file(os.path.join(folder, DOCUMENTS), np.dtype("<i8"))

    def _map_file(self, path: str, dtype: np.dtype) -> np.ndarray:
        with open(path, "rb") as reader:
            self._maps.append(mmap.mmap(reader.fileno(), 0, access=mmap.ACCESS_READ))
        return np.frombuffer(self._maps[-1], dtype)

    @property
    def num_documents(self) -> int:
        """The number of documents."""
        return len(self.documents) - 1

    def release(self) -> None:
        """Releases the mapped memory. Otherwise random reads would gradually map all of the files."""
        for each in self._maps:
            each.madvise(mmap.MADV_DONTNEED)

    def blocks(self, tokens: int) -> list[tuple[int, int]]:
        """Splits the corpus into ranges of documents of about `tokens` tokens, at least one document each."""
        ranges = []
        first = begin = 0
        for start in range(0, self.num_documents, 1 << 16):
            firsts = self.documents[start : start + (1 << 16) + 1]
            for document, end in enumerate(self.sentences[firsts[1:]].tolist(), start=start + 1):
                if end - begin >= tokens or document == self.num_documents:
                    ranges.append((first, document))
                    first, begin = document, end
        return ranges
