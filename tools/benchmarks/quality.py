"""The best model for the same processor time: `python -m tools.benchmarks.quality --input_file=... --heldout_file=...`.

official_bert by its recommended recipe, Hugging Face's Trainer and keras-hub's fit learn the same text with the same
vocabulary, a model of the same size, on as many processor seconds (user and system, of a program and its children). Its
start, the preparation of data and the choice of a rate count; the vocabulary and the plain text are there before.
See quality_peers.py for what the others do.

All are scored by the same evaluation, their weights converted, on the same records with the original's masks: pairs of
segments as official_bert was trained on, and whole sentences in one segment as the others were. Of a model that
knows no second segment, the better of two losses counts: with segments told, or not.

Each run's results are a JSON file in --output_dir; given again, what is there is not run again.
"""

import dataclasses
import glob
import json
import math
import os
import pathlib
import shlex
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from official_bert.errors import UserError
from official_bert.utils import files
from official_bert.utils.command_line import Command
from official_bert.utils.flags import option
from tools.benchmarks.pretraining import ROOT
from tools.benchmarks.quality_recipe import (
    BATCH_SIZE,
    INGREDIENTS,
    MOST_PASSES,
    SIZES,
    Part,
    Recipe,
    Size,
    num_warmup_steps,
    should_jit_compile,
)

_OURS = "official_bert"
_PEERS = ("hugging_face", "keras_hub", "hugging_face_as_is")
_SHORT, _SHORT_RATE = Part(length=16, predictions=4, masked_share=0.25), 0.6  # of the rate
_HELDOUT = {"pairs": "next_sentence", "whole": "none"}  # --sentence_objective
_HELDOUT_RECORDS = 5000
_PHRASES = 4000  # of SST-2's training data: of all of it a model learns nearly as much from random weights
_RESERVE = 0.02  # of the budget, for what steps on real records take more than measured, and for checkpoints


