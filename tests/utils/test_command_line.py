"""Flags, help, errors and exit codes of commands, also while C code blocks the main thread."""

import concurrent.futures
import contextlib
import dataclasses
import errno
import io
import os
import pathlib
import re
import resource
import runpy
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from absl import logging as absl_logging

from official_bert.errors import CollectedErrors, UserError, shorten_error
from official_bert.utils import tensorflow_import
from official_bert.utils.command_line import Command, Variant
from official_bert.utils.flags import DATA, ValidatedOptions, convert_arguments, option
from official_bert.utils.signals import default_signals, exit_codes, handle_interrupts, interrupt
from official_bert_cli import COMMANDS, load
from tests.make import ROOT, assert_mentions, assert_rejected, refusal, run_python, write_text

# Flags are parsed, and --help and errors printed, before any of these modules is imported.
HEAVY = "tensorflow keras numpy sentencex tokenizers aiohttp h5py pyarrow safetensors zstandard onnx".split()


@dataclasses.dataclass
class Options:
    needed: list[str] = option(dataclasses.MISSING, "A list without a default.", group=DATA)
    sizes: list[str] = option(["tiny", "base"], "A list with one.")
    none: list[str] = option([], "A list with an empty one.")
    model: list[str] = option(["a=b"], "Given once for each.", repeated=True)
    number: int | None = option(None, "A number.")
    rate: float = option(5e-5, "A rate.")
    from_: str = option("x", "A choice.", ("x", "y"))
    is_cased: bool = option(False, "Yes or no.")


@dataclasses.dataclass
class TaskChoice:
    task: str = option(dataclasses.MISSING, "What to learn.")
    length: int | None = option(None, "The longest.")


@dataclasses.dataclass
class WindowOptions:
    stride: int = option(128, "Tokens from one window to the next.")


def command(**changes: object) -> Command:
    settings: dict[str, object] = {"program": "program", "summary": "Does it.", "main": print, "options": (Options,)}
    return Command(**{**settings, **changes})  # type: ignore[arg-type]


WINDOWS = (WindowOptions,)
LENGTHS = [("squad", WINDOWS, 384), ("glue", WINDOWS, 128), ("swag", (), 128)]
VARIANTS = {name: Variant(options=options, shown_defaults={"length": length}) for name, options, length in LENGTHS}
TASKS = command(options=(TaskChoice,), chooser="task", variants=VARIANTS)


def parse(flags: str) -> Options:
    return command().parse(flags.split())[0]


def test_flags_have_the_defaults_of_their_fields_and_are_spelled_as_the_original_spells_them():
    assert parse("--needed=x,y") == Options(["x", "y"], ["tiny", "base"], [], ["a=b"], None)
    flags = "--needed=x --sizes=tiny --none=z --model=c=d --model=e=f --number=3 --rate=1e-4 --from=y --is_cased"
    assert parse(flags) == Options(["x"], ["tiny"], ["z"], ["c=d", "e=f"], 3, 1e-4, "y", True)
    for spelling in ("--is_cased=true", "--is_cased=True", "-is_cased", "--is_cased --nois_cased --is_cased"):
        assert parse(f"--needed x {spelling}").is_cased, spelling
    for spelling in ("--is_cased=false", "--nois_cased", "--is_cased=False"):
        assert not parse(f"--needed x {spelling}").is_cased, spelling


def test_flags_can_be_read_from_files(tmp_path, monkeypatch):
    write_text(tmp_path / "inner.flagfile", "\ufeff--number=3\n\n// a comment\n")
    path = write_text(tmp_path / "a.flagfile", f"\ufeff# a comment\n--needed=x\n--flagfile={tmp_path}/inner.flagfile\n")
    assert command().parse([f"--flagfile={path}"])[0].number == 3
    monkeypatch.setenv("HOME", str(tmp_path))
    texts = command(positional="texts").parse(["-flagfile", "~/a.flagfile", "--", "--flagfile=x"])
    assert (texts[0].number, texts[1]) == (3, ["--flagfile=x"])
    for arguments in (["--flagfile="], ["--needed=x", "--flagfile"]):
        assert_rejected("--flagfile=FILE", command().parse, arguments)
    options = command().parse([f"--flagfile={path}", "--number=4"])[0]
    assert (options.needed, options.number) == (["x"], 4)
    utf16, pipe, outer, missing = (tmp_path / name for name in ("utf16", "pipe", "outer", "missing"))
    utf16.write_text("--number=3\n", encoding="utf-16")
    os.mkfifo(pipe)  # must not block
    for path, names in ((utf16, ("line 1", "0xff")), (pipe, ("pipe",)), (missing, ())):
        outer.write_text(f"--number=4\n  --flagfile={path}\n--flagfile={outer}\n")
        for given in (path, outer):
            assert_rejected((path, *names), command().parse, [f"--flagfile={given}"])


