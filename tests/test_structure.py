"""Rules for the structure of the whole repository."""

import ast
import pathlib
import re
import shlex
import sys

import pytest

from official_bert_cli import COMMANDS, load
from tests.conftest import ROOT

# From the foundations up. A package may import itself and the packages in the rows above its own.
LAYERS = {
    "official_bert": (
        ("errors", "version"),
        ("utils",),
        ("tokenization", "modeling"),
        ("kinds",),
        ("optimization",),
        ("training",),
        ("data",),
        ("checkpoints",),
        ("runs",),
        ("tasks",),
        ("inference",),
        ("pretraining", "finetuning", "export"),
        ("serving", "keras_models"),
        ("adaptation",),
        ("commands",),
    ),
    "data_gen": (
        ("options",),
        ("text", "inspection"),
        ("rules", "vocabulary"),
        ("pipelines",),
        ("commands",),
        ("create_pretraining_data",),
    ),
}
# The packages of the other tree that a package may import.
USED_BY_DATA_GEN = {"data", "errors", "modeling", "runs", "tokenization", "utils"}
USED_BY_ADAPTATION = {"options", "pipelines", "text", "vocabulary"}
PRETRAINING_NEEDS = {"tensorflow", "keras", "absl", "numpy"}
# Imported lazily: fsspec for paths that TensorFlow does not support, the packages of the Hub, Hugging Face and keras-
# hub for their checkpoints, packages that conversions are compared with, tensorflow-text for the fast tokenizer, and
# SciPy and scikit-learn for scores.
PRETRAINING_CAN_DO_WITHOUT = {
    "fsspec", "huggingface_hub", "safetensors", "h5py", "keras_hub", "torch", "transformers", "tensorflow_text",
    "scipy", "sklearn",
}  # fmt: skip


def is_ours(name: str) -> bool:
    """Returns whether a full name is a module or package of LAYERS, or something defined in one."""
    if not re.fullmatch(rf"({'|'.join(LAYERS)})(\.\w+)+", name):
        return False
    path = ROOT.joinpath(*name.split(".")[:2])
    return path.is_dir() or path.with_suffix(".py").is_file()


def list_imports(path: pathlib.Path) -> set[str]:
    """Returns the full names of all imports of a file, including imports in functions and module names in strings."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= {node.value} if is_ours(node.value) else set()
    return names


def get_module_name(path: pathlib.Path) -> str:
    """Returns the full name of a module: official_bert.errors, official_bert.checkpoints.formats.tf1."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


# All modules except official_bert/__init__.py, which is the outermost layer: it imports the public names lazily.
NAMES = {
    get_module_name(path): path
    for tree in LAYERS
    for path in sorted((ROOT / tree).rglob("*.py"))
    if path != ROOT / "official_bert" / "__init__.py"
}
MODULES = list(NAMES.values())


def ours_among(names: set[str]) -> set[str]:
    """Returns our modules among the imported names. A name may also be something defined in a module."""
    return {module for module in NAMES for name in names if name == module or name.startswith(f"{module}.")}


def find_reachable(module: str) -> set[str]:
    """Returns our modules that a module imports directly or indirectly."""
    reached: set[str] = set()
    waiting = [module]
    while waiting:
        current = waiting.pop()
        if current not in reached:
            reached.add(current)
            waiting += ours_among(list_imports(NAMES[current]))
    return reached


def get_package(name: str) -> tuple[str, str]:
    """Returns the tree and package of a module: official_bert and checkpoints for official_bert.checkpoints.loading."""
    tree, package, *_ = name.split(".")
    return tree, package


