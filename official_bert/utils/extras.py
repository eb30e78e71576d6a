"""Packages that only a part of official_bert needs: which extra of the package installs each.

pyproject.toml has their versions.
"""

from official_bert.errors import UserError

# By the name that is imported. A package of several extras is asked for by the one of the command that lacks it.
EXTRAS = {
    "aiohttp": ("serve",),
    "prometheus_client": ("serve",),
    "orjson": ("serve",),
    "tensorflow_text": ("serve", "finetune", "data"),
    "sklearn": ("finetune",),
    "scipy": ("finetune",),
    "tokenizers": ("data",),
    "google_crc32c": ("data",),
    "sentencex": ("data",),
    "zstandard": ("data",),
    "fsspec": ("data",),
    "pyarrow": ("data",),
    "tensorflow_datasets": ("tfds",),
    "keras_hub": ("convert",),
    "h5py": ("convert",),
    "huggingface_hub": ("hub",),
    "ai_edge_litert": ("portable",),
    "tf2onnx": ("portable",),
    "onnx": ("portable",),
    "onnxruntime": ("portable",),
    "apache_beam": ("beam",),
}


def missing(error: ModuleNotFoundError, extra: str | None = None) -> UserError | None:
    """Returns what to tell a user whose installation lacks an extra; None if the module is of none.

    Args:
        error: of an import.
        extra: the extra that the running command needs.
    """
    package = (error.name or "").partition(".")[0]
    extras = EXTRAS.get(package)
    if extras is None:
        return None
    wanted = extra if extra in extras else extras[0]
    return UserError(f"the package {package} is not installed; run: pip install 'official-bert[{wanted}]'")
