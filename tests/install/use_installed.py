"""Installs the wheel into this environment and uses it as a user would: `make test-install`.

    environment/bin/python tests/install/use_installed.py FOLDER [--lowest]

FOLDER contains the wheel. With --lowest, the lowest versions that the wheel accepts are installed, and models are also
exported and served.
"""

import importlib.metadata
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] the cat sat on a mat dog ran in sun and . ,".split()
TEXT = "the cat sat on a mat .\nthe dog ran in the sun .\na cat and a dog sat .\n\n" * 40

WRITE_RECORDS = """
import tensorflow as tf
ints = lambda values: tf.train.Feature(int64_list=tf.train.Int64List(value=values))
with tf.io.TFRecordWriter("hand.tfrecord") as writer:
    for number in range(64):
        features = {
            "input_ids": ints([2, 5, 4, 7, 3, 9, 10, 3] + [0] * 8), "input_mask": ints([1] * 8 + [0] * 8),
            "segment_ids": ints([0] * 5 + [1] * 3 + [0] * 8), "masked_lm_positions": ints([2, 0]),
            "masked_lm_ids": ints([6, 0]), "next_sentence_labels": ints([number % 2]),
            "masked_lm_weights": tf.train.Feature(float_list=tf.train.FloatList(value=[1.0, 0.0])),
        }
        writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
"""
LOAD = """
import importlib.util, official_bert
loaded = official_bert.load("model")
assert loaded.tokenizer.tokenize("the cat") == ["the", "cat"]
for name in ("run_pretraining", "run_classifier", "run_squad", "extract_features", "data_gen.create_pretraining_data"):
    assert importlib.util.find_spec(name), f"{name} is not installed"
for name in ("configs", "tests", "tools"):
    assert importlib.util.find_spec(name) is None, f"{name} is installed as a module"
"""

SCRIPTS = pathlib.Path(sys.executable).parent
LEARN = ["--input_file=text.txt", "--vocab_file=learned.txt", "--vocab_size=40"]
FLAGS = ["--max_seq_length=16", "--max_predictions_per_seq=2"]


def run(*command: str, code: int = 0) -> str:
    """Runs a program of this environment and returns its output. A nonzero exit code ends the check."""
    done = subprocess.run([SCRIPTS / command[0], *command[1:]], capture_output=True, text=True, check=False)
    if done.returncode != code:
        raise SystemExit(f"error: {' '.join(command)} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def install(wheel: str, extras: str) -> None:
    start = time.monotonic()
    requirement = f"{wheel}[{extras}]" if extras else wheel
    run(
        "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement, "-c", "constraints.txt"
    )
    folder = pathlib.Path(next(path for path in sys.path if path.endswith("site-packages")))
    size = sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())
    print(
        f"  pip install [{extras}]: {time.monotonic() - start:.0f} s, {size / 1e6:,.0f} MB in site-packages", flush=True
    )


def lowest() -> dict[str, str]:
    """Returns pins of the lowest versions that the installed wheel accepts, by package."""
    bounds = (re.match(r"([\w.-]+).*?>=([\d.]+)", each) for each in importlib.metadata.requires("official-bert") or [])
    return {bound[1]: f"{bound[1]}=={bound[2]}" for bound in bounds if bound}


def check_commands() -> None:
    commands = run("official-bert", "--help").partition("\ncommands:\n")[2].partition("\n\n")[0]
    listed = re.findall(r"^  ([a-z-]+) ", commands, re.MULTILINE)
    assert len(listed) > 12, listed
    for name in listed:
        assert f"official-bert {name}" in run("official-bert", name, "--help"), name
    assert "did you mean serve?" in run("official-bert", "sevre", code=1)


def check_plain(folder: str) -> None:
    assert "pip install 'official-bert[serve] @ file://" in run("official-bert", "serve", f"--model=a={folder}", code=1)
    learn = [
        "official-bert",
        "learn-vocabulary",
        "--input_file=text.txt",
        "--vocab_file=learned.txt",
        "--vocab_size=40",
    ]
    assert "pip install 'official-bert[data] @ file://" in run(*learn, code=1)
    run("python", "-c", WRITE_RECORDS)
    config = {"vocab_size": len(WORDS), "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
              "intermediate_size": 16, "max_position_embeddings": 32, "type_vocab_size": 2}  # fmt: skip
    pathlib.Path("config.json").write_text(json.dumps(config), encoding="utf-8")
    train = [*FLAGS, "--bert_config_file=config.json", "--do_train", "--train_batch_size=4", "--vocab_file=vocab.txt"]
    train += [
        "--num_train_steps=2",
        "--num_warmup_steps=1",
        "--output_dir=model",
    ]
    # A recipe of the installed configs, with a smaller model.
    said = run(
        "official-bert", "pretrain", "--flagfile=configs/cpu_10_minutes.flagfile", "--input_file=hand.tfrecord", *train
    )
    assert "the run is in model" in said
    assert "cat" in run("official-bert", "fill-mask", "--model_dir=model", "--top_k=18", "the [MASK] sat .")
    run("python", "-c", LOAD)