@dataclasses.dataclass(frozen=True)
class Options:
    """The flags of the benchmark."""

    input_file: list[str] = option(dataclasses.MISSING, "Text to learn: files or patterns, a paragraph on each line, "
                                   "an empty line or WikiExtractor's <doc> between documents.")  # fmt: skip
    heldout_file: list[str] = option(dataclasses.MISSING, "Text of other documents, to score on.")
    output_dir: str = option(dataclasses.MISSING, "Folder of all runs.")
    size: str = option("tiny", "The size of the model.", tuple(SIZES))
    minutes: float = option(5.0, "Processor minutes of each run.")
    seeds: list[str] = option(["1", "2", "3"], "A run with each.")
    programs: list[str] = option([_OURS, "hugging_face", "keras_hub"], f"Of {', '.join((_OURS, *_PEERS))}.")
    learning_rates: list[str] = option(
        ["3e-4", "1e-3", "3e-3"], "Those that the other programs try; one alone is taken untried."
    )
    max_seq_length: int = option(64, "Length of all records.")
    vocab_size: int = option(8000, "Pieces of the vocabulary.")
    thirds: bool = option(False, "Whether official_bert also runs for a third of the minutes.")
    ingredients: bool = option(False, "Whether only official_bert runs, with one thing changed at a time.")
    recipe: str = option("{}", "What differs from our recipe, as a JSON object of Recipe's fields.")
    peers_masked_share: float = option(0.15, "The share of tokens that the other programs predict.")
    peers_dropout: float = option(
        0.0, "Their dropout; by default they do without, as they learn more in so short a time."
    )
    peers_tuned_malloc: bool = option(False, "Whether they get the allocator's settings that official_bert makes.")
    tasks: bool = option(False, "Whether each model is fine-tuned too: tags, and 4,000 phrases of SST-2.")
    tagged_train: str | None = option(None, "Tagged sentences to learn, in CoNLL-U.")
    tagged_eval: str | None = option(None, "Those to score.")
    glue_dir: str | None = option(None, "Folder of SST-2's folder.")
    processor: int | None = option(None, "The one processor that everything runs on; by default all.")

    def __post_init__(self) -> None:
        unknown = sorted(set(self.programs) - {_OURS, *_PEERS})
        if unknown:
            raise UserError(f"--programs names {', '.join(unknown)}; expected some of {', '.join((_OURS, *_PEERS))}")
        if self.tasks and not (self.tagged_train and self.tagged_eval and self.glue_dir):
            raise UserError("--tasks needs --tagged_train, --tagged_eval and --glue_dir")


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of the contest; all of it is kept with its results, which count for nothing else."""

    program: str
    seed: int
    minutes: float
    size: str
    length: int
    settings: dict[str, Any]
    title: str

    @property
    def name(self) -> str:
        # A comma would part the names of files.
        return f"{self.title}-{self.size}-{self.minutes:.3g}-{self.seed}".replace(" ", "_").replace(",", "")


def runs_of(options: Options) -> list[Run]:
    """Returns all runs, seed by seed, so that each row soon has its first."""
    changes = json.loads(options.recipe)
    theirs = {
        "rates": list(map(float, options.learning_rates)), "masked_share": options.peers_masked_share,
        "dropout": options.peers_dropout, "tuned_malloc": options.peers_tuned_malloc,
    }  # fmt: skip
    ours = INGREDIENTS if options.ingredients else {_OURS: {}}
    runs = []
    for seed in map(int, options.seeds):

        def add(program: str, minutes: float, settings: dict[str, Any], title: str, seed: int = seed) -> None:
            runs.append(Run(program, seed, minutes, options.size, options.max_seq_length, settings, title))

        for title, change in ours.items() if options.ingredients or _OURS in options.programs else ():
            recipe = dataclasses.asdict(Recipe(**{**changes, **change}))
            add(_OURS, options.minutes, recipe, title)
            if options.thirds:
                add(_OURS, options.minutes / 3, recipe, f"{title}, a third of the time")
        for program in options.programs:
            if program != _OURS and not options.ingredients:
                add(program, options.minutes, theirs, program)
    return runs


def prepare(options: Options, folder: pathlib.Path) -> None:
    """Writes the plain text that all read, the vocabulary, and the held-out records."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, patterns in (("text", options.input_file), ("heldout", options.heldout_file)):
        paths = sorted(path for pattern in patterns for path in glob.glob(pattern))
        if not paths:
            raise UserError(f"there is no file {', '.join(patterns)}")
        if not (folder / f"{name}.txt").exists():
            texts = (pathlib.Path(path).read_text(encoding="utf-8").splitlines() for path in paths)
            plain = ("" if line.startswith(("<doc", "</doc")) else line.strip() for each in texts for line in each)
            files.write_text(str(folder / f"{name}.txt"), "\n".join(plain) + "\n")
    if not (folder / "vocab.txt").exists():
        _run("learn-vocabulary", folder, input_file=folder / "text.txt", vocab_file=folder / "vocab.txt",
             vocab_size=options.vocab_size, input_format="paragraphs")  # fmt: skip
    for name, objective in _HELDOUT.items():
        if not (folder / f"{name}.tfrecord").exists():
            _run("make-records", folder, input_file=folder / "heldout.txt", output_file=folder / f"{name}.tfrecord",
                 vocab_file=folder / "vocab.txt", max_seq_length=options.max_seq_length, dupe_factor=1,
                 max_predictions_per_seq=_predictions(options.max_seq_length, 0.15), sentence_objective=objective,
                 input_format="paragraphs")  # fmt: skip


def _predictions(length: int, share: float) -> int:
    return math.ceil(length * share)


def _run(command: str, folder: pathlib.Path, **flags: Any) -> float:
    """Runs a command of official-bert, its output to a log; returns its processor seconds."""
    words = [
        f"--{'' if value else 'no'}{name}" if isinstance(value, bool) else f"--{name}={value}"
        for name, value in flags.items()
    ]
    print(shlex.join(["official-bert", command, *words]), file=sys.stderr, flush=True)
    return _process(["-m", "official_bert_cli", command, *words], folder)[0]


def _peer(
    function: str, folder: pathlib.Path, arguments: dict[str, Any], tuned_malloc: bool = False
) -> tuple[float, Any]:
    """Runs a function of quality_peers; returns its processor seconds and its results."""
    # What tune_allocator sets, for programs that do not call it.
    malloc = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_MAX_": "0", "MALLOC_TOP_PAD_": str(2**28),
              "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1)} if tuned_malloc else {}  # fmt: skip
    seconds, output = _process(
        ["-m", "tools.benchmarks.quality_peers", function, json.dumps(arguments)], folder, **malloc
    )
    return seconds, json.loads(output.splitlines()[-1])


