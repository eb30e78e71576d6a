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
    (
        "config",
        "tokenization",
        "records",
        "text_pairs",
        "distribution",
        "initialization",
        "dropout",
        "training_log",
        "stop_request",
        "html_page",
    ),
    (
        "fast_tokenization",
        "graph_tokenization",
        "graph_inputs",
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
        "profiling",
    ),
    ("encoder", "summary", "graph_answers", "warmup", "batch_prediction"),
    ("models", "model_card", "report", "task_models"),
    ("tasks.bad_rows", "tasks.data_files", "tasks.entity_scores", "tasks.tfds_data", "tasks.windows"),
    ("tasks.task", "text_models"),
    ("tasks.batches", "tasks.feature_cache", "tasks.scores", "tasks.sequences"),
    ("tasks.glue", "tasks.multiple_choice", "tasks.squad", "tasks.tagging"),
    ("tasks.squad_answers", "tasks.squad_scores"),
    ("checkpoint_formats.checkpoint",),
    ("checkpoint_formats.bundle", "checkpoint_formats.checksums", "checkpoint_formats.sizes"),
    ("checkpoint_formats.google_files", "checkpoint_formats.hugging_face_tokenizer"),
    ("checkpoint_formats.tf1", "checkpoint_formats.model_garden"),
    ("checkpoints", "cost", "fill_mask", "pretrainer", "rematerialization", "training_options", "training_records"),
    ("training_checks", "training_evaluation", "training_facts"),
    ("training", "checkpoint_formats.own", "checkpoint_formats.hugging_face", "checkpoint_formats.keras_hub"),
    ("checkpoint_formats.parity",),
    ("conversion", "finetuned"),
    ("loading", "hub_export", "finetuning_options", "tasks.starting"),
    ("features", "export", "tasks.tabular", "tasks.trainer"),
    ("tasks.multiple_choice_task", "tasks.squad_task", "tasks.tagging_task"),
    ("feature_files", "tasks.all_tasks", "tasks.distillation", "finetuning_report"),
    ("finetuning", "portable_export"),
    ("finetuning_sweep",),
    ("serving.refused", "serving.options", "serving.metrics", "serving.logs", "serving.saved_model"),
    ("serving.batching", "serving.protocol"),
    ("serving.models",),
    ("serving.openapi",),
    ("serving.application",),
    ("serving.server",),
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


MODULES = sorted(path for path in (ROOT / "official_bert").rglob("*.py") if path.name != "__init__.py")


def name_of(path: pathlib.Path) -> str:
    """A module's name within official_bert: files, checkpoint_formats.tf1."""
    return ".".join(path.relative_to(ROOT / "official_bert").with_suffix("").parts)


NAMES = {name_of(path): path for path in MODULES}


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


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_dependencies_point_down_only(path: pathlib.Path):
    level = next(number for number, names in enumerate(LAYERS) if name_of(path) in names)
    below = {name for names in LAYERS[: level + 1] for name in names}
    imported = imports_of(path)
    for name in imported:
        above = ("data_gen", "run_pretraining", "run_finetuning", "tests", "tpu_check")
        assert name.split(".")[0] not in above, f"{path.stem} imports {name}"
        assert not name.startswith("official_bert.") or ours_among({name}), f"{path.stem} imports {name}"
    assert ours_among(imported) <= below, f"{path.stem} imports {ours_among(imported) - below}"


def test_pretraining_needs_tensorflow_keras_and_absl_alone():
    needed = [NAMES[name] for name in reachable_from("training")]
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
    folders = [ROOT / name for name in ("official_bert", "data_gen", "tpu_check")]
    for path in [*ROOT.glob("*.py"), *(path for folder in folders for path in folder.rglob("*.py"))]:
        name = str(path.relative_to(ROOT))
        assert path.name == "__init__.py" or name in named, f"the README's tour lacks {name}"


@pytest.mark.parametrize(("script", "owner"), [
    ("run_pretraining", "official_bert/training_options.py"),
    pytest.param("run_finetuning", "official_bert/finetuning_options.py", marks=pytest.mark.slow),
    pytest.param("convert_checkpoint", "official_bert/conversion.py", marks=pytest.mark.slow),
    pytest.param("fill_mask", "fill_mask.py", marks=pytest.mark.slow),
    pytest.param("export_saved_model", "official_bert/export.py", marks=pytest.mark.slow),
    pytest.param("batch_predict", "official_bert/batch_prediction.py", marks=pytest.mark.slow),
    pytest.param("export_portable", "official_bert/portable_export.py", marks=pytest.mark.slow),
    pytest.param("extract_features", "extract_features.py", marks=pytest.mark.slow),
    pytest.param("serve", "official_bert/serving/options.py", marks=pytest.mark.slow),
    pytest.param("data_gen.create_pretraining_data", "data_gen/pipeline.py", marks=pytest.mark.slow),
])  # fmt: skip
def test_scripts_list_their_flags(script: str, owner: str):
    done = subprocess.run(
        [sys.executable, "-m", script, "--help"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1  # absl's code for --help
    names = re.findall(r"^    (\w+): .* = option\(", (ROOT / owner).read_text(encoding="utf-8"), re.MULTILINE)
    assert names
    for name in names:
        flag = name.removesuffix("_")  # from_, since from is a word of Python's
        assert f"--{flag}" in done.stdout or f"--[no]{flag}" in done.stdout, name
