"""Finds the files of configs/, in a checkout or installed with the package."""

import os

# The options, in addition to --flagfile, whose values can be paths in configs/.
NAMING_CONFIGS = frozenset({"bert_config_file", "init"})

_FOLDER = "configs/"
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def find_config(path: str) -> str:
    """Returns the path of a packaged file for a path in configs/ that does not exist, and other paths unchanged."""
    packaged = get_packaged_path(path)
    is_packaged = path.startswith(_FOLDER) and not os.path.exists(path) and os.path.exists(packaged)
    return packaged if is_packaged else path


def get_packaged_path(path: str) -> str:
    """Returns the path of a file or folder that is packaged as `path`, which starts with configs/."""
    return os.path.realpath(os.path.join(_PACKAGE, path))
