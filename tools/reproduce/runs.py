"""From a table to commands, and from their results to scores.

A command's folder is named after what distinguishes it, so that tables share records and models. What is done is
skipped: a file in the folder says which command made it.
"""

import concurrent.futures
import dataclasses
import json
import math
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from official_bert.errors import UserError
from official_bert.modeling.choices import FEATURES, LINEAR
from official_bert.utils import files
from official_bert.utils.flags import option
from official_bert.utils.signals import ending_with_this_process, interruptible
from tools.reproduce.tables import COLUMNS, PERPLEXITY, SCALES, TABLES, Flags, Scale, Shape, Variant

_DONE_FILE, _OUTPUT_FILE = "done.json", "output.txt"

_NO_FLAGS: Flags = {}
_PHASE2_RECORDS = {"max_seq_length": 512, "max_predictions_per_seq": 77}
_NO_NEXT_SENTENCES = {"next_sentence_prediction": False}
_SHARES = 5  # of the steps, after which there is a checkpoint (figure 5)
_PARTS = 10  # each share and each part of pre-training is a whole number of these


@dataclasses.dataclass(frozen=True)
class Options:
    """The flags of `python -m tools.reproduce`."""

    table: str = option(dataclasses.MISSING, "Which table or figure of the paper.", tuple(TABLES))
    scale: str = option(dataclasses.MISSING, "How large: tiny and mini for a CPU, base as in the paper.", tuple(SCALES))
    input_file: list[str] = option(dataclasses.MISSING, "Text to pre-train on: files or patterns.")
    data_dir: str = option(dataclasses.MISSING, "Folder of the tasks: glue/SST-2 and others, squad, swag, tagging.")
    output_dir: str = option(dataclasses.MISSING, "Folder of all runs and pages; the same for all tables.")
    heldout_file: list[str] = option([], "Text to evaluate pre-training on; without it there is no perplexity.")
    random_seeds: list[str] = option(["1", "2", "3"], "Each is of a pre-training and of the fine-tuning from it.")
    columns: list[str] = option([], "Some of the table's columns, such as mrpc; all unless it is given.")
    num_train_steps: int = option(0, "Steps of pre-training, in place of the scale's.")
    num_train_epochs: float = option(0.0, "Epochs of fine-tuning, in place of the scale's.")
    processes: int = option(1, "Commands that run at once, each on its share of the processors.")
    dry_run: bool = option(False, "Whether the commands are printed only.")

    def __post_init__(self) -> None:
        seeds = self.random_seeds
        if not seeds or not all(seed.isdecimal() for seed in seeds) or len(set(map(int, seeds))) < len(seeds):
            raise UserError(f"--random_seeds={','.join(seeds)}: expected different whole numbers, as in 1,2,3")
        if self.num_train_steps < 0 or self.num_train_steps % _PARTS:
            raise UserError(
                f"--num_train_steps is {self.num_train_steps}; expected a multiple of {_PARTS}, as the parts of "
                "pre-training are tenths of it"
            )
        if self.num_train_epochs < 0:
            raise UserError(f"--num_train_epochs is {self.num_train_epochs}; expected a positive number")
        if self.processes < 1:
            raise UserError(f"--processes is {self.processes}; expected at least 1")


@dataclasses.dataclass(frozen=True)
class Run:
    """A command, the folder of its results, and the folders of those that it comes after."""

    folder: str
    command: str
    flags: Flags
    after: tuple[str, ...] = ()

    def line(self) -> str:
        """Returns the command as a user would type it."""
        return shlex.join(["official-bert", self.command, *map(_flag, self.flags.items())])


def _flag(item: tuple[str, Any]) -> str:
    name, value = item
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no{name}"
    return f"--{name}={','.join(value) if isinstance(value, list) else value}"


