"""English prose that every Python installation carries.

The language reference (pydoc_data) and the docstrings of the standard library, cut into sentences and documents. The
library is not run: docstrings are read from its source files.
"""

import ast
import collections
import os
import re
import zlib
from collections.abc import Iterator

import sentencex

from data_gen.options import ProseOptions
from official_bert.errors import UserError
from official_bert.utils import files
from official_bert.utils.counting import pluralize

# Other people's packages; and examples, tests and tools around the library, whose docstrings are few and odd.
_LEFT_OUT = frozenset(
    {"site-packages", "dist-packages", "ensurepip", "test", "tests", "idlelib", "idle_test", "lib2to3", "turtledemo"}
    | {"pydoc_data", "this", "antigravity"}
)

_HELD_OUT_PERCENT = 5

_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def reference_documents() -> Iterator[tuple[str, str]]:
    """Yields name and text of each topic of the language reference, as pydoc shows them."""
    from pydoc_data import topics

    yield from sorted(topics.topics.items())


def docstring_documents() -> Iterator[tuple[str, str]]:
    """Yields name and docstrings, joined, of each module of the standard library."""
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
                continue  # a few files are broken on purpose
            strings = [ast.get_docstring(node) for node in _find_documented_nodes(tree)]
            yield os.path.relpath(path, library), "\n\n".join(string for string in strings if string)


def _find_documented_nodes(module: ast.Module) -> Iterator[_Documented]:
    """Yields what may have a docstring, in the order of ast.walk, which would visit every expression too."""
    statements: collections.deque[ast.AST] = collections.deque([module])
    while statements:
        node = statements.popleft()
        if isinstance(node, _Documented):
            yield node
        inner = ast.stmt | ast.excepthandler | ast.match_case
        statements.extend(child for child in ast.iter_child_nodes(node) if isinstance(child, inner))


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
            if _is_prose(sentence := sentence.strip()):
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


def write(options: ProseOptions) -> None:
    """Writes the prose to two files, and prints how much there is; the same file twice is a UserError."""
    if files.is_same_file(options.output_file, options.heldout_file):
        raise UserError(
            f"--output_file and --heldout_file are both {options.heldout_file}; give two names, or one text is lost"
        )
    for path, documents in zip((options.output_file, options.heldout_file), gather(), strict=True):
        text = "\n".join("".join(sentence + "\n" for sentence in document) for document in documents)
        files.write_text(path, text)
        print(
            f"{path}: {pluralize(len(documents), 'document')}, {pluralize(sum(map(len, documents)), 'sentence')}, "
            f"{len(text.encode()) / 1e6:.2f} MB"
        )
