"""The HTML page of inspect-records."""

import html.parser
import pathlib
import re

from data_gen.inspection.overview import inspect
from data_gen.options import InspectionOptions
from tests.conftest import WORDS
from tests.data_gen.inspection.record_samples import good, keep_tokens, write


class Page(html.parser.HTMLParser):
    """Parses a page into its tags, their attributes, and the text between them."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.words += data


def test_report_is_one_page_with_its_histograms(vocab_file: str, tmp_path: pathlib.Path):
    pieces = ["<script>" if word == "cat" else "&amp;" if word == "dog" else word for word in WORDS]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces), encoding="utf-8")
    path = write(tmp_path / "<b>&", [good(), keep_tokens()])
    pages = []
    for name in ("a.html", "b.html"):
        inspect(InspectionOptions([path], str(tmp_path / "vocab.txt"), report=str(tmp_path / name)))
        pages.append((tmp_path / name).read_text(encoding="utf-8"))
    assert pages[0] == pages[1]
    page = Page()
    page.feed(pages[0])
    assert page.tags.count("pre") == 5
    assert not {"script", "b", "img", "link", "iframe"} & set(page.tags)
    assert "[MASK]<script>" in page.words
    assert "&amp;sat" in page.words
    assert f"{path}, record 1 (from 0)" in page.words
    for name, value in page.attributes:
        if name in ("src", "href", "xlink:href"):
            assert value is not None
            assert value.startswith("#"), value
    assert "@import" not in pages[0]
    assert all(value.startswith("#") for value in re.findall(r"url\(([^)]*)\)", pages[0]))
    assert 'name="viewport"' in pages[0]


def test_tokens_of_any_script_are_shown(tmp_path: pathlib.Path):
    pieces = ["包" if word == "cat" else "سلام" if word == "sat" else word for word in WORDS]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces), encoding="utf-8")
    report = tmp_path / "report.html"
    inspect(InspectionOptions([write(tmp_path / "x", [good()])], str(tmp_path / "vocab.txt"), report=str(report)))
    assert "包" in report.read_text(encoding="utf-8")
