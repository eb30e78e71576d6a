import functools
import gc
import os
import pathlib
import random
import sys
import time
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from tests import make

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from official_bert.modeling.config import BertConfig
    from official_bert.tokenization.fast import FastTokenizer
    from tests.object_store import ObjectStore

# Must be set before TensorFlow is first imported.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Commands that run inside the test process must not tune its allocator, because hundreds of tests share its memory.
os.environ.setdefault("OFFICIAL_BERT_TUNE_MALLOC", "0")
# Tests that import onnxruntime themselves must not send its telemetry.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

# Disables the time limit of Hypothesis, because run times differ between machines.
hypothesis.settings.register_profile("without_deadline", deadline=None)
hypothesis.settings.load_profile("without_deadline")


@pytest.fixture(scope="session")
def test_data() -> pathlib.Path:
    """Returns the folder of real data, or skips the test."""
    folder = os.environ.get("OFFICIAL_BERT_TEST_DATA")
    if not folder:
        pytest.skip("OFFICIAL_BERT_TEST_DATA is not set")
    return pathlib.Path(folder)


@pytest.fixture
def vocab_file(tmp_path: pathlib.Path) -> str:
    return make.write_vocab(tmp_path / "vocab.txt")


@pytest.fixture
def tokenizer(vocab_file: str) -> "FastTokenizer":
    from official_bert.tokenization.fast import FastTokenizer  # here, since few tests need it

    return FastTokenizer(vocab_file)


@pytest.fixture(scope="session")
def tiny_config() -> "BertConfig":
    return make.tiny_config()


@pytest.fixture(scope="session", autouse=True)
def run_separate_process() -> "Iterator[Callable[..., Any]]":
    """Runs export checks in the test process, which is faster than starting another one.

    Returns the original function that checks an export in a separate process, as it runs for users.
    """
    from official_bert.export import separate_process

    original = separate_process.run_process
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(separate_process, "run_process", separate_process.compute_answers)
        yield original


@pytest.fixture(scope="session")
def save_kind(tmp_path_factory: pytest.TempPathFactory) -> "Callable[[str], str]":
    """Returns the folder of a small fine-tuned model of a kind, or of a pre-training run. Tests must not change it."""
    from tests.export import exported_models  # here, since it imports TensorFlow

    return functools.cache(lambda kind: exported_models.save_kind(tmp_path_factory.mktemp(kind) / "model", kind))


@pytest.fixture(scope="session")
def export_kind(save_kind: "Callable[[str], str]", tmp_path_factory: pytest.TempPathFactory) -> "Callable[..., str]":
    """Exports a model in a format, and returns the folder of its only version. Tests must not change it."""
    from tests.export import exported_models  # here, since it imports TensorFlow

    @functools.cache
    def export_kind(kind: str, format_name: str) -> str:
        folder = tmp_path_factory.mktemp(f"{kind}-{format_name}")
        return exported_models.export(save_kind(kind), folder, format_name, encoder=kind == "encoder")

    return export_kind


@pytest.fixture(scope="session")
def store() -> "Iterator[ObjectStore]":
    """An object store that is accessed as s3://."""
    from tests import object_store  # here, since few tests need it

    with object_store.running() as running:
        yield running


@pytest.fixture
def bucket(store: "ObjectStore") -> str:
    """The address of a new bucket: s3://NAME."""
    return store.bucket()


# Allowed reasons to skip a test when everything is installed. Each is part of the line that pytest prints.
ALLOWED_SKIPS = (
    "the C library is not glibc",
    "nothing changes on a machine of so many processors",
    "TensorFlow is built without CUDA",
    "network namespaces",  # required for separate hosts; the same tests also run on this host only
)
_STARTED, _FIRST = pytest.StashKey[float](), pytest.StashKey[float]()
_OUT_OF_TIME = "not reached within the {minutes} minutes of --minutes; other tests come first in the next run"


def pytest_addoption(parser: pytest.Parser) -> None:
    minutes = "begin no test later than this after the start; which tests come first changes from run to run"
    strict = "fail if a test is skipped for a reason that is not on the list"
    parser.addoption("--minutes", type=float, help=minutes)
    parser.addoption("--first", type=float, help="with --minutes: where in the list to begin, from 0 to 1")
    parser.addoption("--strict-skips", action="store_true", help=strict)


def pytest_configure(config: pytest.Config) -> None:
    # All processes of a run share the start time and the order: workers receive them from the pytest-xdist controller.
    given = getattr(config, "workerinput", {})
    config.stash[_STARTED] = given.get("started", time.time())
    config.stash[_FIRST] = given.get("first", random.random() if config.option.first is None else config.option.first)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput |= {"started": node.config.stash[_STARTED], "first": node.config.stash[_FIRST]}


def pytest_report_header(config: pytest.Config) -> str | None:
    if config.option.minutes is None:
        return None
    return f"tests begin within {config.option.minutes:g} minutes, --first={config.stash[_FIRST]:.3f}"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.minutes is not None:
        first = int(config.stash[_FIRST] * len(items))
        items[:] = items[first:] + items[:first]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Makes the fast tests faster.

    TensorFlow's graph optimizer takes a sixth of their time. It stays enabled if slow tests also run. The garbage
    collector would spend a tenth of the time on objects created by the imports.
    """
    has_slow_tests = any(item.get_closest_marker("slow") for item in session.items)
    if (tensorflow := sys.modules.get("tensorflow")) and not has_slow_tests:
        tensorflow.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    minutes = item.config.option.minutes
    if minutes is not None and time.time() > item.config.stash[_STARTED] + 60 * minutes:
        pytest.skip(_OUT_OF_TIME.format(minutes=f"{minutes:g}"))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if not session.config.option.strict_skips or hasattr(session.config, "workerinput"):
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    reprs = [report.longrepr for report in reporter.stats.get("skipped", [])]
    reasons = {str(each[2] if isinstance(each, tuple) else each) for each in reprs}
    allowed = (*ALLOWED_SKIPS, _OUT_OF_TIME.split("{")[0])
    refused = {reason for reason in reasons if not any(each in reason for each in allowed)}
    for reason in sorted(refused):
        print(f"\nerror: a test was skipped for a reason that tests/conftest.py does not list: {reason}")
    if refused and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
