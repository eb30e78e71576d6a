"""Storage of a tokenized corpus on disk."""

import random

import numpy as np
import pytest

from data_gen.text import token_store
from data_gen.text.documents import read_corpus


def encode(sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Encodes sentences that are numbers of tokens. Each token is 1."""
    counts = list(map(int, sentences))
    return np.ones(sum(counts), np.int32), np.cumsum([0, *counts])


def test_blocks_cover_every_document_once(tmp_path):
    sizes = [random.Random(n).randint(1, 50) for n in range(200)]
    for number in range(2):
        documents = [["0"], *([str(size), "0", "1"] for size in sizes[100 * number : 100 * number + 100])]
        token_store.write_part(str(tmp_path / str(number)), documents, encode, np.dtype("<u2"), [1])
    totals = token_store.join_parts(str(tmp_path / "corpus"), [str(tmp_path / "0"), str(tmp_path / "1")])
    tokens = sum(sizes) + 200
    assert totals == {"tokens": tokens, "sentences": 400, "documents": 200, "unknown": tokens}
    store = token_store.TokenStore(str(tmp_path / "corpus"), np.dtype("<u2"))
    np.testing.assert_array_equal(store.documents, range(0, 401, 2))
    np.testing.assert_array_equal(np.diff(store.sentences), [part for size in sizes for part in (size, 1)])
    lengths = np.diff(store.sentences[store.documents])
    exact = int(lengths[:5].sum())
    assert store.blocks(exact)[0] == (0, 5)
    for limit in (1, 60, exact, 500, 10**6):
        blocks = store.blocks(limit)
        assert all(lengths[first : last - 1].sum() < limit for first, last in blocks)
        assert all(lengths[first:last].sum() >= limit for first, last in blocks[:-1])
        assert [number for block in blocks for number in range(*block)] == list(range(200))


def test_blocks_of_many_documents(tmp_path):
    count = (1 << 16) + 2  # The documents are read in groups of 1 << 16.

    def encode(sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        return np.resize([1, 2, 3], 9 * len(sentences)), np.arange(0, 9 * len(sentences) + 1, 9)

    token_store.write_part(str(tmp_path / "0"), [["1"]] * count, encode, np.dtype("<u2"), [1, 3])
    totals = token_store.join_parts(str(tmp_path / "corpus"), [str(tmp_path / "0")])
    store = token_store.TokenStore(str(tmp_path / "corpus"), np.dtype("<u2"))
    assert store.blocks(1) == [(number, number + 1) for number in range(count)]
    assert (len(store.ids), totals["unknown"]) == (9 * count, 6 * count)  # more bytes than are copied at a time


def test_a_part_that_another_worker_completes_first_is_kept(tmp_path):
    def write():
        token_store.write_part(str(tmp_path / "0"), [["1"]], encode, np.dtype("<u2"), [1], lambda: {"rows": 7})
        yield ["1", "1"]

    token_store.write_part(str(tmp_path / "0"), write(), encode, np.dtype("<u2"), [1])
    totals = token_store.join_parts(str(tmp_path / "corpus"), [str(tmp_path / "0")] * 2)
    assert (totals["tokens"], totals["rows"]) == (2, 14)
    assert token_store.join_parts(str(tmp_path / "corpus"), ["none"]) == totals


@pytest.mark.parametrize(("largest", "marked"), [(2**16 - 1, False), (2**15 - 1, True)])
def test_ids_and_marks_fit_into_the_stored_type(largest: int, marked: bool):
    types = [token_store.choose_id_dtype({"a": 0, "b": number}, marked) for number in (largest, largest + 1)]
    assert types == [np.dtype("<u2"), np.dtype("<u4")]


def test_lines_and_documents_without_tokens_are_left_out_of_a_corpus_in_memory():
    assert read_corpus(iter([["1", "0", "2"], ["0"], ["3"]]), encode) == [[[1], [1, 1]], [[1, 1, 1]]]
