"""Settings of the documentation site, which `make docs` builds with Sphinx."""

import pathlib
import re
import sys

from sphinx.application import Sphinx

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from official_bert.version import __version__  # noqa: E402

project = "official-bert"
release = __version__
extensions = ["myst_nb", "sphinx_copybutton", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"official-bert {release}"
html_show_copyright = False

# Pages link to headings with the anchors that code hosts make.
myst_heading_anchors = 4
myst_enable_extensions = ["dollarmath"]
nb_execution_mode = "off"

autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
napoleon_numpy_docstring = False

nitpicky = True
# Types of Python and of other packages, which have no page here.
nitpick_ignore_regex = [("py:.*", r"(?!official_bert).*")]


# Pages that show a file from outside docs/. As Markdown they are a link to it.
FILES_SHOWN = {
    "project/changelog": "CHANGELOG.md",
    "project/contributing": "CONTRIBUTING.md",
    "project/security": "SECURITY.md",
    "tutorials/examples": "examples/README.md",
}


def prepare_page(_: Sphinx, name: str, source: list[str]) -> None:
    """Fills in the pages of FILES_SHOWN, makes links to those files stay on the site, and adds the navigation."""
    file = ROOT / FILES_SHOWN.get(name, f"docs/{name}.md")
    page_of = {ROOT / shown: ROOT / f"docs/{page}.md" for page, shown in FILES_SHOWN.items()}

    def to_site(link: re.Match[str]) -> str:
        target = (file.parent / link[1]).resolve()
        target = page_of.get(target, target)
        return f"](/{target.relative_to(ROOT / 'docs')}" if target.is_relative_to(ROOT / "docs") else link[0]

    if file.is_file():  # not for notebooks
        source[0] = re.sub(r"\]\((?!https?:)([\w./-]+)(?=[#)])", to_site, file.read_text(encoding="utf-8"))
    if name.endswith("index"):  # the pages that it links to, in the order of the links
        pages = dict.fromkeys(re.findall(rf"\]\((/{name.removesuffix('index')}[\w/]+\.(?:md|ipynb))\)", source[0]))
        source[0] += "\n".join(["\n\n```{toctree}", ":hidden:", "", *pages, "```", ""])


def setup(app: Sphinx) -> None:
    """Connects prepare_page."""
    app.connect("source-read", prepare_page)
