"""Compares models that different programs train in the same processor time: `python -m tools.benchmarks.quality`.

`official-bert pretrain`, Hugging Face's Trainer and keras-hub's fit learn the same text with the same vocabulary. The
models have the same size, and each run has the same budget of processor time (user and system, including child
processes). The budget includes the start, the preparation of the data and the choice of a learning rate, but not the
making of the vocabulary and the plain text.

All models are converted and scored by the same evaluation on the same records: sentence pairs, on which official_bert
was trained, and sentences in one segment, on which the others were trained. A model that was never trained on a second
segment may score better if all segment ids are 0, so the better of both losses counts.

The results of each run are stored in a JSON file in --output_dir. A run whose file exists is not repeated.
"""

import dataclasses
import glob
import json
import math
import os
import pathlib
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.utils import files
from official_bert.utils.flags import ValidatedOptions, option
from tools.benchmarks import measuring

PROGRAMS = ("official_bert", "hugging_face", "keras_hub")
_BATCH_SIZE = 32
_MOST_PASSES = 10  # over the text, with different masks each time
_MASKED_SHARE = 0.2  # of the tokens of official_bert's records
_ORIGINAL_SHARE = 0.15  # of the tokens of held-out records
_HELDOUT = {"pairs": "next_sentence", "whole": "none"}  # names and --sentence_objective
_HELDOUT_RECORDS = 5000
_BYTES_PER_TOKEN = 4.5  # approximately
_RESERVE = 0.02  # of the budget, for checkpoints and for steps that take longer than measured


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size:
    """A model size, with an initializer range and a learning rate that suit it."""

    layers: int
    width: int
    heads: int
    initializer_range: float
    learning_rate: float

    def config(self, vocab_size: int, length: int) -> BertConfig:
        """Returns the model configuration. It has no dropout, because a model does not overfit in a short run."""
        return BertConfig(
            vocab_size=vocab_size, hidden_size=self.width, num_hidden_layers=self.layers,
            num_attention_heads=self.heads, intermediate_size=4 * self.width, hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0, max_position_embeddings=length, initializer_range=self.initializer_range,
        )  # fmt: skip


SIZES = {
    "tiny": Size(layers=2, width=128, heads=2, initializer_range=0.06, learning_rate=1e-3),
    "mini": Size(layers=4, width=256, heads=4, initializer_range=0.03, learning_rate=6e-4),
    "small": Size(layers=4, width=512, heads=8, initializer_range=0.02, learning_rate=3e-4),
}


@dataclasses.dataclass(frozen=True)
class Options(ValidatedOptions):
    """The flags of the benchmark."""

    input_file: list[str] = option(dataclasses.MISSING, "Text to learn: files or patterns, a paragraph on each line, "
                                   "an empty line or WikiExtractor's <doc> between documents.")  # fmt: skip
    heldout_file: list[str] = option(dataclasses.MISSING, "Text of other documents, to score on.")
    output_dir: str = option(dataclasses.MISSING, "Folder of all runs.")
    size: str = option("tiny", "Size of the model.", tuple(SIZES))
    minutes: float = option(5.0, "Processor minutes of each run.")
    seeds: list[str] = option(["1", "2", "3"], "Random seeds, each for a run of every program.")
    programs: list[str] = option(list(PROGRAMS), "Programs to run.", PROGRAMS)
    learning_rates: list[str] = option(
        ["3e-4", "1e-3", "3e-3"], "Learning rates that the other programs try. A single rate is used without a trial."
    )
    max_seq_length: int = option(64, "Length of all records.")
    vocab_size: int = option(8000, "Number of pieces in the vocabulary.")
    init_from_records: bool = option(True, "Compute initial weights of official_bert from token counts of its records.")
    dtype: str = option("float32", "Precision of official_bert.", ("float32", "bfloat16"))
    processor: int | None = option(None, "The processor that everything runs on; default: all processors.")


@dataclasses.dataclass(frozen=True)
class Run:
    """One training run of a program, with everything that determines its results."""

    program: str
    seed: int
    minutes: float
    size: str
    length: int
    settings: dict[str, Any]

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        return f"{self.program}-{self.size}-{self.minutes:.3g}-{self.seed}"


def list_runs(options: Options) -> list[Run]:
    """Returns all runs. They are ordered by seed, so that there are soon some results of every program."""
    ours = {"dtype": options.dtype, "init_from_records": options.init_from_records}
    theirs = {"rates": list(map(float, options.learning_rates))}
    return [
        Run(program, int(seed), options.minutes, options.size, options.max_seq_length,
            ours if program == "official_bert" else theirs)
        for seed in options.seeds
        for program in options.programs
    ]  # fmt: skip


