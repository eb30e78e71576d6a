"""The plan: which size, how many steps, what loss to expect, and the commands; and what came of it.

In the folder of a plan, `text` holds the text, what is held out of it and the vocabulary, and `plan.json` the plan;
what the commands make stands beside them.
"""

import contextlib
import dataclasses
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from data_gen.options import TextOptions
from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.pretraining import cost
from official_bert.pretraining.scaling_law import FINAL, LEARNED, Reached, ScalingLaw, block_parameters
from official_bert.utils import files, resuming, row_files
from official_bert.utils.locks import LOCK_FILE, lock_folder
from official_bert.utils.progress import duration
from planning import machine, on_devices, pilot, text
from planning.command_lines import (
    CONFIG_FILE,
    PLAN_FILE,
    TEXT_FOLDER,
    command_line,
    lines_here,
    process_of,
    reached_loss,
)
from planning.options import DEVICES, TIME, Options
from planning.recipe import BATCH_SIZE, PART, SIZES, Size, passes_over, tokens_of, warmup_of
from planning.text import TextCounts

_OPTIONS, _FILES = "options", "files"  # that a plan was made of
_COUNTS, _PILOTS = "counts", "pilots"  # all that a plan holds beside them before it is made
_OF_TIME = {field.name for field in dataclasses.fields(Options) if field.metadata.get("group") in (TIME, DEVICES)}

# What commands take beside their steps.
_START_OF_COMMAND = 6.0  # seconds, to import TensorFlow among others
_RECORDS_PER_SECOND = 50_000  # that make-records makes
_SECONDS_OF_COUNTING, _SECONDS_OF_EVALUATION = 3.0, 10.0
_LEAST_SECONDS = 3 * _START_OF_COMMAND + _SECONDS_OF_COUNTING + _SECONDS_OF_EVALUATION

_MOST_REPEATED = 10  # times that a text is read before it is called too small
_RELEASED_TOKENS = 3.3e9 * 1.3  # that Google's models were trained on, some of them forty times
_STALLED = 0.95  # of the unigram entropy: a model that is no better has hardly begun


