"""Records what the package computes on small inputs, and compares two versions of it: a guard for refactoring.

    python tools/baseline.py record FOLDER     # measures the checkout in the current directory
    python tools/baseline.py compare FOLDER    # measures it again and prints every difference

Results depend on the processor, so record the older commit on the machine where you compare, into a FOLDER outside of
the checkout. Only commands and public names are used, and arguments are translated for older commits, so you can run
this file by its path in a checkout of any commit. baseline_cases.json lists what is measured. Its "renamed" lists a
command, a current argument, and the argument that older commits, whose --help lacks the flag, take instead.
`--only=SECTION` measures one section.
"""

import argparse
import contextlib
import csv
import gzip
import hashlib
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import official_bert
import official_bert_cli

Values = Iterator[tuple[str, Any]]

CASES = json.loads(Path(__file__).with_name("baseline_cases.json").read_text())
VOCAB, CONFIG = CASES["vocabulary"].split(), CASES["bert_config"]
NOUNS, VERBS = ("cat", "dog", "mat", "sun", "unaffable"), ("sat", "ran", "played", "walking")
WORDS = ("the", "a", "in", "on", "and", ",", *NOUNS, *VERBS)
MAKE_RECORDS, PRETRAIN, FINETUNE = (CASES["flags"][command] for command in ("make-records", "pretrain", "finetune"))
SECTIONS = ("records", "pretraining", "two_devices", "killed_runs", "conversions", "kinds")
# Parts of the names of logged values that are compared: no times, rates or checksums.
LOGGED = re.compile("^(?!.*second).*(step|loss|accuracy|learning_rate|f1|pearson|spearman|exact)")


def make_sentence(rng: random.Random, shortest: int, longest: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(shortest, longest)))


def make_rows(count: int, seed: int) -> list[dict[str, Any]]:
    """Returns random rows that have the inputs and labels of every kind of task."""
    rng, rows = random.Random(seed), []
    for number in range(count):
        text = make_sentence(rng, 1, 18)
        words = text.split()
        context = text if number % 3 else "the and on ,"
        share = round(sum(word in NOUNS for word in words) / len(words), 3)
        row: dict[str, Any] = {"text": text, "context": context, "number": share, "ending": rng.randrange(4)}
        row["text_pair"], row["question"] = make_sentence(rng, 1, 6), f"who {make_sentence(rng, 1, 3)} ?"
        row["masked"], row["prompt"] = f"the [MASK] {text[:20]}", text[:20]
        row["class"] = "noun" if share > 0.3 else "verb"
        row["classes"] = [name for name in NOUNS[:3] if name in words]
        row["tags"] = ["N" if word in NOUNS else "V" if word in VERBS else "O" for word in words]
        row["answer"] = next(((word, context.find(word)) for word in context.split() if word in NOUNS), None)
        rows.append({**row, "endings": [make_sentence(rng, 1, 5) for _ in range(4)]})
    return rows


def write_inputs() -> None:
    """Writes vocabulary, configuration, text and task data into the current folder."""
    rng = random.Random(1)
    Path("vocab.txt").write_text("\n".join(VOCAB) + "\n")
    # No text has these two pieces, so the records are the same as with vocab.txt.
    Path("cased.txt").write_text(Path("vocab.txt").read_text().replace("##y", "Anna").replace("##z", "Berlin"))
    Path("bert_config.json").write_text(json.dumps(CONFIG))
    documents = [[f"{make_sentence(rng, 3, 14)} ." for _ in range(rng.randint(1, 12))] for _ in range(60)]
    for name, chosen in (("text.txt", documents[:50]), ("heldout.txt", documents[50:])):
        Path(name).write_text("\n".join("\n".join(sentences) + "\n" for sentences in chosen))
    Path("text.jsonl").write_text("".join(json.dumps({"text": "\n".join(each)}) + "\n" for each in documents))
    Path("words.txt").write_text("\n".join(NOUNS) + "\n")
    Path("excluded.txt").write_text("".join(f"{sentences[0]}\n" for sentences in documents[:3]))
    for seed, (part, count) in enumerate({"train": 20, "dev": 8, "test": 5}.items()):
        rows = make_rows(count, seed)
        write_json_lines(f"table-{part}.jsonl", [{**row, "classes": ";".join(row["classes"])} for row in rows])
        paragraphs = []
        for number, row in enumerate(rows):
            answers = [dict(zip(("text", "answer_start"), row["answer"], strict=True))] if row["answer"] else []
            asked = {"id": f"q{number}", "question": row["question"], "answers": answers, "is_impossible": not answers}
            paragraphs.append({"context": row["context"], "qas": [asked]})
        Path(f"{part}-v2.0.json").write_text(json.dumps({"version": "v2.0", "data": [{"paragraphs": paragraphs}]}))
        with open("val.csv" if part == "dev" else f"{part}.csv", "w", newline="") as file:
            choices = [[row["prompt"], "the", *row["endings"], row["ending"]] for row in rows]
            csv.writer(file).writerows([CASES["swag_columns"], *choices])


