import json
import pathlib
from importlib import metadata

import pytest

from official_bert.utils import extras
from tests.conftest import ROOT

WHEEL = "file:///dist/official_bert-0.1.0-py3-none-any.whl"


def test_a_checkout_suggests_installing_extras_from_itself():
    assert f"aiohttp is not installed; run: pip install '{ROOT}[serve-onnx]'" in message("serve-onnx")


@pytest.mark.parametrize(("source", "requirement"), [
    (None, "official-bert[serve]"),
    ({"url": WHEEL, "archive_info": {}}, f"official-bert[serve] @ {WHEEL}"),
    ({"url": "https://host/a.git", "vcs_info": {"vcs": "git"}}, "official-bert[serve] @ git+https://host/a.git"),
])  # fmt: skip
def test_an_installed_package_suggests_installing_extras_from_its_source(
    source: dict | None, requirement: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    folder = tmp_path / "official_bert-0.1.0.dist-info"
    folder.mkdir()
    if source:
        (folder / "direct_url.json").write_text(json.dumps(source))
    monkeypatch.setattr(metadata, "distribution", lambda _: metadata.PathDistribution(folder))
    monkeypatch.setattr(extras, "__file__", str(tmp_path / "official_bert" / "utils" / "extras.py"))
    assert message("serve").endswith(f"; run: pip install '{requirement}'")


def message(extra: str) -> str:
    return str(extras.explain_missing_package(ModuleNotFoundError(name="aiohttp.web"), extra))
