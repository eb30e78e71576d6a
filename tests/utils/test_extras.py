import json
from importlib import metadata

import pytest

from official_bert.utils import extras
from tests.conftest import ROOT
from tests.make import assert_mentions

WHEEL = "file:///dist/official_bert-0.1.0-py3-none-any.whl"


@pytest.mark.parametrize(("source", "requirement"), [
    ("checkout", f"{ROOT}[serve]"),
    (None, "official-bert[serve]"),
    ({"url": WHEEL, "archive_info": {}}, f"official-bert[serve] @ {WHEEL}"),
    ({"url": "https://host/a.git", "vcs_info": {"vcs": "git"}}, "official-bert[serve] @ git+https://host/a.git"),
])  # fmt: skip
def test_extras_are_installed_from_the_source_of_the_package(source, requirement: str, tmp_path, monkeypatch):
    if source != "checkout":
        monkeypatch.setattr(metadata, "distribution", lambda _: metadata.PathDistribution(tmp_path))
        monkeypatch.setattr(extras, "__file__", str(tmp_path / "official_bert" / "utils" / "extras.py"))
    if isinstance(source, dict):
        (tmp_path / "direct_url.json").write_text(json.dumps(source))
    message = str(extras.explain_missing_package(ModuleNotFoundError(name="aiohttp.web"), "serve"))
    assert_mentions(message, "aiohttp", f"pip install '{requirement}'")
