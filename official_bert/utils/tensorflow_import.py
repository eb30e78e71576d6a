"""TensorFlow's import: without its remarks, and as commands do it, without packages that no command uses."""

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

# What Keras imports where it is installed, for wrappers, plots and notebooks: a third of the time of its import.
OFFERED_BY_KERAS = ("sklearn", "matplotlib", "IPython")


def quiet_logging() -> None:
    """Lets absl's log, which TensorFlow and Keras write to, show warnings and errors alone."""
    from absl import logging as absl_logging

    absl_logging.use_absl_handler()
    absl_logging.set_verbosity(absl_logging.WARNING)


@contextlib.contextmanager
def show_warnings_only() -> Iterator[None]:
    """Within its context TensorFlow's log shows warnings and errors alone, in programs of users too."""
    logger = logging.getLogger("tensorflow")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def import_tensorflow() -> None:
    """Imports TensorFlow and Keras, quietly, and without packages that no command uses."""
    import numpy  # noqa: F401  # which says on standard error where it lacks memory

    with _without(OFFERED_BY_KERAS), _interrupted_at_once(), hide_startup_messages(), _without_collecting():
        import keras  # noqa: F401
        import tensorflow  # noqa: F401


@contextlib.contextmanager
def _without(packages: Sequence[str]) -> Iterator[None]:
    """Within its context these packages are as if they were not installed; later they can be imported."""
    hidden = [name for name in packages if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None makes an import fail
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


@contextlib.contextmanager
def _interrupted_at_once() -> Iterator[None]:
    """Within its context Ctrl-C ends the process, where an exception would be lost in code that is not Python's."""
    kept = os.dup(2)

    def end(*_: object) -> None:
        os.dup2(kept, 2)
        end_interrupted()

    before = signal.getsignal(signal.SIGINT)
    if before in (signal.default_int_handler, interrupt) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is end:
            signal.signal(signal.SIGINT, before)
        os.close(kept)


@contextlib.contextmanager
def _without_collecting() -> Iterator[None]:
    """Within its context no garbage is collected; what is there at its end is never looked at again.

    Modules stay as long as the process. To go through them again and again was a fifth of the import's time.
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
    """If TensorFlow is first imported in its context, it makes no remarks then and later: of the processor, of no GPU.

    It writes them to file descriptor 2 before any setting can reach it. They are shown after all if the import fails,
    and by a user who sets TF_CPP_MIN_LOG_LEVEL.
    """
    if "tensorflow" in sys.modules or _LOG_LEVEL in os.environ:
        yield
        return
    os.environ[_LOG_LEVEL] = "3"
    kept = os.dup(2)
    with tempfile.TemporaryFile() as remarks:
        os.dup2(remarks.fileno(), 2)
        try:
            yield
        except Exception:
            remarks.seek(0)
            os.write(kept, remarks.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            if "tensorflow" not in sys.modules:
                del os.environ[_LOG_LEVEL]
