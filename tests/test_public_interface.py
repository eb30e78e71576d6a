"""The public names that users import from official_bert."""

import inspect
import re

import pytest

import official_bert
from tests.conftest import ROOT
from tests.golden import make_answers_and_losses
from tests.golden.comparison import golden
from tests.make import assert_mentions, run_python


def test_every_public_name_exists_and_is_documented():
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "reference" / "api").glob("*.md"))
    for name in set(official_bert.__all__) - {"__version__"}:
        value = getattr(official_bert, name)
        assert value.__name__ == name
        assert value.__doc__, name
        assert name in dir(official_bert)
        assert pages.count(f":: official_bert.{name}\n") == 1, name
    with pytest.raises(AttributeError, match="'Bert'"):
        official_bert.Bert  # noqa: B018


def test_public_names_have_the_stored_signatures():
    """After an intended change, run `python tests/golden/make_answers_and_losses.py signatures.json`."""
    assert make_answers_and_losses.signatures() == golden("signatures.json")


def test_type_checkers_see_lazily_imported_names():
    assert sorted(official_bert.__all__) == sorted([*official_bert._MODULE_OF, "__version__"])
    text = (ROOT / "official_bert" / "__init__.py").read_text(encoding="utf-8").split("_NAMES = ")[0]
    for name, module in official_bert._MODULE_OF.items():
        assert f"from {module} import" in text
        assert name in text


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
