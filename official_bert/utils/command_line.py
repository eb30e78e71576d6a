"""A command: its flags are the fields of dataclasses, and it is parsed before anything heavy is imported.

    def _train(options: Options) -> None:
        from official_bert.pretraining.run import pretrain  # imports TensorFlow

        pretrain(options)

    PRETRAIN = Command(
        program="official-bert pretrain", summary="Pre-trains BERT on TFRecord files.", main=_train, options=(Options,),
        before="TFRecord files, which official-bert make-records makes",
        after="official-bert fill-mask --model_dir=model tries the model",
        examples=("--input_file=a.tfrecord --output_dir=model", "--do_eval --input_file=b.tfrecord --output_dir=model"),
    )

    PRETRAIN.run()

Several dataclasses make up one command: `main` is called with an instance of each, in order. Where the value of a flag
decides which other flags there are, the command has variants: `chooser="task"` and `variants={"squad":
Variant(options=(SquadOptions,), shown_defaults={"max_seq_length": 384}), ...}`. `main` is called with an instance of
the chosen variant's dataclasses too, after those of the command. A flag of other variants is an error.

A user's mistake is a UserError: one line on standard error, and exit code 1. After Ctrl-C the exit code is 130.
"""

import contextlib
import dataclasses
import difflib
import errno
import io
import os
import re
import resource
import select
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from absl import flags

from official_bert.errors import UserError
from official_bert.utils import extras, files, tensorflow_import
from official_bert.utils.configs import NAMING_CONFIGS, find_config
from official_bert.utils.flags import Flag, describe, list_flags
from official_bert.utils.signals import end_interrupted, handle_interrupts

_HELP = ("--help", "-help", "-h")
_FLAGFILE = "flagfile"
_NEARLY_ALL = 0.85  # of the memory that a limit allows
_MOST_CHARACTERS = 300  # of what an error says