def write_json_lines(path: str, rows: list[Any]) -> None:
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))


def read_json_lines(path: str) -> list[Any]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def read_logs(folder: str) -> dict[str, list[dict[str, Any]]]:
    """Returns the logged values of each training step and each evaluation of a run."""
    logs = {name: read_json_lines(f"{folder}/{name}.jsonl") for name in ("train", "eval")}
    return {log: [{name: line[name] for name in line if LOGGED.search(name)} for line in logs[log]] for log in logs}


def predict(model: Any, rows: list[dict[str, Any]]) -> Any:
    """Returns a model's predictions for the rows as JSON values. The columns of the rows are the model's inputs."""
    answers = model.predict(get_columns(rows, rows[0]))
    return json.loads(
        json.dumps(answers, default=lambda each: each.tolist() if hasattr(each, "tolist") else vars(each))
    )


def digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def digest_weights(model: Any) -> str:
    named = sorted((variable.path.split("/", 1)[-1], variable.numpy().tobytes()) for variable in model.variables)
    return digest(*(part for path, value in named for part in (path.encode(), value)))


def command_line(command: str, arguments: str) -> list[str]:
    """Returns the words of a command line, with arguments translated for the measured checkout if necessary."""
    program = [sys.executable, "-m", "official_bert_cli", command]
    for name, today, before in CASES["renamed"]:
        if name == command and today in arguments:
            offered = subprocess.check_output([*program, "--help"], text=True).replace("[no]", "")
            arguments = arguments if today.split("=")[0] in offered else arguments.replace(today, before)
    return [*program, *arguments.split()]


def run(command: str, arguments: str) -> None:
    """Runs a command of official-bert in this process, which saves time. Raises an error if the command fails."""
    sys.argv = command_line(command, arguments)[2:]
    try:
        with open("log.txt", "w") as log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            official_bert_cli.main()
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"{command} {arguments}:\n{Path('log.txt').read_text()[-3000:]}") from end


def make_training_records() -> None:
    for text, name in (("text.txt", "train"), ("heldout.txt", "heldout"), ("text.txt --masking=dynamic", "dynamic")):
        run("make-records", f"{MAKE_RECORDS} --output_file={name}.tfrecord --input_file={text}")


def measure_records() -> Values:
    for number, (name, flags) in enumerate(CASES["records"].items()):
        run("make-records", f"{MAKE_RECORDS} --input_file=text.txt --output_file=records-{number}/all.tfrecord {flags}")
        contents = [path.read_bytes() for path in sorted(Path(f"records-{number}").glob("*.tfrecord*"))]
        yield name, [digest(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data) for data in contents]
    run("learn-vocabulary", "--input_file=text.txt --vocab_file=learned.txt --vocab_size=60")
    yield "vocabulary", digest(Path("learned.txt").read_bytes())


