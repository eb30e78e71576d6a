"""English prose that every Python installation carries: `python -m data_gen.python_docs --help`.

The language reference (pydoc_data) and the docstrings of the standard library, cut into sentences and documents. The
library is not run: docstrings are read from its source files.
"""

import ast
import dataclasses
import importlib.util
import os
import pkgutil
import re
import sys
import zlib
from collections.abc import Iterator

import sentencex

from official_bert import command_line, files
from official_bert.command_line import option

# Examples, tests and tools around the library; their docstrings are few and odd.
_LEFT_OUT = frozenset({"test", "tests", "idlelib", "lib2to3", "turtledemo", "pydoc_data", "this", "antigravity"})

_HELD_OUT_PERCENT = 5


@dataclasses.dataclass(frozen=True)
class Options:
    """What python_docs is told."""

    output_file: str = option(
        dataclasses.MISSING, "Text file to write: a sentence per line, empty lines between documents."
    )
    heldout_file: str = option(dataclasses.MISSING, "Text file for one document in twenty, to evaluate on.")


def reference_documents() -> Iterator[tuple[str, str]]:
    """Yields name and text of each topic of the language reference, as pydoc shows them."""
    from pydoc_data import topics

    yield from sorted(topics.topics.items())


def docstring_documents() -> Iterator[tuple[str, str]]:
    """Yields name and docstrings, joined, of each module of the standard library that has a source file."""
    for name in sorted(_module_names()):
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError, AttributeError):
            continue
        if spec is None or not spec.origin or not spec.origin.endswith(".py"):
            continue
        try:
            with open(spec.origin, encoding="utf-8") as reader:
                tree = ast.parse(reader.read())
        except (OSError, SyntaxError, UnicodeDecodeError):
            continue
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        strings = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, documented)]
        yield name, "\n\n".join(string for string in strings if string)


def _module_names() -> Iterator[str]:
    library = os.path.dirname(os.__file__)
    for name in sys.stdlib_module_names - _LEFT_OUT:
        yield name
        folder = os.path.join(library, name)
        if os.path.isdir(folder):
            for module in pkgutil.iter_modules([folder]):
                if module.name not in _LEFT_OUT:
                    yield f"{name}.{module.name}"


def sentences(text: str) -> Iterator[str]:
    """Yields the sentences of the paragraphs that are prose; code, tables, signatures and headings are left out."""
    for paragraph in re.split(r"\n\s*\n", text):
        lines = paragraph.splitlines()
        # Deeper lines within a paragraph are code, a table or a list of values.
        indents = {len(line) - len(line.lstrip()) for line in lines if line.strip()}
        if ">>>" in paragraph or len(indents) > 2:
            continue
        flat = re.sub(r"[*`]+", "", " ".join(paragraph.split()))
        for sentence in sentencex.segment("en", flat):
            sentence = sentence.strip()
            if _is_prose(sentence):
                yield sentence


def _is_prose(sentence: str) -> bool:
    words = sentence.split()
    plain = sum(word.strip(".,;:()\"'").isalpha() for word in words)
    return len(words) >= 5 and plain >= 0.8 * len(words) and sentence[0].isupper() and sentence[-1] in ".!?:"


def gather() -> tuple[list[list[str]], list[list[str]]]:
    """Returns documents of sentences, the greater part and the held-out part; no sentence is in both, or twice."""
    seen: set[str] = set()
    parts: tuple[list[list[str]], list[list[str]]] = ([], [])
    for name, text in [*reference_documents(), *docstring_documents()]:
        document = []
        for sentence in sentences(text):
            if sentence not in seen:
                seen.add(sentence)
                document.append(sentence)
        if len(document) >= 2:
            # By the name's hash, so that another version of Python holds out much the same documents.
            parts[zlib.crc32(name.encode()) % 100 < _HELD_OUT_PERCENT].append(document)
    return parts


def main(_: list[str]) -> None:
    options = command_line.read(Options)
    for path, documents in zip((options.output_file, options.heldout_file), gather(), strict=True):
        text = "\n".join("".join(sentence + "\n" for sentence in document) for document in documents)
        files.write_text(path, text)
        print(
            f"{path}: {len(documents):,} documents, {sum(map(len, documents)):,} sentences, "
            f"{len(text.encode()) / 1e6:.2f} MB"
        )


if __name__ == "__main__":
    command_line.define(Options)
    command_line.run(main)