@dataclasses.dataclass(frozen=True)
class Variant:
    """What one value of a command's chooser brings.

    Attributes:
        options: dataclasses of the flags that only this value (and others that name the same dataclass) has.
        shown_defaults: what None stands for with this value, by the name of a field of the command's own options:
            --help shows it, and the owner of the options puts it in place of None.
    """

    options: tuple[type, ...] = ()
    shown_defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """A program with flags.

    Attributes:
        program: how a user calls it: official-bert pretrain.
        summary: a sentence on what it does.
        main: called with an instance of each of the options' classes and, if there are positional arguments, with
            their list; returns the exit code (None for 0). Imports what is heavy when it is called.
        options: dataclasses, whose fields are the flags.
        before: what there must be before it runs, and what to do with what it leaves (`after`): the head of --help
            shows both, with the first example between.
        examples: the flags of examples, for --help.
        extra: the extra of the package whose packages `main` imports, for the error where they are not installed.
        positional: what arguments that are not flags are; None where there are none, so that one given is an error.
        chooser: the flag whose value decides which of `variants` holds; it is a required field of the options.
        variants: further flags and what None stands for, by the chooser's value.
        original_script: the file that runs the command under the name of google-research/bert's script.
        script_flags: The flags of that file that differ from the command's defaults, to follow the original.
        aliases: other names of flags, with the name that they stand for: those of the original's script.
        refused: what to give in place of flags of the original's script that the command does not take, by their name.
        tensorflow: whether `main` imports TensorFlow, which is then done without its remarks.
    """

    program: str
    summary: str
    main: Callable[..., int | None]
    options: tuple[type, ...]
    before: str = ""
    after: str = ""
    examples: tuple[str, ...] = ()
    extra: str | None = None
    positional: str | None = None
    chooser: str | None = None
    variants: Mapping[str, Variant] = dataclasses.field(default_factory=dict)
    original_script: str | None = None
    script_flags: tuple[str, ...] = ()
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    refused: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tensorflow: bool = True

    @property
    def script_module(self) -> str | None:
        """The module of the original's script, such as run_pretraining, or None if the original has none."""
        return self.original_script and self.original_script.removesuffix(".py").replace("/", ".")

    def run_as_script(self) -> NoReturn:
        """Runs the command under the name of the original's script: `python -m run_pretraining`."""
        self.run([*self.script_flags, *sys.argv[1:]], f"python -m {self.script_module}")

    def run(self, arguments: Sequence[str] | None = None, program: str | None = None) -> NoReturn:
        """Runs the command, and ends the process with its exit code.

        None stands for the arguments of this process; `program` is another name that it was called by, for --help.
        """
        with exit_codes(self.extra):
            arguments = list(sys.argv[1:] if arguments is None else arguments)
            if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
                sys.stdout.reconfigure(errors="backslashreplace")  # for terminals that lack a character
            if set(_HELP) & set(_before_double_dash(arguments)):
                print(self.help(arguments, program), flush=True)
                sys.exit(0)
            values = self.parse(arguments)
            tensorflow_import.quiet_logging()
            if self.tensorflow:
                tensorflow_import.import_tensorflow()
            code = self.main(*values) or 0
            sys.stdout.flush()
            sys.exit(code)

    def parse(self, arguments: Sequence[str]) -> list[Any]:
        """Returns what `main` is called with.

        Raises:
            UserError: a flag is unknown, missing, given to a variant that has it not, has a wrong value, or one that is
                not UTF-8.
        """
        for argument in arguments:
            files.check_utf8(argument, "the argument")
        variant = self._variant(arguments)
        known_flags = self.flags(variant)
        values, positional = _parsed(known_flags, self.aliases, arguments, lambda name: self._unknown(name, variant))
        if self.chooser is not None:
            values[self.chooser].value = variant
        missing = [f"--{flag.name}" for flag in known_flags if flag.required and values[flag.name].value is None]
        if missing:
            verb = "is" if len(missing) == 1 else "are"
            raise UserError(f"{_listed(missing)} {verb} required; --help shows all flags")
        if positional and not self.positional:
            hint = "flags are given as --name=value" if known_flags else "the command takes none"
            raise UserError(f"unexpected argument {positional[0]!r}; {hint}")
        instances = [
            options(**{flag.field: _found(flag.field, values[flag.name].value) for flag in list_flags(options)})
            for options in (*self.options, *self._chosen(variant).options)
        ]
        return [*instances, positional] if self.positional else instances

    def flags(self, variant: str | None = None) -> list[Flag]:
        """Returns the flags, with those and the shown defaults of a variant."""
        chosen = self._chosen(variant)
        shown_defaults = chosen.shown_defaults if variant is not None else self._defaults_of_variants()
        own = [flag for options in self.options for flag in list_flags(options, shown_defaults)]
        return own + [
            flag for options in chosen.options for flag in list_flags(options, group=f"--{self.chooser}={variant}")
        ]

    def _defaults_of_variants(self) -> dict[str, str]:
        """What None stands for where no variant is chosen: the commonest value, then others with their variants."""
        names = dict.fromkeys(name for variant in self.variants.values() for name in variant.shown_defaults)
        shown = {}
        for name in names:
            owners: dict[str, list[str]] = {}
            for chosen, variant in self.variants.items():
                if name in variant.shown_defaults:
                    owners.setdefault(str(variant.shown_defaults[name]), []).append(chosen)
            commonest, *others = sorted(owners, key=lambda value: -len(owners[value]))
            shown[name] = "; ".join([commonest, *(f"{each} with {_listed(owners[each])}" for each in others)])
        return shown

    def help(self, arguments: Sequence[str] = (), program: str | None = None) -> str:
        """Returns the text of --help; if the chooser is among the arguments, its variant's flags are shown too."""
        program = program or self.program
        variant = self._variant([each for each in arguments if each not in _HELP], must_be_given=False)
        positional = f" [{self.positional}]" if self.positional else ""
        flags = self.flags(variant)
        parts = [self.summary, f"usage: {program}{' --flag=value ...' if flags else ''}{positional}"]
        if self.before:
            run = " ".join([program, *self.examples[:1]])
            parts.append(f"  before  {self.before}\n  run     {run}\n  after   {self.after}")
        if not flags:
            return "\n\n".join(parts)
        parts.append(describe(flags))
        if self.variants and variant is None:
            names = textwrap.fill(", ".join(self.variants), 98, initial_indent="  ", subsequent_indent="  ")
            parts.append(
                f"--{self.chooser} is one of:\n{names}\n  --{self.chooser}=NAME --help shows its flags and defaults."
            )
        parts.append(
            "Flags may stand in a file, one a line: --flagfile=FILE. Of a flag given twice, the last one counts."
        )
        if len(self.examples) > 1:
            parts.append("\n".join(["more examples:", *(f"  {program} {example}" for example in self.examples[1:])]))
        return "\n\n".join(parts)

    def _chosen(self, variant: str | None) -> Variant:
        return self.variants[variant] if variant is not None else Variant()

    def _variant(self, arguments: Sequence[str], must_be_given: bool = True) -> str | None:
        """Returns the chooser's value among the arguments; None if there is no chooser, or none was given."""
        if self.chooser is None:
            return None
        values, _ = _parsed(self.flags(), self.aliases, arguments)
        chosen = values[self.chooser].value
        if chosen is not None and chosen not in self.variants and chosen.lower() in self.variants:
            chosen = chosen.lower()  # MRPC, as the original's users write it
        if chosen is None and must_be_given:
            raise UserError(f"--{self.chooser} is required: one of {', '.join(self.variants)}")
        if chosen is not None and chosen not in self.variants:
            raise UserError(
                f"unknown --{self.chooser}={chosen}{_suggestion(chosen, self.variants)}; expected one of "
                + ", ".join(self.variants)
            )
        return str(chosen) if chosen is not None else None

    def _unknown(self, name: str, variant: str | None) -> str:
        """Returns what to say of a flag that is not there."""
        refusal = self.refused.get(name) or self.refused.get(name.removeprefix("no"))
        if refusal:
            return f"--{name} is not a flag of this command: {refusal}"
        owners = [
            other for other in self.variants if name in {flag.name for flag in self.flags(other)} - {self.chooser}
        ]
        if owners:
            return f"--{self.chooser}={variant} does not take --{name}, a flag of {_listed(owners)}"
        known = [flag.name for flag in self.flags(variant)]
        hint = "; --help shows all flags" if known else "; the command takes none"
        return f"unknown flag --{name}" + (_suggestion(name, known, "--") or hint)


