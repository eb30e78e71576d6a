"""Commands whose flags are the fields of dataclasses. Flags are parsed before any slow import.

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

A command may have several dataclasses. `main` receives an instance of each, in order. If the value of one flag decides
which other flags exist, the command has variants: `chooser="task"` and `variants={"squad":
Variant(options=(SquadOptions,), shown_defaults={"max_seq_length": 384}), ...}`. `main` then also receives the instances
of the chosen variant's dataclasses. Flags of other variants are errors.

A dataclass with a field `given_flags` also receives the names of all fields whose flags the user passed.

A UserError is printed as one line on standard error, with exit code 1. After Ctrl-C the exit code is 130.
"""

import dataclasses
import io
import os
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from absl import flags

from official_bert.errors import UserError
from official_bert.utils import files, tensorflow_import
from official_bert.utils.configs import find_config
from official_bert.utils.counting import join_words, suggest
from official_bert.utils.flags import Flag, describe, list_flags
from official_bert.utils.signals import exit_codes

_HELP = ("--help", "-help", "-h")
_FLAGFILE = "flagfile"
GIVEN_FLAGS = "given_flags"


@dataclasses.dataclass(frozen=True)
class Variant:
    """The additional flags and the defaults that apply for one value of a command's chooser, such as --task=squad.

    Attributes:
        options: Dataclasses of the flags that exist only for this value, or for several values that list them.
        shown_defaults: Defaults that --help shows in place of None, by field name, for fields of the command's own
            options. The command replaces None with them itself.
    """

    options: tuple[type, ...] = ()
    shown_defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """A program with flags.

    Attributes:
        program: The name of the command on the command line, such as "official-bert pretrain".
        summary: One sentence on what the command does.
        main: The function of the command. Receives an instance of each class in `options` and, if `positional` is set,
            the list of positional arguments. Returns the exit code, or None instead of 0. Contains the slow imports.
        options: Dataclasses whose fields are the flags.
        before: What must exist before the command runs, for --help.
        after: What to do with the results, for --help.
        examples: The flags of examples, for --help.
        extra: The extra of this package that `main` needs, for the error message if it is not installed.
        positional: The name of the positional arguments in --help, or None if the command takes none.
        chooser: The flag whose value selects one of `variants`. It is a required field of the options.
        variants: Additional flags and defaults, by the value of the chooser.
        original_script: The file that runs the command under the name of google-research/bert's script.
        script_flags: Flags that this script adds before the user's, where the original's defaults differ from the
            command's.
        aliases: The flag for each alternative name, taken from the original's script.
        refused: For each flag of the original's script that the command does not support, the reason for the error
            message.
        tensorflow: Whether `main` uses TensorFlow. If true, TensorFlow is imported before `main`, without its messages.
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
        """The module name of `original_script`, such as run_pretraining, or None if that is not set."""
        return self.original_script and self.original_script.removesuffix(".py").replace("/", ".")

    def run_as_script(self) -> NoReturn:
        """Runs the command like the original's script, as in `python -m run_pretraining`, with `script_flags`."""
        self.run([*self.script_flags, *sys.argv[1:]], f"python -m {self.script_module}")

    def run(self, arguments: Sequence[str] | None = None, program: str | None = None) -> NoReturn:
        """Runs the command and exits with its exit code.

        Args:
            arguments: The command-line arguments. Defaults to the arguments of the process.
            program: The name of the program in --help. Defaults to `self.program`.
        """
        with exit_codes(self.extra):
            arguments = list(sys.argv[1:] if arguments is None else arguments)
            if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
                sys.stdout.reconfigure(errors="backslashreplace")  # for characters that the terminal cannot show
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
        """Parses command-line arguments into the arguments of `main`: instances of the option dataclasses and so on.

        Raises:
            UserError: If a flag is unknown, missing or not allowed for the variant, or has an invalid value.
        """
        for argument in arguments:
            files.check_utf8(argument, "the argument")
        variant = self._parse_variant(arguments)
        known_flags = self.flags(variant)
        values, positional = _parse_flags(
            known_flags, self.aliases, arguments, lambda name: self._describe_unknown_flag(name, variant)
        )
        if self.chooser is not None:
            values[self.chooser].value = variant
        missing = [f"--{flag.name}" for flag in known_flags if flag.required and values[flag.name].value is None]
        if missing:
            verb = "is" if len(missing) == 1 else "are"
            raise UserError(f"{join_words(missing)} {verb} required; --help shows all flags")
        if positional and not self.positional:
            hint = "flags are given as --name=value" if known_flags else "the command takes none"
            raise UserError(f"unexpected argument {positional[0]!r}; {hint}")
        given = frozenset(flag.field for flag in known_flags if values[flag.name].present)
        instances = [
            options(
                **{flag.field: values[flag.name].value for flag in list_flags(options)},
                **({GIVEN_FLAGS: given} if hasattr(options, GIVEN_FLAGS) else {}),
            )
            for options in (*self.options, *self._get_variant(variant).options)
        ]
        return [*instances, positional] if self.positional else instances

    def flags(self, variant: str | None = None) -> list[Flag]:
        """Returns the flags of the command.

        Args:
            variant: A value of the chooser, to include its flags and show its defaults. If None, includes only the
                flags that all variants share.
        """
        chosen = self._get_variant(variant)
        shown_defaults = chosen.shown_defaults if variant is not None else self._get_variant_defaults()
        own = [flag for options in self.options for flag in list_flags(options, shown_defaults)]
        return own + [
            flag for options in chosen.options for flag in list_flags(options, group=f"--{self.chooser}={variant}")
        ]

    def _get_variant_defaults(self) -> dict[str, str]:
        """Returns the defaults that --help shows if no variant is chosen, by field name.

        Each text has the most common default, then the other defaults and the variants that have them.
        """
        names = dict.fromkeys(name for variant in self.variants.values() for name in variant.shown_defaults)
        shown = {}
        for name in names:
            owners: dict[str, list[str]] = {}
            for chosen, variant in self.variants.items():
                if name in variant.shown_defaults:
                    owners.setdefault(str(variant.shown_defaults[name]), []).append(chosen)
            most_common, *others = sorted(owners, key=lambda value: -len(owners[value]))
            shown[name] = "; ".join([most_common, *(f"{each} with {join_words(owners[each])}" for each in others)])
        return shown

    def help(self, arguments: Sequence[str] = (), program: str | None = None) -> str:
        """Returns the text of --help, including the flags of the variant that the arguments choose, if any."""
        program = program or self.program
        variant = self._parse_variant([each for each in arguments if each not in _HELP], must_be_given=False)
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
            "Flags can be read from a file, one per line: --flagfile=FILE. If a flag is repeated, the last one counts."
        )
        if len(self.examples) > 1:
            parts.append("\n".join(["more examples:", *(f"  {program} {example}" for example in self.examples[1:])]))
        return "\n\n".join(parts)

    def _get_variant(self, variant: str | None) -> Variant:
        return self.variants[variant] if variant is not None else Variant()

    def _parse_variant(self, arguments: Sequence[str], must_be_given: bool = True) -> str | None:
        """Returns the variant that the arguments choose, such as "squad" for --task=squad, or None."""
        if self.chooser is None:
            return None
        values, _ = _parse_flags(self.flags(), self.aliases, arguments)
        chosen = values[self.chooser].value
        if chosen is not None and chosen not in self.variants and chosen.lower() in self.variants:
            chosen = chosen.lower()  # the original's names are in upper case, such as MRPC
        if chosen is None and must_be_given:
            raise UserError(f"--{self.chooser} is required: one of {', '.join(self.variants)}")
        if chosen is not None and chosen not in self.variants:
            raise UserError(
                f"unknown --{self.chooser}={chosen}{suggest(chosen, self.variants)}; expected one of "
                + ", ".join(self.variants)
            )
        return str(chosen) if chosen is not None else None

    def _describe_unknown_flag(self, name: str, variant: str | None) -> str:
        """Returns the error message for an unknown flag, with a suggestion.

        Args:
            name: The flag without dashes.
            variant: The chosen variant, or None.
        """
        refusal = self.refused.get(name) or self.refused.get(name.removeprefix("no"))
        if refusal:
            return f"--{name} is not a flag of this command: {refusal}"
        owners = [
            other for other in self.variants if name in {flag.name for flag in self.flags(other)} - {self.chooser}
        ]
        if owners:
            return f"--{self.chooser}={variant} does not take --{name}, a flag of {join_words(owners)}"
        known = [flag.name for flag in self.flags(variant)]
        hint = "; --help shows all flags" if known else "; the command takes none"
        return f"unknown flag --{name}" + (suggest(name, known, "--") or hint)