def _process(line: list[str], folder: pathlib.Path, **environment: str) -> tuple[float, str]:
    before = os.times()
    with open(folder / "log.txt", "a", encoding="utf-8") as log:
        done = subprocess.run(
            [sys.executable, *line], cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True, check=False,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow", **environment},
        )  # fmt: skip
        log.write(done.stdout)
    after = os.times()
    if done.returncode:
        raise SystemExit(f"{shlex.join(line)} ended with code {done.returncode}; see {folder / 'log.txt'}")
    return after.children_user + after.children_system - before.children_user - before.children_system, done.stdout


def _parts(recipe: Recipe, length: int) -> list[Part]:
    share = recipe.masked_share
    long = Part(length=length, predictions=_predictions(length, share), masked_share=share)
    return [_SHORT, long] if recipe.short_share else [long]


def our_steps(seconds: float, recipe: Recipe, speed: dict[str, Any]) -> list[int]:
    """Returns the steps of each phase that fit into what remains of the budget."""
    shares = [recipe.short_share, 1 - recipe.short_share] if recipe.short_share else [1.0]
    left = seconds - sum(speed["imports"] + start for start in speed["starts"])
    return [max(20, int(left * share / step)) for share, step in zip(shares, speed["steps"], strict=True)]


def our_lines(
    recipe: Recipe,
    size: Size,
    length: int,
    steps: Sequence[int],
    passes: int,
    seed: int,
    folders: dict[str, pathlib.Path],
) -> tuple[list[tuple[str, dict[str, Any]]], list[tuple[str, dict[str, Any]]]]:
    """Returns the commands of our recipe with their flags: those that make records, and those that train.

    All that our runs do is said here. `folders` are shared, of text and vocabulary, and run, of everything else.
    """
    shared, folder = folders["shared"], folders["run"]
    records, trainings = [], []
    parts = _parts(recipe, length)
    for number, (part, count) in enumerate(zip(parts, steps, strict=True)):
        is_last = number == len(parts) - 1
        shape = {
            "vocab_file": shared / "vocab.txt", "max_seq_length": part.length,
            "max_predictions_per_seq": part.predictions, "random_seed": seed,
        }  # fmt: skip
        file = folder / f"records{number}.tfrecord"
        records.append(("make-records", {
            "input_file": shared / "text.txt", "input_format": "paragraphs", "output_file": file,
            "masked_lm_prob": part.masked_share, "dupe_factor": passes, **shape,
            **({} if recipe.next_sentence else {"sentence_objective": "none"}),
        }))  # fmt: skip
        # A first phase keeps its rate, as the second goes on from it; short records tell nothing of next sentences.
        rate = recipe.rate_factor * size.learning_rate * (1.0 if is_last else _SHORT_RATE)
        trainings.append(("pretrain", {
            "do_train": True, "input_file": file, "bert_config_file": folder / "bert_config.json",
            "output_dir": folder / ("model" if is_last else "first"), "train_batch_size": BATCH_SIZE,
            "learning_rate": rate, "end_learning_rate": 0.0 if is_last else rate, "num_train_steps": count,
            "num_warmup_steps": num_warmup_steps(count), "warmup_jump": False, "dtype": recipe.dtype,
            "jit_compile": should_jit_compile(recipe.dtype),
            "save_checkpoints_steps": count, "next_sentence_prediction": recipe.next_sentence and is_last, **shape,
            **({"init_from_records": True} if recipe.init_from_records and not number else {}),
            **({"init_checkpoint": folder / "first"} if number else {}),
        }))  # fmt: skip
    return records, trainings