@pytest.mark.parametrize(("of", "arguments", "names"), [
    (command(options=(Options, TaskChoice)), [], "--needed and --task"), (command(), [], ("--needed", "required")),
    (command(refused={"shiny": "use --rate"}), ["--needed=x", "--noshiny"], ("--noshiny", "--rate")),
    *[(command(), ["--needed=x", flag], names) for flag, names in (
        ("--nubmer=3", ("--nubmer", "--number")), ("--zzz", ("--zzz", "--help")), ("y", "'y'"),
        ("--number=a: b", ("--number=a: b", "whole")), ("--number", "--number=..."),
    )],
    (command(), ["--needed=a\udcff"], ("'--needed=a\\udcff'", "0xff", "UTF-8")),
    (TASKS, ["--task=swag", "--stride=3"], ("--task=swag", "--stride", "squad", "glue")),
    (TASKS, ["--task=squad", "--colunm=3"], "--colunm"), (TASKS, ["--task=sqaud"], ("--task=sqaud", "squad?")),
    (TASKS, [], ("--task", "required", "squad, glue, swag")),
])  # fmt: skip
def test_errors_name_the_flag_and_what_was_expected(of: Command, arguments: list[str], names: object):
    assert_rejected(names, of.parse, arguments)


def test_items_of_lists_may_contain_line_breaks_and_quoted_commas():
    for text, items in (('a\nb/c, d\te ,f"g', ["a\nb/c", "d\te", 'f"g']), ('"a,b",c', ["a,b", "c"]), ("", [])):
        assert command().parse(["--needed=x", f"--sizes={text}"])[0].sizes == items


def test_characters_that_the_terminal_cannot_show_are_escaped(monkeypatch: pytest.MonkeyPatch):
    for errors, expected in (("strict", b"\\u4e2d\n"), ("replace", b"?\n")):  # the user may choose the latter
        shown = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, "ascii", errors))
        with pytest.raises(SystemExit, match="0"):
            command(options=(), main=lambda: print("\u4e2d"), tensorflow=False).run([])
        assert shown.getvalue() == expected


def test_log_messages_are_hidden_and_tensorflow_is_imported_before_the_main_function(monkeypatch: pytest.MonkeyPatch):
    found: list[object] = []
    monkeypatch.setattr(tensorflow_import, "import_tensorflow", lambda: found.append("imported"))
    for tensorflow in (True, False):
        absl_logging.set_verbosity(absl_logging.INFO)
        with pytest.raises(SystemExit, match="0"):
            command(main=lambda: found.append(absl_logging.get_verbosity()), options=(), tensorflow=tensorflow).run([])
    assert found == ["imported", absl_logging.WARNING, absl_logging.WARNING]


def test_the_middle_of_a_very_long_message_is_omitted():
    assert str(UserError("a" * 10_000)) == "a" * 10_000
    message = str(UserError("received " + "a" * 10**6 + "; remove it"))
    assert len(message) < 10_100
    assert re.fullmatch(r"received a+ *\.\.\. \(990,020 characters\) \.\.\. *a+; remove it", message)


def fail(message: str) -> None:
    raise UserError(message)