@pytest.mark.parametrize("path", MODULES, ids=get_module_name)
def test_dependencies_point_down_only(path: pathlib.Path):
    tree, package = get_package(get_module_name(path))
    level = next((number for number, packages in enumerate(LAYERS[tree]) if package in packages), 0)
    assert package in {"__init__", *LAYERS[tree][level]}, f"{path} is of no level"
    allowed = {(tree, package), *((tree, each) for packages in LAYERS[tree][:level] for each in packages)}
    if tree == "data_gen":
        allowed |= {("official_bert", each) for each in USED_BY_DATA_GEN}
    elif package == "adaptation":
        allowed |= {("data_gen", each) for each in USED_BY_ADAPTATION}
    for name in list_imports(path):
        first = name.split(".")[0]
        assert first not in {each.stem for each in ROOT.iterdir()} - set(LAYERS), f"{path} imports {name}"
        assert first not in LAYERS or (is_ours(name) and get_package(name) in allowed), f"{path} imports {name}"


def test_no_modules_import_each_other():
    graph = {name: ours_among(list_imports(path)) - {name} for name, path in NAMES.items()}
    while leaves := {name for name, imports in graph.items() if not imports}:
        graph = {name: imports - leaves for name, imports in graph.items() if name not in leaves}
    assert not graph, f"these modules are in an import cycle, or import one: {', '.join(sorted(graph))}"


def test_a_module_that_a_string_names_counts_as_imported(tmp_path: pathlib.Path):
    (tmp_path / "a.py").write_text('"""Of data_gen.text."""\nTABLE = {"x": ("data_gen.commands", "data_gen")}\n')
    assert list_imports(tmp_path / "a.py") == {"data_gen.commands"}


def test_pretraining_needs_tensorflow_keras_and_absl_alone():
    needed = [NAMES[name] for name in find_reachable("official_bert.pretraining.run")]
    assert len(needed) > 20
    for path in [*needed, ROOT / "run_pretraining.py"]:
        for name in list_imports(path):
            package = name.split(".")[0]
            needed = {"official_bert", *sys.stdlib_module_names, *PRETRAINING_NEEDS}
            assert package in needed | PRETRAINING_CAN_DO_WITHOUT, f"{path.name} imports {name}"
            at_once = rf"^(import|from) {package}\b"
            assert package in needed or not re.search(at_once, path.read_text(encoding="utf-8"), re.MULTILINE), path


def test_only_files_that_build_graphs_import_the_tokenizer_for_graphs():
    in_graph = "official_bert.tokenization.in_graph"
    for name, path in NAMES.items():
        builds_graphs = path.stem.startswith("graph") or get_package(name)[1] in ("export", "keras_models")
        assert builds_graphs or name == in_graph or in_graph not in ours_among(list_imports(path)), path
        if get_package(name)[1] == "tokenization" and name != in_graph:
            assert not re.search(r"^(import|from) tensorflow", path.read_text(encoding="utf-8"), re.MULTILINE), path


# Modules outside kinds/ that may name a kind: the public classes, the readers of each kind's files, and the tables of
# layer names and of foreign formats. All other modules use the spec.
MAY_NAME_KINDS = (
    "official_bert.__init__",
    "official_bert.keras_models",
    "official_bert.tasks",
    "official_bert.checkpoints.checkpoint",
    "official_bert.checkpoints.formats",
    "official_bert.modeling",
    "official_bert.export.onnx_graph",
)


def named_kinds(path: pathlib.Path) -> set[str]:
    """Returns the kinds that a module names in a string, with a constant of kinds.names, or in an import."""
    kinds = {folder.parent.name for folder in (ROOT / "official_bert" / "kinds").glob("*/spec.py")}
    assert len(kinds) > 6
    named = {name.split(".")[2] for name in list_imports(path) if name.startswith("official_bert.kinds.")}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            named.add(node.value)
        elif isinstance(node, ast.Name | ast.Attribute):
            name = node.id if isinstance(node, ast.Name) else node.attr
            named |= {name.lower()} if name.isupper() else set()
    return named & kinds


def test_no_module_outside_kinds_names_a_kind():
    named = {name: named_kinds(path) for name, path in NAMES.items() if not name.startswith("official_bert.kinds.")}
    naming = {name for name, kinds in named.items() if kinds}
    for name in naming:
        assert name.startswith(MAY_NAME_KINDS), f"{name} names {', '.join(sorted(named[name]))}; ask the spec instead"
    for prefix in MAY_NAME_KINDS[1:]:
        assert any(name.startswith(prefix) for name in naming), f"{prefix} names no kind; remove it from the list"


