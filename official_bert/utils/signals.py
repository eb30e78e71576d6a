"""How processes end: by Ctrl-C, for lack of memory, or together with the process that started them."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import NoReturn

_PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>
_LEAST_MEMORY = 2 << 30  # bytes of addresses that TensorFlow's import takes, about
INTERRUPTED = 130  # the exit code of shells for a program that Ctrl-C ended


_is_interrupted = False


def interrupt(*_: object) -> NoReturn:
    """Answers Ctrl-C as Python does, and notes it; a signal's handler."""
    global _is_interrupted
    _is_interrupted = True
    raise KeyboardInterrupt


@contextlib.contextmanager
def handle_interrupts() -> Iterator[None]:
    """Within its context, in the main thread, the process ends as interrupted, whatever becomes of the exception.

    TensorFlow loses an exception that Ctrl-C raises in Python code which it calls in turn, and goes on with a wrong
    answer of that code: another error follows, or none. Of one that is raised while an object is deleted, Python would
    show the traceback and go on; so would TensorFlow, of one within its own calls of Python.
    """
    global _is_interrupted
    is_main = threading.current_thread() is threading.main_thread()
    hooks = sys.excepthook, sys.unraisablehook

    def unless_interrupted(hook: Callable[..., None]) -> Callable[..., None]:
        return lambda *raised: None if _is_interrupted else hook(*raised)

    is_answered = is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_answered:
        signal.signal(signal.SIGINT, interrupt)
        sys.excepthook, sys.unraisablehook = unless_interrupted(hooks[0]), unless_interrupted(hooks[1])
    try:
        yield
    except BaseException:
        if _is_interrupted:
            end_interrupted()
        raise
    finally:
        _is_interrupted = False
        if is_answered:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            sys.excepthook, sys.unraisablehook = hooks


def check_interrupted() -> None:
    """Raises KeyboardInterrupt if it was raised before: what was computed since may be wrong, and is not to be kept."""
    if _is_interrupted:
        raise KeyboardInterrupt


@contextlib.contextmanager
def exit_on_interrupt() -> Iterator[None]:
    """Within its context Ctrl-C ends the process by one line, and not by a traceback; so does a lack of memory."""
    try:
        with handle_interrupts():
            yield
    except KeyboardInterrupt:
        end_interrupted()
    except (MemoryError, ImportError) as error:
        lacking = _describe_lack_of_memory(error)
        if lacking is None:
            raise
        print(
            f"error: there is too little memory: {lacking}; free some, or raise the limit (ulimit -v unlimited), and "
            "give the command again",
            file=sys.stderr,
        )
        sys.exit(1)


def _describe_lack_of_memory(error: BaseException) -> str | None:
    """Returns what an error says of memory that could not be had; None for another error."""
    lines = [line.removeprefix("Original error was: ") for line in str(error).splitlines() if line]
    if isinstance(error, MemoryError):
        return lines[0] if lines else "an allocation failed"
    import resource  # here, as ctypes below

    mapped = [line for line in lines if "failed to map segment" in line]
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if mapped or 0 <= limit < _LEAST_MEMORY:  # packages may word it in any way
        return (mapped or lines or ["an import failed"])[0]
    return None


def end_interrupted() -> NoReturn:
    """Ends a process that Ctrl-C interrupted: a line on standard error, and the exit code of shells for it.

    Python itself may end by the signal instead, if it arrived within `exec`; and it would wait for threads.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C would show a traceback of the way out
    print("interrupted", file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(INTERRUPTED)


def end_with_parent(parent: int) -> None:
    """Has Linux kill this process when the one that started it ends, however that ends; `parent` is its number.

    Other systems do not offer that: there a process ends when it next reads from its parent.
    """
    if sys.platform == "linux":
        import ctypes  # here, since each command imports this module before it can answer Ctrl-C

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended before
        os._exit(1)


def end_with_parent_statement() -> str:
    """Returns the Python statements by which a process that this one starts ends with it, as `end_with_parent`."""
    return f"from {__name__} import {end_with_parent.__name__}; {end_with_parent.__name__}({os.getpid()})"
