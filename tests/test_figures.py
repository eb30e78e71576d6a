"""The pictures in docs/figures equal the output of the scripts that draw them."""

import re
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.make import run_python

FOLDER = ROOT / "docs" / "figures"


@pytest.mark.parametrize("name", ["data_flow", "encoder_block", "masking"])
def test_figures_are_up_to_date(name: str):
    drawn = run_python("-B", "-c", f"import {name}; print({name}.draw().to_svg(), end='')", folder=FOLDER).stdout
    assert drawn == (FOLDER / f"{name}.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", sorted([*FOLDER.glob("*.svg"), *FOLDER.glob("*.png")]), ids=lambda path: path.stem)
def test_figures_are_small_and_have_alternative_text(path: Path):
    assert path.stat().st_size < 20_000
    assert path.with_suffix(".py").exists()
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md"))
    assert re.search(rf"!\[[^\]]{{20,}}\]\((\.\./)?figures/{path.name}\)", pages)
