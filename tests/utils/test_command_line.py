import dataclasses
import errno
import os
import pathlib
import re
import resource
import shlex
import subprocess
import sys

import pytest

from official_bert.errors import UserError
from official_bert.utils.command_line import Command, Variant, exit_codes
from official_bert.utils.flags import DATA, option
from official_bert_cli import COMMANDS, load
from tests.conftest import ROOT
from tests.make import refusal, run_python, write_text

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


@dataclasses.dataclass
class TagOptions:
    column: int = option(-1, "The column of the tag.")


def command(**changes: object) -> Command:
    settings: dict[str, object] = {"program": "program", "summary": "Does it.", "main": print, "options": (Options,)}
    return Command(**{**settings, **changes})  # type: ignore[arg-type]


TASKS = command(
    options=(TaskChoice,),
    chooser="task",
    variants={
        "squad": Variant(options=(WindowOptions,), shown_defaults={"length": 384}),
        "glue": Variant(options=(WindowOptions,), shown_defaults={"length": 128}),
        "tagging": Variant(options=(TagOptions,)),
        "swag": Variant(),
    },
)


def mistake(of: Command, *arguments: str) -> str:
    return refusal(of.parse, arguments)


def test_flags_have_the_defaults_of_their_fields():
    assert command().parse(["--needed=x,y"]) == [Options(["x", "y"], ["tiny", "base"], [], ["a=b"], None)]
    flags = "--needed=x --sizes=tiny --none=z --model=c=d --model=e=f --number=3 --rate=1e-4 --from=y --is_cased"
    expected = Options(["x"], ["tiny"], ["z"], ["c=d", "e=f"], 3, 1e-4, "y", True)
    assert command().parse(flags.split()) == [expected]


def test_flags_are_spelled_as_the_original_spells_them():
    for spelling in ("--is_cased=true", "--is_cased=True", "-is_cased", "--is_cased --nois_cased --is_cased"):
        assert command().parse(["--needed", "x", *spelling.split()])[0].is_cased, spelling
    for spelling in ("--is_cased=false", "--nois_cased", "--is_cased=False"):
        assert not command().parse(["--needed", "x", *spelling.split()])[0].is_cased, spelling


def test_flags_can_be_read_from_files(tmp_path: pathlib.Path):
    write_text(tmp_path / "inner.flagfile", "\ufeff--number=3\n\n")
    path = write_text(tmp_path / "a.flagfile", f"\ufeff# a comment\n--needed=x\n--flagfile={tmp_path}/inner.flagfile\n")
    assert command().parse([f"--flagfile={path}"])[0].number == 3
    options = command().parse([f"--flagfile={path}", "--number=4"])[0]
    assert (options.needed, options.number) == (["x"], 4)
    assert "nowhere" in mistake(command(), "--flagfile=nowhere")


def test_error_messages_state_what_was_expected():
    assert mistake(command()) == "--needed is required; --help shows all flags"
    assert mistake(command(), "--needed=x", "--nubmer=3") == "unknown flag --nubmer; did you mean --number?"
    assert mistake(command(), "--needed=x", "--zzz") == "unknown flag --zzz; --help shows all flags"
    assert mistake(command(), "--needed=x", "--number=a: b") == "--number=a: b: expected a whole number"
    assert mistake(command(), "--needed=x", "--rate=high") == "--rate=high: expected a number"
    assert mistake(command(), "--needed=x", "--from=z") == "--from=z: expected one of x, y"
    assert mistake(command(), "--needed=x", "--is_cased=maybe") == "--is_cased=maybe: expected true or false"
    assert mistake(command(), "--needed=x", "y") == "unexpected argument 'y'; flags are given as --name=value"
    assert mistake(command(), "--needed=x", "--number") == "--number: expected a value, as in --number=..."


def test_items_of_lists_may_contain_line_breaks_and_quoted_commas():
    parsed = command().parse(['--needed=a\nb/c, d\te ,f"g'])[0]
    assert parsed.needed == ["a\nb/c", "d\te", 'f"g']
    assert command().parse(['--needed="a,b",c'])[0].needed == ["a,b", "c"]
    assert command().parse(["--needed=x", "--sizes="])[0].sizes == []
    assert mistake(command(), '--needed="a').endswith("a value that begins with a double quote must end with one")


def test_an_argument_that_is_not_utf8_is_rejected():
    expected = r"the argument '--needed=a\udcff' contains the byte 0xff, which is not UTF-8. Rename the file"
    assert mistake(command(), "--needed=a\udcff").startswith(expected)


