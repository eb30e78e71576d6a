"""The command `official-bert`, which is also `python -m official_bert_cli`: all commands by name.

No other module imports it. It imports very little itself, so that Ctrl-C is handled early: it then prints one line
instead of a traceback.
"""

import importlib
import sys
from typing import TYPE_CHECKING, NoReturn

from official_bert.errors import UserError
from official_bert.utils.signals import exit_codes

if TYPE_CHECKING:
    from official_bert.utils.command_line import Command

# The commands in the order of --help, by the module that holds the Command: MAKE_RECORDS for make-records.
_COMMANDS_BY_MODULE = (
    ("data_gen.commands", "make-records learn-vocabulary inspect-records verify-records python-docs"),
    ("official_bert.commands", "pretrain adapt finetune models convert export check-export serve predict"),
    ("official_bert.commands", "fill-mask features"),
)
COMMANDS = {name: module for module, names in _COMMANDS_BY_MODULE for name in names.split()}

# The commands that replace the original's scripts.
_ORIGINAL_SCRIPTS = {
    "create_pretraining_data": "make-records",
    "run_pretraining": "pretrain",
    "run_classifier": "finetune",
    "run_squad": "finetune --task=squad",
    "extract_features": "features",
}

# The packages that --version lists if they are installed.
_VERSIONS = (
    ("TensorFlow", "tensorflow"),
    ("TensorFlow", "tensorflow-tpu"),
    ("tensorflow-text", "tensorflow-text"),
    ("Keras", "keras"),
    ("ONNX Runtime", "onnxruntime"),
    ("NumPy", "numpy"),
    ("protobuf", "protobuf"),
)

_TITLE = "BERT on TensorFlow 2 and Keras 3."
_NEXT_STEPS = """where to start:
  labelled texts      official-bert finetune --task=table --help, then export, then serve or predict
  unlabelled text     official-bert adapt --help, or from scratch: learn-vocabulary, make-records, pretrain
  no data yet         official-bert python-docs --help writes text that every Python installation contains"""


def load(name: str) -> "Command":
    """Returns the command of this name, one of COMMANDS."""
    module = importlib.import_module(COMMANDS[name])
    command: Command = getattr(module, name.upper().replace("-", "_"))
    return command


def main() -> NoReturn:
    """`official-bert NAME --flag=value ...`: runs the command that the first argument names, and ends the process."""
    with exit_codes():
        name, *arguments = sys.argv[1:] or [""]
        if name in _ABOUT:
            print(_ABOUT[name](), flush=True)
            sys.exit(0)
        if name not in COMMANDS:
            import difflib

            close = difflib.get_close_matches(name, COMMANDS, n=1)
            hint = f"did you mean {close[0]}?" if close else "official-bert --help lists them"
            if replacement := _ORIGINAL_SCRIPTS.get(name.removesuffix(".py")):
                hint = f"use official-bert {replacement}"
            raise UserError(f"unknown command {name}; {hint}")
        load(name).run(arguments)
    raise AssertionError("a command ends the process")


def _help() -> str:
    lines = [_TITLE, "", "usage: official-bert COMMAND --flag=value ...", "", "commands:"]
    lines += [f"  {name:<17} {load(name).summary}" for name in COMMANDS]
    return "\n".join([*lines, "", _NEXT_STEPS, "", "official-bert COMMAND --help shows a command's flags."])


def _next_steps() -> str:
    return f"{_TITLE}\n\n{_NEXT_STEPS}\n\nofficial-bert --help lists all commands."


def _version() -> str:
    import contextlib
    import platform
    from importlib import metadata

    from official_bert.version import __version__

    found = [f"official-bert {__version__}"]
    for title, package in _VERSIONS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append(f"{title} {metadata.version(package)}")
    return ", ".join([*found, f"Python {platform.python_version()}", platform.platform()])


# What is printed where the first argument names no command.
_ABOUT = {"": _next_steps, "--help": _help, "-h": _help, "help": _help, "--version": _version}


if __name__ == "__main__":
    main()
