"""What holds of the tree as a whole."""

import ast
import importlib
import pathlib
import re
import shlex
import sys

import pytest

from official_bert import main, original_flags
from tests.conftest import ROOT

# From the foundations up: a package imports from itself and from those of the rows before its own.
LAYERS = (
    ("errors", "original_flags", "version"),
    ("utils",),
    ("tokenization", "modeling"),
    ("optimization",),
    ("data",),
    ("checkpoints",),
    ("tasks", "inference"),
    ("learning",),
    ("pretraining", "finetuning"),
    ("export",),
    ("serving", "keras_models"),
    ("commands", "main"),
)
# matplotlib only where it is installed, fsspec only for paths that TensorFlow does not know.
PRETRAINING_NEEDS = {"tensorflow", "keras", "absl", "numpy", "matplotlib", "fsspec"}


def imports_of(path: pathlib.Path) -> set[str]:
    """Full names of all that a file imports, within functions too."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def name_of(path: pathlib.Path) -> str:
    """A module's name within official_bert: files, checkpoints.formats.tf1."""
    return ".".join(path.relative_to(ROOT / "official_bert").with_suffix("").parts)


NAMES = {name_of(path): path for path in sorted((ROOT / "official_bert").rglob("*.py")) if path.name != "__init__.py"}
MODULES = list(NAMES.values())


def ours_among(names: set[str]) -> set[str]:
    """The modules of official_bert that are imported, as a whole or something of them."""
    inner = {name.removeprefix("official_bert.") for name in names if name.startswith("official_bert.")}
    return {module for module in NAMES for name in inner if name == module or name.startswith(f"{module}.")}


def reachable_from(module: str) -> set[str]:
    """The modules of official_bert that one imports, and those that these import."""
    reached: set[str] = set()
    waiting = [module]
    while waiting:
        current = waiting.pop()
        if current not in reached:
            reached.add(current)
            waiting += ours_among(imports_of(NAMES[current]))
    return reached


def package_of(name: str) -> str:
    """The package of a module: checkpoints, of checkpoints.formats.tf1."""
    return name.split(".")[0]


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_dependencies_point_down_only(path: pathlib.Path):
    package = package_of(name_of(path))
    level = next(number for number, packages in enumerate(LAYERS) if package in packages)
    allowed = {package, *(each for packages in LAYERS[:level] for each in packages)}
    imported = imports_of(path)
    for name in imported:
        above = ("data_gen", "run_pretraining", "run_finetuning", "tests", "robustness", "tpu_check")
        assert name.split(".")[0] not in above, f"{path} imports {name}"
        assert not name.startswith("official_bert.") or ours_among({name}), f"{path} imports {name}"
    for module in ours_among(imported):
        assert package_of(module) in allowed, f"{path} imports official_bert.{module}"


def test_pretraining_needs_tensorflow_keras_and_absl_alone():
    needed = [NAMES[name] for name in reachable_from("pretraining.training")]
    assert len(needed) > 20
    for path in [*needed, ROOT / "run_pretraining.py"]:
        for name in imports_of(path):
            package = name.split(".")[0]
            known = package in sys.stdlib_module_names | PRETRAINING_NEEDS | {"official_bert"}
            assert known, f"{path.name} imports {name}"


def test_flags_are_read_in_scripts_alone():
    for path in [*(ROOT / "official_bert").rglob("*.py"), *(ROOT / "data_gen").rglob("*.py")]:
        if path.name != "command_line.py":
            assert "FLAGS" not in path.read_text(encoding="utf-8"), path


def test_the_levels_of_the_architecture_page_are_those_that_are_tested():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \d+ \| (.+) \|$", page, re.MULTILINE)
    assert [sorted(re.findall(r"`(\w+)`", row)) for row in rows] == [sorted(packages) for packages in LAYERS]


PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.md")])


def anchors_of(page: pathlib.Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_within_the_documents_lead_somewhere(page: pathlib.Path):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"https?://", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{page.name} links to {target}, which is not there"
        assert not anchor or anchor in anchors_of(file), f"{page.name} links to {target}; there is no such heading"


def test_the_documents_name_files_that_are_there():
    folders = "official_bert|data_gen|configs|tests|robustness|benchmarks|reproduce|examples|tpu_check|docs"
    for page in PAGES:
        for name in re.findall(rf"`((?:{folders})/[\w./*-]+)`", page.read_text(encoding="utf-8")):
            assert list(ROOT.glob(name.rstrip("/"))), f"{page.name} names {name}, which is not there"


def test_the_documents_name_tests_that_are_there():
    for page in PAGES:
        for file, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text(encoding="utf-8")):
            there = (ROOT / file).exists() and f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")
            assert there, f"{page.name} names {file}::{name}, which is not there"


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8")) <= 12_000


