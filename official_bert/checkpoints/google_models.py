"""Downloads, checks and unpacks Google's released checkpoints by name, such as google://uncased_L-12_H-768_A-12."""

import functools
import os
import re
import shutil
import urllib.request
import zipfile

from official_bert.errors import UserError
from official_bert.utils import files
from official_bert.utils.progress import Progress

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

_MEMBER = re.compile(r"(?:[^/]+/)?(bert_config\.json|vocab\.txt|bert_model\.ckpt\.(?:index|meta|data-\d+-of-\d+))")
_BLOCK = 1 << 20  # bytes
_TIMEOUT = 60  # seconds


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
        address = f"{ADDRESS}/{date}/{name}.zip"
        # The zip is in the same temporary folder, which the next process removes if this one is killed.
        with files.explain_write_errors(folder), files.create_temporary_folder(folder) as temporary:
            zip_file = os.path.join(temporary, f"{name}.zip")
            manual_download = (
                f"Or download it on any machine, unpack it, and pass its folder or copy the folder to {folder}."
            )
            _download(address, zip_file, manual_download)
            _unpack(zip_file, address, temporary, manual_download)
            os.remove(zip_file)
            if not files.exists(folder):  # Otherwise another process has finished first.
                os.replace(temporary, folder)
    return folder


def _download(address: str, target: str, manual_download: str) -> None:
    try:
        with urllib.request.urlopen(address, timeout=_TIMEOUT) as response, open(target, "wb") as writer:
            length = int(response.headers.get("Content-Length") or 0)
            progress = Progress(f"downloading {address}", length / 1e6, "MB")
            while block := response.read(_BLOCK):
                writer.write(block)
                progress.update(writer.tell() / 1e6)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot download {address}: {error}. {manual_download}") from error


def _unpack(zip_file: str, address: str, folder: str, manual_download: str) -> None:
    """Unpacks only the files of the checkpoint from a zip file into a folder. Verifies the checksums in the zip file.

    Args:
        zip_file: Local path of the zip file.
        address: The URL it came from, for error messages.
        folder: The folder to write to.
        manual_download: Advice that is appended to error messages.

    Raises:
        UserError: If the zip file is damaged or is not a checkpoint.
    """
    try:
        with zipfile.ZipFile(zip_file) as opened:
            members = {match[1]: each for each in opened.infolist() if (match := _MEMBER.fullmatch(each.filename))}
            if not {"bert_config.json", "vocab.txt", "bert_model.ckpt.index"} <= members.keys():
                names = ", ".join(opened.namelist()[:10])
                raise UserError(f"{address} contains {names}; expected the files of a checkpoint")
            for name, member in members.items():
                with opened.open(member) as reader, open(os.path.join(folder, name), "wb") as writer:
                    shutil.copyfileobj(reader, writer, _BLOCK)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise UserError(
            f"{address} was damaged or cut off during the download: {error}. Try again. {manual_download}"
        ) from error