def test_flags_are_read_in_scripts_alone():
    for path in (path for tree in LAYERS for path in (ROOT / tree).rglob("*.py")):
        if path.name != "command_line.py":
            assert "FLAGS" not in path.read_text(encoding="utf-8"), path


def test_the_levels_of_the_architecture_page_are_those_that_are_tested():
    page = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \d+ \| (.+) \|$", page, re.MULTILINE)
    tested = [sorted(packages) for layers in LAYERS.values() for packages in layers]
    assert [sorted(re.findall(r"`(\w+)`", row)) for row in rows] == tested


PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")])


def page_name(page: pathlib.Path) -> str:
    """Returns the path of a page, relative to the repository: docs/guides/data.md."""
    return page.relative_to(ROOT).as_posix()


def list_anchors(page: pathlib.Path) -> set[str]:
    """Returns the anchors of a page's headings, as GitHub generates them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_within_the_documents_lead_somewhere(page: pathlib.Path):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"https?://", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{page_name(page)} links to {target}, which is not there"
        assert not anchor or anchor in list_anchors(file), (
            f"{page_name(page)} links to {target}; there is no such heading"
        )


def test_the_documents_name_files_that_are_there():
    folders = "official_bert|data_gen|configs|tests|tools|examples|docs"
    for page in PAGES:
        for name in re.findall(rf"`((?:{folders})/[\w./*-]+)`", page.read_text(encoding="utf-8")):
            assert list(ROOT.glob(name.rstrip("/"))), f"{page_name(page)} names {name}, which is not there"


def test_comments_name_modules_that_are_there():
    for package in LAYERS:
        for path in (ROOT / package).rglob("*.py"):
            for name in re.findall(r"(?<![\w/])[a-z]\w*(?:/\w+)+\.py\b", path.read_text(encoding="utf-8")):
                there = any((root / name).exists() for root in (ROOT, ROOT / package, path.parent))
                assert there, f"{path.relative_to(ROOT)} names {name}, which is not there"


def test_the_documents_name_tests_that_are_there():
    for page in PAGES:
        for file, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text(encoding="utf-8")):
            there = (ROOT / file).exists() and f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")
            assert there, f"{page_name(page)} names {file}::{name}, which is not there"


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8")) <= 12_000


# The command that each script with an original name runs.
SCRIPTS = {load(name).script_module: name for name in COMMANDS if load(name).original_script}
SCRIPTS |= {"run_classifier": "finetune", "run_squad": "finetune"}
# Programs other than our commands that the documents run.
OTHERS = {"zipfile", "pip", "venv", "pytest"}


def shell_commands(page: pathlib.Path) -> list[list[str]]:
    """Returns the command or module and the arguments of each `official-bert` or `python -m` in shell blocks."""
    found = []
    for block in re.findall(r"```bash\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        plain = re.sub(
            r"(^|\s)#.*$", "", block.replace("\\\n", " "), flags=re.MULTILINE
        )  # shlex would drop the line ending
        lexer = shlex.shlex(plain, posix=True, punctuation_chars="\n;|")
        lexer.whitespace, lexer.whitespace_split = " \t", True
        words: list[str] = []
        for word in [*lexer, "\n"]:
            if not set(word) <= set("\n;|"):
                words.append(word)
                continue
            if "-m" in words[:2] and words[0].endswith("python"):
                found.append(words[2:])
            elif words[:1] == ["official-bert"] and words[1:] not in (["--help"], ["--version"]):
                assert words[1] in COMMANDS, f"{page_name(page)}: official-bert has no command {words[1]}"
                found.append(words[1:])
            words = []
    return found


def test_every_command_has_a_page():
    pages = (ROOT / "docs" / "reference" / "commands").glob("*.md")
    described = {page.stem for page in pages if f"```{{command}} {page.stem}\n" in page.read_text(encoding="utf-8")}
    assert described == set(COMMANDS)


def flags_in(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--(\w+)", text))


def list_flags(name: str, task: str | None = None) -> set[str]:
    """Returns the flags of a command, for all tasks unless one is named. Boolean flags are also listed with "no"."""
    command = load(name)
    variants = [task] if task and command.variants else [None, *command.variants]
    flags = [flag for variant in variants for flag in command.flags(variant)]
    return {flag.name for flag in flags} | {f"no{flag.name}" for flag in flags if flag.kind is bool}


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_commands_in_the_documents_are_accepted(page: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)  # according to their paths
    for name, *arguments in shell_commands(page):
        if name in COMMANDS or name in SCRIPTS:
            load(SCRIPTS.get(name, name)).parse(arguments)
        elif name not in OTHERS:
            folder = ROOT.joinpath(*name.split(".")[:2])  # tools.benchmarks.serving: tools/benchmarks
            source = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
            for flag in flags_in(" ".join(arguments)):
                assert f"    {flag}: " in source, f"{page_name(page)}: {name} has no --{flag}"


def test_flags_that_the_documents_name_exist():
    known = {flag for name in COMMANDS for flag in list_flags(name)} | {"flagfile", "help"}
    for path in (ROOT / "tools").rglob("*.py"):
        names = re.findall(r"^    (\w+): .* = option\(", path.read_text(encoding="utf-8"), re.MULTILINE)
        arguments = re.findall(r'add_argument\("--(\w+)"', path.read_text(encoding="utf-8"))
        known |= {*names, *(f"no{name}" for name in names), *arguments}
    for page in PAGES:
        if page.name not in ("migration.md", "CHANGELOG.md"):  # these name removed flags
            for code in re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8")):
                unknown = (
                    set() if code.startswith(("pytest ", "pip ", "dask ", "tensorboard ")) else flags_in(code) - known
                )
                assert not unknown, f"{page_name(page)} names --{', --'.join(unknown)} in `{code}`; no command has it"


def test_every_old_flag_of_the_migration_page_has_a_new_one_that_exists():
    page = (ROOT / "docs" / "reference" / "migration.md").read_text(encoding="utf-8")
    left = re.findall(r"^\| (.*?) \| ", page, re.MULTILINE)
    commands = [load(name) for name in SCRIPTS.values()]
    for flag in [flag for command in commands for flag in [*command.aliases, *command.refused]]:
        assert any(flag in flags_in(old) for old in left), f"docs/reference/migration.md has no row for --{flag}"
    for old in left:
        if old.endswith("(taken)"):
            assert flags_in(old) <= {name for command in commands for name in command.aliases}, old
    sections = re.findall(
        r"^### [^\n]*`official-bert ([\w-]+)(?: --task=(\w+))?`$(.*?)(?=^##|\Z)", page, re.DOTALL | re.MULTILINE
    )
    assert len(sections) > 8
    for script, task, text in sections:
        rows = re.findall(r"^\| (.*) \| (.*) \|$", text, re.MULTILINE)[1:]
        assert rows, script
        for old, new in rows:
            same = flags_in(old) if new.startswith("the same") else set()
            task_of_row = re.search(r"--task=([\w-]+)", new)
            unknown = (flags_in(new) | same) - list_flags(script, task_of_row[1] if task_of_row else task or None)
            assert not unknown, (
                f"docs/reference/migration.md: {script} has no --{', --'.join(unknown)}, which stands beside {old}"
            )


def test_every_test_of_several_devices_is_one_that_always_runs():
    """Tests with several devices or workers are slow, and would be skipped under a time limit if not marked core."""
    several = re.compile("run_marked_tests|worker_environments|LogicalDeviceConfiguration")
    found = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in [] if path == pathlib.Path(__file__) else ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and several.search("\n".join(map(ast.unparse, node.body))):
                found[f"{path}::{node.name}"] = {ast.unparse(each) for each in node.decorator_list}
    assert len(found) > 6
    assert not [
        name for name, decorators in found.items() if not {"pytest.mark.slow", "pytest.mark.core"} <= decorators
    ]
