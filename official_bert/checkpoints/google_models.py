"""Downloads, checks and unpacks Google's released checkpoints by name, such as google://uncased_L-12_H-768_A-12."""

import base64
import functools
import hashlib
import os
import re
import shutil
import urllib.error
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
# Sizes of zips in bytes, if known.
_SIZES = {"uncased_L-12_H-768_A-12": 407_727_028, "multi_cased_L-12_H-768_A-12": 662_903_077}

_MEMBER = re.compile(r"(?:[^/]+/)?(bert_config\.json|vocab\.txt|bert_model\.ckpt\.(?:index|meta|data-\d+-of-\d+))")
_MOST_BYTES = 8 << 30  # unpacked
_BYTES_AT_ONCE = 1 << 20
_SECONDS_TO_WAIT = 60


def names() -> list[str]:
    """Returns the names of all releases, without google://."""
    return [*_DATES, *(name for name in _MINIATURES if name not in _DATES)]


@functools.cache
def get_local_folder(path: str) -> str:
    """Returns the local folder of a google:// name, which is downloaded if necessary, or `path` itself.

    Raises:
        UserError: If the name is unknown, or its zip cannot be downloaded or is damaged.
    """
    if not path.startswith(PREFIX):
        return path
    name = path.removeprefix(PREFIX).rstrip("/")
    date = _DATES.get(name) or (_MINIATURES_DATE if name in _MINIATURES else None)
    if date is None:
        raise UserError(
            f"{path} is none of Google's releases; the names are {', '.join(_DATES)} and "
            "uncased_L-{2,4,6,8,10,12}_H-{128,256,512,768}_A-{2,4,8,12}"
        )
    cache = os.environ.get(CACHE_VARIABLE) or os.path.join(os.path.expanduser("~"), ".cache", "official_bert")
    folder = os.path.join(cache, "google", name)
    if os.path.isfile(folder):
        raise UserError(f"{folder} is a file; expected the folder of a checkpoint; remove it to have that downloaded")
    if not files.exists(folder):
        address = f"{ADDRESS}/{date}/{name}.zip"
        # The zip is in the same temporary folder: the next process removes what a killed process left.
        with files.explain_write_errors(folder), files.temporary_folder_beside(folder) as beside:
            zip_file = os.path.join(beside, f"{name}.zip")
            _download(address, zip_file, _SIZES.get(name), folder)
            _unpack(zip_file, address, beside)
            os.remove(zip_file)
            if not files.exists(folder):  # Otherwise another process has finished first.
                os.replace(beside, folder)
    return folder


def _download(address: str, target: str, size: int | None, folder: str) -> None:
    """Downloads a zip and compares its length, also with `size` if known, and the server's MD5.

    Errors name `folder` as the place for files that are downloaded by hand.
    """
    by_hand = (
        f"to do it by hand, download {address}{f' ({size:,} bytes)' if size else ''} on any machine, unpack it, and "
        f"give its folder, or copy the folder to {folder}"
    )
    digest, received = hashlib.md5(usedforsecurity=False), 0
    try:
        with urllib.request.urlopen(address, timeout=_SECONDS_TO_WAIT) as answer, open(target, "wb") as writer:
            length = int(answer.headers.get("Content-Length") or 0)
            progress = Progress(f"downloading {address}", (size or length) / 1e6, "MB")
            while part := answer.read(_BYTES_AT_ONCE):
                received += len(part)
                digest.update(part)
                writer.write(part)
                progress.update(received / 1e6)
            sums = [each.strip() for line in answer.headers.get_all("x-goog-hash") or [] for each in line.split(",")]
    except (OSError, ValueError, urllib.error.URLError) as error:
        raise UserError(f"cannot download {address}: {error}; {by_hand}") from error
    for expected, what in ((size, "bytes are known"), (length, "bytes were announced")):
        if expected and received != expected:
            raise UserError(f"{address} gave {received:,} bytes; {expected:,} {what}: try again, or {by_hand}")
    md5 = f"md5={base64.b64encode(digest.digest()).decode()}"
    if any(each.startswith("md5=") and each != md5 for each in sums):
        raise UserError(f"{address} was received damaged: its checksum is not the server's; try again, or {by_hand}")


def _unpack(zip_file: str, address: str, folder: str) -> None:
    """Unpacks only the files of a checkpoint into a folder, and compares their CRCs."""
    try:
        with zipfile.ZipFile(zip_file) as opened:
            members = {match[1]: each for each in opened.infolist() if (match := _MEMBER.fullmatch(each.filename))}
            if not {"bert_config.json", "vocab.txt", "bert_model.ckpt.index"} <= members.keys():
                raise UserError(f"{address} holds {', '.join(opened.namelist()[:10])}; expected a checkpoint's files")
            if sum(each.file_size for each in members.values()) > _MOST_BYTES:
                raise UserError(
                    f"{address} unpacks to more than {_MOST_BYTES:,} bytes; it is no checkpoint of Google's"
                )
            for name, member in members.items():
                with opened.open(member) as reader, open(os.path.join(folder, name), "wb") as writer:
                    shutil.copyfileobj(reader, writer, _BYTES_AT_ONCE)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise UserError(f"{address} was received damaged: {error}; try again") from error
