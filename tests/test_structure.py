"""What holds of the tree as a whole."""

import ast
import pathlib
import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT

# From the foundations up: a module imports from its own row or those before it.
LAYERS = (
    ("errors",),
    ("files", "progress", "command_line", "manifest"),
    ("config", "tokenization", "records", "text_pairs", "distribution", "initialization", "dropout", "training_log"),
    (
        "fast_tokenization",
        "dynamic_masking",
        "input_pipeline",
        "embeddings",
        "encoder_block",
        "heads",
        "losses",
        "metrics",
        "loss_scale",
        "optimization",
        "curves",
    ),
    ("encoder", "summary"),
    ("models", "model_card", "report"),
    ("checkpoints", "cost", "fill_mask", "pretrainer", "rematerialization", "training_options", "training_records"),
    ("training",),
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


MODULES = sorted(path for path in (ROOT / "official_bert").glob("*.py") if path.name != "__init__.py")


def reachable_from(module: str) -> set[str]:
    """The modules of official_bert that one imports, and those that these import."""
    reached: set[str] = set()
    waiting = [module]
    while waiting:
        current = waiting.pop()
        if current not in reached and (ROOT / "official_bert" / f"{current}.py").exists():
            reached.add(current)
            names = imports_of(ROOT / "official_bert" / f"{current}.py")
            waiting += [name.split(".")[1] for name in names if name.startswith("official_bert.")]
    return reached


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_dependencies_point_down_only(path: pathlib.Path):
    level = next(number for number, names in enumerate(LAYERS) if path.stem in names)
    below = {name for names in LAYERS[: level + 1] for name in names}
    for name in imports_of(path):
        package, *rest = name.split(".")
        assert package not in ("data_gen", "run_pretraining", "tests", "tpu_check"), f"{path.stem} imports {name}"
        if package == "official_bert" and rest:
            assert rest[0] in below, f"{path.stem} imports {name}"


def test_pretraining_needs_tensorflow_keras_and_absl_alone():
    needed = [path for path in MODULES if path.stem in reachable_from("training")]
    assert len(needed) > 20
    for path in [*needed, ROOT / "run_pretraining.py"]:
        for name in imports_of(path):
            package = name.split(".")[0]
            known = package in sys.stdlib_module_names | PRETRAINING_NEEDS | {"official_bert"}
            assert known, f"{path.name} imports {name}"


def test_importing_the_package_imports_nothing_else():
    code = "import sys, official_bert, data_gen; print('tensorflow' in sys.modules, 'keras' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_flags_are_read_in_scripts_alone():
    for path in [*(ROOT / "official_bert").rglob("*.py"), *(ROOT / "data_gen").rglob("*.py")]:
        if path.name != "command_line.py":
            assert "FLAGS" not in path.read_text(encoding="utf-8"), path


def test_every_file_of_the_readme_is_there_and_every_file_is_in_the_readme():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    tour = readme.split("## A tour")[1].split("\n## ")[0]
    named = set(re.findall(r"`([\w./*-]+\.(?:py|json|flagfile))`", tour))
    for name in named:
        assert list(ROOT.glob(name)), f"the README's tour names {name}, which is not there"
    folders = [ROOT, *(ROOT / name for name in ("official_bert", "data_gen", "tpu_check"))]
    for path in [path for folder in folders for path in folder.glob("*.py")]:
        name = str(path.relative_to(ROOT))
        assert path.name == "__init__.py" or name in named, f"the README's tour lacks {name}"


@pytest.mark.parametrize("script", ["run_pretraining", "fill_mask", "data_gen.create_pretraining_data"])
def test_scripts_list_their_flags(script: str):
    done = subprocess.run(
        [sys.executable, "-m", script, "--help"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1  # absl's code for --help
    for path in (ROOT / script.replace(".", "/")).with_suffix(".py"), ROOT / "official_bert" / "training_options.py":
        if path.stem == "training_options" and script != "run_pretraining":
            continue
        for name in re.findall(r"^    (\w+): .* = option\(", path.read_text(encoding="utf-8"), re.MULTILINE):
            assert f"--{name}" in done.stdout or f"--[no]{name}" in done.stdout, name
