"""Rules for the structure of the whole repository."""

import ast
import functools
import itertools
import pathlib
import re
import shlex
import sys
from typing import NamedTuple

import pytest

from official_bert_cli import COMMANDS, load
from tests.make import ROOT

# From the foundations up. A package may import itself and the packages of the layers before its own.
LAYERS = {
    "official_bert": "errors version < utils < tokenization modeling < kinds < optimization < training < data < "
    "checkpoints < runs < tasks < inference < pretraining finetuning export < serving keras_models < adaptation < "
    "commands",
    "data_gen": "options < text inspection < rules vocabulary < pipelines < commands < create_pretraining_data",
}
# The packages of the other tree that a package may import.
USED_BY_DATA_GEN = {"data", "errors", "modeling", "runs", "tokenization", "utils"}
USED_BY_ADAPTATION = {"options", "pipelines", "text", "vocabulary"}
PRETRAINING_NEEDS = {"official_bert", *sys.stdlib_module_names, "tensorflow", "keras", "absl", "numpy"}
# Imported lazily: fsspec for paths that TensorFlow does not support, the packages of the Hub, Hugging Face and keras-
# hub for their checkpoints, packages that conversions are compared with, tensorflow-text for the fast tokenizer, and
# SciPy and scikit-learn for scores.
PRETRAINING_CAN_DO_WITHOUT = set(
    "fsspec huggingface_hub safetensors h5py keras_hub torch transformers tensorflow_text scipy sklearn".split()
)


@functools.cache
def read(path: pathlib.Path) -> str:
    return path.read_text(encoding="utf-8")


@functools.cache
def is_ours(name: str) -> bool:
    """Returns whether a full name is a module or package of LAYERS, or something defined in one."""
    if not re.fullmatch(rf"({'|'.join(LAYERS)})(\.\w+)+", name):
        return False
    path = ROOT.joinpath(*name.split(".")[:2])
    return path.is_dir() or path.with_suffix(".py").is_file()


class Parsed(NamedTuple):
    """Full names of all imports, including imports in functions, and all strings and other names of a module."""

    imports: set[str]
    strings: set[str]
    names: set[str]


@functools.cache
def parse(path: pathlib.Path) -> Parsed:
    parsed = Parsed(set(), set(), set())
    for node in ast.walk(ast.parse(read(path))):
        match node:
            case ast.Import(names=aliases):
                parsed.imports.update(alias.name for alias in aliases)
            case ast.ImportFrom(names=aliases):
                assert node.level == 0, f"{path}: relative import"
                parsed.imports.update(f"{node.module}.{alias.name}" for alias in aliases)
            case ast.Constant(value=str(text)):
                parsed.strings.add(text)
            case ast.Name(id=name) | ast.Attribute(attr=name):
                parsed.names.add(name)
    return parsed


@functools.cache
def list_imports(path: pathlib.Path) -> set[str]:
    """Returns the full names of all imports of a file, including module names in strings."""
    return parse(path).imports | set(filter(is_ours, parse(path).strings))


# All modules except official_bert/__init__.py, which is the outermost layer: it imports the public names lazily.
_PATHS = {path for tree in LAYERS for path in (ROOT / tree).rglob("*.py")} - {ROOT / "official_bert" / "__init__.py"}
NAMES = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in sorted(_PATHS)}


def ours_among(names: set[str]) -> set[str]:
    """Returns our modules among the imported names. A name may also be something defined in a module."""
    return {module for name in names for module in itertools.accumulate(name.split("."), "{}.{}".format)} & NAMES.keys()


def find_reachable(module: str) -> set[str]:
    """Returns our modules that a module imports directly or indirectly."""
    reached, waiting = set(), {module}
    while waiting:
        reached |= waiting
        waiting = set().union(*(ours_among(list_imports(NAMES[each])) for each in waiting)) - reached
    return reached


def get_package(name: str) -> tuple[str, str]:
    """Returns the tree and package of a module: official_bert and checkpoints for official_bert.checkpoints.loading."""
    tree, package, *_ = name.split(".")
    return tree, package


