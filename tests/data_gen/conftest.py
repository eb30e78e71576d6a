"""Texts that records are made from."""

import pathlib
import random
import re
from collections.abc import Callable

import pytest

from data_gen.options import RecordOptions
from data_gen.text import python_prose
from official_bert.tokenization.exact import SPECIAL_TOKENS
from tests.make import write_text

_WORDS = "the cat dog sat ran on mat in sun cats playing walked and unaffable zebra".split()


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], str]:
    """Three files of real prose, and a vocabulary of their most frequent words and all letters."""
    folder = tmp_path_factory.mktemp("corpus")
    documents, _ = python_prose.gather()
    paths = []
    for number in range(3):
        path = folder / f"text{number}.txt"
        path.write_text("\n\n".join("\n".join(document) for document in documents[number::3][:40]), encoding="utf-8")
        paths.append(str(path))
    counts: dict[str, int] = {}
    for path in paths:
        for word in pathlib.Path(path).read_text(encoding="utf-8").lower().split():
            counts[word] = counts.get(word, 0) + 1
    common = sorted((word for word in counts if re.fullmatch("[a-z]{2,}", word)), key=counts.__getitem__)[-800:]
    letters = [chr(code) for code in range(33, 127) if not chr(code).isupper()]
    pieces = [*SPECIAL_TOKENS, *letters, *("##" + letter for letter in letters), *common]
    vocab = write_text(folder / "vocab.txt", "\n".join(dict.fromkeys(pieces)) + "\n")
    return paths, vocab


@pytest.fixture
def short_texts(tmp_path: pathlib.Path) -> list[str]:
    """Three files of short nonsense documents from a seeded generator."""
    rng = random.Random(7)
    paths = []
    for number in range(3):
        lines = []
        for _ in range(6):
            for _ in range(rng.randint(1, 7)):
                lines.append(" ".join(rng.choice(_WORDS) for _ in range(rng.randint(1, 9))) + ".")
            lines.append("")
        path = write_text(tmp_path / f"text{number}.txt", "\n".join(lines))
        paths.append(path)
    return paths


@pytest.fixture
def short_options(short_texts: list[str], vocab_file: str, tmp_path: pathlib.Path) -> Callable[..., RecordOptions]:
    """Builds record options for the short texts."""
    outputs = [str(tmp_path / "a.tfrecord"), str(tmp_path / "b.tfrecord")]
    paths = {"input_file": short_texts, "output_file": outputs, "vocab_file": vocab_file}
    sizes = {"max_seq_length": 24, "max_predictions_per_seq": 4, "dupe_factor": 3}
    return lambda **changes: RecordOptions(**{**paths, **sizes, "algorithm": "reference", **changes})  # type: ignore[arg-type]
