import json
from importlib import metadata

import pytest

from official_bert.utils import extras
from official_bert.utils.command_line import exit_codes
from tests.conftest import ROOT

WHEEL = "file:///dist/official_bert-0.1.0-py3-none-any.whl"


@pytest.mark.parametrize(("package", "extra", "named"), [
    ("sklearn.metrics", "finetune", "finetune"),
    ("tensorflow_text", "data", "data"),
    ("tensorflow_text", None, "serve"),
    ("tensorflow_datasets.core", "finetune", "tfds"),
])  # fmt: skip
def test_a_package_that_is_missing_is_named_with_its_extra(package: str, extra: str | None, named: str, capsys):
    with pytest.raises(SystemExit, match="1"), exit_codes(extra):
        raise ModuleNotFoundError(name=package)
    missing = package.split(".")[0]
    expected = f"error: the package {missing} is not installed; run: pip install '{ROOT}[{named}]'\n"
    assert capsys.readouterr().err == expected
    with pytest.raises(ModuleNotFoundError), exit_codes(extra):
        raise ModuleNotFoundError(name="official_bert.nowhere")


@pytest.mark.parametrize(("source", "requirement"), [
    (None, "official-bert[serve]"),
    ({"url": WHEEL, "archive_info": {}}, f"official-bert[serve] @ {WHEEL}"),
    ({"url": "https://host/a.git", "vcs_info": {"vcs": "git"}}, "official-bert[serve] @ git+https://host/a.git"),
])  # fmt: skip
def test_extras_are_installed_from_the_source_of_the_package(source, requirement: str, tmp_path, monkeypatch):
    monkeypatch.setattr(metadata, "distribution", lambda _: metadata.PathDistribution(tmp_path))
    monkeypatch.setattr(extras, "__file__", str(tmp_path / "official_bert" / "utils" / "extras.py"))
    if source:
        (tmp_path / "direct_url.json").write_text(json.dumps(source))
    message = str(extras.explain_missing_package(ModuleNotFoundError(name="aiohttp.web"), "serve"))
    assert message.endswith(f"pip install '{requirement}'")
