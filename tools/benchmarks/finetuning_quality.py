"""Compares scores after fine-tuning on little data: `python -m tools.benchmarks.finetuning_quality --help`.

`fit` of official_bert and Hugging Face's Trainer, both with their defaults, learn the same 1,000 rows of GLUE tasks
from the same weights, with several learning rates and seeds. Each run is a separate process. Its result is appended to
--results_file as a line of JSON. A run that has a line there is not repeated, so that you can stop at any time and
continue with the same command.
"""

import dataclasses
import json
import pathlib
import random
import statistics
import sys
import tempfile
from typing import Any, NamedTuple

from official_bert.utils.flags import option
from tools.benchmarks import measuring

PROGRAMS = {
    "fit": "official_bert `fit`",
    "fit_without_jump": "`fit`, `jump=False`",
    "hugging_face": "Hugging Face's Trainer",
}
_KEYS = ("task", "learning_rate", "seed", "program")  # what identifies a run in the results file


class Task(NamedTuple):
    """A GLUE task.

    Attributes:
        columns: Indices of the columns with the texts and, last, with the label.
        metric: "accuracy" or "correlation" (see finetuning_peers.compute_score).
        name: Name of the metric in the printed table.
        has_header: Whether the files start with a header line.
    """

    columns: tuple[int, ...]
    metric: str
    name: str
    has_header: bool = True


TASKS = {
    "STS-B": Task((7, 8, 9), "correlation", "Pearson"),
    "RTE": Task((1, 2, 3), "accuracy", "accuracy"),
    "MRPC": Task((3, 4, 0), "accuracy", "accuracy"),
    "CoLA": Task((3, 1), "correlation", "Matthews", has_header=False),
}
# The runs in their order: the most telling ones first.
CELLS = list(zip(("STS-B", "RTE", "MRPC") * 2, (1e-4, 5e-5, 1e-4, 5e-5, 1e-4, 5e-5), strict=True))
CELLS += [("CoLA", 5e-5), ("CoLA", 1e-4)]


@dataclasses.dataclass(frozen=True)
class Options:
    """The flags of the benchmark."""

    glue_dir: str = option(dataclasses.MISSING, "Folder with the tasks' folders, such as glue/RTE.")
    model: str = option(dataclasses.MISSING, "Folder of the model to start from, in Hugging Face's layout.")
    results_file: str = option(dataclasses.MISSING, "File of JSON lines that results are read from and appended to.")
    programs: list[str] = option(
        ["fit", "hugging_face"], f"Programs to run: {', '.join(PROGRAMS)}. Pass none to print only the table."
    )
    seeds: list[str] = option(["0", "1", "2", "3", "4"], "Random seeds, each for one run.")
    rows: int = option(1000, "Number of training rows, drawn from the file.")
    dev_rows: int = option(800, "Number of dev rows to score, drawn from the file, at most.")
    epochs: int = option(3, "Number of epochs.")
    batch_size: int = option(16, "Rows in a step.")
    max_seq_length: int = option(128, "Longest sequence in tokens.")


def write_rows(options: Options, task: str, folder: str) -> None:
    """Writes a task's training and dev rows, train.tsv and dev.tsv, which are the same for all programs and seeds."""
    columns, _, _, has_header = TASKS[task]
    for part, count in (("train", options.rows), ("dev", options.dev_rows)):
        text = pathlib.Path(options.glue_dir, task, f"{part}.tsv").read_text(encoding="utf-8-sig")
        rows = [line.split("\t") for line in text.removesuffix("\n").split("\n")[has_header:]]
        lines = ["\t".join(row[column].strip() for column in columns) for row in rows]
        lines = random.Random(0).sample(lines, min(count, len(lines)))
        if task == "RTE":
            lines = [line.replace("\tnot_entailment", "\t1").replace("\tentailment", "\t0") for line in lines]
        header = "\t".join([*(f"text{number}" for number in range(len(columns) - 1)), "label"])
        pathlib.Path(folder, f"{part}.tsv").write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")


def read_results(path: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Returns the results of finished runs, by task, learning rate, seed and program."""
    file = pathlib.Path(path)
    results = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return {tuple(result[key] for key in _KEYS): result for result in results}


def run(options: Options, key: tuple[Any, ...]) -> None:
    """Runs one program and appends its result to the results file. `key` is task, learning rate, seed and program."""
    task, rate, seed, program = key
    with tempfile.TemporaryDirectory() as folder:
        write_rows(options, task, folder)
        settings = {"folder": folder, "learning_rate": rate, "seed": seed, "metric": TASKS[task].metric}
        arguments = {**dataclasses.asdict(options), **settings, "fit": {}, "trainer": {}}
        command = [sys.executable, "-m", "tools.benchmarks.finetuning_peers", program, json.dumps(arguments)]
        usage = measuring.run(command)
    result = {**dict(zip(_KEYS, key, strict=True)), "score": usage.result()["score"], "cpu": round(usage.cpu, 1)}
    with open(options.results_file, "a") as file:
        file.write(json.dumps(result) + "\n")


def print_table(results: dict[tuple[Any, ...], dict[str, Any]]) -> None:
    """Prints a Markdown table with a line for each task, learning rate and program."""
    columns = ("task, metric", "rate", "program", "mean", "worst", "each seed", "CPU-seconds")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for task, rate in CELLS:
        for program, title in PROGRAMS.items():
            found = [result for key, result in sorted(results.items()) if (*key[:2], key[3]) == (task, rate, program)]
            if found:
                scores = [result["score"] for result in found]
                shown = [f"{score:.3f}" for score in (statistics.fmean(scores), min(scores), *scores)]
                seconds = statistics.fmean(result["cpu"] for result in found)
                cells = (f"{task}, {TASKS[task].name}", f"{rate:g}", title, *shown[:2], " ".join(shown[2:]))
                print(f"| {' | '.join(cells)} | {seconds:.0f} |")


def main(options: Options) -> None:
    results = read_results(options.results_file)
    for task, rate in CELLS:
        for seed in map(int, options.seeds):
            for program in options.programs:
                if (key := (task, rate, seed, program)) not in results:
                    run(options, key)
    print_table(read_results(options.results_file))


if __name__ == "__main__":
    measuring.run_benchmark(main, Options, ("--glue_dir=glue --model=minilm --results_file=results.jsonl",))
