"""Downloads, checks and unpacks Google's released checkpoints by name, such as google://uncased_L-12_H-768_A-12."""

import contextlib
import functools
import glob
import os
import sys
import zipfile

from official_bert.errors import UserError
from official_bert.utils import files

PREFIX = "google://"
ADDRESS = "https://storage.googleapis.com/bert_models"
CACHE_VARIABLE = "OFFICIAL_BERT_CACHE"

# The dates in the addresses of Google's zips. For a name with two dates, the first one.
_DATES = {
    "uncased_L-12_H-768_A-12": "2018_10_18",
    "uncased_L-24_H-1024_A-16": "2018_10_18",
    "cased_L-12_H-768_A-12": "2018_10_18",
    "cased_L-24_H-1024_A-16": "2018_10_18",
    "multilingual_L-12_H-768_A-12": "2018_11_03",
    "chinese_L-12_H-768_A-12": "2018_11_03",
    "multi_cased_L-12_H-768_A-12": "2018_11_23",
    "wwm_uncased_L-24_H-1024_A-16": "2019_05_30",
    "wwm_cased_L-24_H-1024_A-16": "2019_05_30",
}
_MINIATURES_DATE = "2020_02_20"
_MINIATURES = [
    f"uncased_L-{layers}_H-{width}_A-{width // 64}" for layers in (2, 4, 6, 8, 10, 12) for width in (128, 256, 512, 768)
]


def list_names() -> list[str]:
    """Returns the names of all of Google's releases, without google://."""
    return [*_DATES, *(name for name in _MINIATURES if name not in _DATES)]


@functools.cache
def get_local_folder(path: str) -> str:
    """Returns the local folder of a release, downloading it if necessary. Returns a path without google:// unchanged.

    Raises:
        UserError: If the name is unknown, or its zip file cannot be downloaded or is damaged.
    """
    if not path.startswith(PREFIX):
        return path
    name = path.removeprefix(PREFIX).rstrip("/")
    date = _DATES.get(name) or (_MINIATURES_DATE if name in _MINIATURES else None)
    if date is None:
        raise UserError(
            f"{path} is not one of Google's releases; the names are {', '.join(_DATES)} and "
            "uncased_L-{2,4,6,8,10,12}_H-{128,256,512,768}_A-{2,4,8,12}"
        )
    cache = os.environ.get(CACHE_VARIABLE) or os.path.join(os.path.expanduser("~"), ".cache", "official_bert")
    folder = os.path.join(cache, "google", name)
    if os.path.isfile(folder):
        raise UserError(f"{folder} is a file; expected the folder of a checkpoint. Remove it to download the folder.")
    if not files.exists(folder):
        # The zip is in the same temporary folder, which the next process removes if this one is killed.
        with files.explain_write_errors(folder), files.create_temporary_folder(folder) as temporary:
            checkpoint = _download(f"{ADDRESS}/{date}/{name}.zip", temporary, folder)
            if not files.exists(folder):  # Otherwise another process has finished first.
                os.replace(checkpoint, folder)
    return folder


def _download(address: str, temporary: str, folder: str) -> str:
    """Downloads and unpacks a zip into a temporary folder. Returns the folder of the checkpoint in it."""
    import keras  # imported late, because the names of the releases are listed without it

    unpacked = os.path.join(temporary, "unpacked")
    try:
        with contextlib.redirect_stdout(sys.stderr):  # for the progress bar
            zip_file = keras.utils.get_file("release.zip", address, cache_dir=temporary, cache_subdir="")
        with zipfile.ZipFile(zip_file) as opened:
            opened.extractall(unpacked)  # compares the checksum of each file
    except Exception as error:  # errors of urllib, zipfile and of Keras, which has no class for them
        raise UserError(
            f"cannot download {address}, or it was damaged on the way: {error}. Try again, or download it on any "
            f"machine, unpack it, and pass its folder or copy the folder to {folder}."
        ) from error
    found = glob.glob(os.path.join(glob.escape(unpacked), "**", "bert_config.json"), recursive=True)
    if not found:
        raise UserError(f"{address} contains no checkpoint")
    return os.path.dirname(found[0])
