"""The texts that records are made from."""

import pathlib
import random
import re

import pytest

from data_gen.text import python_prose
from official_bert.tokenization.exact import SPECIAL_TOKENS

_WORDS = "the cat dog sat ran on mat in sun cats playing walked and unaffable zebra".split()


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], str]:
    """Three files of real prose, and a vocabulary of its commonest words and all letters."""
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
    vocab = folder / "vocab.txt"
    vocab.write_text("\n".join(dict.fromkeys(pieces)) + "\n", encoding="utf-8")
    return paths, str(vocab)


@pytest.fixture
def short_texts(tmp_path: pathlib.Path) -> list[str]:
    """Three files of short documents, nonsense by a seeded generator."""
    rng = random.Random(7)
    paths = []
    for number in range(3):
        lines = []
        for _ in range(6):
            for _ in range(rng.randint(1, 7)):
                lines.append(" ".join(rng.choice(_WORDS) for _ in range(rng.randint(1, 9))) + ".")
            lines.append("")
        path = tmp_path / f"text{number}.txt"
        path.write_text("\n".join(lines))
        paths.append(str(path))
    return paths
