"""The installed package, its public names, and the consistency of its lists of dependencies."""

import contextlib
import importlib.metadata
import importlib.resources
import inspect
import itertools
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import official_bert
from official_bert import commands, version
from official_bert.modeling.config import BertConfig
from official_bert.utils import command_line, configs
from official_bert.utils.extras import EXTRAS
from official_bert_cli import COMMANDS, main
from tests.golden import make_answers_and_losses
from tests.make import ROOT, assert_mentions, assert_rejected, run_python, write_text
from tests.test_structure import LAYERS, list_imports, read

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PLAIN = [Requirement(each) for each in PROJECT["dependencies"]]
_LISTED = PROJECT["optional-dependencies"]
_TENSORFLOW = f"{PROJECT['name']}[tensorflow]"  # in the list of the extra that installs it
OF_EXTRA = {
    extra: [*map(Requirement, {*own, *(_LISTED["tensorflow"] if _TENSORFLOW in own else [])} - {_TENSORFLOW})]
    for extra, own in _LISTED.items()
    if extra != "all"
}
# Imported only for comparisons, in environments where it is installed anyway.
PEERS = {"torch", "transformers"}


def read_lines(name: str) -> list[str]:
    return re.findall(r"^\s*([^#\s][^#]*?)\s*(?:#.*)?$", read(ROOT / name), re.MULTILINE)


def read_pins(text: str) -> dict[str, str]:
    return dict(re.findall(r"^([\w.-]+)==([\w.+]+)", text, re.MULTILINE))


_DIRECT, _BROUGHT = read(ROOT / "constraints.txt").split("\n# Brought by the packages above.")
PINS = read_pins(_DIRECT)  # of the packages named in requirements*.txt


def names(requirements: list[Requirement]) -> set[str]:
    return {canonicalize_name(each.name) for each in requirements}


@pytest.mark.parametrize(("name", "too_old"), [("onnxruntime", "1.20.1"), ("aiohttp", "3.13.5")])
def test_versions_with_known_errors_are_excluded(name: str, too_old: str):
    found = [each for requirements in OF_EXTRA.values() for each in requirements if each.name == name]
    assert len(found) == 2
    assert not any(each.specifier.contains(too_old) or not each.specifier.contains(PINS[name]) for each in found)


def test_requirements_txt_contains_the_dependencies_of_most_extras():
    include, *listed = read_lines("requirements.txt")
    assert include == "-c constraints.txt"
    extras = OF_EXTRA.keys() - {"dask", "jieba", "portable", "serve-onnx"}
    assert set(listed) == names([*PLAIN, *itertools.chain(*map(OF_EXTRA.get, extras))])
    assert {"tensorflow", "keras-nlp", "tensorflow-text", "tensorflow-datasets", "absl-py"} <= set(listed)


def test_versions_are_pinned_in_one_file_and_within_the_ranges():
    files = ("requirements.txt", "requirements-test.txt", "requirements-dev.txt")
    named = [Requirement(line) for line in itertools.chain(*map(read_lines, files)) if not line.startswith("-")]
    assert not [each for each in named if each.specifier or each.marker or each.url]
    assert {each.name for each in named} == set(PINS)
    for requirement in [*PLAIN, *itertools.chain(*OF_EXTRA.values())]:
        assert PINS[requirement.name] in requirement.specifier, requirement
        assert re.search(r">=\d", str(requirement.specifier)), requirement


def test_all_installed_dependencies_are_pinned():
    pinned = {canonicalize_name(name) for name in PINS | read_pins(_BROUGHT)}
    waiting, seen = [Requirement(name) for name in PINS], set()
    while waiting:
        requirement = waiting.pop()
        key = (canonicalize_name(requirement.name), frozenset(requirement.extras))
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            distribution = importlib.metadata.distribution(requirement.name)  # otherwise it is not installed here
            assert key[0] in pinned, key[0]
            for needed in map(Requirement, distribution.requires or [] if key not in seen else []):
                if any(not needed.marker or needed.marker.evaluate({"extra": extra}) for extra in ("", *key[1])):
                    waiting.append(needed)
        seen.add(key)
    assert len(seen) > len(PINS)


def test_the_extra_all_contains_every_extra():
    (everything,) = map(Requirement, _LISTED["all"])
    assert (everything.name, everything.extras) == (PROJECT["name"], set(OF_EXTRA))


def test_the_extra_in_an_error_installs_the_missing_package():
    distributions = importlib.metadata.packages_distributions()
    brought = {Requirement(each).name for each in importlib.metadata.requires("keras-nlp") or []}
    assert "keras-hub" in brought
    for package in itertools.chain(*EXTRAS.values()):
        installing = {canonicalize_name(name) for name in distributions[package]}
        installing |= {"keras-nlp"} if package == "keras_hub" else set()
        having = {extra for extra, requirements in OF_EXTRA.items() if names(requirements) & installing}
        assert {extra for extra, packages in EXTRAS.items() if package in packages} == having, package