def test_messages_of_tensorflow_are_shortened_and_each_problem_is_listed_once():
    for text in ("{{function_node f}} bad [Op:MatMul]\nDetected at node x\n\tline", "bad"):
        assert shorten_error(tf.errors.AbortedError(None, None, text)) == "bad"
    assert shorten_error(tf.errors.AbortedError(None, None, "Graph execution error")) == "Graph execution error"
    errors = CollectedErrors()
    for flag, expected in (("--a", "--a"), ("--b", "2 errors:\n  1. --a\n  2. --b")):
        for _ in range(2):
            assert errors.attempt(fail, flag) is None
        assert refusal(errors.raise_if_any) == expected


def raised_after(cause: Exception) -> Exception:
    error = ValueError("bad")
    error.__context__ = cause
    return error


DESCRIPTORS = f"{resource.getrlimit(resource.RLIMIT_NOFILE)[0]:,}"
_OOM = "Graph execution error:\n\nstatus: 1, message: {}\n\t [[node]]"


@pytest.mark.parametrize(("error", "names"), [
    (OSError(errno.EMFILE, "Too many open files"), [DESCRIPTORS, "ulimit -n"]),
    (raised_after(OSError(errno.ENFILE, "Too many open files in system")), [DESCRIPTORS, "ulimit -n"]),
    (MemoryError("Unable to allocate 1 GiB"), ["memory: Unable to allocate 1 GiB"]),
    (ImportError("numpy:\nOriginal error was: a.so: failed to map segment"), ["memory: a.so: failed to map segment"]),
    (tf.errors.ResourceExhaustedError(None, None, "/a.data-00000; Too many open files"), [DESCRIPTORS, "ulimit -n"]),
    (tf.errors.AbortedError(None, None, _OOM.format("OOM when allocating tensor with [1]")), ["memory", "[1]"]),
    (tf.errors.AbortedError(None, None, _OOM.format("could not create a primitive, in x.cc")), ["memory", "x.cc"]),
])  # fmt: skip
def test_running_out_of_memory_or_file_descriptors_is_reported_in_one_line(error, names, capfd, monkeypatch):
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit) as caught, exit_codes():
        raise error
    shown = capfd.readouterr().err
    assert (caught.value.code, shown.count("\n")) == (1, 1)
    assert_mentions(shown, "error", *names)
    full = tf.errors.ResourceExhaustedError(None, None, "a queue is full")
    for other in (full, BrokenPipeError(), ValueError("Too many open files")):
        with pytest.raises(type(other)), exit_codes():
            raise other


def test_positional_arguments_may_precede_flags_or_follow_a_double_dash():
    texts = command(positional="texts")
    assert texts.parse(["one", "--needed=x", "two"])[1] == ["one", "two"]
    assert texts.parse(["--needed=x", "--", "--three"])[1] == ["--three"]
    with pytest.raises(SystemExit, match="3"):
        command(positional="texts", main=lambda *_: 3, tensorflow=False).run(["--needed=x", "--", "--help"])


def test_the_chosen_variant_adds_its_flags_which_are_shown_in_its_help():
    for spelling in ("squad", "SQuAD"):
        assert TASKS.parse([f"--task={spelling}"]) == [TaskChoice("squad", None), WindowOptions(128)]
    assert TASKS.parse(["--length=9", "--stride", "64", "--task", "glue"]) == [TaskChoice("glue", 9), WindowOptions(64)]
    assert TASKS.parse(["--task=swag"]) == [TaskChoice("swag", None)]
    text, text_of_squad = TASKS.help(), TASKS.help(["--task=squad", "--help"])
    assert "squad, glue, swag" in text
    assert "--stride" not in text
    assert "--length=N  (default: 128; 384 with squad)" in text
    assert "--task=squad:\n  --stride=N  (default: 128)" in text_of_squad
    assert "--length=N  (default: 384)" in text_of_squad