def test_imports_only_point_to_lower_levels():
    other_trees = {each.stem for each in ROOT.iterdir()} - set(LAYERS)
    for module, path in NAMES.items():
        tree, package = get_package(module)
        layers = [layer.split() for layer in LAYERS[tree].split(" < ")]
        level = next((number for number, packages in enumerate(layers) if package in packages), 0)
        assert package in {"__init__", *layers[level]}, f"{path} is of no level"
        allowed = {(tree, each) for each in [package, *itertools.chain(*layers[:level])]}
        if tree == "data_gen":
            allowed |= {("official_bert", each) for each in USED_BY_DATA_GEN}
        elif package == "adaptation":
            allowed |= {("data_gen", each) for each in USED_BY_ADAPTATION}
        for name in list_imports(path):
            first = name.split(".")[0]
            assert first not in other_trees, f"{path} imports {name}"
            assert first not in LAYERS or (is_ours(name) and get_package(name) in allowed), f"{path} imports {name}"


def test_there_are_no_circular_imports():
    graph = {name: ours_among(list_imports(path)) - {name} for name, path in NAMES.items()}
    while leaves := {name for name, imports in graph.items() if not imports}:
        graph = {name: imports - leaves for name, imports in graph.items() if name not in leaves}
    assert not graph, f"these modules are in an import cycle, or import one: {', '.join(sorted(graph))}"


def test_a_module_that_a_string_names_counts_as_imported(tmp_path: pathlib.Path):
    (tmp_path / "a.py").write_text('"""Of data_gen.text."""\nTABLE = {"x": ("data_gen.commands", "data_gen")}\n')
    assert list_imports(tmp_path / "a.py") == {"data_gen.commands"}


def imports_at_once(path: pathlib.Path, package: str) -> bool:
    return bool(re.search(rf"^(import|from) {package}\b", read(path), re.MULTILINE))


def test_pretraining_needs_only_tensorflow_keras_and_absl():
    needed = [NAMES[name] for name in find_reachable("official_bert.pretraining.run")]
    assert len(needed) > 20
    for path in [*needed, ROOT / "run_pretraining.py"]:
        for package in {name.split(".")[0] for name in list_imports(path)} - PRETRAINING_NEEDS:
            assert package in PRETRAINING_CAN_DO_WITHOUT, f"{path} imports {package}"
            assert not imports_at_once(path, package), path


def test_only_files_that_build_graphs_import_the_tokenizer_for_graphs():
    in_graph = "official_bert.tokenization.in_graph"
    for name, path in NAMES.items():
        builds_graphs = path.stem.startswith("graph") or get_package(name)[1] in ("export", "keras_models")
        assert builds_graphs or name == in_graph or in_graph not in ours_among(list_imports(path)), path
        may_import_tensorflow = get_package(name)[1] != "tokenization" or name == in_graph
        assert may_import_tensorflow or not imports_at_once(path, "tensorflow"), path


# Modules outside kinds/ that may name a kind: the public classes, the readers of each kind's files, and the tables of
# layer names and of foreign formats. All other modules use the spec.
MAY_NAME_KINDS = tuple(
    f"official_bert.{module}"
    for module in "keras_models tasks checkpoints.checkpoint checkpoints.formats modeling export.onnx_graph".split()
)


def test_no_module_outside_kinds_names_a_kind():
    """Modules name a kind in a string, with a constant of kinds.names, or in an import."""
    kinds = {folder.parent.name for folder in (ROOT / "official_bert" / "kinds").glob("*/spec.py")}
    assert len(kinds) > 6
    naming = set()
    for module, path in NAMES.items():
        imported = {name.split(".")[2] for name in list_imports(path) if name.startswith("official_bert.kinds.")}
        named = imported | parse(path).strings | {name.lower() for name in parse(path).names if name.isupper()}
        if named & kinds and not module.startswith("official_bert.kinds."):
            assert module.startswith(MAY_NAME_KINDS), f"{module} names {named & kinds}; ask the spec instead"
            naming.add(module)
    for prefix in MAY_NAME_KINDS:
        assert any(name.startswith(prefix) for name in naming), f"{prefix} names no kind; remove it from the list"