def measure_pretraining(cases: str = "pretraining") -> Values:
    make_training_records()
    for number, (name, flags) in enumerate(CASES[cases].items()):
        run("pretrain", f"{PRETRAIN} {flags} --output_dir=run-{number}")
        yield f"{name}: weights", digest_weights(official_bert.load_pretraining_model(f"run-{number}")[0])
        yield f"{name}: logs", read_logs(f"run-{number}")


def measure_two_devices() -> Values:
    import tensorflow as tf

    device = tf.config.LogicalDeviceConfiguration()
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], [device, device])
    yield from measure_pretraining("two_devices")


def measure_killed_runs() -> Values:
    """Measures the results of runs that are killed during training and started again, and of undisturbed runs."""
    make_training_records()
    tags = f"{FINETUNE} {CASES['kinds']['tags']['flags']} --eval_steps=3"
    for command, flags in {"pretrain": f"{PRETRAIN} --save_checkpoints_steps=3", "finetune": tags}.items():
        for name in ("uninterrupted", "killed"):
            folder = f"{command}-{name}"
            words = command_line(command, f"{flags} --output_dir={folder}")
            if name == "killed":
                kill_when_logged(words, Path(folder, "train.jsonl"), lines=7)
            subprocess.run(words, check=True, capture_output=True)
            yield f"{folder}: logs", read_logs(folder)
            yield f"{folder}: weights", digest_weights(official_bert.load(folder)[0])


def kill_when_logged(words: list[str], log: Path, lines: int) -> None:
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and not (log.exists() and len(log.read_text().splitlines()) >= lines):
        time.sleep(0.01)
    process.kill()
    if process.wait() >= 0:
        raise RuntimeError(f"{' '.join(words)} ended before it could be killed")


def measure_conversions() -> Values:
    make_training_records()
    run("pretrain", f"{PRETRAIN} --output_dir=source")
    for target in ("official_bert", "tf1", "hugging_face", "keras_hub"):
        run("convert", f"--from=source --to={target} --to_format={target}")
        run("convert", f"--from={target} --to=again-{target}")
        for folder in (target, f"again-{target}"):
            yield folder, digest_weights(official_bert.load(folder)[0])
    run("features", "--init=source --input_file=heldout.txt --output_file=out.jsonl --layers=-1,-2 --max_seq_length=16")
    yield "features", read_json_lines("out.jsonl")


def get_columns(rows: list[dict[str, Any]], names: Iterable[str]) -> Any:
    """Returns a tuple of the columns `names` of the rows, or the column itself if there is only one."""
    columns = tuple([row[name] for row in rows] for name in names)
    return columns if len(columns) > 1 else columns[0]


def measure_fit(kind: dict[str, Any], asked: list[dict[str, Any]]) -> dict[str, Any]:
    import keras

    losses: list[float] = []
    callback = keras.callbacks.LambdaCallback(on_train_batch_end=lambda _, logs: losses.append(float(logs["loss"])))
    rows, config = make_rows(20, 0), official_bert.BertConfig(**CONFIG)
    model = getattr(official_bert, kind["class"]).from_checkpoint(config, vocab_file="vocab.txt", **kind["settings"])
    y = {"y": [row[kind["label"]] for row in rows]} if "label" in kind else {}
    settings = CASES["fit"]["today" if "group_by_length" in model.fit.__code__.co_varnames else "before"]
    model.compile(**settings["compile"])
    model.fit(get_columns(rows, kind["learn_from"]), **y, **settings["fit"], callbacks=[callback])
    return {"losses": losses, "predictions": predict(model, asked)}


