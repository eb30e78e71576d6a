"""Derives the commands that reproduce a table of the paper, and reads scores from their results.

The folder of a command is named after the flags that distinguish it, so that tables can share records and models.
"""

import dataclasses
import json
import math
import os
from typing import Any

from official_bert.errors import UserError
from official_bert.modeling.head_input import FEATURES, LINEAR
from official_bert.utils import files
from official_bert.utils.flags import ValidatedOptions, option
from tools.reproduce.runs import Run
from tools.reproduce.tables import COLUMNS, NO_NEXT_SENTENCES, PERPLEXITY, SCALES, TABLES, Flags, Shape, Variant

_PHASE2_RECORDS = {"max_seq_length": 512, "max_predictions_per_seq": 77}
_SHARES = 5  # checkpoints of a pre-training, after equal shares of its steps (figure 5)
_PARTS = 10  # the number of steps of each share and each part of pre-training is a multiple of steps / _PARTS


@dataclasses.dataclass(frozen=True)
class Options(ValidatedOptions):
    """The flags of `python -m tools.reproduce`."""

    table: str = option(dataclasses.MISSING, "Table or figure of the paper.", tuple(TABLES))
    scale: str = option(dataclasses.MISSING, "Size: tiny and mini for a CPU, base as in the paper.", tuple(SCALES))
    input_file: list[str] = option(dataclasses.MISSING, "Text to pre-train on: files or patterns.")
    data_dir: str = option(dataclasses.MISSING, "Folder of the tasks: glue/SST-2 and others, squad, swag, tagging.")
    output_dir: str = option(dataclasses.MISSING, "Folder of all runs and result pages, shared by all tables.")
    heldout_file: list[str] = option([], "Held-out text; without it the perplexity is left out.")
    random_seeds: list[str] = option(["1", "2", "3"], "Random seeds, each for a pre-training and its fine-tunings.")
    columns: list[str] = option([], "Columns to measure, such as mrpc; empty: all columns of the table.")
    num_train_steps: int = option(0, "Steps of pre-training; 0: as the scale specifies.", min=0)
    num_train_epochs: float = option(0.0, "Epochs of fine-tuning; 0: as the scale specifies.", min=0)
    dry_run: bool = option(False, "Print the commands without running them.")

    def __post_init__(self) -> None:
        super().__post_init__()
        seeds = self.random_seeds
        if not seeds or not all(seed.isdecimal() for seed in seeds) or len(set(map(int, seeds))) < len(seeds):
            raise UserError(f"--random_seeds={','.join(seeds)}: expected different whole numbers, as in 1,2,3")
        if self.num_train_steps % _PARTS:
            raise UserError(f"--num_train_steps is {self.num_train_steps}; it must be a multiple of {_PARTS}.")


