"""Extracts English prose from the Python installation: the language reference and the standard library's docstrings.

The docstrings are read from source files. The modules are not imported.
"""

import ast
import os
import re
import zlib
from collections.abc import Iterator

import sentencex

from data_gen.options import ProseOptions
from official_bert.errors import UserError
from official_bert.utils import files
from official_bert.utils.counting import pluralize

# Third-party packages, examples, tests and tools.
_LEFT_OUT = frozenset(
    {"site-packages", "dist-packages", "ensurepip", "test", "tests", "idlelib", "idle_test", "lib2to3", "turtledemo"}
    | {"pydoc_data", "this", "antigravity"}
)

_HELD_OUT_PERCENT = 5

_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def reference_documents() -> Iterator[tuple[str, str]]:
    """Yields the name and the text of each topic of Python's language reference."""
    from pydoc_data import topics

    yield from sorted(topics.topics.items())


def docstring_documents() -> Iterator[tuple[str, str]]:
    """Yields the name of each standard-library module and its docstrings, joined into one text."""
    library = os.path.dirname(os.__file__)
    for folder, folders, names in os.walk(library):
        folders[:] = sorted(set(folders) - _LEFT_OUT)
        for name in sorted(names):
            if not name.endswith(".py") or name.removesuffix(".py") in _LEFT_OUT:
                continue
            path = os.path.join(folder, name)
            try:
                with open(path, encoding="utf-8") as reader:
                    tree = ast.parse(reader.read())
            except (OSError, SyntaxError, UnicodeDecodeError, ValueError):
                continue  # A few files are invalid on purpose.
            strings = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, _DOCUMENTED)]
            yield os.path.relpath(path, library), "\n\n".join(string for string in strings if string)


def sentences(text: str) -> Iterator[str]:
    """Yields the sentences in the prose paragraphs of a text. Code, tables, signatures and headings are left out."""
    for paragraph in re.split(r"\n\s*\n", text):
        lines = paragraph.splitlines()
        # Paragraphs with more levels of indentation are code, tables or lists of values.
        indents = {len(line) - len(line.lstrip()) for line in lines if line.strip()}
        if ">>>" in paragraph or len(indents) > 2:
            continue
        flat = re.sub(r"[*`]+", "", " ".join(paragraph.split()))
        for sentence in sentencex.segment("en", flat):
            if _is_prose(sentence := sentence.strip()):
                yield sentence


def _is_prose(sentence: str) -> bool:
    words = sentence.split()
    plain = sum(word.strip(".,;:()\"'").isalpha() for word in words)
    return len(words) >= 5 and plain >= 0.8 * len(words) and sentence[0].isupper() and sentence[-1] in ".!?:"


def gather() -> tuple[list[list[str]], list[list[str]]]:
    """Returns training documents and held-out documents, each a list of sentences. No sentence occurs twice."""
    seen: set[str] = set()
    parts: tuple[list[list[str]], list[list[str]]] = ([], [])
    for name, text in [*reference_documents(), *docstring_documents()]:
        document = []
        for sentence in sentences(text):
            if sentence not in seen:
                seen.add(sentence)
                document.append(sentence)
        if len(document) >= 2:
            # By a hash of the name, so that other versions of Python hold out mostly the same documents.
            parts[zlib.crc32(name.encode()) % 100 < _HELD_OUT_PERCENT].append(document)
    return parts


def write(options: ProseOptions) -> None:
    """Writes training and held-out prose to two files, and prints their sizes.

    Raises:
        UserError: If both files are the same, or one exists with other contents.
    """
    if files.is_same_file(options.output_file, options.heldout_file):
        raise UserError(f"--output_file and --heldout_file are both {options.heldout_file}; pass two different files")
    parts = gather()
    texts = ["\n".join("".join(sentence + "\n" for sentence in document) for document in part) for part in parts]
    paths = options.output_file, options.heldout_file
    for flag, path, text in zip(("--output_file", "--heldout_file"), paths, texts, strict=True):
        if files.exists(path) and files.read_bytes(path) != text.encode():
            raise UserError(f"{flag}={path} exists and has other contents; pass another name, or remove the file")
    for path, text, documents in zip(paths, texts, parts, strict=True):
        files.write_text(path, text)
        print(
            f"{path}: {pluralize(len(documents), 'document')}, {pluralize(sum(map(len, documents)), 'sentence')}, "
            f"{len(text.encode()) / 1e6:.2f} MB"
        )
