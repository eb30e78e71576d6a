"""The files of configs/: in the working folder, beside the checkout's packages, or where pip has put them."""

import importlib.metadata
import os

# The options whose values may name one, besides --flagfile.
NAMING_CONFIGS = frozenset({"bert_config_file", "init"})

_FOLDER = "configs/"
_INSTALLED = "share/official_bert/"  # below the environment's folder; as pyproject.toml says


def find_config(path: str) -> str:
    """Returns where the file is that `path` names: itself, unless it is configs/... and not in the working folder."""
    if not path.startswith(_FOLDER) or os.path.exists(path):
        return path
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if os.path.exists(os.path.join(root, path)):
        return os.path.join(root, path)
    try:
        installed = importlib.metadata.files("official-bert") or []
    except importlib.metadata.PackageNotFoundError:
        return path
    for each in installed:
        if each.as_posix().endswith(_INSTALLED + path):
            return os.path.normpath(str(each.locate()))
    return path
