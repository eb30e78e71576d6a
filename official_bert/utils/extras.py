"""Optional dependencies, and the extra of this package that installs each of them. pyproject.toml has the versions."""

import json
import os
from importlib import metadata

from official_bert.errors import UserError

_TENSORFLOW = ("tensorflow", "keras", "tensorboard", "safetensors")  # in all extras but one

# Import names by extra.
EXTRAS = {
    "tensorflow": _TENSORFLOW,
    "serve": (*_TENSORFLOW, "aiohttp", "prometheus_client", "orjson", "tensorflow_text"),
    "finetune": (*_TENSORFLOW, "tensorflow_text", "sklearn", "scipy"),
    "data": (*_TENSORFLOW, *"tensorflow_text tokenizers google_crc32c sentencex zstandard fsspec pyarrow".split()),
    "remote": (*_TENSORFLOW, "fsspec", "s3fs"),
    "tfds": (*_TENSORFLOW, "tensorflow_datasets"),
    "convert": (*_TENSORFLOW, "keras_hub", "h5py"),
    "hub": (*_TENSORFLOW, "huggingface_hub"),
    "serve-onnx": ("onnxruntime", "aiohttp", "prometheus_client", "orjson"),
    "portable": (*_TENSORFLOW, "ai_edge_litert", "onnx", "onnxruntime"),
    "jieba": (*_TENSORFLOW, "rjieba"),
    "dask": (*_TENSORFLOW, "distributed"),
}


def explain_missing_package(error: ModuleNotFoundError, extra: str | None = None) -> UserError | None:
    """Returns an error that tells the user which extra of this package to install.

    Returns None if no extra installs the missing package.

    Args:
        error: The error that the import raised.
        extra: The extra that the running command needs. It is preferred if several extras install the package.
    """
    package = (error.name or "").partition(".")[0]
    extras = [name for name, packages in EXTRAS.items() if package in packages]
    if not extras:
        return None
    wanted = extra if extra in extras else extras[0]
    return UserError(f"the package {package} is not installed; run: pip install '{_get_requirement(wanted)}'")


def _get_requirement(extra: str) -> str:
    """Returns what to pass to pip to install the extra: the checkout's path, or the installed package's source."""
    checkout = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
    if os.path.exists(os.path.join(checkout, "pyproject.toml")):
        return f"{checkout}[{extra}]"
    # The file is missing if the package is from a package index.
    source = metadata.distribution("official-bert").read_text("direct_url.json")
    if source is None:
        return f"official-bert[{extra}]"
    described = json.loads(source)
    version_control = described.get("vcs_info", {}).get("vcs")
    return f"official-bert[{extra}] @ {version_control + '+' if version_control else ''}{described['url']}"