def test_help_shows_groups_defaults_choices_examples_and_the_steps_before_and_after():
    text = command(examples=("--needed=x", "--needed=y")).help((), "script")
    assert text.index("Does it.") < text.index("\ndata:\n  --needed=TEXT,...  (required)") < text.index("\nflags:\n")
    for part in ("--sizes=TEXT,...  (default: tiny,base)", "--from=x|y  (default: x)", "--rate=X  (default: 5e-05)",
                 "--[no]is_cased  (default: false)", "--number=N\n      A number."):  # fmt: skip
        assert part in text, part
    assert text.endswith("more examples:\n  script --needed=y")
    assert "--needed=x" not in text  # the first example is at the top, before and after formatting
    text = command(examples=("--needed=x",), before="a file", after="read it").help((), "script")
    head = "Does it.\n\nusage: script --flag=value ...\n\n"
    assert text.startswith(f"{head}  before  a file\n  run     script --needed=x\n  after   read it\n\ndata:")


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_valid_examples_and_describes_its_flags_and_steps(name: str):
    found = load(name)
    assert len(found.examples) >= 2 or not found.options
    for example in found.examples:
        found.parse(shlex.split(example))
    for step in (found.before, found.after):
        assert step
        assert len(f"  before  {step}") <= 100  # a line of the help
        assert set(re.findall("official-bert ([a-z-]+)", step)) <= set(COMMANDS)
    text = found.help()
    flags = " --flag=value ..." if found.options else ""
    positional = f" [{found.positional}]" if found.positional else ""
    assert f"usage: official-bert {name}{flags}{positional}\n" in text
    for options in found.options:
        for field in (each for each in dataclasses.fields(options) if "help" in each.metadata):
            flag = field.name.removesuffix("_")  # from_, because from is a Python keyword
            assert f"  --{flag}=" in text or f"  --[no]{flag}" in text, flag


def test_commands_import_and_recommend_only_the_packages_that_they_need():
    extras = {name: load(name).extra for name in COMMANDS}
    data = "make-records learn-vocabulary inspect-records verify-records python-docs adapt features"
    serve = "export check-export serve predict"
    expected = {"data": data, "serve": serve, "finetune": "finetune", "convert": "convert"}
    assert extras == {
        **dict.fromkeys(["pretrain", "models", "fill-mask"]),
        **{name: extra for extra, names in expected.items() for name in names.split()},
    }
    without = "make-records learn-vocabulary python-docs models check-export serve predict"
    assert {name for name in COMMANDS if not load(name).tensorflow} == {*without.split()}


def test_flags_are_parsed_before_slow_imports():
    code = f"""
import sys
from official_bert_cli import COMMANDS, load
from official_bert.errors import UserError
for command in map(load, COMMANDS):
    command.help()
    needs_flags = bool(command.examples) and command.examples[0].startswith("--")
    for arguments in ([], ["--no_such_flag"]) if needs_flags else (["--name=x"],):
        try:
            command.parse(arguments)
        except UserError:
            pass
        else:
            raise AssertionError(command.program)
print([name for name in {HEAVY} if name in sys.modules])
"""
    done = run_python("-c", code)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_scripts_named_like_the_originals_show_that_name_in_their_help(monkeypatch: pytest.MonkeyPatch, capsys):
    scripts = "run_pretraining run_classifier run_squad extract_features data_gen.create_pretraining_data".split()
    for script, flag in zip(scripts, "-h -help --help -h --help".split(), strict=True):
        monkeypatch.setattr(sys, "argv", [script, flag])
        with pytest.raises(SystemExit, match="0"):
            runpy.run_module(script, run_name="__main__")
        out, err = capsys.readouterr()
        assert f"usage: python -m {script} --flag=value" in out
        assert err == ""


def test_the_program_shows_help_and_errors_and_ends_quietly_if_the_reader_closes_its_output():
    done = run_python("-m", "official_bert_cli", "pretrain", "--lerning_rate=1")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert_mentions(done.stderr, "error", "--lerning_rate", "--learning_rate")
    command = [sys.executable, "-m", "official_bert_cli"]
    sockets = [end.detach() for end in socket.socketpair()]
    for reader, output in (os.pipe(), sockets):
        os.close(reader)
        done = subprocess.run(command, cwd=ROOT, stdout=output, stderr=subprocess.PIPE, text=True, check=False)
        os.close(output)
        assert (done.stderr, done.returncode) == ("", 0)


# Background jobs of a shell ignore the signal.
INTERRUPT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
    while True:
        pass
"""


@pytest.mark.slow
def test_tensorflow_is_imported_quietly_and_without_optional_packages():
    code = """
