"""Finds the files of configs/, both in a checkout and in an installed package."""

import os

_FOLDER = "configs/"
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def find_config(path: str) -> str:
    """Returns the path of the installed package's file if `path` starts with configs/ and does not exist here.

    Any other path is returned unchanged.
    """
    packaged = get_packaged_path(path)
    is_packaged = path.startswith(_FOLDER) and not os.path.exists(path) and os.path.exists(packaged)
    return packaged if is_packaged else path


def get_packaged_path(path: str) -> str:
    """Returns the path at which the package contains a file or folder of configs/.

    Args:
        path: A path that starts with configs/.
    """
    return os.path.realpath(os.path.join(_PACKAGE, path))
