"""From a table to commands, and from their results to scores.

A command's folder is named after what distinguishes it, so that tables share records and models. What is done is
skipped: a file in the folder says which command made it.
"""

import dataclasses
import json
import math
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from official_bert.errors import UserError
from official_bert.modeling.choices import FEATURES, LINEAR
from official_bert.utils import files
from official_bert.utils.flags import option
from reproduce.tables import COLUMNS, PERPLEXITY, SCALES, TABLES, Flags, Scale, Shape, Variant

_DONE_FILE = "done.json"


@dataclasses.dataclass(frozen=True)
class Options:
    """The flags of `python -m reproduce`."""

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
    dry_run: bool = option(False, "Whether the commands are printed only.")


@dataclasses.dataclass(frozen=True)
class Run:
    """A command and the folder of its results."""

    folder: str
    command: str
    flags: Flags

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
        return self._scale.shape if variant.shape is None else self._scale.shapes[variant.shape]

    def runs(self) -> list[Run]:
        """Returns all runs, each after those that it needs, and each once."""
        found: dict[str, Run] = {}
        vocabulary = {"input_file": self._options.input_file, "vocab_file": self._vocab_file(),
                      "vocab_size": self._scale.vocab_size}  # fmt: skip
        found["vocabulary"] = Run(self._in("vocabulary"), "learn-vocabulary", vocabulary)
        held_out = self._records({}, "heldout", self._options.heldout_file)
        if self._options.heldout_file:
            found["heldout"] = held_out
        for variant in self.table.variants:
            records = [self._records(variant.records, "train", self._options.input_file)]
            if self._scale.phase2_steps:
                records.append(self._records({**variant.records, **_PHASE2_RECORDS}, "train", self._options.input_file))
            found |= {each.folder: each for each in records}
            for seed in self._options.random_seeds:
                model = self._pretraining(variant, seed, records, held_out)
                found[model.folder] = model
                for column in self.columns:
                    if column != PERPLEXITY:
                        run = self._finetuning(variant, column, seed)
                        found[run.folder] = run
        return list(found.values())

    def _vocab_file(self) -> str:
        return self._in("vocabulary", "vocab.txt")

    def _records(self, flags: Flags, part: str, texts: list[str]) -> Run:
        folder = self._in("records", f"{part}{_slug(flags)}")
        flags = {**self._scale.records, **flags} | ({"dupe_factor": 1} if part == "heldout" else {})
        output = os.path.join(folder, "records.tfrecord")
        files_of = {"input_file": texts, "output_file": output, "vocab_file": self._vocab_file()}
        return Run(folder, "make-records", {**files_of, **flags})

    def _model_folder(self, variant: Variant, seed: str) -> str:
        differing = _slug({**variant.records, **variant.pretraining})
        return self._in("models", f"{self.shape(variant)}-{self._steps}{differing}", f"seed_{seed}")

    def _task_folder(self, variant: Variant, column: str, seed: str) -> str:
        model = os.path.basename(os.path.dirname(self._model_folder(variant, seed)))
        name = f"{model}{_slug(variant.finetuning)}{f'-{variant.share:g}_of_steps' if variant.share < 1 else ''}"
        return self._in("tasks", name, column.replace(" ", "_"), f"seed_{seed}")

    def _pretraining(self, variant: Variant, seed: str, records: Sequence[Run], held_out: Run) -> Run:
        folder = self._model_folder(variant, seed)
        phase2 = round(self._steps * self._scale.phase2_steps / self._scale.steps)
        flags = {
            "do_train": True,
            "input_file": records[0].flags["output_file"],
            "bert_config_file": self._in("models", f"{self.shape(variant)}.json"),
            "vocab_file": self._vocab_file(),
            "output_dir": folder,
            **{name: self._scale.records[name] for name in ("max_seq_length", "max_predictions_per_seq")},
            **self._scale.pretraining,
            "num_warmup_steps": min(self._scale.pretraining["num_warmup_steps"], self._steps // 10),
            "num_train_steps": self._steps - phase2,
            "save_checkpoints_steps": max(1, self._steps // 5),
            "keep_checkpoint_max": 1,
            "random_seed": int(seed),
            **variant.pretraining,
        }
        if phase2:
            flags |= {"phase2_num_train_steps": phase2, "phase2_input_file": records[1].flags["output_file"]}
        if self._options.heldout_file:
            flags |= {"do_eval": True, "eval_input_file": held_out.flags["output_file"]}
        return Run(folder, "pretrain", flags)

    def _finetuning(self, variant: Variant, column: str, seed: str) -> Run:
        task, _, _, flags = COLUMNS[column]
        model = self._model_folder(variant, seed)
        if variant.share < 1:
            step = max(1, self._steps // 5) * round(variant.share * 5)
            model = os.path.join(model, f"ckpt-{step}")
        flags = {**self._scale.finetuning, **flags}
        head = {**flags, **variant.finetuning}.get("head", LINEAR)
        flags |= self._scale.lstm if head != LINEAR else {}
        flags |= self._scale.features if head in FEATURES else {}
        flags |= variant.finetuning
        if self._options.num_train_epochs:
            flags["num_train_epochs"] = self._options.num_train_epochs
        folder = self._task_folder(variant, column, seed)
        needed = {"task": task, "data_dir": self._data_dir(column), "init": model, "output_dir": folder}
        needed["cache_dir"] = self._in("features")
        return Run(folder, "finetune", {**needed, "do_train": True, "do_eval": True, "random_seed": int(seed), **flags})

    def write_configs(self) -> None:
        """Writes the bert_config.json of each size."""
        for variant in self.table.variants:
            shape = self.shape(variant)
            config = {
                "vocab_size": len(files.read_text(self._vocab_file()).splitlines()), "hidden_size": shape.hidden,
                "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads,
                "intermediate_size": 4 * shape.hidden, **self._scale.config,
            }  # fmt: skip
            files.write_text(self._in("models", f"{shape}.json"), json.dumps(config, indent=1) + "\n")

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


_PHASE2_RECORDS = {"max_seq_length": 512, "max_predictions_per_seq": 77}


def _slug(flags: Flags) -> str:
    """A part of a folder's name that tells the flags."""
    return "".join(f"-{name}-{str(value).replace('/', '_')}" for name, value in flags.items())


def perform(run: Run) -> None:
    """Runs a command, unless it is done.

    Raises:
        UserError: it failed, or its folder holds what another command made.
    """
    done = os.path.join(run.folder, _DONE_FILE)
    print(f"$ {run.line()}", flush=True)
    if files.exists(done):
        if files.read_json_object(done)["command"] != run.line():
            raise UserError(
                f"{run.folder} holds the results of another command; give another --output_dir, or remove it"
            )
        print("  done before", flush=True)
        return
    files.make_folder(run.folder)
    started = time.monotonic()
    program = "from official_bert.main import main; main()"
    code = subprocess.run([sys.executable, "-c", program, run.command, *map(_flag, run.flags.items())]).returncode
    if code:
        raise UserError(f"the command above ended with exit code {code}; the same command as before goes on from here")
    seconds = round(time.monotonic() - started)
    print(f"  done in {seconds:,} s", flush=True)
    files.write_text(done, json.dumps({"command": run.line(), "seconds": seconds}) + "\n")
