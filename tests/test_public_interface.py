"""The public names that users import from official_bert."""

import inspect
import os
import re
import subprocess
import sys

import pytest

import official_bert
from tests.conftest import ROOT
from tests.golden import make_answers_and_losses
from tests.golden.comparison import golden


@pytest.mark.parametrize("name", [name for name in official_bert.__all__ if name != "__version__"])
def test_every_public_name_is_there_and_documented(name: str):
    value = getattr(official_bert, name)
    assert value.__name__ == name
    assert value.__doc__, name
    assert name in dir(official_bert)
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "reference" / "api").glob("*.md")]
    assert sum(f":: official_bert.{name}\n" in page for page in pages) == 1


def test_the_public_names_take_the_stored_arguments():
    """After an intended change, run `python tests/golden/make_answers_and_losses.py signatures.json`."""
    assert make_answers_and_losses.signatures() == golden("signatures.json")


def test_type_checkers_see_the_names_that_are_imported_late():
    assert sorted(official_bert.__all__) == sorted([*official_bert._MODULE_OF, "__version__"])
    text = (ROOT / "official_bert" / "__init__.py").read_text(encoding="utf-8").split("_NAMES = ")[0]
    for name, module in official_bert._MODULE_OF.items():
        assert f"from {module} import" in text
        assert name in text


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Bert'"):
        official_bert.Bert  # noqa: B018


def test_importing_the_package_imports_nothing_else():
    code = "import sys, official_bert, data_gen; print({'tensorflow', 'keras', 'numpy', 'absl'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["set()"]


@pytest.mark.slow
def test_tensorflow_makes_no_remarks_where_a_public_name_imports_it():
    code = """
import os, sys, official_bert
official_bert.UserError
assert "TF_CPP_MIN_LOG_LEVEL" not in os.environ
official_bert.build_encoder
import tensorflow as tf
tf.config.list_logical_devices()
print("a warning of its user", file=sys.stderr)
"""
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "a warning of its user\n")


STATE = """
import logging, os, signal, sys, warnings
def state():
    return {
        "environment": dict(os.environ), "output": [os.fstat(each)[:3] for each in (0, 1, 2)], "hook": sys.excepthook,
        "logging": [*logging.root.handlers, logging.root.level], "warnings": list(warnings.filters),
        "signals": [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)], "finders": list(sys.meta_path),
    }
"""


def test_importing_the_package_changes_nothing_else():
    code = f"""{STATE}
before = state()
import official_bert, data_gen
after = state()
print({{name for name in before if before[name] != after[name]}})
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["set()"]


@pytest.mark.slow
def test_a_model_of_text_names_the_extra_that_it_lacks():
    code = (
        "import sys; sys.modules['tensorflow_text'] = None; import official_bert\n"
        "try:\n    official_bert.TextClassifier\n"
        "except official_bert.UserError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    expected = f"the package tensorflow_text is not installed; run: pip install '{ROOT}[finetune]'\n"
    assert done.stdout == expected, done.stderr


def test_from_checkpoint_lists_the_arguments_of_every_class():
    from official_bert.keras_models.text_model import TextModel

    listed = inspect.getdoc(TextModel.from_checkpoint) or ""
    common = inspect.signature(TextModel.__init__).parameters
    for name in common.keys() - {"self", "head", "config", "vocab", "do_lower_case"}:
        assert re.search(rf"^ +(- )?{name}: ", listed, re.MULTILINE), name
    classes = [getattr(official_bert, name) for name in official_bert.__all__]
    classes = [each for each in classes if inspect.isclass(each) and issubclass(each, TextModel)]
    assert len(classes) == 7
    for each in classes:
        own = inspect.signature(each.__init__).parameters
        line = (re.search(rf"^ +- {each.__name__}: ((?:.|\n)*?)\.\n", listed, re.MULTILINE) or [""] * 2)[1]
        for name in own.keys() - {"self", "config", "vocab", "settings"}:
            default = own[name].default
            shown = name if default is inspect.Parameter.empty else f"{name}={default!r}".replace("'", '"')
            assert shown in line, f"{each.__name__}: {shown}"
