"""Fine-tuning against Hugging Face's Trainer: `python -m tools.benchmarks.finetuning_peers --data_dir=glue/SST-2 ...`.

Both start from the same weights, in a folder that both read, learn the same rows for as many epochs at the same rate,
in batches of like length padded to their longest row, and predict the same rows. Each is a program of its own from its
start to its score, as users run it, evaluates once, at the end, and the two take turns; medians count. That is done for
sentences (SST-2) and for words (a file of tagged sentences in CoNLL-U).

What is longer in a longer run, the steps, stands apart from what is not: the start, with what the first steps take
longer than later ones, and the end, with evaluation and saving.
"""

import dataclasses
import datetime
import functools
import itertools
import json
import os
import pathlib
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from official_bert.utils.command_line import Command
from official_bert.utils.flags import option
from tools.benchmarks.pretraining import MODELS, ROOT

_MAX_LENGTH, _BATCH, _PREDICT_BATCH = 128, 32, 64
_TIMED_STEPS = 20  # from one noted time to the next


class Run(NamedTuple):
    """What a program did.

    Attributes:
        accuracy: of the rows to score.
        times: when some of its steps were done, as time.time has it, by the number of the step.
        ended: when it ended.
    """

    accuracy: float
    times: dict[int, float]
    ended: float


@dataclasses.dataclass(frozen=True)
class Options:
    """The flags of the benchmark."""

    data_dir: str = option(dataclasses.MISSING, "SST-2's folder.")
    tagged_train: str = option(dataclasses.MISSING, "Tagged sentences to learn, in CoNLL-U.")
    tagged_eval: str = option(dataclasses.MISSING, "Those to score.")
    vocab_file: str = option("", "An uncased vocab.txt, for random weights.")
    init: str = option(
        "", "A pre-trained model to start from, uncased, in any format that convert reads; empty: random weights."
    )
    size: str = option("mini", f"The size of random weights: {', '.join(MODELS)}.")
    rows: int = option(6400, "Rows of SST-2 to learn, the first ones.")
    epochs: int = option(1, "Epochs of SST-2; the tags, which are fewer, take four times as many.")
    learning_rate: float = option(2e-4, "The highest learning rate.")
    rounds: int = option(3, "How often each program runs, with another seed each time.")


def official_bert(task: str, folder: pathlib.Path, epochs: int, rate: float, seed: int) -> Run:
    """Runs official-bert finetune."""
    output = folder / "official_bert"
    command = [
        sys.executable, "-m", "official_bert_cli", "finetune", f"--task={task}", f"--data_dir={folder / task}",
        f"--init={folder / 'model'}", f"--output_dir={output}", f"--max_seq_length={_max_length(folder)}",
        f"--train_batch_size={_BATCH}", f"--eval_batch_size={_PREDICT_BATCH}", f"--learning_rate={rate}",
        f"--num_train_epochs={epochs}", f"--random_seed={seed}", "--do_train", "--do_eval",
        "--eval_steps=1000000", f"--log_steps={_TIMED_STEPS}",
    ]  # fmt: skip
    _run(command)
    ended = time.time()
    scores = json.loads((output / "results.json").read_text())
    times = _event_times(output / "train")
    shutil.rmtree(output)
    return Run(scores["dev"]["accuracy"], times, ended)


def _max_length(folder: str | pathlib.Path) -> int:
    """The longest row that the model takes, at most 128 tokens."""
    config = json.loads(pathlib.Path(folder, "model", "config.json").read_text())
    return min(_MAX_LENGTH, config["max_position_embeddings"])


def _event_times(folder: pathlib.Path) -> dict[int, float]:
    """When each step was logged, by TensorBoard's events."""
    import tensorflow as tf

    events = (event for path in folder.iterdir() for event in tf.compat.v1.train.summary_iterator(str(path)))
    return {event.step: event.wall_time for event in events if event.summary.value}


def hugging_face(task: str, folder: pathlib.Path, epochs: int, rate: float, seed: int) -> Run:
    """Runs this file's `trainer` in a process of its own."""
    arguments = json.dumps([task, str(folder), epochs, rate, seed])
    command = [sys.executable, "-m", "tools.benchmarks.finetuning_peers", arguments]
    output = _run(command)
    ended = time.time()
    accuracy, times = json.loads(output.splitlines()[-1])
    return Run(accuracy, {int(step): seconds for step, seconds in times.items()}, ended)