def test_every_package_that_is_imported_is_a_dependency():
    distributions = importlib.metadata.packages_distributions()
    brought = {"google"}  # protobuf, installed by TensorFlow
    available = sys.stdlib_module_names | brought | PEERS | set(LAYERS).union(*EXTRAS.values())
    for path in (path for tree in LAYERS for path in (ROOT / tree).rglob("*.py")):
        for name in {each.split(".")[0] for each in list_imports(path)} - available:
            installing = {canonicalize_name(each) for each in distributions[name]}
            assert installing & names(PLAIN), f"{path} imports {name}, which pyproject.toml does not have"


def run_without(package: str, extra: str | None) -> None:
    """Runs a command whose implementation needs a package that is not installed."""

    def main() -> None:
        raise ModuleNotFoundError(name=package)

    command_line.Command(program="s", summary="", main=main, options=(), extra=extra, tensorflow=False).run([])


@pytest.mark.parametrize(("package", "extra", "named"), [
    ("sklearn.metrics", "finetune", "finetune"), ("tensorflow_text", "data", "data"), ("rjieba", None, "jieba"),
    ("tensorflow_datasets.core", "finetune", "tfds"), ("tensorflow_text", None, "serve"),
])  # fmt: skip
def test_an_error_names_the_missing_package_and_its_extra(package: str, extra: str | None, named: str, capsys):
    with pytest.raises(SystemExit, match="1"):
        run_without(package, extra)
    assert_mentions(capsys.readouterr().err, package.split(".")[0], f"pip install '{ROOT}[{named}]'")


def test_a_missing_module_of_this_package_is_not_explained():
    with pytest.raises(ModuleNotFoundError):
        run_without("official_bert.nowhere", "data")


def test_files_of_configs_are_found_from_other_folders(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    path = "configs/models/uncased_L-2_H-128_A-2.json"
    assert configs.find_config(path) == str(ROOT / path)
    assert importlib.resources.files("official_bert").joinpath(path).is_file()
    config = BertConfig.from_json_file(str(ROOT / path))
    assert BertConfig.from_json_file(path) == config
    assert BertConfig.from_name("bert-tiny") == BertConfig.from_name("uncased_L-2_H-128_A-2") == config
    assert_rejected(("'bert'", "bert-tiny", "uncased_L-2_H-128_A-2"), BertConfig.from_name, "bert")
    own = "configs/cpu_1_hour.flagfile"
    write_text(tmp_path / own, "--do_train\n--tpu_name=mine\n")
    for name in ("configs/none.json", "models/none.json", own):
        assert configs.find_config(name) == name
    needed = ["--input_file=x", "--output_dir=configs/models", f"--bert_config_file={path}"]
    (training,) = commands.PRETRAIN.parse([*needed, "--flagfile", own])
    assert (training.output_dir, training.tpu_name) == ("configs/models", "mine")
    flags = ["--flagfile=configs/one_gpu.flagfile", "--eval_steps=0", "--phase2_num_train_steps=0"]
    assert commands.PRETRAIN.parse([*needed, *flags])[0].train_batch_size != training.train_batch_size


def test_official_bert_runs_the_given_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def run(*arguments: str, code: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["official-bert", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        output = capsys.readouterr()
        assert ended.value.code == code
        return output.err if code else output.out

    assert all(re.search(rf"^  {name} ", run("--help"), re.MULTILINE) for name in COMMANDS)
    assert "where to start:" in run("--help")
    steps = run().split("where to start:\n")[1].split("\n\n")[0].splitlines()
    assert len([line for line in steps if re.search(r"official-bert ([a-z-]+)", line)[1] in COMMANDS]) == 3
    versions = ("TensorFlow", "tensorflow-text", "Keras", "ONNX Runtime", "NumPy", "protobuf", "Python")
    expected = "".join(rf", {name} [\d.]+" for name in versions)
    assert re.fullmatch(rf"official-bert {version.__version__}{expected}, Linux-\S+\n", run("--version"))
    assert "usage: official-bert serve --flag=value" in run("serve", "--help")
    assert_mentions(run("srve", code=1), "srve", "serve")
    assert_mentions(run("run_squad.py", code=1), "run_squad.py", "official-bert finetune --task=squad")


def test_the_documents_name_every_extra_and_the_version():
    page = read(ROOT / "docs" / "start" / "install.md")
    assert set(re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE)) == {*OF_EXTRA, "all"}
    assert f"official_bert-{version.__version__}-py3-none-any.whl" in page
    assert f"\nversion: {version.__version__}\n" in read(ROOT / "CITATION.cff")


def test_the_sdist_has_the_changelog_and_the_constraints_and_no_tests(tmp_path: pathlib.Path):
    files = "MANIFEST.in pyproject.toml README.md LICENSE CHANGELOG.md constraints.txt"
    modules = "official_bert_cli run_pretraining run_classifier run_squad extract_features"
    for name in [*files.split(), *(f"{module}.py" for module in modules.split())]:
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "official_bert", tmp_path / "official_bert", ignore=shutil.ignore_patterns("__pycache__"))
    write_text(tmp_path / "tests" / "test_a.py", "")
    code = "import setuptools.build_meta as backend\nbackend.build_sdist('dist')"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=True)
    (archive,) = (tmp_path / "dist").iterdir()
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {"CHANGELOG.md", "constraints.txt", "LICENSE", "official_bert/version.py", "official_bert/py.typed"} <= names
    assert not [name for name in names if name.startswith("tests")]