def official_bert(run: Run, shared: pathlib.Path, folder: pathlib.Path) -> dict[str, Any]:
    """Runs our recipe; the budget holds the measurement of its speed, the records, and training."""
    recipe, size, budget = Recipe(**run.settings), SIZES[run.size], 60 * run.minutes
    changes: dict[str, Any] = {"hidden_dropout_prob": recipe.dropout, "attention_probs_dropout_prob": recipe.dropout}
    if recipe.initializer_range is not None:
        changes["initializer_range"] = recipe.initializer_range
    config = size.config(len((shared / "vocab.txt").read_text(encoding="utf-8").split()), run.length)
    config = dataclasses.replace(config, **changes)
    (folder / "bert_config.json").write_text(config.to_json())
    parts = _parts(recipe, run.length)
    used, speed = _peer("speed", folder, {
        "config": str(folder / "bert_config.json"), "next_sentence": recipe.next_sentence,
        "dtype": recipe.dtype, "parts": [dataclasses.asdict(part) for part in parts],
    })  # fmt: skip

    def lines(steps: list[int]) -> Any:
        tokens = os.path.getsize(shared / "text.txt") / 4.5  # bytes of a token, roughly
        most = BATCH_SIZE * max(count * part.length for count, part in zip(steps, parts, strict=True))
        passes = max(1, min(MOST_PASSES, math.ceil(most / tokens)))
        folders = {"shared": shared, "run": folder}
        return our_lines(recipe, size, run.length, steps, passes, run.seed, folders)

    usable = budget * (1 - _RESERVE)
    # The records are as many as the steps read; then the rest of the time is for as many steps as fit.
    for command, flags in lines(our_steps(usable - used, recipe, speed))[0]:
        used += _run(command, folder, **flags)
    steps, training = our_steps(usable - used, recipe, speed), 0.0
    started = sum(speed["imports"] + start for start in speed["starts"])
    for command, flags in lines(steps)[1]:
        training += _run(command, folder, **flags)
    return {
        "processor_seconds": used + training, "steps": sum(steps), "rate": recipe.rate_factor * size.learning_rate,
        "step_seconds": (training - started) / sum(steps), "speed": speed, "before_training": used,
    }  # fmt: skip


def do(run: Run, options: Options, shared: pathlib.Path) -> dict[str, Any]:
    """Does a run unless it was done, and returns its results."""
    path, folder = shared / f"{run.name}.json", shared / run.name
    held = files.read_json_object(str(path)) if path.exists() else {}
    if held and held["run"] != dataclasses.asdict(run):
        raise UserError(f"{path} is of other settings; give another --output_dir")
    arguments: dict[str, Any] = {
        "program": run.program, "model": str(folder / "model"), "length": run.length,
        "heldout": {name: str(shared / f"{name}.tfrecord") for name in _HELDOUT},
        "heldout_predictions": _predictions(run.length, 0.15), "most_records": _HELDOUT_RECORDS,
    }  # fmt: skip
    if not held:
        print(f"== {run.name}", file=sys.stderr, flush=True)
        files.remove_folder(str(folder))
        folder.mkdir()
        if run.program == _OURS:
            held = official_bert(run, shared, folder)
        else:
            size = SIZES[run.size]
            _, held = _peer(run.program, folder, {
                **arguments, **run.settings, "seconds": 60 * run.minutes, "seed": run.seed, "batch": BATCH_SIZE,
                "text": str(shared / "text.txt"), "vocab": str(shared / "vocab.txt"), "folder": str(folder),
                "layers": size.layers, "width": size.width, "heads": size.heads,
            }, run.settings["tuned_malloc"])  # fmt: skip
        held |= {"run": dataclasses.asdict(run), "heldout": _peer("score", folder, arguments)[1]}
        for records in folder.glob("*.tfrecord*"):
            records.unlink()  # many times as large as the rest
        files.write_text(str(path), json.dumps(held, indent=1) + "\n")
    if options.tasks and "tasks" not in held:
        held["tasks"] = _tasks(options, shared, folder)
        files.write_text(str(path), json.dumps(held, indent=1) + "\n")
    return held


def _tasks(options: Options, shared: pathlib.Path, folder: pathlib.Path) -> dict[str, float]:
    """Fine-tunes the model, with the same settings whoever trained it; returns the dev scores."""
    assert options.tagged_train is not None
    assert options.tagged_eval is not None
    assert options.glue_dir is not None
    phrases = pathlib.Path(options.glue_dir, "SST-2")
    data: dict[str, dict[str, tuple[pathlib.Path, int | None]]] = {  # files, and how many of their lines
        "tagging": {
            "train.conllu": (pathlib.Path(options.tagged_train), None),
            "dev.conllu": (pathlib.Path(options.tagged_eval), None),
        },
        "sst-2": {"train.tsv": (phrases / "train.tsv", 1 + _PHRASES), "dev.tsv": (phrases / "dev.tsv", None)},
    }
    results = {}
    for task, sources in data.items():
        (shared / task).mkdir(exist_ok=True)
        for name, (source, most) in sources.items():
            lines = source.read_text(encoding="utf-8").splitlines(keepends=True)
            files.write_text(str(shared / task / name), "".join(lines[:most]))
        output = folder / task
        _run("finetune", folder, task=task, data_dir=shared / task, init=folder / "model", output_dir=output,
             max_seq_length=options.max_seq_length, learning_rate=5e-4, num_train_epochs=5, do_train=True, do_eval=True,
             vocab_file=shared / "vocab.txt")  # fmt: skip
        results[task] = files.read_json_object(str(output / "results.json"))["dev"]["accuracy"]
    return results