def measure_kinds() -> Values:
    """Measures the losses of `fit` and `finetune` for each kind of task, and the answers through every interface."""
    make_training_records()
    exports = {}
    for name, kind in CASES["kinds"].items():
        rows = [{column: row[name] for column, name in kind["inputs"].items()} for row in make_rows(5, 2)]
        yield f"{name}: fit", measure_fit(kind, rows)
        folder, command = name.replace(" ", "_"), kind["command"]
        run(command, f"{CASES['flags'][command]} {kind['flags']} --output_dir={folder}")
        yield f"{name}: logs", read_logs(folder)
        for path in sorted([*Path(folder).glob("*predictions*"), *Path(folder).glob("results.json")]):
            yield f"{name}: {path.name}", path.read_text().split()
        model = getattr(official_bert, kind["class"]).from_checkpoint(folder, **kind["settings"])
        yield f"{name}: Python", predict(model, rows)
        write_json_lines("asked.jsonl", rows)
        for engine, flag in {"SavedModel": "", "ONNX": "--format=onnx"}.items():
            if command == "finetune" or not flag:
                export = f"exports/{folder}-{engine}"
                run("export", f"--model_dir={folder} --export_dir={export} {flag}")
                run("predict", f"--export_dir={export} --input_file=asked.jsonl --output_file={export}.jsonl")
                yield f"{name}: {engine}", read_json_lines(f"{export}.jsonl")
                exports[f"{folder}-{engine}"] = rows
    yield from measure_server(exports)


def measure_server(exports: dict[str, list[dict[str, Any]]]) -> Values:
    """Serves all exports in one process, and measures the answers to the rows of each."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        host, port = free.getsockname()
    words = command_line("serve", " ".join(f"--model={name}=exports/{name}" for name in exports) + f" --port={port}")
    with open("server.txt", "w") as log, subprocess.Popen(words, stdout=log, stderr=log) as process:
        try:
            while process.poll() is None:
                with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{host}:{port}/readyz"):
                    break
                time.sleep(0.1)
            for name, rows in exports.items():
                url, body = f"http://{host}:{port}/v1/models/{name}:predict", json.dumps({"instances": rows}).encode()
                request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
                yield f"{name}: server", json.loads(urllib.request.urlopen(request).read())
        finally:
            process.terminate()


def measure(section: str) -> dict[str, Any]:
    """Returns the values of a section by name, measured in a separate process in a temporary folder."""
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, "PYTHONPATH": os.getcwd()}
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, os.path.abspath(__file__), "measure", folder, f"--only={section}"]
        subprocess.run(words, cwd=folder, env=environment, check=True)
        return dict(json.loads(Path(folder, "values.json").read_text()))


def find_differences(old: Any, new: Any, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yields the differences between two nested lists and dicts: a place, such as [a][3], the old and new value."""
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        old, new = dict(enumerate(old)), dict(enumerate(new))
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from find_differences(old.get(key, "missing"), new.get(key, "missing"), f"{place}[{key}]")
    elif old != new:
        yield place, old, new


def print_differences(old: dict[str, Any], new: dict[str, Any]) -> int:
    """Prints a line for each name whose values differ. Returns the number of lines."""
    count = 0
    for name in {**old, **new}:
        if found := list(find_differences(old.get(name, "missing"), new.get(name, "missing"))):
            gaps = [abs(a - b) for _, a, b in found if isinstance(a, float) and isinstance(b, float)]
            size = f", numbers by at most {max(gaps):.2g}" if gaps else ""
            print(f"{name}: {str(found[0])[:200]} ({len(found)} places{size})")
            count += 1
    return count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("record", "compare", "measure"), help="measure is for internal use")
    parser.add_argument("folder", type=Path, help="where the recorded values are stored")
    parser.add_argument("--only", choices=SECTIONS, help="the section to measure; all if omitted")
    options = parser.parse_args()
    if options.action == "measure":
        write_inputs()
        Path("values.json").write_text(json.dumps(dict(globals()[f"measure_{options.only}"]())))
        return 0
    options.folder.mkdir(parents=True, exist_ok=True)
    differing = 0
    for section in [options.only] if options.only else SECTIONS:
        started, path = time.monotonic(), options.folder / f"{section}.json"
        values = measure(section)
        if options.action == "record":
            path.write_text(json.dumps(values) + "\n")
        else:
            differing += print_differences(json.loads(path.read_text()), values)
        print(f"{section}: {len(values)} values in {time.monotonic() - started:.0f} s", flush=True)
    if options.action == "compare":
        print(f"{differing} values differ")
    return min(differing, 1)


if __name__ == "__main__":
    sys.exit(main())