import os, sys
from official_bert.utils import tensorflow_import
tensorflow_import.import_tensorflow()
assert "keras" in sys.modules
print([name for name in tensorflow_import.OPTIONAL_PACKAGES if name in sys.modules])
import matplotlib, sklearn
"""
    done = run_python("-c", code, environment={"TF_CPP_MIN_LOG_LEVEL": None})
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


_NOISY_KERAS = """
import gc, os, signal, sys
os.write(2, b"noise")
print(gc.isenabled(), sys.modules.get("sklearn", "visible"), signal.getsignal(2) == signal.SIG_IGN)
"""
_PRINT_STATE = """
import gc, os, signal, sys
from official_bert.utils import tensorflow_import
signal.signal(2, signal.default_int_handler)
{}
try:
    tensorflow_import.import_tensorflow()
except ImportError as error:
    print(error)
print(gc.isenabled(), gc.get_freeze_count() > 0, "sklearn" in sys.modules, os.environ.get("TF_CPP_MIN_LOG_LEVEL"))
"""


@pytest.mark.parametrize(("before", "failure", "level", "out", "err"), [
    ("gc.enable()", "", None, "False None False\nTrue True False 3\n", ""),
    ("gc.enable()", "raise ImportError('bad')", None, "False None False\nbad\nTrue True False None\n", "noise"),
    ("gc.disable(); signal.signal(2, signal.SIG_IGN)", "", "2", "False None True\nFalse True False 2\n", "noise"),
])  # fmt: skip
def test_the_import_of_tensorflow_changes_no_settings_and_hides_messages(before, failure, level, out, err, tmp_path):
    write_text(tmp_path / "keras.py", _NOISY_KERAS + failure)
    write_text(tmp_path / "tensorflow.py", "")
    done = run_python("-c", _PRINT_STATE.format(before), folder=tmp_path, environment={"TF_CPP_MIN_LOG_LEVEL": level})
    assert (done.returncode, done.stdout, done.stderr) == (0, out, err)


KERAS = """
from __main__ import interrupt
try:
    interrupt()
except KeyboardInterrupt:
    raise ValueError("the error that other code makes of it")
"""
LOST = """
from official_bert.utils import files, signals
with signals.exit_codes(), files.write_atomically("answer") as temporary:
    open(temporary, "w").close()
    try:
        interrupt()
    except KeyboardInterrupt:
        pass
    {then}
"""
IN_A_DESTRUCTOR = """
from official_bert.utils import signals

class Deleted:
    def __del__(self):
        interrupt()

with signals.exit_codes():
    Deleted()  # Python drops what is raised here
    sys.excepthook(SystemError, SystemError("an error that C++ code raises and shows"), None)
    raise SystemExit(0)
"""


@pytest.mark.parametrize("code", [
    "from official_bert.utils import tensorflow_import; tensorflow_import.import_tensorflow()",
    LOST.format(then="raise SystemExit(0)"), LOST.format(then="pass"), IN_A_DESTRUCTOR,
])  # fmt: skip
def test_ctrl_c_ends_the_command_even_if_other_code_loses_the_exception(code: str, tmp_path):
    write_text(tmp_path / "keras.py", KERAS)
    done = run_python("-c", INTERRUPT + code, folder=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")
    assert not (tmp_path / "answer").exists()


@pytest.mark.parametrize("megabytes", [60, 200])  # far from limits between which imports fail by chance
def test_running_out_of_memory_during_imports_is_reported_in_one_line(megabytes: int):
    limit = megabytes << 20
    command = ("-m", "official_bert_cli", "fill-mask", "--model_dir=x", "[MASK]")
    done = run_python(*command, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
    assert done.returncode == 1
    assert_mentions(done.stderr.splitlines()[-1], "error", "memory")
    assert "Traceback" not in done.stderr


def test_nothing_is_printed_after_the_message_about_memory():
    code = """
import atexit, sys
from official_bert.utils.signals import exit_codes

atexit.register(print, "an error while Python cleans up without memory", file=sys.stderr)
with exit_codes():
    print("shown")
    raise MemoryError