def test_characters_that_the_terminal_cannot_show_are_escaped():
    code = """
from official_bert.utils.command_line import Command
Command(program="program", summary="It.", main=lambda: print("\u4e2d"), options=(), tensorflow=False).run([])
"""
    done = run_python("-c", code, environment={"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "\\u4e2d\n", "")


def test_the_middle_of_a_very_long_message_is_omitted():
    assert str(UserError("a" * 10_000)) == "a" * 10_000
    message = str(UserError("received " + "a" * 10**6 + "; remove it"))
    assert len(message) < 10_100
    assert message.startswith("received aaa")
    assert "... (990,020 characters) ..." in message
    assert message.endswith("aaa; remove it")


def test_running_out_of_file_descriptors_is_reported_in_one_line(capsys: pytest.CaptureFixture[str]):
    import tensorflow as tf

    too_many = "/model/variables.data-00000-of-00001; Too many open files"
    for error in (OSError(errno.EMFILE, "Too many open files"), tf.errors.ResourceExhaustedError(None, None, too_many)):
        with pytest.raises(SystemExit) as caught, exit_codes():
            raise error
        shown = capsys.readouterr().err
        assert (caught.value.code, shown.count("\n")) == (1, 1)
        assert shown.startswith("error: the process needs more than ")
        assert "ulimit -n" in shown
    other = tf.errors.ResourceExhaustedError(None, None, "a queue is full")
    with pytest.raises(tf.errors.ResourceExhaustedError), exit_codes():
        raise other


@pytest.mark.parametrize(
    "reason", ["OOM when allocating tensor with shape[1]", "could not create a primitive, in x.cc"]
)
def test_running_out_of_memory_in_tensorflow_is_reported_in_one_line(reason: str, capsys: pytest.CaptureFixture[str]):
    import tensorflow as tf

    with pytest.raises(SystemExit) as caught, exit_codes():
        raise tf.errors.AbortedError(None, None, f"Graph execution error:\n\nstatus: 1, message: {reason}\n\t [[node]]")
    shown = capsys.readouterr().err
    assert (caught.value.code, shown.count("\n")) == (1, 1)
    assert f"error: out of memory: status: 1, message: {reason}. Use smaller batches" in shown


def test_positional_arguments_may_precede_flags_or_follow_a_double_dash():
    texts = command(positional="texts")
    assert texts.parse(["one", "--needed=x", "two"])[1] == ["one", "two"]
    assert texts.parse(["--needed=x", "--", "--three"])[1] == ["--three"]


def test_the_chosen_variant_adds_its_flags():
    assert TASKS.parse(["--task=squad"]) == [TaskChoice("squad", None), WindowOptions(128)]
    assert TASKS.parse(["--length=9", "--stride", "64", "--task", "glue"]) == [TaskChoice("glue", 9), WindowOptions(64)]
    assert TASKS.parse(["--task=swag"]) == [TaskChoice("swag", None)]


def test_a_flag_of_another_variant_is_an_error():
    assert mistake(TASKS, "--task=swag", "--stride=3") == "--task=swag does not take --stride, a flag of squad and glue"
    assert mistake(TASKS, "--task=squad", "--colunm=3") == "unknown flag --colunm; --help shows all flags"
    assert mistake(TASKS, "--task=sqaud").startswith("unknown --task=sqaud; did you mean squad?")
    assert mistake(TASKS) == "--task is required: one of squad, glue, tagging, swag"


def test_the_value_of_the_chooser_may_be_in_capitals():
    assert TASKS.parse(["--task=SQuAD"]) == [TaskChoice("squad", None), WindowOptions(128)]


def test_help_shows_groups_defaults_choices_and_examples():
    text = command(examples=("--needed=x", "--needed=y")).help()
    assert text.index("Does it.") < text.index("\ndata:\n  --needed=TEXT,...  (required)") < text.index("\nflags:\n")
    for part in ("--sizes=TEXT,...  (default: tiny,base)", "--from=x|y  (default: x)", "--rate=X  (default: 5e-05)",
                 "--[no]is_cased  (default: false)", "--number=N\n      A number."):  # fmt: skip
        assert part in text, part
    assert text.endswith("more examples:\n  program --needed=y")
    assert "--needed=x" not in text  # the first example is at the top, before and after formatting


def test_help_starts_with_the_steps_before_and_after():
    text = command(examples=("--needed=x",), before="a file", after="read it").help()
    head = "Does it.\n\nusage: program --flag=value ...\n\n"
    steps = "  before  a file\n  run     program --needed=x\n  after   read it\n\n"
    assert text.startswith(f"{head}{steps}data:")


def test_help_shows_the_flags_of_the_variant_that_is_chosen():
    text = TASKS.help()
    assert "squad, glue, tagging, swag" in text
    assert "--stride" not in text
    assert "--length=N  (default: 384; 128 with glue)" in text
    text = TASKS.help(["--task=squad", "--help"])
    assert "--task=squad:\n  --stride=N  (default: 128)" in text
    assert "--length=N  (default: 384)" in text


@pytest.mark.parametrize("name", COMMANDS)
def test_the_examples_of_each_command_are_valid(name: str):
    found = load(name)
    assert len(found.examples) >= 2 or not found.options
    for example in found.examples:
        found.parse(shlex.split(example))


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_describes_the_steps_before_and_after(name: str):
    found = load(name)
    for text in (found.before, found.after):
        assert text
        assert len(f"  before  {text}") <= 100  # a line of the help
        assert set(re.findall("official-bert ([a-z-]+)", text)) <= set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_each_command_shows_its_name_and_flags(name: str):
    found = load(name)
    text = found.help()
    for options in found.options:
        for field in (each for each in dataclasses.fields(options) if "help" in each.metadata):
            flag = field.name.removesuffix("_")  # from_, because from is a Python keyword
            assert f"  --{flag}=" in text or f"  --[no]{flag}" in text, flag
    assert f"usage: official-bert {name}" + (" --flag=value" if found.options else "") in text


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


def test_exit_codes_of_help_and_errors():
    done = run_python("-m", "official_bert_cli", "pretrain", "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Pre-trains BERT")
    assert done.stderr == ""
    done = run_python("-m", "official_bert_cli", "pretrain", "--lerning_rate=1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: unknown flag --lerning_rate; did you mean --learning_rate?\n"


def test_help_ends_quietly_if_the_reader_closes_the_pipe():
    command = [sys.executable, "-m", "official_bert_cli"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == ("", 0)


@pytest.mark.parametrize(
    "script", ["run_pretraining", "run_classifier", "run_squad", "extract_features", "data_gen.create_pretraining_data"]
)
def test_scripts_named_like_the_originals_show_that_name_in_their_help(script: str):
    done = run_python("-m", script, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"usage: python -m {script} --flag=value" in done.stdout


# Background jobs of a shell ignore the signal.
INTERRUPT = """
import os, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
    while True:
        pass
"""


def test_ctrl_c_during_the_import_of_tensorflow_prints_one_line(tmp_path: pathlib.Path):
    # Python imports a module of this name at startup. It sends the signal when the import of TensorFlow starts.
    code = f"""{INTERRUPT}
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "tensorflow":
            interrupt()
sys.meta_path.insert(0, Interrupt())
"""
    write_text(tmp_path / "sitecustomize.py", code)
    command = ("-m", "official_bert_cli", "fill-mask", "--model_dir=a", "[MASK]")
    done = run_python(*command, environment={"PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


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


IMPORT = "from official_bert.utils import tensorflow_import; tensorflow_import.import_tensorflow()"
KERAS = """
from __main__ import interrupt
try:
    interrupt()
except KeyboardInterrupt:
    raise ValueError("the error that other code makes of it")
"""
LOST = """
from official_bert.utils import command_line, files
with command_line.exit_codes(), files.write_atomically("answer") as temporary:
    open(temporary, "w").close()
    try:
        interrupt()
    except KeyboardInterrupt:
        pass
    {then}
"""
IN_A_CLASS = """
from official_bert.utils.signals import exit_on_interrupt

class Field:
    def __set_name__(self, owner, name):  # Python 3.11 raises a RuntimeError from this
        interrupt()

with exit_on_interrupt():
    class Options:
        output_file = Field()
"""
IN_A_DESTRUCTOR = """
from official_bert.utils import command_line

class Deleted:
    def __del__(self):
        interrupt()

with command_line.exit_codes():
    Deleted()  # Python drops what is raised here
    sys.excepthook(SystemError, SystemError("an error that C++ code raises and shows"), None)
    raise SystemExit(0)
"""


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(IMPORT, id="within the import of TensorFlow"),
        pytest.param(LOST.format(then="raise ValueError('of a wrong answer')"), id="another error follows"),
        pytest.param(LOST.format(then="raise SystemExit(0)"), id="the command ends as usual"),
        pytest.param(LOST.format(then="pass"), id="nothing follows"),
        pytest.param(IN_A_CLASS, id="while options are declared"),
        pytest.param(IN_A_DESTRUCTOR, id="while an object is deleted"),
    ],
)
def test_ctrl_c_ends_the_command_even_if_other_code_loses_the_exception(code: str, tmp_path: pathlib.Path):
    write_text(tmp_path / "keras.py", KERAS)
    done = run_python("-c", INTERRUPT + code, folder=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")
    assert not (tmp_path / "answer").exists()


@pytest.mark.parametrize("megabytes", [60, 150])
def test_running_out_of_memory_during_imports_is_reported_in_one_line(megabytes: int):
    limit = megabytes << 20
    command = ("-m", "official_bert_cli", "fill-mask", "--model_dir=x", "[MASK]")
    done = run_python(*command, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
    assert done.returncode == 1
    assert "error: out of memory: " in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_an_unreadable_flagfile_is_named_and_pipes_do_not_block(tmp_path: pathlib.Path):
    utf16, pipe, outer = tmp_path / "utf16", tmp_path / "pipe", tmp_path / "outer"
    utf16.write_text("--number=3\n", encoding="utf-16")
    os.mkfifo(pipe)
    for path, message in ((utf16, "line 1: byte 0xff is not UTF-8; convert"), (pipe, "is a pipe, device or socket")):
        outer.write_text(f"--number=4\n  --flagfile={path}\n--flagfile={outer}\n")
        for given in (path, outer):
            told = mistake(command(), f"--flagfile={given}")
            assert str(path) in told
            assert message in told
