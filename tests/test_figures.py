"""The pictures in docs/figures equal the output of the scripts that draw them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

FOLDER = ROOT / "docs" / "figures"
PRINT = "import {name}; print({name}.draw().to_svg(), end='')"


@pytest.mark.parametrize("name", ["data_flow", "encoder_block", "masking"])
def test_a_picture_is_what_its_script_draws(name: str):
    command = [sys.executable, "-B", "-c", PRINT.format(name=name)]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=True)
    assert done.stdout == (FOLDER / f"{name}.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", sorted([*FOLDER.glob("*.svg"), *FOLDER.glob("*.png")]), ids=lambda path: path.stem)
def test_a_picture_is_small_and_shown_with_an_alternative_text(path: Path):
    assert path.stat().st_size < 20_000
    assert path.with_suffix(".py").exists()
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md"))
    assert re.search(rf"!\[[^\]]{{20,}}\]\((\.\./)?figures/{path.name}\)", pages)
