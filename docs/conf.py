"""Settings of the documentation site, which `make docs` builds with Sphinx."""

import inspect
import pathlib
import re
import sys

from sphinx.application import Sphinx
from sphinx.util.inspect import stringify_signature

ROOT = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

from command_pages import describe_command  # noqa: E402

from official_bert import build_encoder  # noqa: E402, F401 - imports TensorFlow without its messages
from official_bert.version import __version__  # noqa: E402

project = "official-bert"
release = __version__
extensions = ["myst_nb", "sphinx_copybutton", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
NOTEBOOK_FOLDERS = ("adapt", "answers", "classify", "embeddings", "entities", "questions")
exclude_patterns = ["_build", *(f"tutorials/{folder}" for folder in NOTEBOOK_FOLDERS)]
html_theme = "furo"
html_title = f"official-bert {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_copyright = False
smartquotes = False  # which would make dashes of flags

# Pages link to headings with the anchors that code hosts make.
myst_heading_anchors = 4
myst_enable_extensions = ["deflist", "dollarmath"]
nb_execution_mode = "off"
suppress_warnings = ["misc.highlighting_failure"]  # shell commands of several lines in notebooks

default_role = "literal"  # of single backticks in docstrings
autodoc_inherit_docstrings = False  # hides what overrides a hook of Keras
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
napoleon_numpy_docstring = False

nitpicky = True
# Types in signatures, most of them from Python or other packages, or private.
nitpick_ignore_regex = [("py:.*", ".*")]


# Pages that show a file from outside docs/. As Markdown they are a link to it.
FILES_SHOWN = {
    "project/changelog": "CHANGELOG.md",
    "project/code_of_conduct": "CODE_OF_CONDUCT.md",
    "project/contributing": "CONTRIBUTING.md",
    "project/security": "SECURITY.md",
    "tutorials/examples": "examples/README.md",
}


def prepare_page(_: Sphinx, name: str, source: list[str]) -> None:
    """Fills in files and commands, makes links to FILES_SHOWN stay on the site, and adds the navigation."""
    file = ROOT / FILES_SHOWN.get(name, f"docs/{name}.md")
    page_of = {ROOT / shown: ROOT / f"docs/{page}.md" for page, shown in FILES_SHOWN.items()}

    def to_site(link: re.Match[str]) -> str:
        target = (file.parent / link[1]).resolve()
        target = page_of.get(target, target)
        return f"](/{target.relative_to(ROOT / 'docs')}" if target.is_relative_to(ROOT / "docs") else link[0]

    if file.is_file():  # not for notebooks
        source[0] = re.sub(r"\]\((?!https?:)([\w./-]+)(?=[#)])", to_site, file.read_text(encoding="utf-8"))
    source[0] = re.sub(r"```\{command\} ([\w-]+)\n```", lambda found: describe_command(found[1]), source[0])
    if name.endswith("index"):  # the pages that it links to, in the order of the links
        page = r"[\w-]+\.(?:md|ipynb)|[\w-]+/index\.md"
        pages = dict.fromkeys(re.findall(rf"\]\((/{name.removesuffix('index')}(?:{page}))\)", source[0]))
        source[0] += "\n".join(["\n\n```{toctree}", ":hidden:", "", *pages, "```", ""])


def mark_code_blocks(app: Sphinx, what: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """Makes indented blocks after a colon code, as in Markdown, unless they are lists."""
    lines[:] = re.sub(r":\n\n(?= {4} *[^ -])", "::\n\n", "\n".join(lines)).split("\n")


def show_init_arguments(
    app: Sphinx, what: str, name: str, value: type, options: object, signature: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """Shows the arguments of __init__ instead of the *args and **kwargs of Keras' __new__."""
    if what == "class":
        signature = stringify_signature(inspect.signature(value), show_annotation=False)
    return signature, returned


def setup(app: Sphinx) -> None:
    """Connects the functions above."""
    app.connect("source-read", prepare_page)
    app.connect("autodoc-process-signature", show_init_arguments)
    app.connect("autodoc-process-docstring", mark_code_blocks, priority=400)  # before napoleon
