"""Ends the process cleanly: after an expected error, after Ctrl-C, or when its parent process ends."""

import contextlib
import errno
import os
import resource
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import NoReturn

from official_bert.errors import UserError
from official_bert.utils import extras

_PR_SET_PDEATHSIG = 1  # from <sys/prctl.h>
_IMPORT_MEMORY = 2 << 30  # address space in bytes that importing TensorFlow needs, approximately
INTERRUPTED = 130  # the exit code that shells use after Ctrl-C

_is_interrupted = False


def interrupt(*_: object) -> NoReturn:
    """Signal handler for Ctrl-C. Raises KeyboardInterrupt, like Python's own handler, and records that it did."""
    global _is_interrupted
    _is_interrupted = True
    raise KeyboardInterrupt


@contextlib.contextmanager
def handle_interrupts() -> Iterator[None]:
    """Makes sure that Ctrl-C ends the process, even if other code swallows the KeyboardInterrupt.

    Use the context in the main thread. TensorFlow swallows exceptions in Python code that it calls and continues with
    wrong results, which may or may not cause another error. Python prints and ignores exceptions in destructors.
    """
    global _is_interrupted
    is_main = threading.current_thread() is threading.main_thread()
    hooks = sys.excepthook, sys.unraisablehook

    def silence_if_interrupted(hook: Callable[..., None]) -> Callable[..., None]:
        return lambda *raised: None if _is_interrupted else hook(*raised)

    is_default = is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_default:
        signal.signal(signal.SIGINT, interrupt)
        sys.excepthook, sys.unraisablehook = silence_if_interrupted(hooks[0]), silence_if_interrupted(hooks[1])
    try:
        yield
    except BaseException:
        if _is_interrupted:
            end_interrupted()
        raise
    finally:
        _is_interrupted = False
        if is_default:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            sys.excepthook, sys.unraisablehook = hooks


@contextlib.contextmanager
def print_if_stopped(hint: str) -> Iterator[None]:
    """Prints a line to standard error if Ctrl-C or SIGTERM ends the process within this context.

    Outside the main thread, or if SIGTERM is ignored or handled by C code, the context does not change its handling.
    """

    def terminate(*_: object) -> None:
        os.write(2, f"{hint}\n".encode())  # unlike print, it may interrupt another print
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)

    is_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)  # None means a handler of C code, which could not be restored
    is_handled = is_main and before not in (None, signal.SIG_IGN)
    if is_handled:
        signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except KeyboardInterrupt:
        print(hint, file=sys.stderr)
        raise
    finally:
        if is_handled:
            signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def default_signals() -> Iterator[None]:
    """Lets SIGTERM and Ctrl-C end the process directly within this context, and restores their handlers afterwards.

    While C code blocks, Python's handlers do not run. A handler of SIGTERM that C code installs within the context, as
    TensorFlow's runtime for several workers does, is replaced at the end. Outside the main thread, there is no effect.
    """
    is_main = threading.current_thread() is threading.main_thread()
    numbers = [each for each in (signal.SIGTERM, signal.SIGINT) if is_main and signal.getsignal(each) != signal.SIG_IGN]
    before = {each: signal.signal(each, signal.SIG_DFL) for each in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


def check_interrupted() -> None:
    """Raises KeyboardInterrupt if other code swallowed an earlier one, because results since then may be wrong."""
    if _is_interrupted:
        raise KeyboardInterrupt


@contextlib.contextmanager
def exit_codes(extra: str | None = None) -> Iterator[None]:
    """Prints an expected error within the context as one line and exits with code 1, or 130 after Ctrl-C.

    Expected are UserErrors, missing packages, lack of memory and too many open files. If the reader of the output
    closed it, the exit code is 0.

    Args:
        extra: The pip extra that the command needs, such as "serve". The message about a missing package names it.
    """
    try:
        with handle_interrupts():
            yield
    except UserError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        end_interrupted()
    except BrokenPipeError:
        if not _is_output_closed():
            raise
        # The reader closed the pipe, as `head` does. Otherwise Python would report another error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:  # TensorFlow has its own classes for some of these errors
        if isinstance(error, ModuleNotFoundError) and (explained := extras.explain_missing_package(error, extra)):
            _fail(str(explained))
        if reason := describe_out_of_memory(error):
            _end_at_once(
                f"error: out of memory: {reason}. Use smaller batches or shorter texts, free memory, or raise the "
                "limit (ulimit -v unlimited).",
                code=1,
            )
        if not _is_out_of_descriptors(error):
            raise
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        _fail(
            f"the process needs more than {limit:,} open files, which is its limit. Raise the limit (ulimit -n 1024) "
            "and run the command again."
        )


def _fail(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(1)


def _is_out_of_descriptors(error: BaseException | None) -> bool:
    """Returns whether the cause of an error is that the process has too many open files."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            return True
        if type(error).__module__.startswith("tensorflow.") and os.strerror(errno.EMFILE) in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _is_output_closed() -> bool:
    """Returns whether the reader of standard output closed the pipe or the socket."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), select.POLLOUT)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def describe_out_of_memory(error: BaseException) -> str | None:
    """Returns the out-of-memory message of an error, or None if it is a different kind of error."""
    lines = [line.strip().removeprefix("Original error was: ") for line in str(error).splitlines() if line.strip()]
    if isinstance(error, MemoryError):
        return lines[0] if lines else "an allocation failed"
    if type(error).__module__.startswith("tensorflow."):
        phrases = ("OOM when allocating", "could not create a primitive")  # the second one is oneDNN's
        return next((line for line in lines if any(phrase in line for phrase in phrases)), None)
    unmapped = [line for line in lines if "failed to map segment" in line]
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if unmapped or 0 <= limit < _IMPORT_MEMORY:  # with such a limit, imports fail in various ways
        return (unmapped or lines or [type(error).__name__])[0]
    return None


def end_interrupted() -> NoReturn:
    """Ends the process after Ctrl-C, with a line on standard error and the exit code INTERRUPTED.

    It does not wait for other threads, whereas Python itself would.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C would print a traceback
    _end_at_once("interrupted", code=INTERRUPTED)


def _end_at_once(message: str, code: int) -> NoReturn:
    """Ends the process with a last line on standard error. Python's own cleanup could fail after it, and print more."""
    print(message, file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


def end_with_parent(parent: int) -> None:
    """Makes Linux kill this process when its parent process, whose id is `parent`, ends.

    On other systems, the process ends when it next reads from its parent.
    """
    if sys.platform == "linux":
        import ctypes  # imported late, so that Ctrl-C is handled as early as possible

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has already ended
        os._exit(1)


def end_with_parent_statement() -> str:
    """Returns a Python statement that makes the child process that executes it end together with this process."""
    return f"from {__name__} import {end_with_parent.__name__}; {end_with_parent.__name__}({os.getpid()})"
