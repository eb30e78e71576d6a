"""The commands by name: what the scripts and `official-bert` run. Importing it imports next to nothing.

So Ctrl-C is answered by one line from here on, and not by a traceback of the imports that it ends.
"""

import sys
from collections.abc import Sequence
from typing import NoReturn

from official_bert.utils.signals import end_interrupted

_LIBRARY, _DATA_GENERATION = "official_bert.commands", "data_gen.commands"

# The module of each command, and its name there.
COMMANDS = {
    "make-records": (_DATA_GENERATION, "MAKE_RECORDS"),
    "make-records-beam": (_DATA_GENERATION, "MAKE_RECORDS_BEAM"),
    "learn-vocabulary": (_DATA_GENERATION, "LEARN_VOCABULARY"),
    "inspect-records": (_DATA_GENERATION, "INSPECT_RECORDS"),
    "verify-records": (_DATA_GENERATION, "VERIFY_RECORDS"),
    "python-docs": (_DATA_GENERATION, "PYTHON_DOCS"),
    "pretrain": (_LIBRARY, "PRETRAIN"),
    "finetune": (_LIBRARY, "FINETUNE"),
    "convert": (_LIBRARY, "CONVERT"),
    "export": (_LIBRARY, "EXPORT"),
    "export-portable": (_LIBRARY, "EXPORT_PORTABLE"),
    "serve": (_LIBRARY, "SERVE"),
    "predict": (_LIBRARY, "PREDICT"),
    "fill-mask": (_LIBRARY, "FILL_MASK"),
    "features": (_LIBRARY, "FEATURES"),
}


def run_command(name: str, arguments: Sequence[str] | None = None, program: str | None = None) -> NoReturn:
    """Runs a command, and ends the process with its exit code.

    Args:
        name: one of COMMANDS.
        arguments: what follows the program's name; None for those of this process.
        program: what --help calls it; None for the script's name.
    """
    try:
        import importlib

        module, attribute = COMMANDS[name]
        getattr(importlib.import_module(module), attribute).run(arguments, program)
        raise AssertionError("a command ends the process")
    except KeyboardInterrupt:
        end_interrupted()


def main() -> NoReturn:
    """`official-bert NAME --flag=value ...`: runs the command that the first argument names."""
    try:
        name, *arguments = sys.argv[1:] or ["--help"]
        if name in ("--help", "-h", "help"):
            print(_help())
            sys.exit(0)
        if name not in COMMANDS:
            import difflib

            close = difflib.get_close_matches(name, COMMANDS, n=1)
            hint = f"did you mean {close[0]}?" if close else "official-bert --help lists them"
            print(f"error: there is no command {name}; {hint}", file=sys.stderr)
            sys.exit(1)
    except KeyboardInterrupt:
        end_interrupted()
    run_command(name, arguments, f"official-bert {name}")


def _help() -> str:
    import importlib

    lines = ["BERT on TensorFlow 2 and Keras 3.", "", "usage: official-bert COMMAND --flag=value ...", "", "commands:"]
    for name, (module, attribute) in COMMANDS.items():
        lines.append(f"  {name:<17} {getattr(importlib.import_module(module), attribute).summary}")
    return "\n".join([*lines, "", "official-bert COMMAND --help shows a command's flags."])