class Experiment:
    """The commands that reproduce a table of the paper, and their scores.

    Args:
        options: The flags.

    Attributes:
        table: The table.
        columns: The columns (tasks) for which there are data.
        missing: For each column that is left out, a text with the reason.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._scale = SCALES[options.scale]
        self._steps = options.num_train_steps or self._scale.steps
        self._short_steps = round(self._steps * self._scale.short_share)
        self._vocab_file = self._path("vocabulary", "vocab.txt")
        self.table = TABLES[options.table]
        unknown = sorted(set(options.columns) - set(self.table.columns))
        if unknown:
            raise UserError(
                f"--columns names {', '.join(unknown)}; {self.table.title} has {', '.join(self.table.columns)}"
            )
        wanted = options.columns or self.table.columns
        problems = {column: problem for column in wanted if (problem := self._find_problem(column))}
        self.columns = [column for column in wanted if column not in problems]
        self.missing = [f"{column}: {problem}" for column, problem in problems.items()]
        if not self.columns:
            raise UserError(f"there is nothing to measure: {'; '.join(self.missing)}")

    def _find_problem(self, column: str) -> str | None:
        if column == PERPLEXITY:
            return None if self._options.heldout_file else "there is no --heldout_file"
        folder = self._data_dir(column)
        return None if files.glob(os.path.join(folder, "*train*")) else f"{folder} has no training part"

    def _data_dir(self, column: str) -> str:
        return os.path.join(self._options.data_dir, COLUMNS[column][1])

    def _path(self, *names: str) -> str:
        return os.path.join(self._options.output_dir, *names)

    def shape(self, variant: Variant) -> Shape:
        """Returns the size of the model of a variant, which is a row of the table."""
        return self._scale.shape if variant.size is None else Shape(*self._scale.shapes[variant.size])

    def runs(self) -> list[Run]:
        """Returns the commands of the table, without duplicates. Commands whose results others need come first."""
        texts = self._options.input_file
        flags = {"input_file": texts, "vocab_file": self._vocab_file, "vocab_size": self._scale.vocab_size}
        runs = [Run(self._path("vocabulary"), "learn-vocabulary", flags)]
        evaluation: Flags = {}
        if self._options.heldout_file:
            heldout = self._records("heldout", self._options.heldout_file, {"dupe_factor": 1}, {})
            evaluation = {"do_eval": True, "eval_input_file": heldout.flags["output_file"]}
            runs.append(heldout)
        for variant in self.table.variants:
            for seed in self._options.random_seeds:
                runs += self._pretraining(variant, seed, evaluation)
                runs += [self._finetuning(variant, column, seed) for column in self.columns if column != PERPLEXITY]
        return list({run.folder: run for run in runs}.values())

    def _records(self, part: str, texts: list[str], flags: Flags, variant_flags: Flags) -> Run:
        folder = self._path("records", f"{part}{_slug(variant_flags)}")
        output_file = os.path.join(folder, "records.tfrecord")
        paths = {"input_file": texts, "output_file": output_file, "vocab_file": self._vocab_file}
        return Run(folder, "make-records", {**paths, **self._scale.records, **flags, **variant_flags})

    def _config_file(self, variant: Variant) -> str:
        return self._path("models", f"{self.shape(variant)}.json")

    def _model_folder(self, variant: Variant, seed: str, short: bool = False) -> str:
        differing = {**variant.records, **variant.pretraining, **(NO_NEXT_SENTENCES if short else {})}
        name = f"{self.shape(variant)}-{self._steps}{_slug(differing)}{'-short' if short else ''}"
        return self._path("models", name, f"seed_{seed}")

    def _task_folder(self, variant: Variant, column: str, seed: str) -> str:
        model = os.path.basename(os.path.dirname(self._model_folder(variant, seed)))
        name = f"{model}{_slug(variant.finetuning)}{f'-{variant.share:g}_of_steps' if variant.share < 1 else ''}"
        return self._path("tasks", name, column.replace(" ", "_"), f"seed_{seed}")

    def _pretraining(self, variant: Variant, seed: str, evaluation: Flags) -> list[Run]:
        """Returns the commands that make a variant's records and pre-train its model.

        Args:
            variant: The row of the table.
            seed: Random seed.
            evaluation: Flags of pretrain for the evaluation.
        """
        scale, texts = self._scale, self._options.input_file
        runs = [self._records("train", texts, {}, variant.records)]
        steps, flags = self._steps - self._short_steps, dict[str, Any]()
        if self._short_steps:
            settings = {**scale.short_pretraining, **variant.pretraining}
            settings |= {"end_learning_rate": settings["learning_rate"], **NO_NEXT_SENTENCES}
            records = self._records("short", texts, scale.short_records, variant.records)
            folder = self._model_folder(variant, seed, short=True)
            runs += [records, self._model(folder, variant, seed, records, self._short_steps, settings)]
            flags["init_checkpoint"] = folder
        if scale.phase2_steps:
            runs.append(self._records("train", texts, {}, {**variant.records, **_PHASE2_RECORDS}))
            phase2_steps = round(self._steps * scale.phase2_steps / scale.steps)
            flags |= {"phase2_num_train_steps": phase2_steps, "phase2_input_file": runs[-1].flags["output_file"]}
            steps -= phase2_steps
        flags |= {**evaluation, **variant.pretraining}
        return [*runs, self._model(self._model_folder(variant, seed), variant, seed, runs[0], steps, flags)]

    def _model(self, folder: str, variant: Variant, seed: str, records: Run, steps: int, settings: Flags) -> Run:
        lengths = {name: records.flags[name] for name in ("max_seq_length", "max_predictions_per_seq")}
        flags = {
            "do_train": True, "input_file": records.flags["output_file"],
            "bert_config_file": self._config_file(variant), "vocab_file": self._vocab_file, "output_dir": folder,
            **lengths, **self._scale.pretraining, **settings, "num_train_steps": steps,
            "save_checkpoints_steps": self._steps // _SHARES, "keep_checkpoint_max": _SHARES, "random_seed": int(seed),
        }  # fmt: skip
        flags["num_warmup_steps"] = min(flags["num_warmup_steps"], steps // 5)
        return Run(folder, "pretrain", flags)

    def _find_checkpoint(self, variant: Variant, seed: str) -> str:
        """Returns the path of a variant's model, or of its checkpoint after `variant.share` of the steps."""
        if variant.share == 1:
            return self._model_folder(variant, seed)
        step = self._steps // _SHARES * round(variant.share * _SHARES)
        short = step <= self._short_steps
        step_of_part = step if short else step - self._short_steps
        return os.path.join(self._model_folder(variant, seed, short), f"ckpt-{step_of_part}")

    def _finetuning(self, variant: Variant, column: str, seed: str) -> Run:
        task, _, _, column_flags = COLUMNS[column]
        folder = self._task_folder(variant, column, seed)
        head = {**column_flags, **variant.finetuning}.get("head", LINEAR)
        flags: dict[str, Any] = {
            "task": task, "data_dir": self._data_dir(column), "init": self._find_checkpoint(variant, seed),
            "output_dir": folder, "adam_bias_correction": False,
            **self._scale.finetuning, **column_flags, **self._scale.tasks.get(column, {}),
            **(self._scale.lstm if head != LINEAR else {}),
            **(self._scale.features if head in FEATURES else {}),
            **variant.finetuning,
        }  # fmt: skip
        if self._options.num_train_epochs:
            flags["num_train_epochs"] = self._options.num_train_epochs
        return Run(folder, "finetune", {**flags, "do_train": True, "do_eval": True, "random_seed": int(seed)})

    def write_configs(self) -> None:
        """Writes the bert_config.json of each model size in the table."""
        vocab_size = len(files.read_text(self._vocab_file).splitlines())
        for variant in self.table.variants:
            shape = self.shape(variant)
            config = {
                "vocab_size": vocab_size, "hidden_size": shape.hidden, "num_hidden_layers": shape.layers,
                "num_attention_heads": shape.heads, "intermediate_size": 4 * shape.hidden, **self._scale.config,
            }  # fmt: skip
            files.write_text(self._config_file(variant), json.dumps(config, indent=1) + "\n")

    def score(self, variant: Variant, column: str, seed: str) -> float:
        """Returns the score of a run in percent or, in the column of perplexities, its perplexity."""
        if column == PERPLEXITY:
            path = os.path.join(self._model_folder(variant, seed), "eval_results.txt")
            results = dict(line.split(" = ", 1) for line in files.read_text(path).splitlines())
            return math.exp(float(results["masked_lm_loss"]))
        folder = self._task_folder(variant, column, seed)
        sweep = os.path.join(folder, "sweep.json")
        if files.exists(sweep):  # one run for each learning rate, the best on the dev set first
            folder = json.loads(files.read_text(sweep))[0]["folders"][0]
        scores = next(iter(files.read_json_object(os.path.join(folder, "results.json")).values()))
        task, _, name, _ = COLUMNS[column]
        value = scores.get(name, scores.get("accuracy"))  # tags that are not entities have no F1
        return float(value) * (1 if task.startswith("squad") else 100)


def _slug(flags: Flags) -> str:
    """Returns a text that lists flags, as a part of a folder's name."""
    return "".join(f"-{name}-{str(value).replace('/', '_')}" for name, value in flags.items())
