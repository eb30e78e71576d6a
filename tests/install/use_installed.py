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
PIP = "python -m pip install --quiet --disable-pip-version-check"
LENGTHS = "--max_seq_length=16 --max_predictions_per_seq=2"
LEARN = "official-bert learn-vocabulary --input_file=text.txt --vocab_file=learned.txt --vocab_size=40"


def run(command: str, *arguments: str, code: int = 0) -> str:
    """Runs a program of this environment and returns its output. Another exit code than `code` ends the check."""
    program, *words = [*command.split(), *arguments]
    done = subprocess.run([SCRIPTS / program, *words], capture_output=True, text=True, check=False)
    if done.returncode != code:
        raise SystemExit(f"error: {command} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def install(wheel: str, extras: str) -> None:
    start = time.monotonic()
    requirement = f"{wheel}[{extras}]" if extras else wheel
    run(PIP, requirement, "-c", "constraints.txt")
    folder = pathlib.Path(next(path for path in sys.path if path.endswith("site-packages")))
    size = sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())
    seconds = time.monotonic() - start
    print(f"  pip install [{extras}]: {seconds:.0f} s, {size / 1e6:,.0f} MB in site-packages", flush=True)


def write(name: str, text: str) -> None:
    pathlib.Path(name).write_text(text, encoding="utf-8")


def lowest() -> set[str]:
    """Returns pins of the lowest versions that the installed wheel accepts."""
    bounds = (re.match(r"([\w.-]+).*?>=([\d.]+)", each) for each in importlib.metadata.requires("official-bert") or [])
    return {f"{bound[1]}=={bound[2]}" for bound in bounds if bound}


def check_commands() -> None:
    commands = run("official-bert --help").partition("\ncommands:\n")[2].partition("\n\n")[0]
    listed = re.findall(r"^  ([a-z-]+) ", commands, re.MULTILINE)
    assert len(listed) > 12, listed
    for name in listed:
        assert f"official-bert {name}" in run(f"official-bert {name} --help"), name
    assert "serve" in run("official-bert sevre", code=1)


def check_plain(folder: str) -> None:
    assert "pip install 'official-bert[serve] @ file://" in run(f"official-bert serve --model=a={folder}", code=1)
    assert "pip install 'official-bert[data] @ file://" in run(LEARN, code=1)
    run("python -c", WRITE_RECORDS)
    config = {"vocab_size": len(WORDS), "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    write("config.json", json.dumps({**config, "intermediate_size": 16, "max_position_embeddings": 32}))
    # A recipe of the installed configs, with a smaller model.
    train = "official-bert pretrain --flagfile=configs/cpu_10_minutes.flagfile --input_file=hand.tfrecord --do_train"
    train += " --bert_config_file=config.json --vocab_file=vocab.txt --output_dir=model --train_batch_size=4"
    assert "the run is in model" in run(f"{train} {LENGTHS} --num_train_steps=2 --num_warmup_steps=1")
    assert "cat" in run("official-bert fill-mask --model_dir=model --top_k=18", "the [MASK] sat .")
    run("python -c", LOAD)


def check_data() -> None:
    run(LEARN)
    vocab = "--vocab_file=learned.txt"
    run(f"official-bert make-records --input_file=text.txt --output_file=made.tfrecord {vocab} {LENGTHS}")
    assert "errors 0" in run(f"official-bert verify-records --input_file=made.tfrecord {vocab}")


def check_exports() -> None:
    """Fine-tunes a model, exports it, and queries the exports as files and through a server."""
    rows = [f"the {word},{'animal' if word in ('cat', 'dog') else 'place'}" for word in "cat dog mat sun".split() * 8]
    write("train.csv", "text,label\n" + "\n".join(rows) + "\n")
    write("asked.csv", "text\n" + "\n".join(["the cat", "a", "the mat . " * 9]))
    data = "--task=table --train_file=train.csv --eval_file=train.csv --init=model --max_seq_length=16"
    run(f"official-bert finetune {data} --do_train --do_eval --num_train_epochs=1 --output_dir=tuned")
    flags = "--format=saved_model,onnx,litert --eval_file=train.csv --export_dir=out"
    run(f"official-bert export --model_dir=tuned {flags}")
    labels = []
    for each in ("saved_model", "onnx"):
        run(f"official-bert predict --export_dir=out/{each} --input_file=asked.csv --output_file={each}.jsonl")
        lines = pathlib.Path(f"{each}.jsonl").read_text(encoding="utf-8").splitlines()
        labels.append([json.loads(line)["label"] for line in lines])
        assert "answers" in run(f"official-bert check-export out/{each}")
    assert len(labels[0]) == 3, labels
    assert labels[0] == labels[1]
    command = [SCRIPTS / "official-bert", "serve", "--model=out/saved_model", "--model=out/onnx", "--port=0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr
        ready = next((line for line in server.stderr if '"event":"ready"' in line), None)
        assert ready, "the server did not start"
        for each in ("saved_model", "onnx"):
            url = f"{json.loads(ready)['url']}/v1/models/{each}"
            assert "answers" in run(f"official-bert check-export --export_dir=out/{each} {url}")
        server.send_signal(signal.SIGTERM)
        said = server.stderr.read()
        assert server.wait() == 0, said
        assert "Traceback" not in said, said


def main() -> None:
    wheel = str(next(pathlib.Path(sys.argv[1]).resolve().glob("*.whl")))
    pins: set[str] = set()
    print(f"Python {sys.version.split()[0]}", flush=True)
    if "--lowest" in sys.argv:
        run(PIP, "--no-deps", wheel)
        pins = lowest()
        print(" ", *pins, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write("vocab.txt", "\n".join(WORDS) + "\n")
        write("text.txt", TEXT)
        write("constraints.txt", "\n".join(pins))
        install(wheel, "")
        check_commands()
        missing = run("official-bert fill-mask --model_dir=m a", code=1)
        assert "pip install 'official-bert[tensorflow] @ file://" in missing
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