class Experiment:
    """The runs of a table.

    Args:
        options: the flags.

    Attributes:
        columns: those that there are data for.
        missing: what is left out, and why.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._scale: Scale = SCALES[options.scale]
        self._steps = options.num_train_steps or self._scale.steps
        self.table = TABLES[options.table]
        self.columns: list[str] = []
        self.missing: list[str] = []
        unknown = sorted(set(options.columns) - set(self.table.columns))
        if unknown:
            raise UserError(
                f"--columns names {', '.join(unknown)}; {self.table.title} has {', '.join(self.table.columns)}"
            )
        for column in options.columns or self.table.columns:
            problem = self._problem(column)
            if problem:
                self.missing.append(f"{column}: {problem}")
            else:
                self.columns.append(column)
        if not self.columns:
            raise UserError(f"there is nothing to measure: {'; '.join(self.missing)}")

    def _problem(self, column: str) -> str | None:
        if column == PERPLEXITY:
            return None if self._options.heldout_file else "there is no --heldout_file"
        folder = self._data_dir(column)
        return None if files.glob(os.path.join(folder, "*train*")) else f"there is no training part in {folder}"

    def _data_dir(self, column: str) -> str:
        return os.path.join(self._options.data_dir, COLUMNS[column][1])

    def _in(self, *names: str) -> str:
        return os.path.join(self._options.output_dir, *names)

    def shape(self, variant: Variant) -> Shape:
        """Returns the size of a variant's model."""
        if isinstance(variant.shape, Shape):
            return variant.shape
        return self._scale.shape if variant.shape is None else self._scale.shapes[variant.shape]

    def runs(self) -> list[Run]:
        """Returns all runs, each after those that it needs, and each once."""
        vocabulary = Run(self._in("vocabulary"), "learn-vocabulary", {
            "input_file": self._options.input_file, "vocab_file": self._vocab_file(),
            "vocab_size": self._scale.vocab_size,
        })  # fmt: skip
        found = [vocabulary]
        held_out = None
        if self._options.heldout_file:
            held_out = self._records("heldout", self._options.heldout_file, {"dupe_factor": 1})
            found.append(held_out)
        for variant in self.table.variants:
            for seed in self._options.random_seeds:
                found += self._pretraining(variant, seed, held_out)
                found += [self._finetuning(variant, column, seed) for column in self.columns if column != PERPLEXITY]
        return list({run.folder: run for run in found}.values())

    def _vocab_file(self) -> str:
        return self._in("vocabulary", "vocab.txt")

    def _records(self, part: str, texts: list[str], flags: Flags, variant: Flags = _NO_FLAGS) -> Run:
        folder = self._in("records", f"{part}{_slug(variant)}")
        flags = {**self._scale.records, **flags, **variant}
        output = os.path.join(folder, "records.tfrecord")
        files_of = {"input_file": texts, "output_file": output, "vocab_file": self._vocab_file()}
        return Run(folder, "make-records", {**files_of, **flags}, after=(self._in("vocabulary"),))

    def _short_steps(self) -> int:
        return round(self._steps * self._scale.short.share) if self._scale.short else 0

    def _config_file(self, variant: Variant) -> str:
        return self._in("models", f"{self.shape(variant)}{_slug(variant.config)}.json")

    def _model_folder(self, variant: Variant, seed: str, short: bool = False) -> str:
        differing = {**variant.records, **variant.pretraining, **variant.config}
        if short:
            differing |= _NO_NEXT_SENTENCES
        name = f"{self.shape(variant)}-{self._steps}{_slug(differing)}{'-short' if short else ''}"
        return self._in("models", name, f"seed_{seed}")

    def _task_folder(self, variant: Variant, column: str, seed: str) -> str:
        model = os.path.basename(os.path.dirname(self._model_folder(variant, seed)))
        name = f"{model}{_slug(variant.finetuning)}{f'-{variant.share:g}_of_steps' if variant.share < 1 else ''}"
        return self._in("tasks", name, column.replace(" ", "_"), f"seed_{seed}")

    def _pretraining(self, variant: Variant, seed: str, held_out: Run | None) -> list[Run]:
        """The records and the model of a variant, and what the model begins with."""
        scale, texts = self._scale, self._options.input_file
        short_steps = self._short_steps()
        records = self._records("train", texts, {}, variant.records)
        runs = [records]
        given: dict[str, Any] = {}
        if scale.short:
            short_records = self._records("short", texts, scale.short.records, variant.records)
            settings = {**scale.short.pretraining, **variant.pretraining}
            settings |= {"end_learning_rate": settings["learning_rate"], **_NO_NEXT_SENTENCES}
            short = self._model(variant, seed, short_records, short_steps, settings, short=True)
            runs += [short_records, short]
            given["init_checkpoint"] = short.folder
        steps = self._steps - short_steps
        if scale.phase2_steps:
            phase2 = round(self._steps * scale.phase2_steps / scale.steps)
            phase2_records = self._records("train", texts, {}, {**variant.records, **_PHASE2_RECORDS})
            runs.append(phase2_records)
            given |= {"phase2_num_train_steps": phase2, "phase2_input_file": phase2_records.flags["output_file"]}
            steps -= phase2
        if held_out:
            given |= {"do_eval": True, "eval_input_file": held_out.flags["output_file"]}
        model = self._model(variant, seed, records, steps, {**given, **variant.pretraining})
        after = tuple(run.folder for run in (*runs, held_out) if run)
        return [*runs, dataclasses.replace(model, after=after)]

    def _model(
        self, variant: Variant, seed: str, records: Run, steps: int, settings: Flags, short: bool = False
    ) -> Run:
        folder = self._model_folder(variant, seed, short)
        flags = {
            "do_train": True,
            "input_file": records.flags["output_file"],
            "bert_config_file": self._config_file(variant),
            "vocab_file": self._vocab_file(),
            "output_dir": folder,
            **{name: records.flags[name] for name in ("max_seq_length", "max_predictions_per_seq")},
            **self._scale.pretraining,
            **settings,
            "num_train_steps": steps,
            "save_checkpoints_steps": self._steps // _SHARES,
            "keep_checkpoint_max": _SHARES,
            "random_seed": int(seed),
        }
        flags["num_warmup_steps"] = min(flags["num_warmup_steps"], steps // 5)
        return Run(folder, "pretrain", flags, after=(records.folder,))

    def _trained_for(self, variant: Variant, seed: str) -> tuple[str, str]:
        """The folder of a variant's model, and its checkpoint after the share of the steps."""
        folder = self._model_folder(variant, seed)
        if variant.share == 1:
            return folder, folder
        step = self._steps // _SHARES * round(variant.share * _SHARES)
        if step <= self._short_steps():
            folder = self._model_folder(variant, seed, short=True)
        else:
            step -= self._short_steps()
        return folder, os.path.join(folder, f"ckpt-{step}")

    def losses(self) -> dict[str, list[list[tuple[int, float]]]]:
        """Returns pairs of step and masked-LM loss, means over the seeds, of each part of each model's training."""
        from official_bert.utils.training_log import TRAIN, read_log  # imports TensorFlow

        found: dict[str, list[list[tuple[int, float]]]] = {}
        folders: set[str] = set()
        for variant in self.table.variants:
            if (first := self._model_folder(variant, self._options.random_seeds[0])) in folders:
                continue
            folders.add(first)
            parts = found[variant.line] = []
            for short, before in ((True, 0), (False, self._short_steps())) if self._scale.short else ((False, 0),):
                of_seeds: dict[int, list[float]] = {}
                for seed in self._options.random_seeds:
                    for line in read_log(self._model_folder(variant, seed, short), TRAIN):
                        of_seeds.setdefault(before + int(line["step"]), []).append(float(line["masked_lm_loss"]))
                parts.append([(step, statistics.fmean(values)) for step, values in sorted(of_seeds.items())])
        return found

    def _finetuning(self, variant: Variant, column: str, seed: str) -> Run:
        task, _, _, flags = COLUMNS[column]
        model, checkpoint = self._trained_for(variant, seed)
        flags = {**self._scale.finetuning, **flags, **self._scale.tasks.get(column, {})}
        head = {**flags, **variant.finetuning}.get("head", LINEAR)
        flags |= self._scale.lstm if head != LINEAR else {}
        flags |= self._scale.features if head in FEATURES else {}
        flags |= variant.finetuning
        if self._options.num_train_epochs:
            flags["num_train_epochs"] = self._options.num_train_epochs
        folder = self._task_folder(variant, column, seed)
        needed = {"task": task, "data_dir": self._data_dir(column), "init": checkpoint, "output_dir": folder}
        needed["cache_dir"] = self._in("features")
        flags |= {"do_train": True, "do_eval": True, "random_seed": int(seed)}
        return Run(folder, "finetune", {**needed, **flags}, after=(model,))

    def write_configs(self) -> None:
        """Writes the bert_config.json of each model."""
        for variant in self.table.variants:
            shape = self.shape(variant)
            config = {
                "vocab_size": len(files.read_text(self._vocab_file()).splitlines()), "hidden_size": shape.hidden,
                "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads,
                "intermediate_size": 4 * shape.hidden, **self._scale.config, **variant.config,
            }  # fmt: skip
            files.write_text(self._config_file(variant), json.dumps(config, indent=1) + "\n")

    def score(self, variant: Variant, column: str, seed: str) -> float:
        """Returns a score, from 0 to 100, or the perplexity, from the results of a run."""
        if column == PERPLEXITY:
            path = os.path.join(self._model_folder(variant, seed), "eval_results.txt")
            measured = dict(line.split(" = ", 1) for line in files.read_text(path).splitlines())
            return math.exp(float(measured["masked_lm_loss"]))
        results = files.read_json_object(os.path.join(self._task_folder(variant, column, seed), "results.json"))
        scores = next(iter(results.values()))
        task, _, name, _ = COLUMNS[column]
        value = scores.get(name, scores.get("accuracy"))  # tags that are no entities have no F1
        return float(value) * (1 if task.startswith("squad") else 100)


def _slug(flags: Flags) -> str:
    """A part of a folder's name that tells the flags."""
    return "".join(f"-{name}-{str(value).replace('/', '_')}" for name, value in flags.items())


def perform(runs: Sequence[Run], processes: int = 1) -> None:
    """Does what is not done yet, several commands at once, each on its share of the processors.

    Args:
        runs: each after those that it needs; what is needed and not among them is there.
        processes: how many commands run at once.

    Raises:
        UserError: a command failed, or its folder holds what another command made.
    """
    waiting = list(runs)
    done = {folder for run in runs for folder in run.after} - {run.folder for run in runs}
    shares = _shares_of_processors(processes)
    with concurrent.futures.ThreadPoolExecutor(processes) as pool, interruptible():  # it would wait for the commands
        running: dict[concurrent.futures.Future[None], tuple[Run, set[int]]] = {}
        while waiting or running:
            for run in [each for each in waiting if done.issuperset(each.after)][: len(shares)]:
                waiting.remove(run)
                share = shares.pop()
                running[pool.submit(_perform_one, run, share)] = run, share
            for future in concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED).done:
                run, share = running.pop(future)
                shares.append(share)
                future.result()
                done.add(run.folder)