def prepare(options: Options, folder: pathlib.Path) -> None:
    """Writes the plain text that all programs read, the vocabulary and the held-out records."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, patterns in (("text", options.input_file), ("heldout", options.heldout_file)):
        paths = sorted(path for pattern in patterns for path in glob.glob(pattern))
        if not paths:
            raise UserError(f"no file matches {', '.join(patterns)}")
        if not (folder / f"{name}.txt").exists():
            texts = (pathlib.Path(path).read_text(encoding="utf-8").splitlines() for path in paths)
            plain = ("" if line.startswith(("<doc", "</doc")) else line.strip() for each in texts for line in each)
            files.write_text(str(folder / f"{name}.txt"), "\n".join(plain) + "\n")
    if not (folder / "vocab.txt").exists():
        run_command("learn-vocabulary", input_file=folder / "text.txt", vocab_file=folder / "vocab.txt",
                    vocab_size=options.vocab_size, input_format="paragraphs")  # fmt: skip
    for name, objective in _HELDOUT.items():
        if not (folder / f"{name}.tfrecord").exists():
            run_command("make-records", input_file=folder / "heldout.txt", output_file=folder / f"{name}.tfrecord",
                        vocab_file=folder / "vocab.txt", max_seq_length=options.max_seq_length, dupe_factor=1,
                        max_predictions_per_seq=math.ceil(options.max_seq_length * _ORIGINAL_SHARE),
                        sentence_objective=objective, input_format="paragraphs")  # fmt: skip


def run_command(command: str, **flags: Any) -> float:
    """Runs a command of official-bert. Returns its processor seconds."""
    words = [
        f"--{'' if value else 'no'}{name}" if isinstance(value, bool) else f"--{name}={value}"
        for name, value in flags.items()
    ]
    return measuring.run([*measuring.COMMAND, command, *words]).cpu


def run_peer(function: str, arguments: dict[str, Any]) -> tuple[float, Any]:
    """Runs a function of quality_peers in a separate process. Returns its processor seconds and its result."""
    usage = measuring.run([sys.executable, "-m", "tools.benchmarks.quality_peers", function, json.dumps(arguments)])
    return usage.cpu, usage.result()


def count_steps(seconds: float, speed: dict[str, float]) -> int:
    """Returns how many training steps fit into `seconds` processor seconds. `speed` comes from measure_speed."""
    return max(20, int((seconds - speed["start"]) / speed["step"]))


def make_flags(run: Run, shared: pathlib.Path, folder: pathlib.Path, steps: int) -> dict[str, dict[str, Any]]:
    """Returns the flags of make-records and pretrain, by command.

    Args:
        run: The run.
        shared: Folder of the text and the vocabulary.
        folder: Folder of the run.
        steps: Number of training steps, which also determines how often the text is used.
    """
    common = {
        "vocab_file": shared / "vocab.txt", "max_seq_length": run.length, "random_seed": run.seed,
        "max_predictions_per_seq": math.ceil(run.length * _MASKED_SHARE),
    }  # fmt: skip
    records, tokens = folder / "records.tfrecord", os.path.getsize(shared / "text.txt") / _BYTES_PER_TOKEN
    passes = math.ceil(_BATCH_SIZE * steps * run.length / tokens)
    return {
        "make-records": {
            "input_file": shared / "text.txt", "input_format": "paragraphs", "output_file": records,
            "masked_lm_prob": _MASKED_SHARE, "dupe_factor": max(1, min(_MOST_PASSES, passes)), **common,
        },
        "pretrain": {
            "do_train": True, "input_file": records, "bert_config_file": folder / "bert_config.json",
            "output_dir": folder / "model", "train_batch_size": _BATCH_SIZE, "num_train_steps": steps,
            "learning_rate": SIZES[run.size].learning_rate, "num_warmup_steps": max(1, min(300, steps // 8)),
            "warmup_jump": False, "save_checkpoints_steps": steps, **run.settings,
            # XLA has no bfloat16 matrix products for CPUs.
            "jit_compile": run.settings["dtype"] == "float32", **common,
        },
    }  # fmt: skip


def run_official_bert(run: Run, shared: pathlib.Path, folder: pathlib.Path) -> dict[str, Any]:
    """Runs official_bert within the budget, which includes making the records and measuring its speed.

    Args:
        run: The run.
        shared: Folder of the text and the vocabulary.
        folder: Folder of the run.

    Returns:
        Processor seconds, steps, learning rate and seconds per step.
    """
    vocab_size = len((shared / "vocab.txt").read_text(encoding="utf-8").split())
    (folder / "bert_config.json").write_text(SIZES[run.size].config(vocab_size, run.length).to_json())
    flags = make_flags(run, shared, folder, steps=1)["pretrain"]
    used, speed = run_peer("measure_speed", {
        "batch": _BATCH_SIZE, "config": str(flags["bert_config_file"]), "dtype": flags["dtype"],
        "length": run.length, "predictions": flags["max_predictions_per_seq"], "jit_compile": flags["jit_compile"],
    })  # fmt: skip
    usable = 60 * run.minutes * (1 - _RESERVE)
    # Make as many records as the planned steps read, then run as many steps as fit into the remaining time.
    planned = make_flags(run, shared, folder, count_steps(usable - used, speed))
    used += run_command("make-records", **planned["make-records"])
    steps = count_steps(usable - used, speed)
    training = run_command("pretrain", **make_flags(run, shared, folder, steps)["pretrain"])
    return {
        "processor_seconds": used + training, "steps": steps, "rate": flags["learning_rate"],
        "step_seconds": (training - speed["start"]) / steps,
    }  # fmt: skip


def perform(run: Run, shared: pathlib.Path) -> dict[str, Any]:
    """Performs a run, unless its results exist already. Returns its results.

    Args:
        run: The run.
        shared: Folder of the text, the vocabulary and the results.
    """
    path, folder = shared / f"{run.name}.json", shared / run.name
    if path.exists():
        results = files.read_json_object(str(path))
        if results["run"] != dataclasses.asdict(run):
            raise UserError(f"{path} has other settings; pass another --output_dir")
        return results
    print(run.name, file=sys.stderr, flush=True)
    files.remove_folder(str(folder))
    folder.mkdir()
    size = SIZES[run.size]
    arguments: dict[str, Any] = {
        "program": run.program, "model": str(folder / "model"), "length": run.length, "most_records": _HELDOUT_RECORDS,
        "heldout": {name: str(shared / f"{name}.tfrecord") for name in _HELDOUT},
        "heldout_predictions": math.ceil(run.length * _ORIGINAL_SHARE),
    }  # fmt: skip
    if run.program == "official_bert":
        results = run_official_bert(run, shared, folder)
    else:
        _, results = run_peer(run.program, {
            **arguments, **run.settings, "seconds": 60 * run.minutes, "seed": run.seed, "batch": _BATCH_SIZE,
            "text": str(shared / "text.txt"), "vocab": str(shared / "vocab.txt"), "folder": str(folder),
            "layers": size.layers, "width": size.width, "heads": size.heads, "masked_share": _ORIGINAL_SHARE,
        })  # fmt: skip
    results |= {"run": dataclasses.asdict(run), "heldout": run_peer("score", arguments)[1]}
    for records in folder.glob("*.tfrecord*"):
        records.unlink()  # they are many times as large as the other files
    files.write_text(str(path), json.dumps(results, indent=1) + "\n")
    return results


def summarize(results: Sequence[dict[str, Any]]) -> dict[str, measuring.Metrics]:
    """Returns the metrics of each program: means over the seeds."""
    by_program: dict[str, list[dict[str, float]]] = {}
    for each in results:
        pairs, whole = (each["heldout"][name] for name in _HELDOUT)
        by_program.setdefault(each["run"]["program"], []).append({
            "CPU-seconds": each["processor_seconds"], "steps": each["steps"],
            "CPU-ms a step": 1000 * each["step_seconds"], "rate": each["rate"],
            "loss": pairs["loss"], "right, %": 100 * pairs["accuracy"],
            "loss, one segment": whole["loss"], "right there, %": 100 * whole["accuracy"],
        })  # fmt: skip
    rows: dict[str, measuring.Metrics] = {}
    for program, several in by_program.items():
        losses = [each["loss"] for each in several]
        means = {column: statistics.fmean(each[column] for each in several) for column in several[0]}
        deviation = statistics.stdev(losses) if len(losses) > 1 else math.nan
        rows[program] = {"seeds": len(several), **means, "deviation of the loss": deviation}
    return rows


def main(options: Options) -> None:
    if options.processor is not None:
        os.sched_setaffinity(0, {options.processor})
    shared = pathlib.Path(options.output_dir).absolute()
    prepare(options, shared)
    rows = summarize([perform(run, shared) for run in list_runs(options)])
    title = f"BERT-{options.size.capitalize()}, length {options.max_seq_length}, {options.minutes:g} processor minutes"
    measuring.print_table(title, rows, "loss")


if __name__ == "__main__":
    measuring.run_benchmark(main, Options)