COMMANDS_BY_SCRIPT = {
    command.script: command
    for command in (getattr(importlib.import_module(module), name) for module, name in main.COMMANDS.values())
}
# What the documents run beside our commands.
OTHERS = {"zipfile", "pip", "venv", "pytest"}


def shell_commands(page: pathlib.Path) -> list[list[str]]:
    """The script and arguments of each `python -m ...` or `official-bert ...` in a page's blocks of shell commands."""
    found = []
    for block in re.findall(r"```bash\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        plain = re.sub(
            r"(^|\s)#.*$", "", block.replace("\\\n", " "), flags=re.MULTILINE
        )  # shlex would eat the line's end
        lexer = shlex.shlex(plain, posix=True, punctuation_chars="\n;|")
        lexer.whitespace, lexer.whitespace_split = " \t", True
        words: list[str] = []
        for word in [*lexer, "\n"]:
            if not set(word) <= set("\n;|"):
                words.append(word)
                continue
            if "-m" in words[:2] and words[0].endswith("python"):
                found.append(words[2:])
            elif words[:1] == ["official-bert"] and words[1:] != ["--help"]:
                assert words[1] in main.COMMANDS, f"{page.name}: official-bert has no command {words[1]}"
                module, name = main.COMMANDS[words[1]]
                found.append([getattr(importlib.import_module(module), name).script, *words[2:]])
            words = []
    return found


def flags_in(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--(\w+)", text))


def flags_taken_by(script: str, task: str | None = None) -> set[str]:
    """The flags of a command, of all tasks unless one is named; a switch also with "no" before it."""
    command = COMMANDS_BY_SCRIPT[script]
    variants = [task] if task and command.variants else [None, *command.variants]
    flags = [flag for variant in variants for flag in command.flags(variant)]
    return {flag.name for flag in flags} | {f"no{flag.name}" for flag in flags if flag.kind is bool}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_in_the_documents_are_accepted(page: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)  # as their paths say
    for script, *arguments in shell_commands(page):
        if script in COMMANDS_BY_SCRIPT:
            COMMANDS_BY_SCRIPT[script].parse(arguments)
        elif script not in OTHERS:
            folder = ROOT / script.split(".")[0]
            source = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
            for flag in flags_in(" ".join(arguments)):
                assert f"    {flag}: " in source, f"{page.name}: {script} has no --{flag}"


def test_flags_that_the_documents_name_exist():
    known = {name for script in COMMANDS_BY_SCRIPT for name in flags_taken_by(script)} | {"flagfile", "help"}
    for folder in ("tpu_check", "benchmarks", "reproduce"):
        for path in (ROOT / folder).glob("*.py"):
            names = re.findall(r"^    (\w+): .* = option\(", path.read_text(encoding="utf-8"), re.MULTILINE)
            known |= {*names, *(f"no{name}" for name in names)}
    for page in PAGES:
        if page.name not in ("migration.md", "CHANGELOG.md"):  # which name what there was
            for code in re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8")):
                unknown = set() if code.startswith(("pytest ", "pip ")) else flags_in(code) - known
                assert not unknown, f"{page.name} names --{', --'.join(unknown)} in `{code}`; no command has it"


def test_every_old_flag_of_the_migration_page_has_a_new_one_that_exists():
    page = (ROOT / "docs" / "migration.md").read_text(encoding="utf-8")
    left = re.findall(r"^\| (.*?) \| ", page, re.MULTILINE)
    for flags in [*original_flags.ALIASES.values(), *original_flags.REFUSED.values()]:
        for flag in flags:
            assert any(flag in flags_in(old) for old in left), f"docs/migration.md has no row for --{flag}"
    for old in left:
        if old.endswith("(taken)"):
            assert flags_in(old) <= {name for flags in original_flags.ALIASES.values() for name in flags}, old
    sections = re.findall(
        r"^### [^\n]*`python -m ([\w.]+)(?: --task=(\w+))?`$(.*?)(?=^##|\Z)", page, re.DOTALL | re.MULTILINE
    )
    assert len(sections) > 8
    for script, task, text in sections:
        rows = re.findall(r"^\| (.*) \| (.*) \|$", text, re.MULTILINE)[1:]
        assert rows, script
        for old, new in rows:
            same = flags_in(old) if new.startswith("the same") else set()
            task_of_row = re.search(r"--task=([\w-]+)", new)
            unknown = (flags_in(new) | same) - flags_taken_by(script, task_of_row[1] if task_of_row else task or None)
            assert not unknown, (
                f"docs/migration.md: {script} has no --{', --'.join(unknown)}, which stands beside {old}"
            )