def _shares_of_processors(number: int) -> list[set[int]]:
    if not hasattr(os, "sched_getaffinity"):  # only Linux has it
        return [set() for _ in range(number)]
    processors = sorted(os.sched_getaffinity(0))
    return [set(processors[index::number] or processors) for index in range(number)]


def _perform_one(run: Run, processors: set[int]) -> None:
    done = os.path.join(run.folder, _DONE_FILE)
    if files.exists(done):
        if files.read_json_object(done)["command"] != run.line():
            raise UserError(
                f"{run.folder} holds the results of another command; give another --output_dir, or remove it"
            )
        print(f"$ {run.line()}\n  done before", flush=True)
        return
    files.make_folder(run.folder)
    print(f"$ {run.line()}", flush=True)
    output = os.path.join(run.folder, _OUTPUT_FILE)
    command = [sys.executable, "-c", _program(processors), run.command, *map(_flag, run.flags.items())]
    started = time.monotonic()
    code, processor_seconds = _call(command, output)
    if code:
        raise UserError(
            f"{run.line()} ended with exit code {code}; what it printed is in {output}; the same command as before "
            "goes on from here"
        )
    seconds = round(time.monotonic() - started)
    print(f"  done in {seconds:,} s, {processor_seconds:,.0f} s of processor time: {run.folder}", flush=True)
    measured = {"command": run.line(), "seconds": seconds, "processor_seconds": round(processor_seconds)}
    files.write_text(done, json.dumps(measured) + "\n")


def _program(processors: set[int]) -> str:
    """What Python runs: the command line, held to the processors before TensorFlow counts them.

    It ends with this process: else the next one would find the folder in use.
    """
    held = f"import os; os.sched_setaffinity(0, {sorted(processors)}); " if processors else ""
    named = "import sys; sys.argv[0] = 'official-bert'"  # what the run's model card says it was
    return f"{ending_with_this_process()}; {held}{named}; from official_bert_cli import main; main()"


def _call(command: Sequence[str], output: str) -> tuple[int, float]:
    """Returns the exit code and the seconds of processor time; what the command prints is added to the file."""
    with open(output, "ab") as target:
        process = subprocess.Popen(command, stdout=target, stderr=subprocess.STDOUT)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage.ru_utime + usage.ru_stime