def test_only_scripts_read_flags():
    assert [path for path in NAMES.values() if "FLAGS" in read(path) and path.name != "command_line.py"] == []


def test_the_architecture_page_lists_the_tested_levels():
    rows = re.findall(r"^\| \d+ \| (.+) \|$", read(ROOT / "docs" / "explanation" / "architecture.md"), re.MULTILINE)
    tested = [sorted(layer.split()) for layers in LAYERS.values() for layer in layers.split(" < ")]
    assert [sorted(re.findall(r"`(\w+)`", row)) for row in rows] == tested


PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")])


@functools.cache
def list_anchors(page: pathlib.Path) -> set[str]:
    """Returns the anchors of a page's headings, as GitHub generates them."""
    text = re.sub(r"^```.*?^```", "", read(page), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_within_the_documentation_work():
    for page in PAGES:
        for name, _, anchor in re.findall(r"\]\((?!https?://)([^)\s#]*)(#?)([^)\s]*)\)", read(page)):
            file = (page.parent / name).resolve() if name else page
            assert file.exists(), f"{page} links to {name}, which is not there"
            assert not anchor or anchor in list_anchors(file), f"{page} links to {name}#{anchor}; no such heading"


def test_files_and_tests_named_in_documents_and_comments_exist():
    folders = "official_bert|data_gen|configs|tests|tools|examples|docs"
    for page in PAGES:
        for name in re.findall(rf"`((?:{folders})/[\w./*-]+)`", read(page)):
            assert list(ROOT.glob(name.rstrip("/"))), f"{page} names {name}, which is not there"
        for file, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", read(page)):
            is_there = (ROOT / file).exists() and f"def {name}(" in read(ROOT / file)
            assert is_there, f"{page} names {file}::{name}, which is not there"
    for module, path in NAMES.items():
        for name in re.findall(r"(?<![\w/])[a-z]\w*(?:/\w+)+\.py\b", read(path)):
            is_there = any((root / name).exists() for root in (ROOT, ROOT / get_package(module)[0], path.parent))
            assert is_there, f"{path} names {name}, which is not there"


def test_the_readme_is_short():
    assert len(read(ROOT / "README.md")) <= 12_000


# The command that each script with an original name runs.
SCRIPTS = {load(name).script_module: name for name in COMMANDS if load(name).original_script}
SCRIPTS |= {"run_classifier": "finetune", "run_squad": "finetune"}
# Programs other than our commands that the documents run.
OTHERS = {"zipfile", "pip", "venv", "pytest"}


def list_shell_commands(page: pathlib.Path) -> list[list[str]]:
    """Returns the command or module and the arguments of each `official-bert` or `python -m` in shell blocks."""
    found = []
    for block in re.findall(r"```bash\n(.*?)```", read(page), re.DOTALL):
        # Comments are removed first, because shlex would also drop their line endings.
        plain = re.sub(r"(^|\s)#.*$", "", block.replace("\\\n", " "), flags=re.MULTILINE)
        lexer = shlex.shlex(plain, posix=True, punctuation_chars="\n;|")
        lexer.whitespace, lexer.whitespace_split = " \t", True
        for is_end, group in itertools.groupby(lexer, lambda word: set(word) <= set("\n;|")):
            words = list(group)
            if not is_end and "-m" in words[:2] and words[0].endswith("python"):
                found.append(words[2:])
            elif words[0] == "official-bert" and words[1:] not in (["--help"], ["--version"]):
                assert words[1] in COMMANDS, f"{page}: official-bert has no command {words[1]}"
                found.append(words[1:])
    return found


def test_every_command_has_a_page():
    pages = (ROOT / "docs" / "reference" / "commands").glob("*.md")
    assert {page.stem for page in pages if f"```{{command}} {page.stem}\n" in read(page)} == set(COMMANDS)


def find_flags(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--(\w+)", text))


@functools.cache
def list_flags(name: str, task: str | None = None) -> set[str]:
    """Returns the flags of a command, for all tasks unless one is named. Boolean flags are also listed with "no"."""
    command = load(name)
    variants = [task] if task and command.variants else [None, *command.variants]
    flags = [flag for variant in variants for flag in command.flags(variant)]
    return {flag.name for flag in flags} | {f"no{flag.name}" for flag in flags if flag.kind is bool}


def test_commands_in_the_documents_are_accepted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)  # according to their paths
    for page in PAGES:
        for name, *arguments in list_shell_commands(page):
            if name in COMMANDS or name in SCRIPTS:
                load(SCRIPTS.get(name, name)).parse(arguments)
            elif name not in OTHERS:
                folder = ROOT.joinpath(*name.split(".")[:2])  # tools.benchmarks.serving: tools/benchmarks
                source = "".join(map(read, folder.glob("*.py")))
                for flag in find_flags(" ".join(arguments)):
                    assert f"    {flag}: " in source, f"{page}: {name} has no --{flag}"


def test_flags_named_in_documents_exist():
    known = {flag for name in COMMANDS for flag in list_flags(name)} | {"flagfile", "help"}
    for path in (ROOT / "tools").rglob("*.py"):
        names = re.findall(r"^    (\w+): .* = option\(", read(path), re.MULTILINE)
        known |= {*names, *(f"no{name}" for name in names), *re.findall(r'add_argument\("--(\w+)"', read(path))}
    for page in PAGES:
        if page.name not in ("migration.md", "CHANGELOG.md"):  # these name removed flags
            for code in re.findall(r"`(?!pytest |pip |dask |tensorboard )([^`\n]+)`", read(page)):
                unknown = find_flags(code) - known
                assert not unknown, f"{page} names --{', --'.join(unknown)} in `{code}`; no command has it"


def test_flags_on_the_migration_page_exist():
    page = read(ROOT / "docs" / "reference" / "migration.md")
    left = re.findall(r"^\| (.*?) \| ", page, re.MULTILINE)
    commands = [load(name) for name in SCRIPTS.values()]
    listed = {flag for old in left for flag in find_flags(old)}
    assert {flag for command in commands for flag in [*command.aliases, *command.refused]} <= listed
    for old in left:
        if old.endswith("(taken)"):
            assert find_flags(old) <= {name for command in commands for name in command.aliases}, old
    pattern = r"(?sm)^### [^\n]*`official-bert ([\w-]+)(?: --task=(\w+))?`$(.*?)(?=^##|\Z)"
    sections = re.findall(pattern, page)
    assert len(sections) > 8
    for script, task, text in sections:
        rows = re.findall(r"^\| (.*) \| (.*) \|$", text, re.MULTILINE)[1:]
        assert rows, script
        for old, new in rows:
            same = find_flags(old) if new.startswith("the same") else set()
            task_of_row = re.search(r"--task=([\w-]+)", new)
            unknown = (find_flags(new) | same) - list_flags(script, task_of_row[1] if task_of_row else task or None)
            assert not unknown, f"docs/reference/migration.md: {script} has no --{', --'.join(unknown)}, beside {old}"


def test_every_test_of_several_devices_is_marked_core():
    """Tests with several devices or workers are slow, and would be skipped under a time limit if not marked core."""
    several, num_found = re.compile("run_marked_tests|worker_environments|LogicalDeviceConfiguration"), 0
    for path in (ROOT / "tests").rglob("test_*.py"):
        if several.search(read(path)) and path != pathlib.Path(__file__):
            for node in ast.parse(read(path)).body:
                if isinstance(node, ast.FunctionDef) and several.search("\n".join(map(ast.unparse, node.body))):
                    num_found += 1
                    decorators = {ast.unparse(each) for each in node.decorator_list}
                    assert {"pytest.mark.slow", "pytest.mark.core"} <= decorators, f"{path}::{node.name}"
    assert num_found > 6
