"""Imports TensorFlow without its log messages, and without optional packages that no command uses."""

import contextlib
import gc
import logging
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence

from official_bert.utils.signals import end_interrupted, interrupt

_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"  # TensorFlow's own

# Packages that Keras imports, if they are installed, for wrappers, plots and notebooks.
OPTIONAL_PACKAGES = ("sklearn", "matplotlib", "IPython")


def quiet_logging() -> None:
    """Limits absl's log to warnings and errors. TensorFlow and Keras write to this log."""
    from absl import logging as absl_logging

    absl_logging.use_absl_handler()
    absl_logging.set_verbosity(absl_logging.WARNING)


@contextlib.contextmanager
def show_warnings_only() -> Iterator[None]:
    """Limits TensorFlow's log to warnings and errors within the context."""
    logger = logging.getLogger("tensorflow")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def import_tensorflow() -> None:
    """Imports TensorFlow and Keras without log messages, and without optional packages that no command uses."""
    import numpy  # noqa: F401  # before messages are hidden, since it reports a lack of memory on standard error

    with _hide_packages(OPTIONAL_PACKAGES), _exit_on_ctrl_c(), hide_startup_messages(), _pause_garbage_collection():
        import keras  # noqa: F401
        import tensorflow  # noqa: F401


@contextlib.contextmanager
def _hide_packages(packages: Sequence[str]) -> Iterator[None]:
    """Makes importing these packages fail within the context, as if they were not installed."""
    hidden = [name for name in packages if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None makes an import fail
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


@contextlib.contextmanager
def _exit_on_ctrl_c() -> Iterator[None]:
    """Makes Ctrl-C end the process at once within the context, because C++ code would swallow a KeyboardInterrupt."""
    stderr_copy = os.dup(2)

    def end(*_: object) -> None:
        os.dup2(stderr_copy, 2)
        end_interrupted()

    before = signal.getsignal(signal.SIGINT)
    if before in (signal.default_int_handler, interrupt) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is end:
            signal.signal(signal.SIGINT, before)
        os.close(stderr_copy)


@contextlib.contextmanager
def _pause_garbage_collection() -> Iterator[None]:
    """Disables garbage collection within the context. Objects that exist at its end are never collected later.

    Imported modules are never freed, so scanning them repeatedly only makes the import slower.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def hide_startup_messages() -> Iterator[None]:
    """Hides the messages about processors and GPUs that TensorFlow prints when it is imported within the context.

    TensorFlow writes them to file descriptor 2 before it can be configured. They are shown if the import fails, or if
    the user has set TF_CPP_MIN_LOG_LEVEL.
    """
    if "tensorflow" in sys.modules or _LOG_LEVEL in os.environ:
        yield
        return
    os.environ[_LOG_LEVEL] = "3"
    stderr_copy = os.dup(2)
    with tempfile.TemporaryFile() as messages:
        os.dup2(messages.fileno(), 2)
        try:
            yield
        except Exception:
            messages.seek(0)
            os.write(stderr_copy, messages.read())
            raise
        finally:
            os.dup2(stderr_copy, 2)
            os.close(stderr_copy)
            if "tensorflow" not in sys.modules:
                del os.environ[_LOG_LEVEL]
