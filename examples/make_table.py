"""Writes a table to learn from, in two parts: `python examples/make_table.py train.csv dev.csv`.

A row is a function or class of the Python installation that runs this: its name (title), the first sentences of its
documentation (body) and what its module is about (label). Every fifth row is in the second part.
"""

import ast
import collections
import csv
import pathlib
import sys

SUBJECTS = {
    "files": "os pathlib shutil tarfile zipfile tempfile glob posixpath ntpath filecmp gzip bz2 lzma fileinput",
    "mail": "email mailbox smtplib imaplib poplib",
    "network": "http urllib socket socketserver ssl ftplib xmlrpc ipaddress wsgiref selectors",
    "numbers": "statistics fractions decimal _pydecimal random datetime _pydatetime calendar numbers colorsys",
    "tasks": "asyncio threading multiprocessing concurrent queue subprocess sched",
}

library, documented = pathlib.Path(ast.__file__).parent, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
rows: dict[str, tuple[str, str, str]] = {}  # by their text: none is in both parts
for label, modules in SUBJECTS.items():
    paths = [path for name in modules.split() for path in (library / f"{name}.py", *library.glob(f"{name}/**/*.py"))]
    for path in sorted(path for path in paths if path.exists()):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = (isinstance(node, documented) and ast.get_docstring(node)) or ""
            body = " ".join(text.split("\n\n")[0].split())
            if body.endswith(".") and 4 <= len(body.split()) <= 50:
                rows.setdefault(body, (node.name.strip("_").replace("_", " "), body, label))
by_text = [row for _, row in sorted(rows.items())]
for path, part in zip(sys.argv[1:], ([r for i, r in enumerate(by_text) if i % 5], by_text[::5]), strict=True):
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("title", "body", "label"), *part])
    print(path, *(f"{label} {count:,}" for label, count in sorted(collections.Counter(r[2] for r in part).items())))