"""
    done = run_python("-c", code)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "shown\n", 1)
    assert_mentions(done.stderr, "error", "memory")


@dataclasses.dataclass(frozen=True)
class _Example(ValidatedOptions):
    share: float = option(0.5, "A share.", above=0, max=1)
    count: int | None = option(None, "A count.", min=1_000)
    rates: list[str] = option([], "Numbers.", items=float)
    class_: str = option("x", "A name that Python reserves.", ("x",))


@pytest.mark.parametrize(("changes", "names"), [
    ({"count": 999}, ("--count", 999, "1,000")), ({"rates": ["1", "inf"]}, ("--rates", "inf", "finite")),
    ({"class_": "y"}, ("--class", "y", "x")),
])  # fmt: skip
def test_an_error_names_flag_value_and_limits_and_values_at_the_limits_are_accepted(changes: dict, names):
    assert_rejected(names, lambda: _Example(**changes))
    assert _Example(share=1.0, count=1_000, class_="x").count == 1_000


@pytest.mark.parametrize(("name", "value", "expected"), [
    ("share", np.float32(0.5), 0.5), ("share", 1, 1.0), ("count", np.int64(5), 5), ("count", None, None),
    ("rates", None, []), ("rates", "1", ["1"]), ("rates", (pathlib.Path("1"),), ["1"]),
])  # fmt: skip
def test_arguments_of_functions_get_the_types_of_flags(name: str, value: object, expected: object):
    converted = convert_arguments("train", _Example, {name: value})
    assert (converted, type(converted[name])) == ({name: expected}, type(expected))


@pytest.mark.parametrize(("name", "value"), [("share", True), ("share", None), ("count", 1.5), ("rates", b"1")])
def test_arguments_of_wrong_types_are_rejected(name: str, value: object):
    assert_rejected((f"--{name}", repr(value)), convert_arguments, "train", _Example, {name: value})


# Like TensorFlow's runtime for several workers, C code replaces the handler of SIGTERM and waits with Python's lock.
_WAIT = """
import ctypes, os, signal
from official_bert.utils.signals import default_signals, handle_interrupts
libc = ctypes.PyDLL(None)
with handle_interrupts():
    with default_signals():
        libc.signal(signal.SIGTERM, 1)
        if {waits}:
            print("waiting", flush=True)
            libc.sleep(20)
    print(signal.getsignal(signal.SIGINT).__name__, flush=True)
os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.parametrize(("waits", "line", "number"), [
    (True, "waiting\n", signal.SIGINT), (False, "interrupt\n", signal.SIGTERM),
])  # fmt: skip
def test_signals_end_a_process_during_and_after_a_wait_in_c_code(waits: bool, line: str, number: signal.Signals):
    command = [sys.executable, "-c", _WAIT.format(waits=waits)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == line
        process.send_signal(number)
        assert process.wait(timeout=10) == -number


@pytest.mark.parametrize(("before", "within"), [
    (signal.default_int_handler, [interrupt, signal.SIG_DFL]), (signal.SIG_IGN, [signal.SIG_IGN] * 2),
])  # fmt: skip
def test_handlers_are_replaced_within_a_context_of_the_main_thread_unless_the_signal_is_ignored(before, within):
    def list_handlers() -> list[object]:
        return [signal.getsignal(signal.SIGINT), sys.excepthook, sys.unraisablehook]

    def enter(context: Callable[[], contextlib.AbstractContextManager[None]]) -> object:
        with context():
            return list_handlers()[0]

    outer = signal.signal(signal.SIGINT, before)
    try:
        outside = list_handlers()
        for context, expected in zip((handle_interrupts, default_signals), within, strict=True):
            assert enter(context) == expected
            assert list_handlers() == outside
            with concurrent.futures.ThreadPoolExecutor() as threads:
                assert threads.submit(enter, context).result() == before
    finally:
        signal.signal(signal.SIGINT, outer)


def test_a_process_whose_parent_has_already_ended_ends():
    code = "from official_bert.utils.signals import end_with_parent; end_with_parent(0); print('runs')"
    done = run_python("-c", code)
    assert (done.returncode, done.stdout) == (1, "")