def test_every_public_name_exists_and_is_documented_and_type_checkers_see_it():
    pages = "".join(map(read, (ROOT / "docs" / "reference" / "api").glob("*.md")))
    imports = read(ROOT / "official_bert" / "__init__.py").split("_NAMES = ")[0]
    assert sorted(official_bert.__all__) == sorted([*official_bert._MODULE_OF, "__version__"])
    for name, module in official_bert._MODULE_OF.items():
        value = getattr(official_bert, name)
        assert (value.__name__, name in dir(official_bert)) == (name, True)
        assert value.__doc__, name
        assert pages.count(f":: official_bert.{name}\n") == 1, name
        assert f"from {module} import" in imports
        assert name in imports
    with pytest.raises(AttributeError, match="'Bert'"):
        official_bert.Bert  # noqa: B018


def test_public_names_have_the_stored_signatures():
    """After an intended change, run `python tests/golden/make_answers_and_losses.py signatures.json`."""
    assert make_answers_and_losses.signatures() == make_answers_and_losses.read("signatures.json")


def test_importing_the_package_has_no_side_effects():
    code = """
import logging, os, signal, sys, warnings
def state():
    return {
        "environment": dict(os.environ), "output": [os.fstat(each)[:3] for each in (0, 1, 2)], "hook": sys.excepthook,
        "logging": [*logging.root.handlers, logging.root.level], "warnings": list(warnings.filters),
        "signals": [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)], "finders": list(sys.meta_path),
        "modules": {"tensorflow", "keras", "numpy", "absl"} & set(sys.modules),
    }
before = state()
import official_bert, data_gen
after = state()
print({name for name in before if before[name] != after[name]})
"""
    done = run_python("-c", code)
    assert (done.stdout, done.stderr) == ("set()\n", "")


@pytest.mark.slow
def test_tensorflow_is_imported_without_messages():
    code = """
import os, sys, official_bert
official_bert.UserError
assert "TF_CPP_MIN_LOG_LEVEL" not in os.environ
official_bert.build_encoder
import tensorflow as tf
tf.config.list_logical_devices()
print("a warning of its user", file=sys.stderr)
"""
    done = run_python("-c", code, environment={"TF_CPP_MIN_LOG_LEVEL": None})
    assert (done.returncode, done.stderr) == (0, "a warning of its user\n")


@pytest.mark.slow
def test_text_models_name_the_missing_extra():
    code = """
import sys; sys.modules['tensorflow_text'] = None; import official_bert
try:
    official_bert.TextClassifier
except official_bert.UserError as error:
    print(error)
"""
    assert_mentions(run_python("-c", code).stdout, "tensorflow_text", f"pip install '{ROOT}[finetune]'")


def test_from_checkpoint_lists_the_arguments_of_every_class():
    from official_bert.keras_models.text_model import TextModel

    listed = inspect.getdoc(TextModel.from_checkpoint) or ""
    common = inspect.signature(TextModel.__init__).parameters
    for name in common.keys() - {"self", "spec", "config", "vocab", "do_lower_case", "unknown"}:
        assert re.search(rf"^ +(- )?{name}: ", listed, re.MULTILINE), name
    classes = [getattr(official_bert, name) for name in official_bert.__all__]
    classes = [each for each in classes if inspect.isclass(each) and issubclass(each, TextModel)]
    assert len(classes) == 7
    for each in classes:
        line = (re.search(rf"^ +- {each.__name__}: ((?:.|\n)*?)\.\n", listed, re.MULTILINE) or [""] * 2)[1]
        for name, argument in inspect.signature(each.__init__).parameters.items():
            if name not in ("self", "config", "vocab", "settings"):
                is_required = argument.default is inspect.Parameter.empty
                shown = name if is_required else f"{name}={argument.default!r}".replace("'", '"')
                assert shown in line, f"{each.__name__}: {shown}"
