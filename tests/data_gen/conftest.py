"""Texts that records are made from."""

import collections
import functools
import os
import pathlib
import random
import re

import pytest

from data_gen.options import RecordOptions
from data_gen.text import python_prose
from official_bert.tokenization.exact import SPECIAL_TOKENS
from tests.make import write_text, write_vocab

_WORDS = "the cat dog sat ran on mat in sun cats playing walked and unaffable zebra".split()


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], str]:
    """Three files of real prose, and a vocabulary of their most frequent words and all letters."""
    folder = tmp_path_factory.mktemp("corpus")
    with pytest.MonkeyPatch.context() as patch:
        # Half a package of the standard library is enough.
        patch.setattr(os, "__file__", os.path.join(os.path.dirname(os.__file__), "asyncio", "os.py"))
        documents, _ = python_prose.gather()
    documents = documents[: len(documents) // 2]
    texts = ["\n\n".join("\n".join(document) for document in documents[number::3]) for number in range(3)]
    counts = collections.Counter(word for text in texts for word in text.lower().split())
    common = [word for word, _ in counts.most_common() if re.fullmatch("[a-z]{2,}", word)][:800]
    letters = [chr(code) for code in range(33, 127) if not chr(code).isupper()]
    tokens = dict.fromkeys([*SPECIAL_TOKENS, *letters, *("##" + letter for letter in letters), *common])
    vocab = write_vocab(folder / "vocab.txt", tokens)
    return [write_text(folder / f"text{number}.txt", text) for number, text in enumerate(texts)], vocab


@pytest.fixture
def short_texts(tmp_path: pathlib.Path) -> list[str]:
    """Three files of short nonsense documents from a seeded generator."""
    rng = random.Random(7)

    def make_document() -> str:
        return "".join(" ".join(rng.choices(_WORDS, k=rng.randint(1, 9))) + ".\n" for _ in range(rng.randint(1, 7)))

    texts = ["\n".join(make_document() for _ in range(6)) for _ in range(3)]
    return [write_text(tmp_path / f"text{number}.txt", text) for number, text in enumerate(texts)]


@pytest.fixture
def short_options(short_texts: list[str], vocab_file: str, tmp_path: pathlib.Path):
    """Builds options for records of the short texts, made by the reference algorithm."""
    paths = {"input_file": short_texts, "output_file": [str(tmp_path / f"{name}.tfrecord") for name in "ab"]}
    sizes = {"max_seq_length": 24, "max_predictions_per_seq": 4, "dupe_factor": 3}
    return functools.partial(RecordOptions, **paths, vocab_file=vocab_file, **sizes, algorithm="reference")
