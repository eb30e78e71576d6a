"""Stores a tokenized corpus on disk, and reads it at any position without loading it into memory.

A corpus is a folder with three files of little-endian integers: `ids` (uint16 or uint32, the ids of all tokens),
`sentences` (int64, the index of the first token of each sentence, followed by the number of tokens) and `documents`
(int64, the index of the first sentence of each document, followed by the number of sentences). The tokens of a document
are adjacent, so a segment is a range of tokens.
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
    """Returns uint16 if all token ids fit into it, or else uint32, as little-endian data type.

    Args:
        vocab: The id of each token.
        marked: Whether ids may contain the marks of word_boundaries.py, which double the range.
    """
    return np.dtype("<u2" if (1 + marked) * (max(vocab.values()) + 1) <= 2**16 else "<u4")


def write_part(
    folder: str,
    documents: Iterable[list[str]],
    encode: Encode,
    dtype: np.dtype,
    unk_ids: Sequence[int],
    other_counts: Callable[[], dict[str, int]] = dict,
) -> None:
    """Tokenizes documents and writes them to a folder, atomically.

    Sentences without tokens and documents without sentences are left out. The folder is part of a corpus, to be merged
    by `join_parts`.

    Args:
        folder: The folder to write. If it exists, nothing is done.
        documents: Documents, each a list of sentences.
        encode: Function that tokenizes a list of sentences. It returns the ids of all tokens, and row splits: the index
            of the first id of each sentence, followed by the number of ids.
        dtype: Data type of the ids in the file.
        unk_ids: The ids of [UNK], with and without a mark, to count unknown tokens.
        other_counts: Function that is called after all documents have been read, and returns additional counts to
            store.
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
        for batch, number_of in _group_documents(documents):
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


def _group_documents(documents: Iterable[list[str]]) -> Iterator[tuple[list[str], np.ndarray]]:
    """Groups documents into batches of about _SENTENCES_AT_ONCE sentences.

    Yields:
        The sentences of a batch, and for each sentence the index of its document within the batch.
    """
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
    """Merges the folders that `write_part` wrote into one corpus. The parts are kept.

    Args:
        folder: Folder of the corpus. If it is already complete, nothing is done.
        parts: The folders of the parts.

    Returns:
        Counts by name: tokens, sentences, documents, unknown, and the additional counts of the parts.
    """
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
    """A tokenized corpus on disk whose files are memory-mapped.

    Attributes:
        ids: The ids of all tokens.
        sentences: Index of the first token of each sentence, followed by the number of tokens.
        documents: Index of the first sentence of each document, followed by the number of sentences.
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
        return len(self.documents) - 1

    def release(self) -> None:
        """Releases the memory of the mapped files, which random reads would otherwise gradually bring into memory."""
        for each in self._maps:
            each.madvise(mmap.MADV_DONTNEED)

    def blocks(self, tokens: int) -> list[tuple[int, int]]:
        """Splits the corpus into ranges of documents, [first, end), of about `tokens` tokens each.

        A range contains at least one document.
        """
        ranges = []
        first = begin = 0
        for start in range(0, self.num_documents, 1 << 16):
            firsts = self.documents[start : start + (1 << 16) + 1]
            for document, end in enumerate(self.sentences[firsts[1:]].tolist(), start=start + 1):
                if end - begin >= tokens or document == self.num_documents:
                    ranges.append((first, document))
                    first, begin = document, end
        return ranges