@contextlib.contextmanager
def exit_codes(extra: str | None = None) -> Iterator[None]:
    """Within its context, a UserError is shown as one line and ends the process with code 1, Ctrl-C with code 130.

    A package of `extra` (or another) that is not installed, too little memory for TensorFlow, and a process that may
    open no more files, are UserErrors too. A reader of the output that stops reading ends the process with code 0.
    """
    try:
        with handle_interrupts():
            yield
    except UserError as error:
        _fail(str(error))
    except ModuleNotFoundError as error:
        explained = extras.explain_missing_package(error, extra)
        if explained is None:
            raise
        _fail(str(explained))
    except KeyboardInterrupt:
        end_interrupted()
    except BrokenPipeError:
        if not _output_is_closed():
            raise
        # Whoever read the output, `head` say, has seen enough; Python would complain of it once more at the exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:  # any file may be the one too many, and TensorFlow has a class of its own for it
        if lacking := _lack_of_memory(error):
            _fail(
                f"there is too little memory: {lacking}; smaller batches and shorter texts need less; or free some, or "
                "raise the limit (ulimit -v unlimited)"
            )
        if not _is_out_of_descriptors(error):
            raise
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        _fail(
            f"the process may have {most:,} files open at once, and needs more; expected at least 256: raise the limit "
            "(ulimit -n 1024) and give the command again"
        )