def _parse_flags(
    known_flags: Sequence[Flag],
    aliases: Mapping[str, str],
    arguments: Sequence[str],
    explain: Callable[[str], str] | None = None,
) -> tuple[flags.FlagValues, list[str]]:
    """Parses command-line arguments.

    Args:
        known_flags: The flags that the arguments may contain.
        aliases: The flag for each alternative name.
        arguments: The arguments.
        explain: Function that returns the error message for the name of an unknown flag. If it is None, unknown flags
            are ignored.

    Returns:
        The flags with their values, and the positional arguments.

    Raises:
        UserError: If a flag is unknown or has an invalid value, or a flagfile cannot be read.
    """
    values = flags.FlagValues()  # type: ignore[no-untyped-call]
    values.set_gnu_getopt(True)  # allows flags after positional arguments
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
        # The message is "flag --name=value: reason" with Python's reason.
        assignment = str(error).removeprefix("flag ").removesuffix(f": {error.__context__}")
        name = assignment.removeprefix("--").partition("=")[0]
        expected = next((flag.expected() for flag in known_flags if flag.name == name), "another value")
        raise UserError(f"{assignment}: expected {expected}") from error
    except (flags.Error, ValueError) as error:
        missing = re.fullmatch("Missing value for flag (.*)", str(error))
        raise UserError(f"{missing[1]}: expected a value, as in {missing[1]}=..." if missing else str(error)) from error


def _expand_flagfiles(arguments: Sequence[str], including: tuple[str, ...] = ()) -> list[str]:
    """Replaces each --flagfile argument with the lines of the file.

    Args:
        arguments: Arguments, or the lines of a flagfile. A path that starts with configs/ may also be a file of the
            installed package.
        including: The flagfiles that led to these lines, outermost first. They are not read again, so that cycles end.

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
