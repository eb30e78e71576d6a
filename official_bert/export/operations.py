"""Compares the operations in a SavedModel with the operations that each TensorFlow Serving release supports."""

import functools
import json
import os
from collections.abc import Iterable
from typing import Any

from tensorflow.core.protobuf import saved_model_pb2

from official_bert.inference import exports
from official_bert.utils import files
from official_bert.utils.configs import find_config

_LIST = "configs/serving_operations.json"  # made by tests/golden/make_serving_operations.py


@functools.cache
def _load_operations() -> dict[str, dict[str, frozenset[str]]]:
    """Returns the attributes of each operation of TensorFlow and tensorflow-text, by release and operation."""
    releases: dict[str, dict[str, frozenset[str]]] = {}
    operations: dict[str, frozenset[str]] = {}
    for release, changes in json.loads(files.read_text(find_config(_LIST))).items():
        kept = {name: attributes for name, attributes in operations.items() if name not in changes["removed"]}
        operations = kept | {name: frozenset(attributes) for name, attributes in changes["added"].items()}
        releases[release] = operations
    return releases


def find_used(folder: str) -> dict[str, set[str]]:
    """Returns the attributes of each operation that occurs in a SavedModel's graph and functions."""
    model = saved_model_pb2.SavedModel()
    model.ParseFromString(files.read_bytes(os.path.join(folder, exports.GRAPH_FILE)))
    operations: dict[str, set[str]] = {}

    def add(nodes: Iterable[Any], functions: set[str]) -> None:
        for node in nodes:
            if node.op not in functions:
                # Every release ignores attributes that start with _, which are TensorFlow's notes.
                known = {name for name in node.attr if not name.startswith("_")}
                operations.setdefault(node.op, set()).update(known)

    for graph in (each.graph_def for each in model.meta_graphs):
        functions = {function.signature.name for function in graph.library.function}
        add(graph.node, functions)
        for function in graph.library.function:
            add(function.node_def, functions)
    return operations


def find_missing(folder: str) -> dict[str, list[str]]:
    """Returns descriptions of the operations and attributes in a SavedModel that releases of TensorFlow Serving lack.

    Returns:
        A list for each release whose operations are known, oldest first.
    """
    used = find_used(folder)
    return {release: _list_missing(used, known) for release, known in _load_operations().items()}


def _list_missing(used: dict[str, set[str]], known: dict[str, frozenset[str]]) -> list[str]:
    missing = []
    for name, attributes in sorted(used.items()):
        if name not in known:
            missing.append(name)
        elif new := attributes - known[name]:
            missing.append(f"{name} with {', '.join(sorted(new))}")
    return missing