def _fail(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(1)


def _lack_of_memory(error: BaseException) -> str | None:
    """Returns what an error says of memory that could not be had; None for other errors.

    TensorFlow, and oneDNN beneath it, mostly say so. Where they cannot have a few bytes in between, what is damaged by
    that fails later, by any error: it counts as a lack of memory if nearly all that a limit allows is in use.
    """
    lines = str(error).splitlines() if type(error).__module__.startswith("tensorflow.") else []
    words = ("OOM when allocating", "could not create a primitive")
    if said := next((line.strip() for line in lines if any(each in line for each in words)), None):
        return said
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            held = dict(re.findall(r"(VmSize|VmData):\s+(\d+) kB", status.read()))
    except OSError:  # not on Linux
        return None
    for name, limit in (("VmSize", resource.RLIMIT_AS), ("VmData", resource.RLIMIT_DATA)):
        most, used = resource.getrlimit(limit)[0], 1024 * int(held[name])
        if most != resource.RLIM_INFINITY and used > _NEARLY_ALL * most:
            said = " ".join(f"{type(error).__name__}: {error}".split())[
                :_MOST_CHARACTERS
            ]  # NumPy's import has many lines
            return f"{used:,} of {most:,} bytes are in use, and then came {said}"
    return None


def _is_out_of_descriptors(error: BaseException | None) -> bool:
    """Whether an error, or one that it was raised from, is the system's refusal to open one more file."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            return True
        if type(error).__module__.startswith("tensorflow.") and os.strerror(errno.EMFILE) in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _output_is_closed() -> bool:
    """Whether the reader of standard output has gone."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), select.POLLOUT)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _parsed(
    known_flags: Sequence[Flag],
    aliases: Mapping[str, str],
    arguments: Sequence[str],
    explain: Callable[[str], str] | None = None,
) -> tuple[flags.FlagValues, list[str]]:
    """Returns the flags with their values, and the arguments that are not flags.

    `explain` returns what to say of a flag that is not there; None to pass such flags over.

    Raises:
        UserError: a flag is not there, its value is wrong, or a flagfile cannot be read.
    """
    values = flags.FlagValues()  # type: ignore[no-untyped-call]
    values.set_gnu_getopt(True)  # flags may follow arguments that are none
    for flag in known_flags:
        flag.define(values)
    names = {flag.name for flag in known_flags}
    for alias, name in aliases.items():
        if name in names and alias not in names:
            flags.DEFINE_alias(alias, name, flag_values=values)
    try:
        return values, values(["", *_expand_flagfiles(arguments)], known_only=explain is None)[1:]
    except flags.UnrecognizedFlagError as error:
        raise UserError(explain(error.flagname) if explain else str(error)) from error
    except flags.IllegalFlagValueError as error:
        # "flag --name=value: reason", whose reason is Python's.
        assignment = str(error).removeprefix("flag ").removesuffix(f": {error.__context__}")
        name = assignment.removeprefix("--").partition("=")[0]
        expected = next((flag.expected() for flag in known_flags if flag.name == name), "another value")
        raise UserError(f"{assignment}: expected {expected}") from error
    except (flags.Error, ValueError) as error:
        missing = re.fullmatch("Missing value for flag (.*)", str(error))
        raise UserError(f"{missing[1]}: expected a value, as in {missing[1]}=..." if missing else str(error)) from error


def _found(field: str, value: Any) -> Any:
    """Returns the value of a field; where it may name a file of configs/, the path where it is."""
    return find_config(value) if field in NAMING_CONFIGS and value is not None else value


def _expand_flagfiles(arguments: Sequence[str], including: tuple[str, ...] = ()) -> list[str]:
    """Returns the arguments with the lines of each flagfile in the flagfile's place.

    Args:
        arguments: Arguments, or lines of a flagfile. Paths that start with configs/ also refer to the files of the
            installed package.
        including: The flagfiles that these lines are from. A flagfile that includes itself is not read again.

    Raises:
        UserError: If a flagfile does not exist, is not a regular file, or is not UTF-8 text.
    """
    expanded: list[str] = []
    remaining = iter(_before_double_dash(arguments))
    for argument in remaining:
        name, equals, path = argument.strip().partition("=")
        if name not in (f"-{_FLAGFILE}", f"--{_FLAGFILE}"):
            expanded.append(argument)
            continue
        path = find_config(os.path.expanduser((path if equals else next(remaining, "")).strip()))
        if not path:
            raise UserError(f"--{_FLAGFILE}: expected a value, as in --{_FLAGFILE}=FILE")
        if path not in including:
            lines = [line.strip() for line in files.read_text(path).splitlines()]
            lines = [line for line in lines if line and not line.startswith(("#", "//"))]
            expanded += _expand_flagfiles(lines, (*including, path))
    return [*expanded, *arguments[len(_before_double_dash(arguments)) :]]


def _before_double_dash(arguments: Sequence[str]) -> Sequence[str]:
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def _suggestion(name: str, known: Sequence[str] | Mapping[str, Any], dashes: str = "") -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {dashes}{close[0]}?" if close else ""


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