def table(results: Sequence[dict[str, Any]]) -> str:
    """Returns the table: a row for what has run under one title, with mean and spread over its seeds."""
    columns: dict[str, Callable[[dict[str, Any]], float]] = {
        "CPU-seconds": lambda each: each["processor_seconds"],
        "steps": lambda each: each["steps"],
        "CPU-ms a step": lambda each: 1000 * each["step_seconds"],
        "rate": lambda each: each["rate"],
        "loss": lambda each: each["heldout"]["pairs"]["loss"],
        "right, %": lambda each: 100 * each["heldout"]["pairs"]["accuracy"],
        "loss, one segment": lambda each: each["heldout"]["whole"]["loss"],
        "right there, %": lambda each: 100 * each["heldout"]["whole"]["accuracy"],
    }
    for task in results[0].get("tasks", ()):
        columns[f"{task}, %"] = lambda each, task=task: 100 * each["tasks"][task]  # type: ignore[misc]
    rows = [f"| program | seeds | {' | '.join(columns)} |", "|---" * (len(columns) + 2) + "|"]
    for title in dict.fromkeys(each["run"]["title"] for each in results):
        of_title = [each for each in results if each["run"]["title"] == title]
        cells = [_cell(name, [value(each) for each in of_title]) for name, value in columns.items()]
        rows.append(f"| {title} | {len(of_title)} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _cell(name: str, values: list[float]) -> str:
    mean = statistics.fmean(values)
    if name == "rate":
        return " ".join(f"{value:g}" for value in dict.fromkeys(values))
    if name in ("CPU-seconds", "steps"):
        return f"{mean:,.0f}"
    digits = 3 if "loss" in name else 1
    return f"{mean:.{digits}f}" + (f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else "")


def summary(results: Sequence[dict[str, Any]]) -> str:
    """Says when our loss was below the better of the others."""
    losses: dict[str, list[float]] = {}
    seconds: dict[str, float] = {}
    for each in results:
        losses.setdefault(each["run"]["title"], []).append(each["heldout"]["pairs"]["loss"])
        seconds[each["run"]["title"]] = each["processor_seconds"]
    means = {title: statistics.fmean(values) for title, values in losses.items()}
    theirs = [title for title in means if title in _PEERS]
    if not theirs:
        return ""
    best = min(theirs, key=means.__getitem__)
    ours = sorted((seconds[title], title) for title in means if title not in _PEERS and means[title] <= means[best])
    reached = f"reached by {ours[0][1]} in {ours[0][0]:.0f} CPU-seconds" if ours else f"not reached by {_OURS}"
    return f"the best of the others, {best}, came to {means[best]:.3f} in {seconds[best]:.0f} CPU-seconds; {reached}"


def main(options: Options) -> None:
    if options.processor is not None:
        os.sched_setaffinity(0, {options.processor})
    shared = pathlib.Path(options.output_dir).absolute()
    prepare(options, shared)
    results = []
    for run in runs_of(options):
        results.append(do(run, options, shared))
        print(f"{table(results)}\n", file=sys.stderr, flush=True)
    print(f"BERT-{options.size.capitalize()}, length {options.max_seq_length}, batch {BATCH_SIZE}, {options.minutes:g} "
          f"processor minutes\n\n{table(results)}\n\n{summary(results)}")  # fmt: skip


if __name__ == "__main__":
    Command(
        program="python -m tools.benchmarks.quality",
        summary="Trains the same model in three programs on as much processor time, and scores all.",
        main=main,
        options=(Options,),
        tensorflow=False,
    ).run()