@dataclasses.dataclass(frozen=True)
class Known:
    """What is known of the text: its counts, what the pilots reached on it, and how losses fall from there."""

    counts: TextCounts
    pilots: list[Reached]
    law: ScalingLaw  # of this text

    @classmethod
    def of(cls, counts: TextCounts, pilots: list[Reached], law: ScalingLaw) -> "Known":
        """Returns what is known by the law of all texts."""
        return cls(counts, pilots, law.of_text(pilots, counts.unigram_entropy, counts.tokens))

    @property
    def reached(self) -> Reached:
        """What the last pilot reached."""
        return self.pilots[-1]

    @property
    def has_learned(self) -> bool:
        """Whether that pilot was better than guessing by frequency: else the law says nothing."""
        return self.reached.loss < LEARNED * self.counts.unigram_entropy

    def expected_loss(self, config: BertConfig, steps: int) -> float:
        """Returns the held-out masked-LM loss to expect after some steps, in nats."""
        if not self.has_learned:
            return self.reached.loss
        return self.law.loss_later(
            self.reached, tokens_of(steps), block_parameters(config), self.counts.unigram_entropy, self.counts.tokens
        )


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A size, and how many steps of it fit into the time."""

    size: Size
    config: BertConfig
    steps: int
    seconds: float  # of the commands
    dtype: str  # of the computation


def plan(options: Options) -> dict[str, Any]:
    """Returns the plan of some text and time, as plan.json in its folder holds it, which is written.

    A folder that holds the plan of the same options gives that one again.

    Raises:
        UserError: the text is too short or cannot be read, the time is too short, or the folder holds something else.
    """
    with lock_folder(options.output_dir, "output_dir"):
        return _plan(options)


def _plan(options: Options) -> dict[str, Any]:
    if options.devices is None and options.seconds <= _LEAST_SECONDS:
        raise _too_short(options, _LEAST_SECONDS)
    held = _held(options) or _begin(options)
    if "commands" in held:
        return held
    counts, pilots = _measured(options, held)
    if options.devices is None:
        smallest = _fit_in(options, counts, SIZES[0])
        if smallest.seconds > options.seconds:
            raise _too_short(options, smallest.seconds)
        used = pilot.steps_of(smallest.steps)
        for number, steps in enumerate(used):
            print(f"pilot: {SIZES[0].name}, {steps:,} steps, some minutes at most", flush=True)
            since, before = time.monotonic(), number < len(pilots)
            if not before:
                pilots.append(pilot.train(options, counts, steps, smallest.dtype))
                _write(options, {**held, _PILOTS: [dataclasses.asdict(each) for each in pilots]})
            taken = "as trained before" if before else duration(time.monotonic() - since)
            print(f"pilot: held-out masked LM loss {pilots[number].loss:.3f}, {taken}", flush=True)
        # A plan of more time may have been stopped here: what it trained beyond would say other things.
        known = Known.of(counts, pilots[: len(used)], ScalingLaw.read(FINAL))
        best = _choose(options, known, smallest)
        config, made = best.config, _describe(options, known, best)
    else:
        whole = on_devices.runs(options, counts.vocab_size)
        run = on_devices.chosen(options, whole)
        config, made = run.config, on_devices.describe(options, counts, whole, run)
    made |= {_OPTIONS: resuming.locked_values(options), _FILES: held[_FILES]}
    files.write_text(os.path.join(options.output_dir, CONFIG_FILE), config.to_json())
    _write(options, made)
    return made


def _held(options: Options) -> dict[str, Any] | None:
    """Returns the plan that the folder holds, or what was counted and trained for it before it was stopped."""
    path = os.path.join(options.output_dir, PLAN_FILE)
    if not files.exists(path):
        return None
    try:
        held = files.read_json(path)
    except UserError as error:
        raise UserError(f"{error}; mend it, or give another --output_dir") from error
    if not _is_plan(held):
        raise _damaged(options)
    changes = resuming.changed_options(options, held[_OPTIONS])
    if "commands" not in held:  # what was counted and trained serves a plan of any time
        changes = {name: change for name, change in changes.items() if name not in _OF_TIME}
    if changes:
        raise UserError(
            f"{options.output_dir} holds another plan: {resuming.described(changes)}; give the same, or another "
            "--output_dir"
        )
    row_files.check_unchanged(held[_FILES], options.input_file, "input_file")
    if "commands" in held:
        try:
            describe(held)
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(options) from error
    return held


def _is_plan(held: Any) -> bool:
    """Whether what a file holds is a plan, or one that was begun."""
    if not isinstance(held, dict):
        return False
    kinds: dict[str, type] = {_OPTIONS: dict, _FILES: dict}
    kinds |= {"config": dict} if "commands" in held else {_COUNTS: dict, _PILOTS: list}
    return all(isinstance(held.get(name), kind) for name, kind in kinds.items())


def _measured(options: Options, held: Mapping[str, Any]) -> tuple[TextCounts, list[Reached]]:
    """Returns what was counted and trained, and checks that it can be, and that the text is still there."""
    folder = os.path.join(options.output_dir, TEXT_FOLDER)
    for name in (text.TEXT_FILE, text.HELDOUT_FILE, text.VOCAB_FILE):
        if not files.exists(os.path.join(folder, name)):
            raise UserError(
                f"{folder} has no {name}, of which a plan was begun; restore it, or remove "
                f"{os.path.join(options.output_dir, PLAN_FILE)} to begin anew"
            )
    try:
        counts, pilots = TextCounts(**held[_COUNTS]), [Reached(**each) for each in held[_PILOTS]]
    except TypeError as error:
        raise _damaged(options) from error
    losses = [counts.unigram_entropy, *(each.loss for each in pilots)]
    numbers = [counts.tokens, counts.heldout_characters, counts.vocab_size, *(each.parameters for each in pilots)]
    tokens = [tokens_of(steps) for steps in pilot.STEPS]
    if not (
        all(type(value) in (int, float) and 0 <= value < math.inf for value in losses + numbers)
        and all(numbers)
        and type(counts.pairs) is bool
        and [each.tokens for each in pilots] == tokens[: len(pilots)]
    ):
        raise _damaged(options)
    return counts, pilots


def _damaged(options: Options) -> UserError:
    path = os.path.join(options.output_dir, PLAN_FILE)
    return UserError(f"{path} is no plan, or damaged; remove it, or give another --output_dir")


def _begin(options: Options) -> dict[str, Any]:
    """Reads and counts the text, and returns what the folder now holds of the plan."""
    folder = os.path.join(options.output_dir, TEXT_FOLDER)
    own = {TEXT_FOLDER, CONFIG_FILE, LOCK_FILE, pilot.PILOT_FOLDER}
    others = sorted(set(files.list_folder(options.output_dir)) - own)
    if others:
        raise UserError(
            f"{options.output_dir} holds other files ({others[0]}); give --output_dir as a new or empty folder"
        )
    files.remove_folder(folder)  # of a plan that was stopped on the way
    contents = row_files.contents(row_files.expand(options.input_file, "input_file"))
    with files.folder_written_whole(folder) as beside:
        counts = text.prepare(options, beside)
    begun = {
        _OPTIONS: resuming.locked_values(options), _FILES: contents, _COUNTS: dataclasses.asdict(counts), _PILOTS: []
    }  # fmt: skip
    _write(options, begun)
    return begun


def _write(options: Options, made: Mapping[str, Any]) -> None:
    files.write_text(os.path.join(options.output_dir, PLAN_FILE), json.dumps(made, indent=1) + "\n")


def _fit_in(options: Options, counts: TextCounts, size: Size) -> Candidate:
    """Returns a size with as many steps as fit into the time, at least one, by the speed that is measured."""
    config = size.config(counts.vocab_size)
    speed = machine.measure(config, PART, counts.pairs)
    # Records take as long as the steps need of them, which is little: two rounds are enough.
    whole = beside = speed.start + _LEAST_SECONDS
    for _ in range(2):
        steps = max(1, int((options.seconds - whole) / speed.step))
        records = passes_over(counts.tokens, steps) * counts.tokens / PART.length
        whole = beside + records / _RECORDS_PER_SECOND
    steps = max(1, int((options.seconds - whole) / speed.step))
    return Candidate(size, config, steps, whole + steps * speed.step, speed.dtype)


def _choose(options: Options, known: Known, smallest: Candidate) -> Candidate:
    """Returns the size that comes to the lowest loss; larger ones are tried until one does not."""
    best, candidate, lowest = smallest, smallest, math.inf
    for size in SIZES:
        if size is not smallest.size:
            candidate = _fit_in(options, known.counts, size)
            # The law was measured from the first pilot's steps on.
            if candidate.seconds > options.seconds or candidate.steps < pilot.STEPS[0]:
                break
        expected = known.expected_loss(candidate.config, candidate.steps)
        print(f"{size.name}: {candidate.steps:,} steps, expected loss {expected:.3f}")
        if expected >= lowest:
            break
        best, lowest = candidate, expected
    return best


def _too_short(options: Options, seconds: float) -> UserError:
    return UserError(
        f"{options.seconds / 60:g} minutes are too short: to start the commands, make records and take a step takes "
        f"at least {seconds:.0f} seconds; give more time"
    )


def _describe(options: Options, known: Known, best: Candidate) -> dict[str, Any]:
    counts, config, steps = known.counts, best.config, best.steps
    expected = known.expected_loss(config, steps)
    low, high = known.law.interval(expected)
    memory = cost.memory_estimate(config, BATCH_SIZE, PART.length, PART.predictions, best.dtype, False).total
    parameters = cost.parameter_count(config)
    records = passes_over(counts.tokens, steps) * counts.tokens * 5  # bytes: a token takes about five
    return {
        "minutes": options.seconds / 60,
        "expected_minutes": round(best.seconds / 60, 1),
        "expected_loss": round(expected, 4),
        "expected_loss_low": round(low, 4),
        "expected_loss_high": round(high, 4),
        "unigram_loss": round(counts.unigram_entropy, 4),
        _PILOTS: [dataclasses.asdict(each) for each in known.pilots],
        "model": best.size.name,
        "config": config.to_dict(),
        "parameters": parameters,
        "vocab_size": counts.vocab_size,
        "text_tokens": round(counts.tokens),
        "tokens": tokens_of(steps),
        "train_batch_size": BATCH_SIZE,
        "phases": [
            {
                "max_seq_length": PART.length, "steps": steps, "learning_rate": best.size.learning_rate,
                "num_warmup_steps": warmup_of(steps), "dtype": best.dtype,
                "expected_losses": _expected_on_the_way(known, best),
            }
        ],
        "memory_bytes": memory,
        "disk_bytes": round(records + 5 * 12 * parameters),
        "notes": _notes(options, known, best),
        "commands": lines_here(options, counts, best.size, steps, best.dtype),
    }  # fmt: skip


def _expected_on_the_way(known: Known, best: Candidate) -> list[list[float]]:
    """Steps, and the highest loss in training that is expected there: pretrain says where it is above.

    It is taken for that of a run that ends there, on held-out text; measured ones were up to 2 % above.
    """
    points = []
    for tenth in range(1, 11):
        step = best.steps * tenth // 10
        if step >= pilot.STEPS[0]:
            highest = known.law.interval(known.expected_loss(best.config, step))[1]
            points.append([step, round(highest, 4)])
    return points


def _notes(options: Options, known: Known, best: Candidate) -> list[str]:
    """What the reader should know beside the figures."""
    notes: list[str] = []
    counts, tokens = known.counts, tokens_of(best.steps)
    repeated = tokens / counts.tokens
    if not known.has_learned:
        notes.append(
            f"the pilot learned nothing: its loss is {known.reached.loss:.3f}, that of guessing by frequency "
            f"{counts.unigram_entropy:.3f}; what more steps come to cannot be said. Give more text, or adapt released "
            "weights"
        )
    elif repeated > _MOST_REPEATED:
        half = known.expected_loss(best.config, best.steps // 2)
        notes.append(
            f"the text is too small for the time: its {counts.tokens:,.0f} tokens are read {repeated:.0f} times; half "
            f"of the time would come to {half:.3f}; more text would serve better than more time"
        )
    if known.has_learned and known.expected_loss(best.config, best.steps) > _STALLED * counts.unigram_entropy:
        notes.append(
            "the time is too short for a model to learn more than how frequent words are; give more, or adapt released "
            "weights"
        )
    if options.language == "en" and tokens < _RELEASED_TOKENS:
        adapt = {"init": "bert-mini", **_reading(options), "output_dir": "adapted"}
        notes.append(
            "to use a model of English, continue from released weights instead, which were trained on "
            f"{_RELEASED_TOKENS / tokens:,.0f} times as many tokens: {command_line('adapt', adapt)}"
        )
    return notes


def _reading(options: Options) -> dict[str, Any]:
    """The flags by which the text is read, but those that have their default."""
    values = {field.name: (getattr(options, field.name), field.default) for field in dataclasses.fields(TextOptions)}
    given = {name: value for name, (value, default) in values.items() if value != default}
    return given | {"input_file": ",".join(options.input_file)}


def run(options: Options) -> int:
    """Plans, prints the plan, and, where that is asked for, trains; returns the process's exit code.

    Raises:
        UserError: as of `plan`; or one of the commands has failed.
    """
    with contextlib.redirect_stdout(sys.stderr) if options.json else contextlib.nullcontext():
        made = plan(options)
    if not options.json:
        print(describe(made), flush=True)
    if options.run:
        with lock_folder(options.output_dir, "output_dir"):
            code = _train(options, made)
        if code:
            return code
    if options.json:
        print(json.dumps(made, indent=1), flush=True)
    return 0


def _train(options: Options, made: dict[str, Any]) -> int:
    """Runs the commands, and adds to the plan what was reached; returns the exit code of one that was stopped."""
    for line in made["commands"]:
        print(line, file=sys.stderr, flush=True)
        code = subprocess.run(process_of(line), stdout=sys.stderr, check=False).returncode
        if code:
            return code if code > 0 else 128 - code
    made["reached_loss"] = round(reached_loss(options.output_dir), 4)
    _write(options, made)
    if not options.json:
        low, high = made["expected_loss_low"], made["expected_loss_high"]
        print(
            f"held-out masked LM loss {made['reached_loss']:.3f}; expected were {made['expected_loss']:.3f} "
            f"({low:.3f} to {high:.3f}); the model is in {os.path.join(options.output_dir, 'model')}"
        )
    return 0


def describe(made: Mapping[str, Any]) -> str:
    """Returns the plan for people."""
    config = made["config"]
    size = f"{config['num_hidden_layers']} layers of {config['hidden_size']}, {made['parameters']:,} parameters"
    unigram = f"{made['unigram_loss']:.3f}"
    rows = [
        ("text", f"{made['text_tokens']:,} tokens to train on, guessed by frequency with a loss of {unigram}"),
        ("vocabulary", f"{made['vocab_size']:,} pieces"),
        ("model", f"{made['model']}: {size}"),
        *(on_devices.rows(made) if "devices" in made else _rows_here(made)),
        *(("note", note) for note in made["notes"]),
    ]
    return "\n".join([*(f"{name:<11} {value}" for name, value in rows), "", *made["commands"]])


def _rows_here(made: Mapping[str, Any]) -> list[tuple[str, str]]:
    hours = (duration(60 * made[name]) for name in ("expected_minutes", "minutes"))
    loss, low, high = (f"{made[name]:.3f}" for name in ("expected_loss", "expected_loss_low", "expected_loss_high"))
    rows = []
    for each in made["phases"]:
        batch = f"{made['train_batch_size']} x {each['max_seq_length']} tokens in {each.get('dtype', 'float32')}"
        rate = f"rate {each['learning_rate']:g}, {each['num_warmup_steps']:,} steps of warm-up"
        rows.append(("training", f"{each['steps']:,} steps of {batch}, {rate}"))
    return [
        *rows,
        ("time", " of ".join(hours)),
        ("needs", f"{made['memory_bytes'] / 1e9:.2f} GB of memory, {made['disk_bytes'] / 1e9:.2f} GB of disk"),
        ("expected", f"held-out masked LM loss {loss}, in 95 of 100 runs from {low} to {high}"),
    ]