def _run(command: list[str]) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return done.stdout


def trainer(task: str, folder: str, epochs: int, rate: float, seed: int) -> tuple[float, dict[int, float]]:
    """Fine-tunes as a user of Hugging Face's Trainer does; returns the accuracy, and when some steps were done."""
    import numpy as np
    import transformers

    times: dict[int, float] = {}

    class Times(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step % _TIMED_STEPS == 0 or state.global_step == state.max_steps:
                times[state.global_step] = time.time()

    tokenizer = transformers.AutoTokenizer.from_pretrained(f"{folder}/model", model_max_length=_max_length(folder))
    transformers.set_seed(seed)
    if task == "sst-2":
        labels = ["0", "1"]
        train, dev = (_sentences(f"{folder}/sst-2/{name}.tsv", tokenizer) for name in ("train", "dev"))
        collate: Any = transformers.DataCollatorWithPadding(tokenizer)
        model_class: Any = transformers.AutoModelForSequenceClassification
    else:
        read = [_tagged(f"{folder}/tagging/{name}.conllu") for name in ("train", "dev")]
        labels = sorted({tag for sentence in read[0] for _, tag in sentence})
        train, dev = ([_words(each, labels, tokenizer) for each in sentences] for sentences in read)
        collate = transformers.DataCollatorForTokenClassification(tokenizer)
        model_class = transformers.AutoModelForTokenClassification
    model = model_class.from_pretrained(f"{folder}/model", num_labels=len(labels))
    arguments = transformers.TrainingArguments(
        output_dir=f"{folder}/hugging_face", per_device_train_batch_size=_BATCH, num_train_epochs=epochs,
        per_device_eval_batch_size=_PREDICT_BATCH, learning_rate=rate, warmup_steps=0.1, weight_decay=0.01, seed=seed,
        train_sampling_strategy="group_by_length", save_strategy="no", report_to="none", disable_tqdm=True,
        use_cpu=True, dataloader_pin_memory=False,
    )  # fmt: skip
    learner = transformers.Trainer(model=model, args=arguments, train_dataset=train, data_collator=collate)
    learner.add_callback(Times())
    learner.train()
    rows: Any = sorted(dev, key=lambda row: len(row["input_ids"]))
    found = learner.predict(rows)
    right, real = np.argmax(found.predictions, -1) == found.label_ids, found.label_ids != -100
    return float(np.sum(right & real) / np.sum(real)), times


def _sentences(path: str, tokenizer: Any) -> list[dict[str, Any]]:
    rows = [line.split("\t") for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines()[1:]]
    encoded = tokenizer([text for text, _ in rows], truncation=True)
    return [
        {name: values[number] for name, values in encoded.items()} | {"label": int(label)}
        for number, (_, label) in enumerate(rows)
    ]


def _tagged(path: str) -> list[list[tuple[str, str]]]:
    """Returns sentences of words with their parts of speech."""
    sentences = []
    for block in pathlib.Path(path).read_text(encoding="utf-8").strip().split("\n\n"):
        rows = [line.split("\t") for line in block.splitlines() if not line.startswith("#")]
        sentences.append([(row[1], row[3]) for row in rows if row[0].isdigit()])
    return sentences


def _words(sentence: list[tuple[str, str]], labels: list[str], tokenizer: Any) -> dict[str, Any]:
    encoded = tokenizer([word for word, _ in sentence], is_split_into_words=True, truncation=True)
    words: list[int | None] = encoded.word_ids()
    first = [word is not None and word != before for before, word in itertools.pairwise([None, *words])]
    ids = [
        labels.index(sentence[word][1]) if word is not None and counts and sentence[word][1] in labels else -100
        for word, counts in zip(words, first, strict=True)
    ]
    return {**encoded, "labels": ids}


def prepare(options: Options, folder: pathlib.Path) -> None:
    """Writes the data, and a model that both read."""
    import transformers

    if not (options.vocab_file or options.init):
        raise SystemExit("random weights need --vocab_file; or give --init, a pre-trained model")
    (folder / "sst-2").mkdir()
    lines = pathlib.Path(options.data_dir, "train.tsv").read_text(encoding="utf-8").splitlines()
    (folder / "sst-2" / "train.tsv").write_text("\n".join(lines[: options.rows + 1]) + "\n", encoding="utf-8")
    shutil.copy(pathlib.Path(options.data_dir, "dev.tsv"), folder / "sst-2")
    (folder / "tagging").mkdir()
    shutil.copy(options.tagged_train, folder / "tagging" / "train.conllu")
    shutil.copy(options.tagged_eval, folder / "tagging" / "dev.conllu")
    if options.init:
        source = os.path.abspath(options.init) if os.path.exists(options.init) else options.init  # a name, hf://...
        target = f"--to={folder / 'model'}"
        _run(
            [
                sys.executable,
                "-m",
                "official_bert_cli",
                "convert",
                f"--from={source}",
                target,
                "--to_format=hugging_face",
            ]
        )
        return
    sizes = json.loads((ROOT / "configs" / "models" / f"{MODELS[options.size]}.json").read_text())
    transformers.set_seed(1)
    model = transformers.BertModel(transformers.BertConfig(**{**sizes, "hidden_act": "gelu_new"}))
    model.save_pretrained(folder / "model")
    (folder / "vocabulary").mkdir()
    shutil.copy(options.vocab_file, folder / "vocabulary" / "vocab.txt")
    tokenizer = transformers.BertTokenizer.from_pretrained(folder / "vocabulary", do_lower_case=True)
    tokenizer.save_pretrained(folder / "model")
    shutil.copy(options.vocab_file, folder / "model" / "vocab.txt")


def main(options: Options) -> None:
    model = options.init or f"BERT-{options.size.capitalize()} of random weights"
    print(f"{datetime.date.today()}, {platform.processor() or platform.machine()}, {os.cpu_count()} processors")
    programs = {"official_bert": official_bert, "Hugging Face Trainer": hugging_face}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        prepare(options, folder)
        for task, epochs in (("sst-2", options.epochs), ("tagging", 4 * options.epochs)):
            runs: dict[str, list[dict[str, float]]] = {program: [] for program in programs}
            for seed in range(options.rounds):
                for program, run in programs.items():
                    runs[program].append(
                        _timed(functools.partial(run, task, folder, epochs, options.learning_rate, seed))
                    )
            print(f"\n{model}, {task}, {epochs} epochs, medians of {options.rounds} runs\n")
            print("| | s in all | s to the first step | rows/s | s after the last | CPU-s | accuracy, % |")
            print("|---|---|---|---|---|---|---|")
            for program, several in runs.items():
                middle = {name: statistics.median(run[name] for run in several) for name in several[0]}
                accuracies = ", ".join(f"{100 * run['accuracy']:.1f}" for run in several)
                print(
                    f"| {program} | {middle['all']:.1f} | {middle['start']:.1f} | {middle['rate']:.0f} "
                    f"| {middle['end']:.1f} | {middle['cpu']:.1f} | {accuracies} |",
                    flush=True,
                )


def _timed(run: Callable[[], Run]) -> dict[str, float]:
    """Returns seconds (all, start, end, cpu), rows a second and the accuracy of a run."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
    accuracy, times, ended = run()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    first, last = min(times), max(times)
    of_step = (times[last] - times[first]) / (last - first)
    return {
        "all": ended - began,
        "start": times[first] - first * of_step - began,
        "rate": _BATCH / of_step,
        "end": ended - times[last],
        "cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "accuracy": accuracy,
    }


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].startswith("["):
        print(json.dumps(trainer(*json.loads(sys.argv[1]))))
    else:
        Command(
            program="python -m tools.benchmarks.finetuning_peers",
            summary="Fine-tuning against Hugging Face's Trainer.",
            main=main,
            options=(Options,),
            examples=(
                "--data_dir=glue/SST-2 --tagged_train=train.conllu --tagged_eval=dev.conllu --vocab_file=vocab.txt",
            ),
            tensorflow=False,
        ).run()