def check_data() -> None:
    run("official-bert", "learn-vocabulary", *LEARN)
    records = ["--input_file=text.txt", "--output_file=made.tfrecord", "--vocab_file=learned.txt", *FLAGS]
    run("official-bert", "make-records", *records)
    assert "errors 0" in run(
        "official-bert", "verify-records", "--input_file=made.tfrecord", "--vocab_file=learned.txt"
    )


def check_exports() -> None:
    """Fine-tunes a model, exports it, and queries the exports as files and through a server."""
    rows = [f"the {word},{'animal' if word in ('cat', 'dog') else 'place'}" for word in "cat dog mat sun".split() * 8]
    pathlib.Path("train.csv").write_text("text,label\n" + "\n".join(rows) + "\n", encoding="utf-8")
    pathlib.Path("asked.csv").write_text("text\n" + "\n".join(["the cat", "a", "the mat . " * 9]), encoding="utf-8")
    data = ["--task=table", "--train_file=train.csv", "--eval_file=train.csv", "--init=model", "--max_seq_length=16"]
    run("official-bert", "finetune", *data, "--do_train", "--do_eval", "--num_train_epochs=1", "--output_dir=tuned")
    formats = ("saved_model", "onnx", "litert")
    flags = [f"--format={','.join(formats)}", "--eval_file=train.csv", "--export_dir=out"]
    run("official-bert", "export", "--model_dir=tuned", *flags)
    labels = []
    for each in formats[:2]:
        answers = pathlib.Path(f"{each}.jsonl")
        run(
            "official-bert", "predict", f"--export_dir=out/{each}", "--input_file=asked.csv", f"--output_file={answers}"
        )
        labels.append([json.loads(line)["label"] for line in answers.read_text(encoding="utf-8").splitlines()])
        assert "answers" in run("official-bert", "check-export", f"out/{each}")
    assert len(labels[0]) == 3, labels
    assert labels[0] == labels[1]
    models = [f"--model={each}=out/{each}" for each in formats[:2]]
    command = [SCRIPTS / "official-bert", "serve", *models, "--port=0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr
        ready = next((line for line in server.stderr if '"event":"ready"' in line), None)
        assert ready, "the server did not start"
        for each in formats[:2]:
            url = f"{json.loads(ready)['url']}/v1/models/{each}"
            assert "answers" in run("official-bert", "check-export", f"--export_dir=out/{each}", url)
        server.send_signal(signal.SIGTERM)
        said = server.stderr.read()
        assert server.wait() == 0, said
        assert "Traceback" not in said, said


def main() -> None:
    wheel = str(next(pathlib.Path(sys.argv[1]).resolve().glob("*.whl")))
    pins: dict[str, str] = {}
    print(f"Python {sys.version.split()[0]}", flush=True)
    if "--lowest" in sys.argv:
        run("python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", wheel)
        pins = lowest()
        print(f"  {' '.join(pins.values())}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        pathlib.Path("vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
        pathlib.Path("text.txt").write_text(TEXT, encoding="utf-8")
        pathlib.Path("constraints.txt").write_text("\n".join(pins.values()), encoding="utf-8")
        install(wheel, "")
        check_commands()
        assert "pip install 'official-bert[tensorflow] @ file://" in run(
            "official-bert", "fill-mask", "--model_dir=m", "a", code=1
        )
        install(wheel, "tensorflow")
        check_plain(folder)
        install(wheel, "data")
        check_data()
        if pins:
            # All extras except convert: keras-hub needs a later tensorflow-text than the others.
            install(wheel, "serve,serve-onnx,finetune,data,remote,tfds,hub,portable,jieba,dask")
            check_exports()
        os.chdir("/")
    print("  commands, pre-training, fill-mask, load, records: as expected", flush=True)


if __name__ == "__main__":
    main()
